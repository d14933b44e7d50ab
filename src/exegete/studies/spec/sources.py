"""The datasets and models of a study, identified by content: digests of those that are on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from exegete.data import load_data, selection
from exegete.data.load import open_spec
from exegete.data.provenance import data_digest
from exegete.data.readers.exchanges import EXCHANGE
from exegete.errors import ExegeteError
from exegete.studies.spec.remembered import remembered
from exegete.studies.spec.schema import StudyFile
from exegete.training.loop.sizes import SIZES

if TYPE_CHECKING:
    from datasets import Dataset

CHARACTERS_A_TOKEN = 4.5
ASSUMED_ROWS, ASSUMED_TOKENS, ASSUMED_PARAMETERS = 5000, 128.0, 86_000_000.0
PATCHES = 17.0
"""Positions of a small picture: four patches a side, and the first one."""
TYPICAL = {"sst": 25.0, "snli": 27.0, "labelled": 24.0, "mlqe": 44.0, "squad": 150.0, "eraser": 890.0}
"""Tokens of a row of data that is not on this machine, by its format."""
UNITS = {"characters": selection.characters, "words": selection.words}
Names = tuple[str, ...]
SIZE_NAMES = (
    ("hidden_size", "n_embd", "d_model", "dim"),
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    ("intermediate_size", "n_inner", "d_ff", "hidden_dim"),
)
"""Of width, layers and the feed-forward's width, as models' configurations call them."""
WEIGHTS = (".safetensors", ".bin", ".json", ".txt", ".model")


class Source(NamedTuple):
    """A dataset or model: its `address` (the content's digest, or a hub name), and how large it is.

    `problem` says what is missing. `lengths` are a dataset's rows in tokens, roughly; `parameters` are those that a
    token passes in a model. Where these are not known they are assumed.
    """

    address: Mapping[str, Any]
    lengths: tuple[float, ...] = ()
    parameters: float = 0.0
    problem: str = ""

    def tokens(self, max_length: int | None) -> float:
        """Tokens of all rows, cut at a length."""
        return _cut(self.lengths, max_length)


@cache
def _cut(lengths: tuple[float, ...], most: int | None) -> float:
    return float(sum(min(length, most or length) for length in lengths))


def resolved(file: StudyFile, name: str, aside: Sequence[Mapping[str, Any]] = (), above: Names = ()) -> dict[str, Any]:
    """A dataset of a study as JSON values that say all of it, those of the datasets that it excludes among them.

    Args:
        file: the study.
        name: of the dataset.
        aside: datasets, in this form, whose rows it must not have either; of what is left it takes as many rows.
        above: the datasets that exclude this one.

    Raises:
        ExegeteError: it excludes itself.
    """
    if name in above:
        raise ExegeteError(f"{name} excludes itself")
    part = file.datasets[name]
    found = part.model_dump(include={"spec", "split", "limit", "seed", "options"})
    if part.rows is not None:
        found |= {"rows": list(part.rows)} if not aside else {"limit": part.rows[1] - part.rows[0]}
    if part.longest is not None:
        found["longest"] = part.longest.model_dump(exclude_none=True)
        if part.longest.model is not None:
            found["longest"]["model"] = file.models[part.longest.model].source
    excluded = [resolved(file, each, above=(*above, name)) for each in part.exclude]
    extra = {"rationales": part.rationales, "exclude": [*excluded, *aside]}
    return found | {key: value for key, value in extra.items() if value}


def dataset(part: Mapping[str, Any]) -> Source:
    """A resolved dataset by the digest of its rows; one of the hub by its name (it is not fetched)."""
    return _dataset(json.dumps(part, sort_keys=True))


def load(part: Mapping[str, Any]) -> Dataset:
    """The rows of a resolved dataset.

    Raises:
        ExegeteError: there are fewer rows than it wants; else as `load_data`.
    """
    data = load_data(part["spec"], part["split"], seed=part["seed"], **part["options"])
    if part.get("rationales"):
        data = selection.marked(data)
    if longest := dict(part.get("longest", {})):
        counted = selection.tokens(longest.pop("model")) if "model" in longest else None
        ((unit, length),) = longest.items()
        data = selection.at_most(data, length, counted or UNITS[unit])
    if part.get("exclude"):
        data = selection.without(data, *(_excluded(json.dumps(each, sort_keys=True)) for each in part["exclude"]))
    order = np.random.default_rng(part["seed"]).permutation(len(data))
    if part["limit"] is not None and part["limit"] < len(data):
        data = data.select(sorted(order[: part["limit"]].tolist()))
        order = np.random.default_rng(part["seed"]).permutation(len(data))
    start, end = part.get("rows") or (0, len(data))
    if not start < end <= len(data):
        left = f"has {len(data)} rows to divide" if len(data) else "has no row left"
        raise ExegeteError(f"{part['spec']} {left}, none to take from {start} to {end}")
    return data if "rows" not in part else data.select(sorted(order[start:end].tolist()))


@cache
def _excluded(resolved_part: str) -> Dataset:
    return load(json.loads(resolved_part))


@cache
def _dataset(resolved_part: str) -> Source:
    part = json.loads(resolved_part)
    start, end = part.get("rows") or (0, part["limit"] or ASSUMED_ROWS)
    kind = open_spec(part["spec"], **part["options"]).card.name
    assumed = (TYPICAL.get(kind, ASSUMED_TOKENS),) * (end - start)
    if kind == "hub":
        return Source({"dataset": part}, assumed)
    try:
        found = _measured(part) if kind == "study" else remembered(part, _paths(part), lambda: _measured(part))
    except ExegeteError as error:
        return Source({"dataset": part, "missing": True}, assumed, problem=str(error))
    lengths = [2 + count / CHARACTERS_A_TOKEN for count in found["characters"]] or [PATCHES] * found["rows"]
    return Source({"rows": found["rows"], "digest": found["digest"]}, tuple(lengths))


def _measured(part: Mapping[str, Any]) -> dict[str, Any]:
    """The number of a resolved dataset's rows, their digest, and the characters of each one's texts."""
    rows = load(part)
    texts = [rows[name][:] for name in ("text", "text_pair", *EXCHANGE[:4]) if name in rows.column_names]
    characters = [sum(_characters(part) for part in row) for row in zip(*texts, strict=True)]
    return {"rows": len(rows), "digest": data_digest(rows), "characters": characters}


def _characters(value: Any) -> int:
    """Of a text, or of all texts in messages or sources."""
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else len(value or "")


def _paths(part: Mapping[str, Any]) -> list[Path]:
    """The files and folders that a resolved dataset is read from."""
    read = [open_spec(part["spec"], **part["options"]).path, part.get("longest", {}).get("model", "")]
    return [Path(path) for path in read if path] + [path for each in part.get("exclude", ()) for path in _paths(each)]


@cache
def model(source: str) -> Source:
    """A model folder or configuration by the digest of its files, a hub model by its name."""
    if source in SIZES:
        return Source({"size": source, **SIZES[source]}, parameters=_from_config(SIZES[source]))
    path = Path(source)
    if source.endswith(".json"):
        if not path.is_file():
            return Source({"model": source, "missing": True}, problem=f"there is no configuration at {source}")
        return Source({"files": _files([path])}, parameters=_from_config(json.loads(path.read_text(encoding="utf-8"))))
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in WEIGHTS and not file.name.startswith("."))
        config = path / "config.json"
        known = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        size = _from_config(known)
        return Source({"files": _files(files)}, parameters=size or ASSUMED_PARAMETERS)
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        return Source(
            {"model": source, "missing": True}, parameters=ASSUMED_PARAMETERS, problem=f"no model at {source}"
        )
    return Source({"model": source}, parameters=ASSUMED_PARAMETERS)


def _from_config(config: Mapping[str, Any]) -> float:
    """Parameters of the layers, which every token passes: 4·d² of attention and 2·d·f of the feed-forward a layer."""
    width, layers, inner = (next(filter(None, map(config.get, names)), 0) for names in SIZE_NAMES)
    return float(layers * (4 * width**2 + 2 * width * (inner or 4 * width)))


def _files(paths: list[Path]) -> str:
    return str(remembered("files", paths, lambda: _digest(paths)))


def _digest(paths: list[Path]) -> str:
    digest = blake2b(digest_size=8)
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
