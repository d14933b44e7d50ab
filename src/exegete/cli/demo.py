"""`exegete demo`: the main job on a corpus and a model that need nothing from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exegete.cli import options
from exegete.cli.console import console, hush, say

SIZE = 8000


def demo(
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", callback=options.writable, help="Where model and report go.")
    ] = Path("demo"),
    methods: options.Methods = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Texts to explain.")] = 200,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Train a small transformer on generated reviews, whose evidence is known, and compare every method on it.

    Example: exegete demo --output-dir demo
    """
    import exegete
    from exegete.cli.options import split_ids
    from exegete.reports.terminal import table
    from exegete.training import train_baseline

    hush()
    train, dev = (exegete.load_data("generated", split, seed=seed, size=SIZE) for split in ("train", "dev"))
    train_baseline(
        "tiny",
        train,
        dev,
        output_dir / "model",
        arguments={"learning_rate": 2e-3, "num_train_epochs": 14, "use_cpu": device == "cpu", "disable_tqdm": quiet},
        masked_share=0.1,
        seed=seed,
    )
    comparison = exegete.compare(
        exegete.load(output_dir / "model", device=device),
        exegete.load_data("generated", "test", limit=limit, seed=seed),
        split_ids(methods),
        seed=seed,
        output_dir=output_dir / "comparison",
        show_progress=not quiet,
    )
    console().print(table(comparison.leaderboard))
    say(f"report: {output_dir / 'comparison' / 'report.html'}")
