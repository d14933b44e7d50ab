"""`expound compare`: which attribution method can be trusted for a model and dataset?"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from expound.cli.shared import options, reading
from expound.cli.shared.checks import check
from expound.cli.shared.console import say, show_difference, show_leaderboard, silence_libraries
from expound.cli.shared.stopping import set_stop_message
from expound.cli.shared.threads import Threads, hidden_size, set_threads
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from expound.evaluation.compare.comparison import Comparison


def is_comparison(path: str) -> bool:
    """Return whether the path is the folder of a finished comparison, rather than a model."""
    return (Path(path).expanduser() / "results.parquet").exists()


def compare(
    model: options.Model,
    data: options.Data,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            callback=options.require_writable,
            help="Folder for the results. Default: a new folder named by date.",
        ),
    ] = None,
    split: options.SplitOrAll = None,
    methods: options.Methods = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated ids (see `expound metrics`); the first decides the verdict. Default: all that apply."
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A paper's metrics and settings: ivra, er, aml or regex.")] = None,
    target: options.Target = "predicted",
    limit: options.Limit = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    max_length: options.MaxLength = None,
    template: options.Template = None,
    labels: options.Labels = None,
    allow_nan: options.AllowNan = False,
    allow_incomplete_weights: options.Incomplete = False,
    task: options.Task = None,
    unit: options.Unit = None,
    stride: options.Stride = None,
    against: Annotated[
        str | None,
        typer.Option(help="Another model, or the folder of a finished comparison: test the differences from it."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the comparison in the output folder.")
    ] = False,
    quiet: options.Quiet = False,
    threads: Threads = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    rationale_column: options.RationaleColumn = None,
) -> None:
    """Explain a dataset with several methods, compute metrics, and show which method to trust.

    Writes results.parquet (one row per example and method), table.csv, table.tex, attributions/ and report.html. To
    resume after an interruption, run it again with the same --output-dir. --against tests the difference of each
    method and metric on the same examples, writes difference.csv, and begins the report with these differences.

    Example: expound compare --model my-model --data sst:data/sst --limit 200 --methods
    integrated_gradients,occlusion,random --output-dir comparison

    Example: expound compare --model guided --data mine.csv --against judged-before --output-dir judged

    Example: expound compare --task generation --model my-chat-model --data jsonl:chats.jsonl --output-dir comparison
    """
    if preset is not None and metrics is not None:
        raise ExpoundError("--preset and --metrics cannot be combined")
    others = [] if against is None or is_comparison(against) else [against]
    check(
        models=[model, *others], data=data, methods=methods, metrics=metrics, preset=preset, device=device, dtype=dtype
    )
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "max_length": max_length}
    loading |= {"allow_incomplete_weights": allow_incomplete_weights}
    if task is not None:
        loading["task"] = task
    import expound
    from expound.evaluation.compare.shards import remove_comparison
    from expound.metrics import preset as preset_metrics

    silence_libraries()
    chosen = options.split_ids(metrics) if preset is None else preset_metrics(preset)
    folder = output_dir or Path(f"comparison-{datetime.now():%Y-%m-%d-%H%M%S}")
    if output_dir is None:
        options.require_writable(folder)
        say(f"results are written to {folder}")
    set_stop_message(f"finished examples are saved in {folder}: resume with the same command and --output-dir {folder}")
    explained = options.load_model(model, template, labels, **loading)
    set_threads(threads, hidden_size(explained), device)
    named = options.column_options(text_column, text_pair_column, label_column, rationale_column)
    examples = reading.load_examples(data, split, limit, seed, named)
    if overwrite:
        remove_comparison(folder)

    def compare_model(judged: Any, into: Path) -> Comparison:
        return expound.compare(
            judged,
            examples,
            options.split_ids(methods),
            chosen,
            target=options.parse_target(target, judged.labels),
            unit=cast(Any, unit),
            batch_size=batch_size,
            seed=seed,
            output_dir=into,
            allow_nan=allow_nan,
            stride=stride,
            show_progress=False if quiet else None,
        )

    comparison = compare_model(explained, folder)
    show_leaderboard(comparison.leaderboard, folder)
    if against is not None:
        if others:
            other = options.load_model(against, template, labels, **loading)
            before = compare_model(other, folder / "against")
        else:
            before = expound.Comparison.load(against)
        comparison.to_html(folder / "report.html", against=before)
        show_difference(comparison.difference(before), folder, against, model)
