"""The datasets and models of a study, identified by content: digests of those that are on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset

from exegete.data import load_data
from exegete.data.load import open_spec
from exegete.data.provenance import data_digest
from exegete.errors import ExegeteError
from exegete.studies.spec.schema import DatasetPart
from exegete.training.loop.from_scratch import SIZES

CHARACTERS_A_TOKEN = 4.5
ASSUMED_ROWS, ASSUMED_TOKENS, ASSUMED_PARAMETERS = 5000, 128.0, 86_000_000.0
PATCHES = 64.0
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


def dataset(part: DatasetPart) -> Source:
    """A dataset by the digest of its rows; one of the hub by its name (it is not fetched)."""
    return _dataset(part.spec, part.split, part.limit, part.seed, json.dumps(part.options, sort_keys=True), part.rows)


def load(part: Mapping[str, Any]) -> Dataset:
    """The rows of a dataset part.

    Raises:
        ExegeteError: there are fewer rows than it wants; else as `load_data`.
    """
    data = load_data(part["spec"], part["split"], limit=part["limit"], seed=part["seed"], **part["options"])
    if part.get("rows") is None:
        return data
    start, end = part["rows"]
    if not start < end <= len(data):
        raise ExegeteError(f"{part['spec']} has {len(data)} rows to divide, none to take from {start} to {end}")
    return data.select(sorted(np.random.default_rng(part["seed"]).permutation(len(data))[start:end].tolist()))


@cache
def _dataset(
    spec: str, split: str, limit: int | None, seed: int, options: str, chosen: tuple[int, int] | None
) -> Source:
    part = {"spec": spec, "split": split, "limit": limit, "seed": seed, "options": json.loads(options)}
    if chosen is not None:
        part["rows"] = list(chosen)
    assumed = (ASSUMED_TOKENS,) * (chosen[1] - chosen[0] if chosen else limit or ASSUMED_ROWS)
    if open_spec(spec, **part["options"]).card.name == "hub":
        return Source({"dataset": part}, assumed)
    try:
        rows = load(part)
    except ExegeteError as error:
        return Source({"dataset": part, "missing": True}, assumed, problem=str(error))
    texts = [rows[name][:] for name in ("text", "text_pair") if name in rows.column_names]
    characters = [sum(len(text or "") for text in row) for row in zip(*texts, strict=True)]
    lengths = [2 + count / CHARACTERS_A_TOKEN for count in characters] or [PATCHES] * len(rows)
    return Source({"rows": len(rows), "digest": data_digest(rows)}, tuple(lengths))


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
    width, layers = config.get("hidden_size"), config.get("num_hidden_layers")
    if not (width and layers):
        return 0.0
    return float(layers * (4 * width**2 + 2 * width * config.get("intermediate_size", 4 * width)))


def _files(paths: list[Path]) -> str:
    digest = blake2b(digest_size=8)
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
