"""`expound demo`: train a small model on generated data and compare methods on it, without any download."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from expound.cli.demo import chat
from expound.cli.shared import options
from expound.cli.shared.checks import check
from expound.cli.shared.console import say, show_leaderboard, silence_libraries
from expound.cli.shared.stopping import set_stop_message
from expound.cli.shared.threads import Threads, hidden_size, set_threads
from expound.cli.train.options import require_finished
from expound.errors import ExpoundError

SIZE = 8000
SCALE = "EXPOUND_SCALE"
"""Environment variable that scales the size of the demo (default 1); tests use smaller values."""


def demo(
    output_dir: Annotated[
        Path,
        typer.Option(
            "--output-dir", "-o", callback=options.require_writable, help="Folder for the model and the report."
        ),
    ] = Path("demo"),
    methods: options.Methods = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of texts to explain.")] = 200,
    seed: options.Seed = 0,
    device: options.Device = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A chat model (folder, hub name, GGUF file) that answers three questions."),
    ] = None,
    quiet: options.Quiet = False,
    threads: Threads = None,
) -> None:
    """Train a small transformer on generated reviews with known evidence, and compare methods on it.

    With --model, training is left out: a real chat model answers three questions about four short documents, and each
    answer is shown with its source.

    Example: expound demo --output-dir demo

    Example: expound demo --model SmolLM2-135M-Instruct.gguf --output-dir demo-chat
    """
    check(methods=methods, device=device)
    from expound.reports.text import format_duration

    silence_libraries()
    scale, begun = _scale(), time.perf_counter()
    set_threads(threads, hidden_size("tiny" if model is None else model), device)
    set_stop_message(f"finished steps are saved in {output_dir}: resume with the same command")
    if model is not None:
        chat.run(output_dir, model, device)
    else:
        _run_reviews(output_dir, options.split_ids(methods), limit, seed, device, scale, quiet)
    say(f"the demo took {format_duration(time.perf_counter() - begun)}")


def _run_reviews(
    output_dir: Path, methods: list[str] | None, limit: int, seed: int, device: str | None, scale: float, quiet: bool
) -> None:
    """Train a classifier of generated reviews unless it exists, and compare methods on it."""
    import expound
    from expound.training import train_baseline

    size = max(100, round(scale * SIZE))
    train = expound.load_data("generated", "train", seed=seed, size=size)
    dev = expound.load_data("generated", "dev", seed=seed, size=size)
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
    comparison = expound.compare(
        expound.load(output_dir / "model", device=device),
        expound.load_data("generated", "test", limit=limit, seed=seed),
        methods,
        seed=seed,
        output_dir=output_dir / "comparison",
        show_progress=False if quiet else None,
    )
    show_leaderboard(comparison.leaderboard, output_dir / "comparison")


def _scale() -> float:
    value = os.environ.get(SCALE, "1")
    try:
        return float(value)
    except ValueError as error:
        raise ExpoundError(f"{SCALE} is {value!r}: expected a number (1 is the default size)") from error
