"""`expound people`: human studies of explanations."""

from __future__ import annotations

import typer

from expound.cli.shared.help import GroupedCommand
from expound_people.cli.power import power

app = typer.Typer(help="Run human studies of explanations in the browser.", no_args_is_help=True)
app.command(cls=GroupedCommand)(power)


@app.callback()
def _options() -> None:
    """Run human studies of explanations in the browser."""
