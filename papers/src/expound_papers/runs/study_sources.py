"""Addresses of the datasets and models that a study names, as they are on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from expound_papers.spec import sources
from expound_papers.spec.run_ref import RunRef, list_run_refs
from expound_papers.spec.schema import SEED
from expound_papers.spec.study_file import Study

OF_SEED = ", seed "
Addresses: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Any]]]


class StudySources:
    """The addresses of a study's datasets and models by name.

    `datasets` are those for training and `judged` those for judgements, which differ at the scale `trial`. A model
    whose source contains `{seed}` has an address for each seed.

    Args:
        study: a study file that was read.
        recorded: addresses from another machine, used for what is not on this one.
    """

    def __init__(self, study: Study, recorded: Addresses) -> None:
        self.study, self.file = study, study.file
        datasets = {name: sources.dataset_address(study.dataset(name)) for name in self.file.datasets}
        judged = {}
        for judgement in self.file.judgements.values():
            for name in judgement.datasets:
                judged[name] = sources.dataset_address(study.dataset(name, judged=True))
        used = {(ref.model, ref.seed) for ref in list_run_refs(self.file)}
        # Parameters may name a model that no recipe starts from.
        used |= {(name, 0) for name, part in self.file.models.items() if SEED not in part.source}
        models = {}
        for name, seed in sorted(used):
            source = self.file.models[name].source_for_seed(seed)
            models[self._model_key(name, seed)] = sources.model_address(source)
        self.datasets = _use_recorded(datasets, recorded.get("datasets", {}))
        self.judged = _use_recorded(judged, recorded.get("judged", {}))
        self.models = _use_recorded(models, recorded.get("models", {}))

    @property
    def addresses(self) -> Addresses:
        """The addresses of `datasets`, `judged` and `models`, by name."""
        kinds = {}
        for kind in ("datasets", "judged", "models"):
            kinds[kind] = {name: source.address for name, source in getattr(self, kind).items()}
        return kinds

    def model(self, name: str, seed: int) -> sources.SourceAddress:
        """Return the address of a model in the runs of a seed."""
        return self.models[self._model_key(name, seed)]

    def start_model(self, ref: RunRef) -> sources.SourceAddress:
        """Return the address of the model that a run of the grid starts from."""
        return self.model(ref.model, ref.seed)

    def find_missing(self) -> list[str]:
        """Return an error message, with file and line, for each dataset and model that is not on this machine."""
        messages = []
        for name, source in self.datasets.items():
            # A dataset that is also judged on may fail there alone, as too few rows are left for a trial.
            problem = self.judged.get(name, source).problem
            if problem:
                messages.append(str(self.study.error(("datasets", name, "spec"), problem)))
        for name, source in self.models.items():
            if source.problem:
                messages.append(str(self.study.error(("models", name.split(OF_SEED)[0], "source"), source.problem)))
        return messages

    def _model_key(self, model: str, seed: int) -> str:
        """Return the key of a model: its name, with the seed if its source depends on it."""
        if SEED not in self.file.models[model].source:
            return model
        return f"{model}{OF_SEED}{seed}"


def _use_recorded(
    found: Mapping[str, sources.SourceAddress], recorded: Mapping[str, Mapping[str, Any]]
) -> dict[str, sources.SourceAddress]:
    """Replace the addresses of what is not on this machine by recorded ones."""
    addresses = dict(found)
    for name, source in found.items():
        if name in recorded and not {"digest", "files", "size"}.intersection(source.address):
            # Limits of explainers depend on the number of rows, and with them the addresses of runs.
            rows = recorded[name].get("rows", source.rows)
            addresses[name] = source._replace(address=recorded[name], rows=rows)
    return addresses
