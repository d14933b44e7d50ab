"""`exegete explain`: why does the model say this?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from exegete.cli.explain import corpus
from exegete.cli.shared import options
from exegete.cli.shared.checks import check
from exegete.cli.shared.console import console, hush, say
from exegete.cli.shared.threads import Threads, choose, hidden_size
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.reports.attributions import Attributions


def explain(
    model: options.Model,
    text: Annotated[
        str | None, typer.Argument(help="The text to explain, or the prompt; - reads it from standard input.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Explain a corpus instead, of any size; see --output-dir.")
    ] = None,
    split: options.SplitOrAll = None,
    pair: Annotated[str | None, typer.Option("--pair", help="The second text, as a hypothesis or a context.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            help="Comma-separated ids; `exegete methods` lists them. Default: decompx_linear, or integrated_gradients "
            "where the layers of the model's family are not known; generated text: occlusion.",
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="predicted, label, or the index or name of a class. Generated text: response, sentences (the "
            "default), words, tokens, or spans of tokens as 0:4,7:9.",
        ),
    ] = "predicted",
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with the highlighted text here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of coloured text.")] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            callback=options.writable,
            help="Keep the attributions here, as Parquet. A corpus that was stopped here goes on.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="A corpus: by so many processes.")] = 1,
    ray: Annotated[
        str | None, typer.Option("--ray", help="A corpus: on the Ray cluster of this address; auto: the one here.")
    ] = None,
    rows_per_part: Annotated[int, typer.Option("--rows-per-part", min=1, help="A corpus: examples in a file.")] = 1000,
    batch_size: options.BatchSize = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    max_length: options.MaxLength = None,
    template: options.Template = None,
    labels: options.Labels = None,
    task: options.Task = None,
    prompt: Annotated[Path | None, typer.Option("--prompt", help="Generation: a file with the prompt.")] = None,
    messages: Annotated[
        Path | None,
        typer.Option(
            "--messages", help="Generation: a JSON file, a list of messages or {messages, sources, response}."
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source", help="Generation: a file, or NAME=FILE, put where the prompt says {sources} or {NAME}."
        ),
    ] = None,
    response: Annotated[
        str | None, typer.Option("--response", help="Generation: what is explained. Default: what the model says.")
    ] = None,
    unit: options.Unit = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Generation: at most so many.")] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="Generation: 0 takes the likeliest token, others draw.")
    ] = 0.0,
    attribute_target: Annotated[
        bool, typer.Option("--attribute-target", help="Generation: scores of the response's own earlier tokens, too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Generation: print what would be done, and stop.")] = False,
    allow_nan: options.AllowNan = False,
    incomplete: options.Incomplete = False,
    stride: options.Stride = None,
    quiet: options.Quiet = False,
    threads: Threads = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    rationale_column: options.RationaleColumn = None,
) -> None:
    """Explain one text (or pair), a corpus, or what a model says to a prompt, by one or several methods.

    Example: exegete explain "A moving film about nothing." --model my-model --methods integrated_gradients,occlusion

    Example: exegete explain --data csv:reviews.csv --model my-model --output-dir explained --workers 4

    Example: exegete explain --task generation --prompt prompt.txt --source doc1.txt --source doc2.txt --model my-model
    """
    if task != "generation" and (prompt or messages or source or response or dry_run or attribute_target):
        raise ExegeteError(
            "--prompt, --messages, --source, --response, --attribute-target and --dry-run go with --task generation"
        )
    loaded: dict[str, Any] = {"device": device, "dtype": dtype, "max_length": max_length, "incomplete": incomplete}
    loaded |= options.prompt(template, labels)
    files = [prompt, messages, *(each.rpartition("=")[2] for each in source or ())]
    check(models=[model], data=data, methods=methods, device=device, dtype=dtype, files=files)
    if data is not None:
        corpus.refuse(text or pair or html or json or task == "generation", output_dir, methods)
    import sys

    import exegete
    from exegete.cli.explain import generated
    from exegete.cli.shared.options import split_ids, target_of
    from exegete.explainers.registry import add_seed, default_method
    from exegete.reports.attributions import Attributions

    hush()
    if data is not None:
        loaded |= {} if task is None else {"task": task}
        choose(threads, hidden_size(model), device)
        named = options.columns(text_column, text_pair_column, label_column, rationale_column)
        given = {"split": split, "target": target, "loading": loaded, "columns": named, "rows_per_part": rows_per_part}
        given |= {"seed": seed, "batch_size": batch_size, "allow_nan": allow_nan, "method": methods, "stride": stride}
        corpus.run({"model": model, "data": data, "folder": output_dir, **given}, workers, threads, ray)
        return
    text = sys.stdin.read() if text == "-" else text
    if dry_run:
        row = generated.example_of(text, prompt, messages, source or (), response)
        unit, ids = unit or generated.unit_of(row), split_ids(methods) or ["occlusion"]
        wanted, sizes = generated.target_of(target), (max_new_tokens, dtype, max_length)
        planned = generated.plans(model, row, ids, wanted, unit, *sizes, attribute_target=attribute_target)
        typer.echo("\n".join(planned))
        return
    explained = exegete.load(model, **loaded | ({} if task is None else {"task": task}))
    choose(threads, hidden_size(explained), device)
    ids = split_ids(methods) or [default_method(explained)]
    example: Any = text if pair is None else (text, pair)
    if task == "generation":
        example = generated.example_of(text, prompt, messages, source or (), response)
        unit, wanted = unit or generated.unit_of(example), generated.target_of(target)
        example = generated.answered(explained, example, max_new_tokens, temperature, seed)
    else:
        wanted = target_of(target, explained.labels)
    specs = [add_seed(each, seed) for each in ids]
    by_method = exegete.attribute(
        explained,
        example,
        specs,
        wanted,
        unit=cast(Any, unit),
        allow_nan=allow_nan,
        stride=stride,
        attribute_target=attribute_target,
        show_progress=False if quiet else None,
    )
    _show(sum(by_method.values(), Attributions()), explained.task.name, output_dir, html, json, quiet)


def _show(
    found: Attributions[Any], task: str, output_dir: Path | None, html: Path | None, json: bool, quiet: bool
) -> None:
    from exegete.explainers.registry import describe_score
    from exegete.reports.highlighted.colors import LEVELS
    from exegete.reports.tables.terminal_table import has_no_colors
    from exegete.reports.terminal import render_attribution

    if output_dir is not None:
        found.save(output_dir)
    if html is not None:
        found.to_html(html)
        say(f"page: {html}")
    if json:
        typer.echo(found.to_json())
    else:
        for item in found:
            console().print(render_attribution(item, unit=describe_score(item, task)))
        if task != "generation" and not quiet:
            small = f"{1 / (2 * LEVELS):.0%} of the strongest"
            say(f"{'without a score' if has_no_colors() else 'without a colour'}: words of less than {small}")
