"""A study's origin: the models by their weights, the marks that these were trained on, and the commands that follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import join
from typing import Any
from urllib.parse import quote, urlencode

from sqlalchemy import URL

from exegete.data.provenance import digest
from exegete.models import ExplainedModel
from exegete.models.loading.digest import digest_weights
from exegete.web.browse.stored import RUN
from exegete.web.human_study.items import StudyItem


def describe_origin(
    models: Mapping[str, ExplainedModel], sources: Mapping[str, str], data: str | None, cases: Sequence[StudyItem]
) -> dict[str, Any]:
    """What a study is made of: each model's source, digest of weights and training, data, and a digest of the texts."""
    told = {
        name: {"source": sources.get(name), "weights": digest_weights(model.model)}
        | _read_training_run(sources.get(name, ""))
        for name, model in models.items()
    }
    return {"models": told, "data": data, "examples": len(cases), "texts": digest([case.texts for case in cases])}


def format_storage_url(storage: URL) -> str:
    """The storage's address, without a password."""
    if storage.get_backend_name() == "sqlite":
        where = f"sqlite:///{Path(storage.database or '').absolute()}"
    else:
        asked = storage.query.get("host", "")
        host = quote(storage.host or (asked if isinstance(asked, str) else asked[0]), safe="")
        user = f"{quote(storage.username, safe='')}@" if storage.username else ""
        where = f"postgresql://{user}{host}{f':{storage.port}' if storage.port else ''}/{storage.database or ''}"
    return where


def format_data_spec(storage: URL, study: str) -> str:
    """The study's marks as `--data` names them."""
    return f"study:{format_storage_url(storage).removeprefix('sqlite:///')}?{urlencode({'name': study})}"


def make_follow_up_commands(storage: URL, study: str, origin: Mapping[str, Any] | None) -> tuple[str, str]:
    """The command that trains on a study's marks, and the one that shows people the old model and the new one."""
    models = (origin or {}).get("models", {})
    old = next((made["source"] for made in models.values() if made["source"]), None)
    data = format_data_spec(storage, study)
    start = ["--config", "tiny"] if old is None else ["--model", old]
    train = ["exegete", "train", "er_joint", *start, "--data", data, "--output-dir", "corrected"]
    pair = ["--model", old or "OLD", "--model", "corrected"]
    shown = [
        "exegete",
        "serve",
        *pair,
        "--data",
        data,
        "--split",
        "all",
        "--study",
        f"{study} follow-up",
        "--storage",
        format_storage_url(storage),
    ]
    return join(train), join(shown)


def _read_training_run(source: str) -> dict[str, Any]:
    """The recipe and data of a model that this library trained; of others nothing."""
    for folder in (Path(source), Path(source).parent):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            run = json.loads((folder / RUN).read_text(encoding="utf-8"))
            return {"recipe": run.get("recipe"), "trained_on": run["config"]["data"]["train"]}
    return {"recipe": None, "trained_on": None}
