"""`exegete compare`: which explanation of a model can be trusted?"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from exegete.cli.shared import options, reading
from exegete.cli.shared.checks import check
from exegete.cli.shared.console import hush, say, show, show_difference
from exegete.cli.shared.stopping import keeping
from exegete.cli.shared.threads import Threads, choose, hidden_size
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.studies.compare.comparison import Comparison


def is_comparison(path: str) -> bool:
    """Whether a finished comparison is there rather than a model."""
    return (Path(path).expanduser() / "results.parquet").exists()


def compare(
    model: options.Model,
    data: options.Data,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", callback=options.writable, help="Where results go. Default: a new folder here, dated."
        ),
    ] = None,
    split: options.SplitOrAll = None,
    methods: options.Methods = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            help="Comma-separated ids (see `exegete metrics`); the first decides the verdict. Default: all that apply.",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="A paper's metrics and settings: ivra, er, aml or regex.")
    ] = None,
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
    incomplete: options.Incomplete = False,
    task: options.Task = None,
    unit: options.Unit = None,
    stride: options.Stride = None,
    against: Annotated[
        str | None,
        typer.Option("--against", help="A finished comparison's folder, or another model: print what changed from it."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another comparison in the folder.")] = False,
    quiet: options.Quiet = False,
    threads: Threads = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    rationale_column: options.RationaleColumn = None,
) -> None:
    """Explain a dataset by many methods, judge them, and show which one to trust.

    Writes results.parquet (a row per example and method), table.csv, table.tex, attributions/ and report.html. Run it
    again with the same --output-dir after an interruption and it goes on where it stopped. --against tests, for each
    method and metric, the difference on the same examples, and writes difference.csv.

    Example: exegete compare --model my-model --data sst:data/sst --limit 200 --methods
    integrated_gradients,occlusion,random --output-dir comparison

    Example: exegete compare --model guided --data mine.csv --against judged-before --output-dir judged

    Example: exegete compare --task generation --model my-chat-model --data jsonl:chats.jsonl --output-dir comparison
    """
    if preset is not None and metrics is not None:
        raise ExegeteError("--preset and --metrics exclude each other")
    others = [] if against is None or is_comparison(against) else [against]
    check(
        models=[model, *others], data=data, methods=methods, metrics=metrics, preset=preset, device=device, dtype=dtype
    )
    given = options.prompt(template, labels) | {"incomplete": incomplete} | ({} if task is None else {"task": task})
    import exegete
    from exegete.cli.shared.options import columns, split_ids, target_of
    from exegete.metrics import preset as preset_metrics
    from exegete.studies.compare.shards import remove_comparison

    hush()
    chosen = split_ids(metrics) if preset is None else preset_metrics(preset)
    folder = output_dir or Path(f"comparison-{datetime.now():%Y-%m-%d-%H%M%S}")
    if output_dir is None:
        options.writable(folder)
        say(f"results go to {folder}")
    keeping(f"judged examples are kept in {folder}: the same command with --output-dir {folder} goes on")
    explained = exegete.load(model, device=device, dtype=dtype, max_length=max_length, **given)
    choose(threads, hidden_size(explained), device)
    named = columns(text_column, text_pair_column, label_column, rationale_column)
    examples = reading.examples(data, split, limit, seed, named)
    if overwrite:
        remove_comparison(folder)

    def compared(judged: Any, into: Path) -> Comparison:
        return exegete.compare(
            judged,
            examples,
            split_ids(methods),
            chosen,
            target=target_of(target, judged.labels),
            unit=cast(Any, unit),
            batch_size=batch_size,
            seed=seed,
            output_dir=into,
            allow_nan=allow_nan,
            stride=stride,
            show_progress=False if quiet else None,
        )

    comparison = compared(explained, folder)
    show(comparison.leaderboard, folder)
    if against is not None:
        if others:
            other = exegete.load(against, device=device, dtype=dtype, max_length=max_length, **given)
            before = compared(other, folder / "against")
        else:
            before = exegete.Comparison.load(against)
        show_difference(comparison.difference(before), folder, against, model)
