"""`exegete explain`: why does the model say this?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exegete.cli import options
from exegete.cli.console import console, hush, say


def explain(
    text: Annotated[str, typer.Argument(help="The text to explain; - reads it from standard input.")],
    model: options.Model,
    pair: Annotated[str | None, typer.Option("--pair", help="The second text, as a hypothesis or a context.")] = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Comma-separated ids; `exegete methods` lists them.")
    ] = "integrated_gradients",
    target: options.Target = "predicted",
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with the highlighted text here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of coloured text.")] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", callback=options.writable, help="Keep the attributions here, as Parquet."),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    max_length: options.MaxLength = None,
    template: options.Template = None,
    labels: options.Labels = None,
    allow_nan: options.AllowNan = False,
    incomplete: options.Incomplete = False,
) -> None:
    """Explain one text (or pair) by one or several methods.

    Example: exegete explain "A moving film about nothing." --model my-model --methods integrated_gradients,occlusion
    """
    import sys

    import exegete
    from exegete.cli.options import split_ids, target_of
    from exegete.reports.attributions import Attributions
    from exegete.reports.terminal import render
    from exegete.studies.compare.compare import seeded

    hush()
    text = sys.stdin.read() if text == "-" else text
    given = options.prompt(template, labels) | {"incomplete": incomplete}
    explained = exegete.load(model, device=device, dtype=dtype, max_length=max_length, **given)
    example = text if pair is None else (text, pair)
    found = Attributions()
    for method in split_ids(methods) or []:
        chosen, goal = seeded(method, seed), target_of(target, explained.labels)
        found = found + exegete.attribute(explained, example, chosen, goal, allow_nan=allow_nan)
    if output_dir is not None:
        found.save(output_dir)
    if html is not None:
        found.to_html(html)
        say(f"page: {html}")
    if json:
        typer.echo(found.to_json())
    else:
        for item in found:
            console().print(render(item))
