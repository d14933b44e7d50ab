"""The options that all commands of `exegete train` share, and the training run behind them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exegete.cli.shared import options
from exegete.cli.shared.checks import check, check_arguments
from exegete.cli.shared.console import console, hush, say
from exegete.cli.shared.reading import say_columns, say_division
from exegete.cli.shared.stopping import keeping
from exegete.cli.shared.threads import Threads, choose, hidden_size
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.recipes import Recipe
    from exegete.training import RunOptions, TrainResult

Model = Annotated[str | None, typer.Option("--model", "-m", help="Folder or hub name of the model to start from.")]
Config = Annotated[
    str | None,
    typer.Option("--config", help="Train from scratch instead: tiny, small or a configuration's .json file."),
]
TrainSplit = Annotated[str, typer.Option("--train-split", help="The split to train on.")]
DevSplit = Annotated[str, typer.Option("--dev-split", help="The split on which the best model is chosen.")]
Epochs = Annotated[
    float | None,
    typer.Option("--epochs", min=0, help="Passes over the data. Default: the method's (baseline 3), new models 10."),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate", "--lr", min=0, help="Its peak. Default: the method's (baseline 5e-5), new models 1e-3."
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help="Examples a step, of each process. Default: the method's (most: 32)."),
]
EvalSteps = Annotated[
    int | None, typer.Option("--eval-steps", min=1, help="Evaluate and save every so many steps. Default: every epoch.")
]
ReportTo = Annotated[
    str | None, typer.Option("--report-to", help="A tracker of transformers' Trainer, as tensorboard or wandb.")
]
Argument = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other argument of transformers' Trainer, as NAME=VALUE; may be repeated."),
]


def run(
    recipe: Recipe,
    chosen: RunOptions,
    *,
    data: options.Data,
    output_dir: options.OutputDir,
    model: Model = None,
    config: Config = None,
    train_split: TrainSplit = "train",
    dev_split: DevSplit = "dev",
    epochs: Epochs = None,
    learning_rate: LearningRate = None,
    batch_size: BatchSize = None,
    eval_steps: EvalSteps = None,
    limit: options.Limit = None,
    report_to: ReportTo = None,
    argument: Argument = None,
    quiet: options.Quiet = False,
    threads: Threads = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    rationale_column: options.RationaleColumn = None,
) -> None:
    """Trains by a recipe and prints the dev figures.

    The best model on the dev split is kept, with metrics.json, history.json and exegete_run.json beside it. The same
    command again goes on after an interruption, and does not repeat a finished run.
    """
    from accelerate import PartialState

    import exegete

    hush()
    start = starting_point(model, config)
    choose(threads, hidden_size(start), chosen.device)
    keeping(f"checkpoints are kept in {output_dir}: the same command goes on")
    named = options.columns(text_column, text_pair_column, label_column, rationale_column)
    say_columns(data, named)
    train = exegete.load_data(data, train_split, limit=limit, seed=chosen.seed, **named)
    dev = exegete.load_data(data, dev_split, limit=limit, seed=chosen.seed, **named)
    say_division(data, named, {train_split: len(train), dev_split: len(dev)})
    arguments = {
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "per_device_train_batch_size": batch_size,
        "eval_steps": eval_steps,
        "disable_tqdm": quiet or None,
        "report_to": report_to,
    }
    given = {name: value for name, value in arguments.items() if value is not None} | trainer_arguments(argument)
    result = recipe.train(start, train, dev, output_dir, chosen, arguments=given)
    processes = PartialState()
    processes.wait_for_everyone()
    processes.destroy_process_group()
    if processes.is_main_process or not result.finished:
        report(result, f"{dev_split} ({len(dev)} rows)")


def check_command(given: Mapping[str, Any], device: str | None) -> None:
    """Looks at a command's own options before anything heavy is imported. Raises ExegeteError for what is wrong."""
    start = starting_point(given.get("model"), given.get("config"))
    if start.endswith(".json") and not Path(start).exists():
        raise ExegeteError(f"there is no configuration at {start}")
    check(models=[] if given.get("config") else [start], data=given["data"])
    if device not in (None, "cpu", "cuda"):
        raise ExegeteError(f"expected the device cpu or cuda, got {device!r}; CUDA_VISIBLE_DEVICES chooses among GPUs")
    check_arguments(list(trainer_arguments(given.get("argument"))))


def starting_point(model: str | None, config: str | None) -> str:
    """The one of both that was given."""
    chosen = [source for source in (model, config) if source is not None]
    if len(chosen) != 1:
        raise ExegeteError("expected either --model (fine-tune it) or --config (train from scratch)")
    if config is not None and not config.endswith(".json"):
        from exegete.errors import unknown
        from exegete.training.loop.options import SIZES

        if config not in SIZES:
            raise unknown("configuration", config, [*SIZES, "FILE.json"])
    return chosen[0]


def trainer_arguments(given: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE as arguments: numbers, true, false and none as such."""
    import json

    arguments: dict[str, Any] = {}
    for word in given or []:
        name, equals, value = word.partition("=")
        if not equals:
            raise ExegeteError(f"expected NAME=VALUE behind --set, got {word!r}")
        try:
            arguments[name] = json.loads({"none": "null"}.get(value.lower(), value))
        except ValueError:
            arguments[name] = value
    return arguments


def require_finished(result: TrainResult) -> None:
    """Ends the command with the code of its signal where a run was stopped, and says where it goes on."""
    if not result.finished:
        say(f"stopped after step {result.steps}: the same command goes on from there")
        raise typer.Exit(128 + (result.signal or 0))


def _sum(result: TrainResult) -> str:
    """The loss as a sum of its terms, where a weight is not 1."""
    import json

    record = json.loads((Path(result.folder) / "exegete_run.json").read_text(encoding="utf-8"))
    terms = {name: each.get("weight", 1) for name, each in record["config"].get("objectives", {}).items()}
    if all(weight == 1 for weight in terms.values()):
        return ""
    return f"; loss = {' + '.join(f'{weight:g} · {name}' for name, weight in terms.items())}"


def _evaluations(result: TrainResult) -> list[dict[str, Any]]:
    """What a finished run logged of the dev split, from before training (step 0) on where that was evaluated."""
    if not result.finished or not (Path(result.folder) / "history.json").exists():
        return []
    return [entry for entry in result.history if "eval_loss" in entry and "epoch" in entry]


def _best_epoch(result: TrainResult) -> str:
    """Which epoch was kept, where a finished run says it: the one whose loss or other criterion the end has."""
    judged = [entry for entry in _evaluations(result) if entry.get("step") != 0]
    same = [entry["epoch"] for entry in judged[:-1] if entry["eval_loss"] == result.metrics.get("loss")]
    return f", best epoch {same[0]:g} of {judged[-1]['epoch']:g}" if same else ""


def report(result: TrainResult, judged: str = "") -> None:
    """The dev figures on standard output, under the rows they are of; a stopped run ends with its signal's code."""
    require_finished(result)
    if judged:
        console().print(f"{judged}{_best_epoch(result)}{_sum(result)}:", markup=False, highlight=False)
    before = next((entry for entry in _evaluations(result) if entry.get("step") == 0), {})
    for name, value in result.metrics.items():
        first = before.get(f"eval_{name}")
        more = "" if first is None else f" (before training {first:.4f})"
        console().print(f"{name}: {'–' if value is None else format(value, '.4f')}{more}")
    if result.metrics.get("feasible") == 0:
        say("no epoch kept the bound: discard this run, train another seed or loosen the bound")
    say(f"model: {Path(result.folder)}")
