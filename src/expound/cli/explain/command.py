"""`expound explain`: attributions of a text, a corpus or a generated answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from expound.cli.shared import options
from expound.cli.shared.checks import check
from expound.cli.shared.console import console, say, silence_libraries
from expound.cli.shared.reading import say_columns
from expound.cli.shared.stopping import set_stop_message
from expound.cli.shared.threads import Threads, hidden_size, set_threads
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from expound.reports.explanations import Explanations


def explain(
    model: options.Model,
    text: Annotated[
        str | None, typer.Argument(help="The text to explain, or the prompt; - reads standard input.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="Explain a dataset of any size instead of a text; needs --output-dir."),
    ] = None,
    split: options.SplitOrAll = None,
    pair: Annotated[str | None, typer.Option(help="The second text of a pair (hypothesis, context).")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated ids; `expound methods` lists all. Default: decompx_linear if the model's family is "
            "supported, otherwise integrated_gradients; for generated text: occlusion."
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="predicted, label, or a class by index or name. Generated text: response, sentences (default), words, "
            "tokens, answer (after the thoughts), tool_call, tool_name, tool_arguments, or token spans such as 0:4,7:9."
        ),
    ] = "predicted",
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page with the highlighted text to this file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of colored text.")] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            callback=options.require_writable,
            help="Save the attributions as Parquet in this folder. An interrupted corpus is resumed.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Corpus: number of processes.")] = 1,
    ray: Annotated[str | None, typer.Option(help="Corpus: address of a Ray cluster; auto: the local one.")] = None,
    rows_per_part: Annotated[int, typer.Option(min=1, help="Corpus: examples per file.")] = 1000,
    batch_size: options.BatchSize = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    max_length: options.MaxLength = None,
    template: options.Template = None,
    labels: options.Labels = None,
    task: options.Task = None,
    prompt: Annotated[Path | None, typer.Option(help="A file with the prompt.")] = None,
    messages: Annotated[
        Path | None,
        typer.Option(help="A JSON file with a list of messages or {messages, sources, response}."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="A file, or NAME=FILE, inserted at {sources} or {NAME} of the prompt; repeatable."),
    ] = None,
    response: Annotated[str | None, typer.Option(help="The response to explain. Default: the model's own.")] = None,
    raw_prompt: Annotated[
        bool,
        typer.Option(
            "--raw-prompt",
            help="Read the prompt as it is. Default: as one user message, if the tokenizer has a chat template.",
        ),
    ] = False,
    unit: options.Unit = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum length of the response.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy decoding, higher values sample.")] = 0.0,
    attribute_target: Annotated[
        bool, typer.Option("--attribute-target", help="Generation: also score the response's own earlier tokens.")
    ] = False,
    resample: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Generation: instead of --methods, let the model think on N times from before each sentence of the "
            "response's thoughts, and compare the answers.",
        ),
    ] = None,
    pattern: Annotated[
        str,
        typer.Option(help="--resample: the answer is the last match of this regular expression. Default: all text."),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Generation: print passes and time of each method, or requests and tokens of a server, instead of "
            "running it.",
        ),
    ] = False,
    allow_nan: options.AllowNan = False,
    allow_incomplete_weights: options.Incomplete = False,
    stride: options.Stride = None,
    quiet: options.Quiet = False,
    threads: Threads = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    rationale_column: options.RationaleColumn = None,
    keep_columns: Annotated[
        str | None, typer.Option(help="Corpus: comma-separated columns to keep as metadata; id always is.")
    ] = None,
) -> None:
    """Explain one text (or pair), a corpus, or the response to a prompt, by one or several methods.

    Example: expound explain "A moving film about nothing." --model my-model --methods integrated_gradients,occlusion

    Example: expound explain --data csv:reviews.csv --model my-model --output-dir explained --workers 4

    Example: expound explain --task generation --prompt prompt.txt --source doc1.txt --source doc2.txt --model my-model
    """
    is_generated = task == "generation"
    generation_only = prompt or messages or source or response or dry_run or attribute_target or raw_prompt or resample
    if not is_generated and generation_only:
        raise ExpoundError(
            "--prompt, --messages, --source, --response, --raw-prompt, --attribute-target, --resample and --dry-run "
            "need --task generation"
        )
    load_options: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "max_length": max_length,
        "allow_incomplete_weights": allow_incomplete_weights,
    }
    if task is not None:
        load_options["task"] = task
    files = [prompt, messages, *[item.rpartition("=")[2] for item in source or ()]]
    check(models=[model], data=data, methods=methods, device=device, dtype=dtype, files=files)
    if data is not None:
        _check_corpus_options(model, text or pair or html or json or is_generated, output_dir, methods)
    import sys

    import expound
    from expound.cli.explain import generated
    from expound.explainers.check_model import default_method
    from expound.explainers.registry import add_seed
    from expound.reports.explanations import Explanations

    silence_libraries()
    if data is not None:
        set_threads(threads, hidden_size(model), device)
        named = options.column_options(text_column, text_pair_column, label_column, rationale_column, keep_columns)
        job: dict[str, Any] = {"model": model, "data": data, "folder": output_dir, "split": split, "target": target}
        load_options |= options.prompt_options(template, labels)
        job |= {"loading": load_options, "columns": named, "rows_per_part": rows_per_part, "method": methods}
        job |= {"seed": seed, "batch_size": batch_size, "allow_nan": allow_nan, "stride": stride}
        _explain_corpus(job, workers, threads, ray)
        return
    if text == "-":
        text = sys.stdin.read()
    explained = options.load_model(model, template, labels, **load_options)
    set_threads(threads, hidden_size(explained), device)
    ids = options.split_ids(methods) or [default_method(explained)]
    example: Any = text if pair is None else (text, pair)
    if is_generated:
        sampling, given = (max_new_tokens, temperature, seed), (text, prompt, messages, source or (), response)
        example = generated.make_example(explained, *given, *sampling, raw=raw_prompt, dry_run=dry_run)
        unit = unit or ("source" if example.get("sources") else "sentence")
        explained_target = generated.parse_target(target)
        if resample is not None:
            found = generated.resample(explained, example, resample, *sampling, pattern, dry_run=dry_run, quiet=quiet)
            _print_results(Explanations([found]), explained.task.name, output_dir, html, json, quiet)
            return
        work = (explained_target, cast(Any, unit), max_new_tokens)
        generated.tell_costs(explained, example, ids, *work, attribute_target=attribute_target, dry_run=dry_run)
        if dry_run:
            return
    else:
        explained_target = options.parse_target(target, explained.labels)
    specs = [add_seed(spec, seed) for spec in ids]
    by_method = expound.attribute(
        explained,
        example,
        specs,
        explained_target,
        unit=cast(Any, unit),
        allow_nan=allow_nan,
        stride=stride,
        attribute_target=attribute_target,
        show_progress=False if quiet else None,
    )
    _print_results(sum(by_method.values(), Explanations()), explained.task.name, output_dir, html, json, quiet)


def _print_results(
    attributions: Explanations, task: str, output_dir: Path | None, html: Path | None, json: bool, quiet: bool
) -> None:
    from expound.explainers.registry import describe_score
    from expound.reports.highlighted.colors import LEVELS
    from expound.reports.table import has_no_colors
    from expound.reports.terminal import render_explanation

    if output_dir is not None:
        attributions.save(output_dir)
    if html is not None:
        attributions.to_html(html)
        say(f"page: {html}")
    if json:
        typer.echo(attributions.to_json())
    else:
        for item in attributions:
            console().print(render_explanation(item, unit=describe_score(item, task)))
        if not quiet and attributions[0].exchange is None:
            shown = "score" if has_no_colors() else "color"
            say(f"words without a {shown} have less than {1 / (2 * LEVELS):.0%} of the strongest")


def _check_corpus_options(model: str, other: object, folder: Path | None, methods: str | None) -> None:
    """Raise ExpoundError for options that cannot be combined with a corpus."""
    if folder is None:
        raise ExpoundError("--data needs --output-dir, the folder for the explanations")
    if other:
        raise ExpoundError("--data cannot be combined with a text, --pair, --html, --json or --task generation")
    if options.FUNCTION.fullmatch(model):
        raise ExpoundError("--data explains by a model that every process can load: call expound.attribute in Python")
    if len(options.split_ids(methods) or [""]) > 1:
        raise ExpoundError(
            "a corpus is explained by one method: run the command for each method, with its own --output-dir"
        )


def _explain_corpus(job: dict[str, Any], workers: int, threads: int | None, ray: str | None) -> None:
    """Explain the rows that are not explained yet, and print how many they are and the next command."""
    from expound.evaluation.corpus.job import CorpusJob, explain_corpus

    folder = job["folder"]
    set_stop_message(f"finished files are saved in {folder}: resume with the same command")
    say_columns(job["data"], job["columns"])
    corpus_job = CorpusJob(**job | {"target": options.parse_target(job["target"], ())})
    rows = explain_corpus(corpus_job, workers, threads=threads, ray=ray)
    if rows:
        say(f"{rows} rows are explained in {folder}; summarize them with: expound summary {folder}")
