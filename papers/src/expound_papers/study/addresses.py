"""Addresses of a study's datasets, models and runs, which decide the addresses of its cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from expound.data.load import open_reader
from expound.errors import ExpoundError
from expound_papers.runs import sources
from expound_papers.runs.run_files import TRAINED
from expound_papers.runs.store import Cell
from expound_papers.study.parts import SEED, Data, Model, Place, RunFigure, Runs, Spec, fill_variables

Addresses: TypeAlias = dict[str, dict[str, Mapping[str, Any]]]


def add_part(parts: dict[str, Any], kind: str, name: str, part: Any) -> None:
    """Add a named part. Raises ExpoundError if another one has this name."""
    if parts.setdefault(name, part) != part:
        raise ExpoundError(f"two parts are called {name!r}: each {kind} needs a name of its own")


def unique_keys(cells: Iterable[Cell | None]) -> tuple[str, ...]:
    """Return the keys of cells, each once."""
    return tuple(dict.fromkeys(cell.key for cell in cells if cell is not None))


class AddressBook:
    """The datasets and models of a study with their addresses.

    Args:
        recorded: addresses from another machine, used for datasets and models that are not on this one.
        reserved: resolved datasets whose rows no judged dataset may contain.
    """

    def __init__(self, recorded: Mapping[str, Mapping[str, Any]] | None, reserved: Sequence[Mapping[str, Any]]) -> None:
        self.recorded, self.reserved = recorded or {}, reserved
        self.datasets: dict[str, Data] = {}
        self.models: dict[str, Model] = {}
        self.addresses: Addresses = {"datasets": {}, "judged": {}, "models": {}}
        self.missing: list[str] = []

    def resolve(
        self, given: Mapping[str, Any], place: Place
    ) -> tuple[dict[str, Any], list[Cell | None], dict[str, Any]]:
        """Return values with addresses of runs, datasets and models; the runs' cells; and where data and models are."""
        values, needs, parts = dict(given), list[Cell | None](), dict[str, Any]()
        for name, value in given.items():
            if isinstance(value, Runs):
                at = value.find_place(place)
                cell, start = value.cells[at], value.models[at.model]
                values[name] = self.address_model(start, at, value)
                if cell is None:
                    values[name], parts[name] = {"model": values[name]}, start.source_for_seed(at.seed)
                needs.append(cell)
            elif isinstance(value, RunFigure):
                cells = [value.runs.find_cell(place._replace(seed=seed)) for seed in value.runs.seeds]
                how = {"metric": value.metric, "of": value.of, "times": value.times}
                values[name] = {"runs": list(unique_keys(cells)), **how}
                needs += cells
            elif isinstance(value, Data):
                values[name], parts[name] = {"dataset": self.add_data("datasets", value).address}, value.resolve()
            elif isinstance(value, Spec):
                source = value.model.source_for_seed(place.seed)
                values[name] = {"spec": value.text, "model": self.address_model(value.model, place)}
                parts[name] = value.text.replace("{model}", source)
            elif isinstance(value, Model):
                address = self.address_model(value, place)
                values[name], parts[name] = {"model": address}, value.source_for_seed(place.seed)
        return values, needs, parts

    def address_model(self, model: Model, place: Place, runs: Runs | None = None) -> dict[str, Any]:
        """Return the address of the model of a run, or of one that was not trained here."""
        if runs is None:
            return dict(self.find_model(model, place.seed).address)
        cell = runs.cells[runs.find_place(place)]
        if cell is None and runs.path:
            raise ExpoundError(f"{runs.name} trains nothing, so it has no folder")
        if cell is None:
            return dict(self.find_model(model, place.seed).address)
        return {TRAINED: cell.key, **({"path": runs.path} if runs.path else {})}

    def add_data(self, kind: str, data: Data) -> sources.SourceAddress:
        """Return the address of a dataset, which is recorded with its name."""
        if data.name not in self.datasets:
            open_reader(fill_variables(data.spec), seed=data.seed, **data.options)
        add_part(self.datasets, "dataset", data.name, data)
        found = sources.dataset_address(data.resolve(self.reserved if kind == "judged" else ()))
        return self._record(kind, data.name, found)

    def find_model(self, model: Model, seed: int) -> sources.SourceAddress:
        """Return the address of a model for the runs of a seed; the model is recorded with its name."""
        add_part(self.models, "model", model.name, model)
        name = f"{model.name}, seed {seed}" if SEED in model.source else model.name
        return self._record("models", name, sources.model_address(model.source_for_seed(seed)))

    def _record(self, kind: str, name: str, found: sources.SourceAddress) -> sources.SourceAddress:
        """Return an address; for what is not on this machine, the one that was recorded on another, if any."""
        line = f"{name}: {found.problem}"
        if found.problem and line not in self.missing:
            self.missing.append(line)
        recorded = self.recorded.get(kind, {}).get(name)
        if recorded and not {"digest", "files", "size"}.intersection(found.address):
            # Limits of explainers depend on the number of rows, and with them the addresses of runs.
            found = found._replace(address=recorded, rows=recorded.get("rows", found.rows))
        self.addresses[kind][name] = found.address
        return found
