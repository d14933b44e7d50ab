"""`exegete compare`: which explanation of a model can be trusted?"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from exegete.cli import options
from exegete.cli.console import console, hush, say


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
        typer.Option("--metrics", help="Comma-separated ids; `exegete metrics` lists them. Default: all that apply."),
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
    unit: Annotated[
        Any,
        typer.Option(
            "--unit", help="Generation: token, word, sentence or source. Default: source where every example has some."
        ),
    ] = None,
    quiet: options.Quiet = False,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    rationale_column: options.RationaleColumn = None,
) -> None:
    """Explain a dataset by many methods, judge them, and show which one to trust.

    Writes results.parquet (a row per example and method), table.csv, table.tex, attributions/ and report.html. Run it
    again with the same --output-dir after an interruption and it goes on where it stopped.

    Example: exegete compare --model my-model --data sst:data/sst --limit 200 --methods
    integrated_gradients,occlusion,random --output-dir comparison

    Example: exegete compare --task generation --model my-chat-model --data jsonl:chats.jsonl --output-dir comparison
    """
    import exegete
    from exegete.cli.options import columns, split_ids, target_of
    from exegete.errors import ExegeteError
    from exegete.metrics import preset as preset_metrics
    from exegete.reports.highlighted.pieces import clean
    from exegete.reports.tables.verdict import summary, verdict
    from exegete.reports.terminal import table

    hush()
    if preset is not None and metrics is not None:
        raise ExegeteError("--preset and --metrics exclude each other")
    chosen = split_ids(metrics) if preset is None else preset_metrics(preset)
    given = options.prompt(template, labels) | {"incomplete": incomplete} | ({} if task is None else {"task": task})
    folder = output_dir or Path(f"comparison-{datetime.now():%Y-%m-%d-%H%M%S}")
    if output_dir is None:
        options.writable(folder)
        say(f"results go to {folder} (--output-dir {folder} goes on after an interruption)")
    explained = exegete.load(model, device=device, dtype=dtype, max_length=max_length, **given)
    named = columns(text_column, text_pair_column, label_column, rationale_column)
    examples = exegete.load_data(data, split, limit=limit, seed=seed, **named)
    comparison = exegete.compare(
        explained,
        examples,
        split_ids(methods),
        chosen,
        target=target_of(target, explained.labels),
        unit=unit,
        batch_size=batch_size,
        seed=seed,
        output_dir=folder,
        allow_nan=allow_nan,
        show_progress=not quiet,
    )
    board = comparison.leaderboard
    console().print(clean(verdict(board)), markup=False, highlight=False)
    console().print(table(board))
    say(summary(board))
    say(f"report: {folder / 'report.html'}")
