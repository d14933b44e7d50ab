"""Options that several commands share, with their help texts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from expound.errors import ExpoundError, shorten

if TYPE_CHECKING:
    from expound.models import ExplainedModel


def require_writable(folder: Path | None) -> Path | None:
    """Return the folder, or raise ExpoundError if it cannot be written to or its name is not UTF-8."""
    if folder is None:
        return None
    try:
        os.fspath(folder.absolute()).encode()
        # The folder may not exist yet: its nearest existing parent decides whether it can be created.
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with TemporaryFile(dir=existing):
            return folder
    except OSError as error:
        raise ExpoundError(f"cannot write to the folder {folder}: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise ExpoundError(
            f"the folder's name {os.fsencode(folder)!r} is not UTF-8, which Parquet files need"
        ) from error


FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""The import path of a function or a model, as module:name."""
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Folder or hub name of a fine-tuned model; or MODULE:NAME of (model, tokenizer), or of a function from "
        "texts to probabilities.",
    ),
]
Data = Annotated[
    str,
    typer.Option("--data", "-d", help="Dataset, such as sst:DIR, csv:FILE or generated; `expound datasets` lists all."),
]
Unit = Annotated[
    str | None,
    typer.Option(
        help="token, word, sentence, paragraph or source; in a chat message, tool_result or thought. Default for "
        "generation: source if examples have sources, else sentence."
    ),
]
SplitOrAll = Annotated[str | None, typer.Option(help="train, dev, test or all. Default: dev; for a single file: all.")]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated ids, with parameters ID?NAME=VALUE, learned methods ID:PATH; see `expound methods`. "
        "all: every method that needs no training. Default: the fast ones."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use at most N examples, sampled with --seed.", metavar="N")]
OutputDir = Annotated[
    Path, typer.Option("--output-dir", "-o", callback=require_writable, help="Folder for the results.")
]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:1; auto: distribute over all devices. Default: the GPU if available."),
]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16, 8bit or 4bit. Default: the checkpoint's.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Examples per batch. Default: as many as fit a token budget.")
]
MaxLength = Annotated[
    int | None, typer.Option(min=8, help="Maximum number of tokens per text. Default: the model's maximum.")
]
AllowNan = Annotated[
    bool, typer.Option("--allow-nan", help="Skip and count examples whose scores are not finite, instead of stopping.")
]
Incomplete = Annotated[
    bool, typer.Option("--allow-incomplete", help="Accept a checkpoint with missing or unexpected weights.")
]
Template = Annotated[
    str | None,
    typer.Option(help="Use a causal language model as a classifier: a prompt that contains {text}, or a file with it."),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="With --template: the continuation of the prompt for each label, as 'bad= No,good= Yes' (spaces count). "
        "Of a function: the names of its classes, as bad,good."
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        help="generation: explain generated text; similarity: explain the similarity of two texts; classification, "
        "multi_label, regression or span: of a model class of your own."
    ),
]
Target = Annotated[
    str, typer.Option(help="predicted, label, a class by index or name, or two classes A,B: why A rather than B.")
]
Stride = Annotated[
    int | None,
    typer.Option(
        min=0, help="Read long texts in windows that overlap by N tokens, instead of truncating them.", metavar="N"
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
TextColumn = Annotated[str | None, typer.Option(help="Tables: the text column.")]
PairColumn = Annotated[str | None, typer.Option(help="Tables: the column of the second text.")]
LabelColumn = Annotated[str | None, typer.Option(help="Tables: the label column.")]
RationaleColumn = Annotated[
    str | None, typer.Option(help="Tables: the rationale column: character spans, words, or 0 or 1 per word.")
]


def column_options(
    text: str | None, pair: str | None, label: str | None, rationale: str | None, keep: str | None = None
) -> dict[str, str]:
    """Return the column names that were given, as options of `load_data`."""
    named = {"text_column": text, "text_pair_column": pair, "label_column": label, "rationale_column": rationale}
    named["keep_columns"] = keep
    return {name: value for name, value in named.items() if value is not None}


def prompt_options(template: str | None, labels: str | None) -> dict[str, Any]:
    """Return the options of `load` that turn a causal language model into a classifier.

    Raises:
        ExpoundError: only one of the two was given, or a file cannot be read.
    """
    if template is None and labels is None:
        return {}
    if template is None or labels is None:
        raise ExpoundError("--template and --labels must be given together")
    words = {}
    for label in labels.split(","):
        name, equals, word = label.partition("=")
        words[name.strip()] = word if equals else name
    return {"task": "prompt", "template": _read_template(template), "labels": words}


def import_function(path: str) -> Any:
    """Return what MODULE:NAME names, imported from the current folder or the environment; other paths unchanged.

    Raises:
        ExpoundError: the module cannot be imported, or has nothing of this name.
    """
    if not FUNCTION.fullmatch(path):
        return path
    module, _, name = path.partition(":")
    # The folder of the command itself comes first, unlike with `python -m`.
    sys.path.insert(0, os.getcwd())
    try:
        return attrgetter(name)(import_module(module))
    # A module of the user's own can raise anything while it is imported.
    except Exception as error:
        raise ExpoundError(f"cannot import {path}: {type(error).__name__}: {shorten(error)}") from error
    finally:
        sys.path.remove(os.getcwd())


def load_model(model: str, template: str | None = None, labels: str | None = None, **loading: Any) -> ExplainedModel:
    """Return the model or function of --model, --template and --labels, with the other options of `expound.load`."""
    import expound

    source = import_function(model)
    if isinstance(source, str):
        return expound.load(source, **prompt_options(template, labels), **loading)
    names = None if labels is None else [name.strip() for name in labels.split(",")]
    return expound.load(source, template=template, labels=names, **loading)


def _read_template(template: str) -> str:
    """Return the template itself if it contains {text}, otherwise the content of the file with this name."""
    if "{text}" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ExpoundError(
            f"--template: expected a prompt with {{text}} or a readable file, got {template!r:.80}"
        ) from error


def split_ids(names: str | None) -> list[str] | None:
    """Return the comma-separated specs, see `expound.data.registry.split_ids`; None if no specs were given."""
    from expound.data import registry

    return None if names is None else registry.split_ids(names)


def parse_target(text: str, labels: Sequence[str]) -> str | int | tuple[str | int, ...]:
    """Return the target: a label name, the index of a class, or a tuple of two for `A,B`."""
    # A label may itself contain a comma or be a number, so names are tried first.
    if text not in labels and "," in text:
        return tuple(cast("str | int", parse_target(part.strip(), labels)) for part in text.split(","))
    if text not in labels and re.fullmatch("-?[0-9]{1,9}", text):
        return int(text)
    return text
