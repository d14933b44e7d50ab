"""Options that several commands share, with their help texts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, cast

import typer

from exegete.errors import ExegeteError


def writable(folder: Path | None) -> Path | None:
    """The folder. Raises ExegeteError where it cannot be made or written into, or its name is no UTF-8."""
    if folder is None:
        return None
    try:
        os.fspath(folder.absolute()).encode()
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with TemporaryFile(dir=there):
            return folder
    except OSError as error:
        raise ExegeteError(f"nothing can be written to the folder {folder}: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise ExegeteError(f"the folder's name {os.fsencode(folder)!r} is no UTF-8: Parquet cannot go there") from error


Model = Annotated[str, typer.Option("--model", "-m", help="Folder or hub name of a fine-tuned model.")]
Data = Annotated[
    str, typer.Option("--data", "-d", help="Dataset, as sst:DIR, csv:FILE or generated; `exegete datasets` lists them.")
]
Unit = Annotated[
    str | None,
    typer.Option(
        "--unit",
        help="token, word, sentence, paragraph or source. Default for generation: source where examples have some.",
    ),
]
Split = Annotated[str, typer.Option("--split", help="train, dev, test, or all where the data is one file.")]
SplitOrAll = Annotated[
    str | None,
    typer.Option("--split", help="train, dev, test or all. Default: dev; of a single file, all."),
]
Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        help="Comma-separated ids, parameters as ID?NAME=VALUE, learned ones as ID:PATH; `exegete methods` lists them. "
        "all: every one that needs nothing but the model. Default: the quick among them.",
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many examples, drawn by the seed.")]
OutputDir = Annotated[Path, typer.Option("--output-dir", "-o", callback=writable, help="Where results go.")]
Seed = Annotated[int, typer.Option("--seed", help="Decides all that is left to chance.")]
Device = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda, cuda:1; auto: over all there are, by Accelerate. Default: the GPU."),
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float32, bfloat16, float16, 8bit or 4bit. Default: the checkpoint's.")
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Examples a batch. Default: as many as fit a token budget.")
]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", min=8, help="Tokens a text may have. Default: what the model takes.")
]
AllowNan = Annotated[
    bool,
    typer.Option(
        "--allow-nan", help="Go on where scores are no finite numbers: such examples are left out and counted."
    ),
]
Incomplete = Annotated[
    bool,
    typer.Option("--incomplete", help="Explain a checkpoint of which weights are missing, or that has some left over."),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--template",
        help="Makes a causal language model a classifier: the prompt, {text} standing for the text; or a file with it.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        help="With --template: how each label continues the prompt, as 'bad= No,good= Yes' (spaces count).",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="generation: explain what a language model says; similarity: how alike an encoder finds two texts.",
    ),
]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        help="predicted, label, a class by index or name, or two with a comma: the first rather than the second.",
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        "--stride", min=0, help="Read texts longer than the model in windows that share so many tokens, not cut."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
TextColumn = Annotated[str | None, typer.Option("--text-column", help="Tables: the column of the text.")]
PairColumn = Annotated[str | None, typer.Option("--text-pair-column", help="Tables: the column of the second text.")]
LabelColumn = Annotated[str | None, typer.Option("--label-column", help="Tables: the column of the label.")]
RationaleColumn = Annotated[
    str | None,
    typer.Option("--rationale-column", help="Tables: the column of rationales, lists of start and end in characters."),
]


def columns(text: str | None, pair: str | None, label: str | None, rationale: str | None) -> dict[str, str]:
    """The columns that were named, as options of `load_data`."""
    named = {"text_column": text, "text_pair_column": pair, "label_column": label, "rationale_column": rationale}
    return {name: value for name, value in named.items() if value is not None}


def prompt(template: str | None, labels: str | None) -> dict[str, Any]:
    """The options of `load` that make a causal language model a classifier.

    Raises:
        ExegeteError: one without the other, a file that cannot be read.
    """
    if template is None and labels is None:
        return {}
    if template is None or labels is None:
        raise ExegeteError("--template and --labels go together")
    named = [label.partition("=") for label in labels.split(",")]
    words = {name.strip(): word if equals else name for name, equals, word in named}
    return {"task": "prompt", "template": _typed_or_read(template), "labels": words}


def _typed_or_read(template: str) -> str:
    """The template as it is when the text has its place in it, else what stands in the file of that name."""
    if "{text}" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ExegeteError(f"--template: no {{text}} in it, and no file to read: {template!r:.80}") from error


def split_ids(names: str | None) -> list[str] | None:
    """Specs between commas, see `exegete.data.specs.split_ids`; None where none were given."""
    from exegete.data import specs

    return None if names is None else specs.split_ids(names)


def target_of(text: str, labels: Sequence[str]) -> str | int | tuple[str | int, ...]:
    """The word itself where a label is called so, or it is no number; else the index of a class; two with a comma."""
    if text not in labels and "," in text:
        return tuple(cast("str | int", target_of(part.strip(), labels)) for part in text.split(","))
    return int(text) if text not in labels and re.fullmatch("-?[0-9]{1,9}", text) else text
