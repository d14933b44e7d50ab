"""What a study is made of: data, models, explainers and runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

from expound.errors import ExpoundError, check_choice
from expound_papers.runs.store import Cell

T = TypeVar("T")
SEED = "{seed}"
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def fill_variables(text: str) -> str:
    """Return a text with environment variables, `${NAME}` or `${NAME:-default}`, replaced by their values."""

    def replace_variable(match: re.Match[str]) -> str:
        name, default = match.groups()
        value = os.environ.get(name) or default
        if value is None:
            raise ExpoundError(f"the environment variable {name} is not set")
        return value

    return VARIABLE.sub(replace_variable, text)


def as_list(value: T | Iterable[T] | None) -> list[T]:
    """Return one value, or several, as a list."""
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Iterable):
        return [value]
    return list(value)


@dataclass(frozen=True)
class Data:
    """One split of a dataset, with the arguments of `expound.load_data`.

    `longest` keeps texts up to a length, as `{"words": 12}` (or `characters`, or `tokens` with a `model`), `rationales`
    keeps rows with marked evidence, `exclude` removes the rows of other datasets. `rows` then takes the rows from its
    first to before its second number, of a permutation drawn by the seed, in the order of the file; `(0, N)` is the
    sample of `limit=N`.
    """

    name: str
    spec: str
    split: str = "test"
    limit: int | None = None
    rows: tuple[int, int] | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    longest: Mapping[str, Any] = field(default_factory=dict)
    rationales: bool = False
    exclude: Sequence[Data] = ()

    def but(self, name: str, **changes: Any) -> Data:
        """Return the same dataset under another name, with some fields changed."""
        return replace(self, name=name, **changes)

    def resolve(self, reserved: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the dataset as JSON values that describe it completely.

        Args:
            reserved: resolved datasets whose rows it must not contain; it takes as many rows from the others.
        """
        found: dict[str, Any] = {"spec": fill_variables(self.spec), "split": self.split, "limit": self.limit}
        found |= {"seed": self.seed, "options": dict(self.options)}
        if self.rows is not None and reserved:
            found["limit"] = self.rows[1] - self.rows[0]
        elif self.rows is not None:
            found["rows"] = list(self.rows)
        if self.longest:
            found["longest"] = dict(self.longest)
            if "model" in self.longest:
                found["longest"]["model"] = fill_variables(self.longest["model"].source)
        if self.rationales:
            found["rationales"] = True
        excluded = [each.resolve() for each in self.exclude]
        if excluded or reserved:
            found["exclude"] = [*excluded, *reserved]
        return found


@dataclass(frozen=True)
class Training:
    """The data of a training: rows to learn from, and rows to choose checkpoints by; and arguments of the Trainer."""

    name: str
    train: Data
    dev: Data
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """The prompt of a causal model that classifies: it continues `template`, with the text for `{text}`, by a label."""

    template: str
    labels: Mapping[str, str] | Sequence[str]


@dataclass(frozen=True)
class Model:
    """The model that training starts from: a folder, a hub name, or a size from scratch (`expound.training`).

    `{seed}` in `source` is replaced by the run's seed. A model with a `prompt` is not trained. `full_attention`: a
    model with sparse attention on long texts (BigBird) is explained with full attention.
    """

    name: str
    source: str
    max_length: int | None = None
    full_attention: bool = False
    prompt: Prompt | None = None

    def source_for_seed(self, seed: int) -> str:
        """Return the source for the runs of a seed."""
        return fill_variables(self.source.replace(SEED, str(seed)))


class Spec(NamedTuple):
    """A spec with a model in it as the value of a parameter; `{model}` in its `text` is the model's source."""

    text: str
    model: Model


@dataclass(frozen=True)
class Noisy:
    """A control: the best by the metric `best_by` among an explanation and noisy copies of it, `maps` in all.

    `spread` is the standard deviation of the noise, in standard deviations of the explanation's scores.
    """

    best_by: str
    maps: int = 11
    spread: float = 0.5


class Place(NamedTuple):
    """The names of a run's training data and model, and its seed."""

    training: str
    model: str
    seed: int


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of one recipe: one for each training data, model and seed.

    Where a run is needed by another one, it is that of the same training data, model and seed, or else the only one.

    Attributes:
        cells: the cell of each run, by place; None for a model that is judged as it is.
        models: the models that the runs start from, by name.
        path: a folder inside of each run's folder.
    """

    name: str
    recipe: str | None
    parameters: Mapping[str, Any]
    arguments: Mapping[str, Any]
    is_trained: bool
    cells: Mapping[Place, Cell | None]
    models: Mapping[str, Model]
    path: str = ""

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs, each once."""
        return list(dict.fromkeys(place.seed for place in self.cells))

    def at(self, **fields: Any) -> Runs:
        """Return the runs with a `training`, `model` or `seed`."""
        kept = dict(self.cells)
        for name, value in fields.items():
            check_choice(f"{name} of {self.name}", str(value), [str(getattr(place, name)) for place in self.cells])
            kept = {place: cell for place, cell in kept.items() if getattr(place, name) == value}
        return replace(self, cells=kept)

    def folder(self, path: str) -> Runs:
        """Return the runs as references to a folder inside of each run's folder."""
        return replace(self, path=path)

    def figure(self, metric: str, of: Literal["train"] | None = None, times: float = 1.0) -> RunFigure:
        """Return a figure of the runs as a parameter: its mean over seeds, times a factor.

        It is the kept model's figure on dev, or with `of="train"` the lowest one that was logged in training.
        """
        return RunFigure(self, metric, of, times)

    def find_place(self, at: Place) -> Place:
        """Return the place of the run that another run needs. Raises ExpoundError if there is none, or several."""
        # Most runs need one at their own place, and a study of thousands of runs asks for each of them.
        if at in self.cells:
            return at
        found = {}
        for name, same in at._asdict().items():
            options = list(dict.fromkeys(getattr(place, name) for place in self.cells))
            if same not in options and len(options) != 1:
                known = ", ".join(map(str, options))
                raise ExpoundError(
                    f"{self.name} is not run with the {name} {same!r}: choose one by at({name}=…): {known}"
                )
            found[name] = same if same in options else options[0]
        place = Place(**found)
        if place not in self.cells:
            raise ExpoundError(f"{self.name} has no run at {place}")
        return place

    def find_cell(self, at: Place) -> Cell:
        """Return the cell that another run needs. Raises ExpoundError if it does not exist."""
        cell = self.cells[self.find_place(at)]
        if cell is None:
            raise ExpoundError(f"{self.name} trains nothing, so it has no folder")
        return cell

    def __str__(self) -> str:
        """Return the reference to the runs' folders in the spec of a metric."""
        return f"{{run:{self.name}}}"


class RunFigure(NamedTuple):
    """A figure of other runs as the value of a parameter; see `Runs.figure`."""

    runs: Runs
    metric: str
    of: str | None
    times: float


@dataclass(frozen=True)
class Explainer:
    """An explainer by its spec, in which `{run}` is the folder of the judged run, or of the run that learned it."""

    spec: str
    run: Runs | None = None
    noisy: Noisy | None = None


@dataclass(frozen=True)
class StudyRun:
    """A cell and its place in the study, by names.

    A judgement has a `dataset` and a `judgement`; for a training both are empty. `explainers` maps the names of
    explainers to the names that their results are stored under. `partly`: it judges explainers on a sample of the
    examples, and another run judges the model on all of them.
    """

    cell: Cell
    training: str
    model: str
    recipe: str
    seed: int
    dataset: str = ""
    judgement: str = ""
    explainers: Mapping[str, str] = field(default_factory=dict)
    partly: bool = False

    @property
    def title(self) -> str:
        """The place in words, which the option --only is matched with."""
        if self.partly:
            return self.cell.title
        place = Place(self.training, self.model, self.seed)
        return make_title(self.recipe, place, self.judgement, self.dataset)


def make_title(recipe: str, place: Place, *parts: str) -> str:
    """Return a run's place in words."""
    return " / ".join(filter(None, (place.training, place.model, recipe, f"seed {place.seed}", *parts)))


def to_dict(part: Prompt | Noisy) -> dict[str, Any]:
    """Return a part as JSON values."""
    return asdict(part)
