"""`expound attack`: is the model robust to irrelevant changes of its inputs?"""

from __future__ import annotations

import math
from json import dumps
from typing import Annotated

import typer

from expound.cli.shared import options, reading
from expound.cli.shared.checks import check
from expound.cli.shared.console import console, silence_libraries
from expound.cli.shared.threads import Threads, hidden_size, set_threads

COUNTS = ("successes", "words_per_input", "queries")


def attack(
    model: options.Model,
    data: options.Data,
    split: options.SplitOrAll = None,
    limit: options.Limit = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of texts tried per example, including the original. Default: no limit."
        ),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated kinds of swaps: contraction (it is, it's), name (Mary, Anna), place (Paris, Rome), "
            "number (25, 24). Default: all."
        ),
    ] = None,
    choices: Annotated[int, typer.Option(min=1, help="Replacements tried per position.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, including the changed texts.")] = False,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    max_length: options.MaxLength = None,
    quiet: options.Quiet = False,
    threads: Threads = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
) -> None:
    """Try to change a classifier's correct predictions by swaps that should not matter (after CheckList).

    Contractions are expanded or contracted, and names, places and numbers are swapped. Each step makes the swap that
    lowers the correct class most, until the prediction is wrong, no swap is left, or the budget is used up. The lower
    the success rate, the more robust the model.

    Success rate: share of the correct predictions that change. Perturbed words: share of the words of a text whose
    prediction changed. Queries: texts given to the model per example. Many texts contain no swap, so compare
    models on the same data.

    Example: expound attack --model my-model --data sst:data/sst --limit 200
    """
    check(models=[model], data=data, device=device, dtype=dtype)
    import expound
    from expound.data.provenance import to_json_value
    from expound.metrics.attack import attack as attack_model
    from expound.models.encoding.labels import renumber_labels
    from expound.reports.table import Table

    silence_libraries()
    explained = expound.load(model, device=device, dtype=dtype, max_length=max_length)
    set_threads(threads, hidden_size(explained), device)
    named = options.column_options(text_column, text_pair_column, label_column, None)
    examples = reading.load_examples(data, split, limit, seed, named)
    report = attack_model(
        explained,
        renumber_labels(explained, examples),
        budget=budget,
        kinds=options.split_ids(kinds),
        choices=choices,
        seed=seed,
        show_progress=False if quiet else None,
    )
    if json:
        content = to_json_value({"figures": report.figures, "examples": report.to_pandas().to_dict("records")})
        typer.echo(dumps(content, indent=2, ensure_ascii=False))
        return
    rows = []
    for name, value in report.figures.items():
        shown = f"{100 * value:.1f} %"
        if math.isnan(value):
            shown = "–"
        elif name in COUNTS:
            shown = f"{value:.4g}"
        rows.append((name.replace("_", " "), shown))
    for status, count in sorted(report.counts.items()):
        rows.append((f"examples: {status}", str(count)))
    console().print(Table(("attack", ""), rows))
