"""`expound push`: upload a trained model or explainer to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from expound.cli.shared.checks import check
from expound.cli.shared.console import say


def push(
    folder: Annotated[Path, typer.Argument(help="The output folder of `expound train`.")],
    repository: Annotated[str, typer.Argument(help="The repository, user/name; created if it does not exist.")],
    result: Annotated[
        Path | None, typer.Option(help="The folder of a comparison, whose table is added to the model card.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as private.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the card and the list of files without uploading.")
    ] = False,
) -> None:
    """Upload a trained model or a learned explainer to the hub, with a model card. Log in with `hf auth login` first.

    Load it by its name: expound.load("user/name"), or --methods attributive_masking:user/name.

    Example: expound push runs/guided user/guided --result judged --dry-run
    """
    check(files=[folder, result])
    from expound.data import hub
    from expound.reports.hub_card import format_hub_card
    from expound.reports.tables.board_table import render_board_markdown

    table = ""
    if result is not None:
        from expound.evaluation.compare.comparison import Comparison

        table = render_board_markdown(Comparison.load(result).leaderboard)
    card = format_hub_card(folder, repository, table)
    if dry_run:
        typer.echo(card)
        for operation in hub.make_operations(folder, card):
            typer.echo(operation.path_in_repo)
        return
    say(f"pushed: {hub.push(folder, repository, card, private=private)}")
