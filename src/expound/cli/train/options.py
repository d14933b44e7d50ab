"""The options shared by all commands of `expound train`, and the run they start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expound.cli.shared import options
from expound.cli.shared.checks import check
from expound.cli.shared.console import console, say, silence_libraries
from expound.cli.shared.reading import judging_options, say_columns, say_split_sizes
from expound.cli.shared.stopping import set_stop_message
from expound.cli.shared.threads import Threads, hidden_size, set_threads
from expound.cli.train.control import print_difference, print_over_seeds, require_effect
from expound.cli.train.next_steps import print_change, say_next_commands
from expound.data.provenance import RECORD, read_record
from expound.errors import ExpoundError, check_choice

if TYPE_CHECKING:
    from expound.recipes import Recipe
    from expound.recipes.search import Search
    from expound.training import RunOptions, TrainResult

Model = Annotated[str | None, typer.Option("--model", "-m", help="Folder or hub name of the model to start from.")]
Config = Annotated[
    str | None, typer.Option(help="Train from scratch instead: tiny, small, or the .json file of a configuration.")
]
TrainSplit = Annotated[str, typer.Option(help="The split to train on.")]
DevSplit = Annotated[str, typer.Option(help="The split that selects the best model.")]
Epochs = Annotated[
    float | None, typer.Option(min=0, help="Number of epochs. Default: the recipe's (baseline 3); from scratch 10.")
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        "--lr",
        min=0,
        help="Peak learning rate. Default: the recipe's (baseline 5e-5); from scratch 1e-3.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Examples per step and process. Default: the recipe's (usually 32).")
]
EvalSteps = Annotated[
    int | None, typer.Option(min=1, help="Evaluate and save every N steps. Default: every epoch.", metavar="N")
]
ReportTo = Annotated[
    str | None, typer.Option(help="A tracker supported by transformers' Trainer, such as tensorboard or wandb.")
]
Argument = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other argument of transformers' Trainer, as NAME=VALUE; repeatable."),
]

Control = Annotated[
    bool,
    typer.Option(
        "--control",
        help="Also train the same steps without the recipe's terms, and print the difference they made.",
        rich_help_panel="Recipe",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        help="Train once for each of these seeds, such as 0,1,2, in OUTPUT-DIR/seed-N, and print means over them; with "
        "--control also the difference over seeds. Examples are sampled with --seed. With --search see there.",
        rich_help_panel="Recipe",
    ),
]


def run(
    recipe: Recipe,
    search: Search | None,
    run_options: RunOptions,
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
    control: Control = False,
    seeds: Seeds = None,
    quiet: options.Quiet = False,
    threads: Threads = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    rationale_column: options.RationaleColumn = None,
    template: options.Template = None,
    labels: options.Labels = None,
) -> None:
    """Train with a recipe and print the metrics on the dev split.

    The best model by the dev split is saved, together with metrics.json, history.json and expound_run.json. Run the
    same command again to resume after an interruption; a finished run is not repeated.
    """
    from accelerate import PartialState

    import expound

    silence_libraries()
    if control:
        require_effect(recipe)
    folders = make_seed_folders(seeds, output_dir) or {run_options.seed: output_dir}
    start = choose_starting_point(model, config)
    prompt = options.prompt_options(template, labels)
    set_threads(threads, hidden_size(start), run_options.device)
    set_stop_message(f"checkpoints are saved in {output_dir}: resume with the same command")
    named = options.column_options(text_column, text_pair_column, label_column, rationale_column)
    say_columns(data, named)
    train = expound.load_data(data, train_split, limit=limit, seed=run_options.seed, **named)
    dev = expound.load_data(data, dev_split, limit=limit, seed=run_options.seed, **named)
    say_split_sizes(data, named, {train_split: len(train), dev_split: len(dev)})
    arguments = {
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "per_device_train_batch_size": batch_size,
        "eval_steps": eval_steps,
        "disable_tqdm": quiet or None,
        "report_to": report_to,
    }
    trainer_args = {name: value for name, value in arguments.items() if value is not None}
    trainer_args |= parse_trainer_arguments(argument)
    source, run_options = load_prompted(recipe, start, run_options, prompt)
    results: dict[int, TrainResult] = {}
    for seed, folder in folders.items():
        seeded = replace(run_options, seed=seed)
        results[seed] = (search or recipe).train(source, train, dev, folder, seeded, arguments=trainer_args)
        if not results[seed].finished:
            break
    processes = PartialState()
    processes.wait_for_everyone()
    processes.destroy_process_group()
    values = []
    for seed, result in results.items():
        if not processes.is_main_process and result.finished:
            continue
        print_report(result, dev_split, len(dev))
        if control:
            seeded = replace(run_options, seed=seed)
            values.append(print_difference(recipe, result, source, train, dev, seeded, trainer_args))
    if processes.is_main_process:
        if len(results) > 1:
            print_over_seeds(recipe, list(results.values()), values)
        elif not control:
            print_change(recipe, result, start, dev, run_options)
        judged = judging_options(data, dev_split, named)
        say_next_commands(recipe, result, start, judged, {"--template": template, "--labels": labels})


def load_prompted(
    recipe: Recipe, start: str, run_options: RunOptions, prompt: Mapping[str, Any]
) -> tuple[Any, RunOptions]:
    """Return the source and the options of a run: the prompted model with its tokenizer if there is a prompt."""
    from expound.recipes.base import load_explained_model

    if not prompt:
        return start, run_options
    return load_explained_model(recipe.name, start, run_options, prompt=prompt), replace(
        run_options, processing_class=None
    )


def make_seed_folders(seeds: str | None, folder: Path) -> dict[int, Path]:
    """Return the folder of each seed in a text such as 0,1,2. Raises ExpoundError for other texts."""
    if seeds is None:
        return {}
    parts = seeds.split(",")
    if len(parts) < 2 or not all(part.strip().isdecimal() for part in parts):
        raise ExpoundError(f"expected at least two --seeds separated by commas, such as 0,1,2, got {seeds!r}")
    return {int(part): folder / f"seed-{int(part)}" for part in parts}


def check_command(values: Mapping[str, Any], device: str | None) -> None:
    """Check a command's options without heavy imports. Raises ExpoundError for a mistake."""
    start = choose_starting_point(values.get("model"), values.get("config"))
    if start.endswith(".json") and not Path(start).exists():
        raise ExpoundError(f"the configuration {start} does not exist")
    check(models=[] if values.get("config") else [start], data=values["data"])
    options.prompt_options(values.get("template"), values.get("labels"))
    if device not in (None, "cpu", "cuda"):
        raise ExpoundError(f"expected the device cpu or cuda, got {device!r}; CUDA_VISIBLE_DEVICES chooses among GPUs")


def choose_starting_point(model: str | None, config: str | None) -> str:
    """Return the model or the configuration, whichever was given."""
    if (model is None) == (config is None):
        raise ExpoundError("expected either --model (fine-tune it) or --config (train from scratch)")
    if config is not None and not config.endswith(".json"):
        from expound.training.loop.options import SIZES

        check_choice("configuration", config, [*SIZES, "FILE.json"])
    return model or config or ""


def parse_trainer_arguments(options: list[str] | None) -> dict[str, Any]:
    """Parse NAME=VALUE options; numbers, true, false, none and JSON become Python values."""
    import json

    arguments: dict[str, Any] = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not equals:
            raise ExpoundError(f"expected --set NAME=VALUE, got {option!r}")
        try:
            arguments[name] = json.loads({"none": "null"}.get(value.lower(), value))
        except ValueError:
            arguments[name] = value
    return arguments


def require_finished(result: TrainResult) -> None:
    """Exit with the code of the signal if a run was stopped, after a message how to resume."""
    if not result.finished:
        say(f"stopped after step {result.steps}: resume with the same command")
        raise typer.Exit(128 + (result.signal or 0))


def print_search(search: Mapping[str, Any]) -> None:
    """Print the runs of a search with their figures, and which one was chosen."""
    from expound.reports.table import Table

    rows = []
    for run in search["runs"]:
        values = {name: run[name] for name in search["chosen"]}
        note = ""
        if values == search["chosen"]:
            note = "chosen"
        elif not run["feasible"]:
            note = "bound not kept"
        figures = ["–" if run[name] is None else f"{run[name]:.4f}" for name in ("value", "task_value")]
        rows.append((*map(str, values.values()), *figures, note))
    console().print(Table((*search["chosen"], search["figure"], search["task_metric"], ""), rows))


def say_bounds(result: TrainResult) -> None:
    """Say which bounds of er_constrained follow from a run on the explanation loss alone."""
    name = "rationale_alignment"
    lowest = dict[str, float]()
    for entry in result.history:
        for key in entry.keys() & {name, f"eval_{name}"}:
            lowest[key] = min(entry[key], lowest.get(key, math.inf))
    if len(lowest) == 2:
        # Ferreira et al. 2024, section 3.4
        bounds = f"--bound {1.5 * lowest[name]:.3g} --dev-bound {lowest[f'eval_{name}']:.3g}"
        say(f"for er_constrained with the same guide: {bounds} (means over several seeds are better)")


def _describe_loss(result: TrainResult) -> str:
    """Return the formula of the loss, empty if all weights are 1."""
    objectives = read_record(Path(result.output_dir) / RECORD)["config"].get("objectives", {})
    terms, is_weighted = [], False
    for name, params in objectives.items():
        weight = params.get("weight", 1)
        terms.append(f"{weight:g} · {name}")
        is_weighted = is_weighted or weight != 1
    return f"; loss = {' + '.join(terms)}" if is_weighted else ""


def _dev_evaluations(result: TrainResult) -> list[dict[str, Any]]:
    """Return the logged evaluations of a finished run; step 0 is an evaluation before training."""
    if not result.finished or not (Path(result.output_dir) / "history.json").exists():
        return []
    return [entry for entry in result.history if "eval_loss" in entry and "epoch" in entry]


def _describe_best_epoch(result: TrainResult) -> str:
    """Return which epoch was kept, empty if it is unknown."""
    evaluations = [entry for entry in _dev_evaluations(result) if entry.get("step") != 0]
    epochs = [entry["epoch"] for entry in evaluations if entry["eval_loss"] == result.metrics.get("loss")]
    if not epochs:
        return ""
    last = evaluations[-1]["epoch"]
    arguments = read_record(Path(result.output_dir) / RECORD)["config"].get("arguments", {})
    planned = arguments.get("num_train_epochs", 3)
    # The last evaluation of a whole run can lie before its end, so half an epoch may be missing.
    stopped = f" (stopped early: {planned:g} were planned)" if last < planned - 0.5 else ""
    chosen_by = arguments.get("metric_for_best_model") or "loss"
    return f", best epoch {epochs[0]:g} of {last:g} by {chosen_by}{stopped}"


def print_report(result: TrainResult, split: str, count: int) -> None:
    """Print a search's runs, and the metrics on `count` rows of a split; exit with the signal's code if stopped."""
    require_finished(result)
    record = read_record(Path(result.output_dir) / RECORD)
    if "search" in record:
        print_search(record["search"])
    # A recipe may take a sample of the dev rows that are given.
    rows = record["config"].get("data", {}).get("dev", {}).get("rows", count)
    line = f"{split} ({rows} rows){_describe_best_epoch(result)}{_describe_loss(result)}:"
    console().print(line, markup=False, highlight=False, soft_wrap=True)
    before = next((entry for entry in _dev_evaluations(result) if entry.get("step") == 0), {})
    for name, value in result.metrics.items():
        line = f"{name}: –" if value is None else f"{name}: {value:.4f}"
        if before.get(f"eval_{name}") is not None:
            line += f" (before training {before[f'eval_{name}']:.4f})"
        console().print(line)
    if result.metrics.get("feasible") == 0:
        say("no epoch satisfied the bound: discard this run, and train with another seed or a larger bound")
    say(f"model: {Path(result.output_dir)}")
    if record.get("recipe") == "er_bound":
        say_bounds(result)
