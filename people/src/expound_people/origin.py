"""Origin of a study: its models and data by digests, and commands to train on its marks and evaluate the result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import join
from typing import Any
from urllib.parse import quote, urlencode

from sqlalchemy import URL

from expound.data.provenance import digest
from expound.models import ExplainedModel
from expound.models.loading.checkpoint import digest_weights
from expound.reports.hub_card import RUN
from expound_people.items import StudyItem


def describe_origin(
    models: Mapping[str, ExplainedModel], sources: Mapping[str, str], data: str | None, items: Sequence[StudyItem]
) -> dict[str, Any]:
    """Return a study's origin: source, weights digest and training of each model, the data, and a texts digest."""
    # Digests identify models and texts even after a folder was trained again or moved.
    described = {}
    for name, model in models.items():
        facts = {"source": sources.get(name), "weights": digest_weights(model.model)}
        described[name] = facts | _read_training_run(sources.get(name, ""))
    return {"models": described, "data": data, "examples": len(items), "texts": digest([item.texts for item in items])}


def format_storage_url(storage: URL) -> str:
    """Return the URL of a storage without its password, as pages show it."""
    if storage.get_backend_name() == "sqlite":
        return f"sqlite:///{Path(storage.database or '').absolute()}"
    # libpq also takes the host as a parameter, which may occur several times; a socket's folder is given that way.
    option = storage.query.get("host", "")
    if not isinstance(option, str):
        option = option[0]
    host = storage.host or option
    user = f"{quote(storage.username, safe='')}@" if storage.username else ""
    port = f":{storage.port}" if storage.port else ""
    return f"postgresql://{user}{quote(host, safe='')}{port}/{storage.database or ''}"


def format_data_spec(storage: URL, study: str) -> str:
    """Return the spec of a study's marks for the option `--data`."""
    return f"study:{format_storage_url(storage).removeprefix('sqlite:///')}?{urlencode({'name': study})}"


def make_follow_up_commands(storage: URL, study: str, origin: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the commands that train a model on a study's marks, and compare it with the old model in a blind study."""
    models = (origin or {}).get("models", {})
    old = next((model["source"] for model in models.values() if model["source"]), None)
    data = format_data_spec(storage, study)
    start = ["--config", "tiny"] if old is None else ["--model", old]
    train = ["expound", "train", "er_joint", *start, "--data", data, "--output-dir", "corrected"]
    pair = ["--model", old or "OLD", "--model", "corrected"]
    create = ["expound", "people", "create", f"{study} follow-up", *pair, "--data", data, "--split", "all"]
    return join(train), join([*create, "--storage", format_storage_url(storage)])


def _read_training_run(source: str) -> dict[str, Any]:
    """Return the recipe and data of a model; None for both if it was not trained by this library."""
    # The record of a run is in the model's folder or in the folder above it.
    for folder in (Path(source), Path(source).parent):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            run = json.loads((folder / RUN).read_text(encoding="utf-8"))
            return {"recipe": run.get("recipe"), "trained_on": run["config"]["data"]["train"]}
    return {"recipe": None, "trained_on": None}
