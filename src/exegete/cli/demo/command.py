"""`exegete demo`: the main job on a corpus and a model that need nothing from outside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from exegete.cli.demo import citing
from exegete.cli.shared import options
from exegete.cli.shared.checks import check
from exegete.cli.shared.console import hush, show
from exegete.cli.shared.stopping import keeping
from exegete.cli.shared.threads import Threads, choose, hidden_size
from exegete.cli.train.options import require_finished
from exegete.errors import ExegeteError, unknown

SIZE = 8000
SCALE = "EXEGETE_SCALE"
"""The variable that says how large a demo is, 1 is usual: tests run smaller ones."""


def demo(
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", callback=options.writable, help="Where model and report go.")
    ] = Path("demo"),
    methods: options.Methods = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Texts to explain.")] = 200,
    seed: options.Seed = 0,
    device: options.Device = None,
    task: Annotated[
        str | None, typer.Option("--task", help="generation: a small Llama that answers questions on six notes.")
    ] = None,
    quiet: options.Quiet = False,
    threads: Threads = None,
) -> None:
    """Train a small transformer on generated reviews, whose evidence is known, and compare every method on it.

    With --task generation it learns to answer questions on notes (in three minutes of one core); shown is how often
    each method cites the notes that an answer needs: one, two that say the same, or two that lead to it one by one.

    Example: exegete demo --output-dir demo

    Example: exegete demo --task generation --output-dir demo-chat
    """
    check(methods=methods, device=device)
    if task not in (None, "generation"):
        raise unknown("task of the demo", task, ("generation",))
    import exegete
    from exegete.cli.shared.options import split_ids
    from exegete.training import train_baseline

    hush()
    scale = _scale()
    choose(threads, hidden_size("tiny"), device)
    keeping(f"what is finished is kept in {output_dir}: the same command goes on")
    if task is not None:
        citing.run(output_dir, split_ids(methods), limit, seed, device, scale, quiet)
        return
    train, dev = (
        exegete.load_data("generated", split, seed=seed, size=max(100, round(scale * SIZE)))
        for split in ("train", "dev")
    )
    trained = train_baseline(
        "tiny",
        train,
        dev,
        output_dir / "model",
        arguments={"learning_rate": 2e-3, "num_train_epochs": 14, "use_cpu": device == "cpu", "disable_tqdm": quiet},
        masked_share=0.1,
        seed=seed,
    )
    require_finished(trained)
    comparison = exegete.compare(
        exegete.load(output_dir / "model", device=device),
        exegete.load_data("generated", "test", limit=limit, seed=seed),
        split_ids(methods),
        seed=seed,
        output_dir=output_dir / "comparison",
        show_progress=False if quiet else None,
    )
    show(comparison.leaderboard, output_dir / "comparison")


def _scale() -> float:
    given = os.environ.get(SCALE, "1")
    try:
        return float(given)
    except ValueError as error:
        raise ExegeteError(f"{SCALE} is {given!r}: expected a number, 1 is the usual size") from error
