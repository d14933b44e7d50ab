"""The datasets and models that a study names, as they are found on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from exegete.studies.spec import sources
from exegete.studies.spec.run_ref import RunRef, list_run_refs
from exegete.studies.spec.schema import SEED
from exegete.studies.spec.study_file import Study

OF_SEED = ", seed "
Addresses: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Any]]]


class StudySources:
    """Sources by name: `datasets` as a study trains on them, `judged` as it judges on them, and `models`.

    A model whose source is another one for each seed is there once a seed.

    Args:
        study: the study.
        recorded: addresses that stand in for what is not on this machine.
    """

    def __init__(self, study: Study, recorded: Addresses) -> None:
        self.study, self.file = study, study.file
        datasets = {name: sources.dataset_address(study.dataset(name)) for name in self.file.datasets}
        names = {name for part in self.file.judgements.values() for name in part.datasets}
        judged = {name: sources.dataset_address(study.dataset(name, judged=True)) for name in sorted(names)}
        own = {(place.model, place.seed) for place in list_run_refs(self.file)} | {
            (name, 0) for name, part in self.file.models.items() if SEED not in part.source
        }
        models = {
            self._model_key(name, seed): sources.model_address(self.file.models[name].source_for_seed(seed))
            for name, seed in sorted(own)
        }
        self.datasets, self.judged, self.models = (
            {name: _use_recorded(each, recorded.get(kind, {}).get(name)) for name, each in found.items()}
            for kind, found in (("datasets", datasets), ("judged", judged), ("models", models))
        )

    @property
    def addresses(self) -> Addresses:
        """Of `datasets`, `judged` and `models`, by name."""
        kinds = {"datasets": self.datasets, "judged": self.judged, "models": self.models}
        return {kind: {name: each.address for name, each in found.items()} for kind, found in kinds.items()}

    def model(self, name: str, seed: int) -> sources.SourceAddress:
        """The model of the runs of a seed."""
        return self.models[self._model_key(name, seed)]

    def start_model(self, place: RunRef) -> sources.SourceAddress:
        """The model that a place of the grid begins with."""
        return self.model(place.model, place.seed)

    def find_missing(self) -> list[str]:
        """Datasets and models that cannot be found on this machine, each with the line that asks for it."""
        asked = {name: self.judged.get(name, source) for name, source in self.datasets.items()}
        asked_at = [(("datasets", name, "spec"), source) for name, source in asked.items()]
        asked_at += [(("models", name.split(OF_SEED)[0], "source"), source) for name, source in self.models.items()]
        return [str(self.study.error(place, source.problem)) for place, source in asked_at if source.problem]

    def _model_key(self, model: str, seed: int) -> str:
        """What a model is kept under: its name, and the seed where its source is another one for each."""
        return f"{model}{OF_SEED}{seed}" if SEED in self.file.models[model].source else model


def _use_recorded(source: sources.SourceAddress, recorded: Mapping[str, Any] | None) -> sources.SourceAddress:
    """The source, by its recorded address where its content is not on this machine."""
    here = {"digest", "files", "size"}.intersection(source.address)
    if here or recorded is None:
        return source
    # Limits of explainers depend on the number of rows, and with them the addresses of runs.
    return source._replace(address=recorded, rows=recorded.get("rows", source.rows))
