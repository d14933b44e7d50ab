"""Addresses of the datasets and models of a study: digests of the content of those on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from expound.data import load_data
from expound.data.load import open_reader
from expound.data.provenance import summarize_data
from expound.data.readers.exchanges import exclude_examples
from expound.errors import ExpoundError
from expound.training.loop.options import SIZES
from expound_papers.runs import selection
from expound_papers.runs.digest_cache import load_or_compute

if TYPE_CHECKING:
    from datasets import Dataset

ASSUMED_ROWS = 5000
"""Rows of a whole dataset that is not on this machine: more than any limit of a judgement."""
UNITS = {"characters": selection.count_characters, "words": selection.count_words}
WEIGHTS = (".safetensors", ".bin", ".gguf", ".json", ".txt", ".model")


class SourceAddress(NamedTuple):
    """A dataset or model: its `address` (the content's digest, or a hub name), and a dataset's number of `rows`.

    `problem` says why it cannot be read on this machine; the number of rows is an assumption then.
    """

    address: Mapping[str, Any]
    rows: int = 0
    problem: str = ""


def dataset_address(part: Mapping[str, Any]) -> SourceAddress:
    """Return the address of a resolved dataset: the digest of its rows, or the name of one on the hub (not fetched)."""
    return _find_dataset_address(json.dumps(part, sort_keys=True))


def load_dataset(part: Mapping[str, Any]) -> Dataset:
    """Load the rows of a resolved dataset.

    Raises:
        ExpoundError: fewer rows are left than `rows` takes; or as `load_data`.
    """
    data = load_data(part["spec"], part["split"], seed=part["seed"], **part["options"])
    if part.get("rationales"):
        data = selection.select_marked(data)
    if longest := dict(part.get("longest", {})):
        counted = None
        if "model" in longest:
            counted = selection.make_token_counter(longest.pop("model"))
        ((unit, length),) = longest.items()
        data = selection.select_short(data, length, counted or UNITS[unit])
    if part.get("exclude"):
        excluded = [_load_excluded(json.dumps(each, sort_keys=True)) for each in part["exclude"]]
        data = exclude_examples(data, *excluded)
    # `rows` and `limit` take from one permutation, so that [0, N] is the sample that a limit of N draws.
    order = np.random.default_rng(part["seed"]).permutation(len(data))
    if part["limit"] is not None and part["limit"] < len(data):
        data = data.select(sorted(order[: part["limit"]].tolist()))
        order = np.random.default_rng(part["seed"]).permutation(len(data))
    start, end = part.get("rows") or (0, len(data))
    if not start < end <= len(data):
        left = f"has {len(data)} rows" if len(data) else "has no row left"
        raise ExpoundError(f"{part['spec']} {left}, none to take from {start} to {end}")
    if "rows" not in part:
        return data
    return data.select(sorted(order[start:end].tolist()))


@cache
def _load_excluded(resolved_part: str) -> Dataset:
    return load_dataset(json.loads(resolved_part))


@cache
def _find_dataset_address(resolved_part: str) -> SourceAddress:
    part = json.loads(resolved_part)
    start, end = part.get("rows") or (0, part["limit"] or ASSUMED_ROWS)
    kind = open_reader(part["spec"], **part["options"]).card.name
    if kind == "hub":
        return SourceAddress({"dataset": part}, end - start)
    try:
        # The reader `study` reads a database, which may change without its file's time.
        if kind == "study":
            address = _digest_rows(part)
        else:
            address = load_or_compute(part, _list_paths(part), lambda: _digest_rows(part))
    except ExpoundError as error:
        return SourceAddress({"dataset": part, "missing": True}, end - start, problem=str(error))
    return SourceAddress(address, address["rows"])


def _digest_rows(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of a resolved dataset's rows and their digest."""
    rows = load_dataset(part)
    return summarize_data(rows)


def _list_paths(part: Mapping[str, Any]) -> list[Path]:
    """Return the files and folders that a resolved dataset is read from, including those of datasets it excludes."""
    paths = [open_reader(part["spec"], **part["options"]).path, part.get("longest", {}).get("model", "")]
    files = [Path(path) for path in paths if path]
    for excluded in part.get("exclude", ()):
        files += _list_paths(excluded)
    return files


@cache
def model_address(source: str) -> SourceAddress:
    """Return a model folder, GGUF file or configuration by the digest of its files, a hub model by its name."""
    if source in SIZES:
        return SourceAddress({"size": source, **SIZES[source]})
    path = Path(source)
    if source.endswith((".json", ".gguf")):
        if not path.is_file():
            return SourceAddress({"model": source, "missing": True}, problem=f"there is no file {source}")
        return SourceAddress({"files": _look_up_digest([path])})
    if path.is_dir():
        files = [file for file in path.glob("[!.]*") if file.suffix in WEIGHTS]
        return SourceAddress({"files": _look_up_digest(sorted(files))})
    # A hub name is OWNER/NAME at most; everything else that looks like a path was meant as one.
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        return SourceAddress({"model": source, "missing": True}, problem=f"no model at {source}")
    return SourceAddress({"model": source})


def _look_up_digest(paths: list[Path]) -> str:
    return str(load_or_compute("files", paths, lambda: _digest_files(paths)))


def _digest_files(paths: list[Path]) -> str:
    digest = blake2b(digest_size=8)
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
