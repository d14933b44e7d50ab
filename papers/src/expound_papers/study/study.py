"""A study records calls of `train` and `judge` as cells; nothing is executed while its function runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, TypeAlias

from expound.data.cards import MethodCard
from expound.data.load import open_reader
from expound.data.unit_names import UnitName
from expound.errors import ExpoundError, check_choice
from expound.explainers import EXPLAINERS, explainer
from expound.metrics import metric
from expound.recipes import RECIPES
from expound_papers.protocols import registry as protocols
from expound_papers.runs import recipe_configs, sources
from expound_papers.runs.execution import judge_model, train_model
from expound_papers.runs.run_files import NOISY, OWN_RUN, RUN_IN_SPEC, TRAINED
from expound_papers.runs.store import Cell
from expound_papers.study.parts import (
    SEED,
    ComparisonPart,
    Data,
    Explainer,
    FigurePart,
    Model,
    Names,
    Place,
    RunFigure,
    Runs,
    StudyRun,
    TablePart,
    Training,
    as_list,
    fill_variables,
    make_title,
    to_dict,
)

Addresses: TypeAlias = dict[str, dict[str, Mapping[str, Any]]]
Specs: TypeAlias = Mapping[str, str]
NO_EXPLAINER = "none"
"""The spec of no explainer, for students that learn from answers alone."""
RUN_OPTIONS = ("masked_share", "head_lr_multiplier", "head_dropout", "early_stopping_threshold", "log_gradient_norms")
TRIAL, TRIAL_SEEDS = "trial", [7]


class Study:
    """A study at one scale: its runs, and the tables and figures of the results.

    A function gets an empty study and calls its methods. `train` returns runs, which may be judged, start other runs,
    or be a parameter of them. Parts are known by their names, which titles, tables and pages show.

    Attributes:
        name: the study's name with its scale, as `er-table-2-small`.
        scale: `small`, `paper`, or `trial`: as small, with another seed, and judged on rows that small does not use.
        seeds: the seeds of runs for which no others are named; a number N means 0 to N − 1.
        arguments: arguments of the Trainer for all runs; those of the training data and of a run override them.
        preset: `paper` if recipes have the papers' values where the study states none.
        addresses: addresses of the `datasets` for training, those that are `judged`, and `models`, by name.
        missing: a line for each dataset or model that is not on this machine.
    """

    def __init__(
        self,
        name: str,
        scale: str = "small",
        recorded: Mapping[str, Mapping[str, Any]] | None = None,
        reserved: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.name, self.scale, self.recorded, self.reserved = f"{name}-{scale}", scale, recorded or {}, reserved
        self.title, self.notes, self.preset = "", "", ""
        self.arguments: Mapping[str, Any] = {}
        self._seeds = TRIAL_SEEDS if scale == TRIAL else [0]
        self.trainings: dict[str, Training] = {}
        self.models: dict[str, Model] = {}
        self.recipes: dict[str, Runs] = {}
        self.datasets: dict[str, Data] = {}
        self.judgements: dict[str, Runs | None] = {}
        self.explainers: dict[str, Explainer] = {}
        self.metrics: dict[str, str] = {}
        self.comparisons: dict[str, ComparisonPart] = {}
        self.tables: dict[str, TablePart] = {}
        self.figures: dict[str, FigurePart] = {}
        self.addresses: Addresses = {"datasets": {}, "judged": {}, "models": {}}
        self.missing: list[str] = []
        self._runs: list[StudyRun] = []
        self._ordered: list[StudyRun] = []

    @property
    def is_small(self) -> bool:
        """Whether the scale is small, or a trial of it."""
        return self.scale != "paper"

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds of runs for which no others are named."""
        return self._seeds

    @seeds.setter
    def seeds(self, seeds: int | Sequence[int]) -> None:
        if self.scale != TRIAL:
            self._seeds = _list_seeds(seeds)

    def train(
        self,
        name: str,
        recipe: str | None,
        data: Training | Sequence[Training] | None,
        model: Model | Sequence[Model],
        *,
        start: Runs | None = None,
        seeds: int | Sequence[int] | None = None,
        arguments: Mapping[str, Any] | None = None,
        patience: int | None = None,
        options: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> Runs:
        """Record a training for each training data, model and seed, and return its runs.

        Args:
            name: the name of the runs in titles and tables.
            recipe: a recipe's id; None judges the model as it is, or that of `start`.
            data: the data of the training.
            model: the model that training starts from.
            start: runs whose trained model is the start instead.
            seeds: default: the study's.
            arguments: arguments of the Trainer; None as a value leaves one to the recipe.
            patience: of early stopping.
            options: other fields of `expound.training.RunOptions`, see RUN_OPTIONS.
            **parameters: of the recipe. Runs stand for their folder, `Runs.figure` for a number, a `Data` or `Model`
                for itself.

        Raises:
            ExpoundError: an unknown recipe, parameter or option, or a run that does not exist.
        """
        trainings, models = as_list(data), as_list(model)
        no_data: list[Training | None] = [None]
        for option in options or ():
            check_choice("option of a run", option, RUN_OPTIONS)
        if name in self.recipes:
            raise ExpoundError(f"{self.name}: {name} is trained twice")
        if recipe is None and parameters:
            raise ExpoundError(f"{name} trains nothing, and has no parameters, got {', '.join(parameters)}")
        if recipe is not None:
            check_choice("recipe", recipe, RECIPES)
            if not trainings:
                raise ExpoundError(f"{name}: no data to train on")
        for training in trainings:
            _add(self.trainings, "training data", training.name, training)
            self._add_data("datasets", training.train)
            self._add_data("datasets", training.dev)
        for each in models:
            _add(self.models, "model", each.name, each)
        cells: dict[Place, Cell | None] = {}
        runs = Runs(
            name, recipe, parameters, arguments or {}, recipe is not None or start is not None, cells,
            {each.name: each for each in models},
        )  # fmt: skip
        for given, each, seed in product(
            trainings or no_data, models, self.seeds if seeds is None else _list_seeds(seeds)
        ):
            place = Place(given.name if given else "", each.name, seed)
            self._find_model(each, seed)
            if recipe is None or given is None:
                cells[place] = None if start is None else start.find_cell(place)
                continue
            cell = self._make_training(runs, given, each, place, start, patience, options or {})
            cells[place] = cell
            self._runs.append(StudyRun(cell, given.name, each.name, name, seed))
        self.recipes[name] = runs
        return runs

    def _make_training(
        self,
        runs: Runs,
        data: Training,
        model: Model,
        place: Place,
        start: Runs | None,
        patience: int | None,
        options: Mapping[str, Any],
    ) -> Cell:
        """Return the cell of one training."""
        other = start.cells[start.find_place(place)] if start else None
        # The study's arguments are the weakest, then those of the training data, then the run's; None removes one.
        arguments = {**self.arguments, **data.arguments, **runs.arguments}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        values, needs, parts = self._resolve(runs.parameters, place)
        source = "the model of a run" if start else model.source
        recipe = str(runs.recipe)
        # The names in a configuration decide the cell's address: renaming one would orphan every finished cell.
        config = recipe_configs.resolve_config(recipe, values, arguments, source, self.preset or None) | {
            "kind": "train",
            "train": self._add_data("datasets", data.train).address,
            "dev": self._add_data("datasets", data.dev).address,
            "model": self._address_model(model, place, start),
            "max_length": model.max_length,
            "early_stopping_patience": patience,
            "seed": place.seed,
        }
        # Keys that came later are left out at their default, so that older cells keep their addresses.
        if options:
            config["options"] = dict(options)
        if other is None and model.prompt is not None:
            if recipe not in recipe_configs.EXPLAINING:
                explaining = ", ".join(recipe_configs.EXPLAINING)
                raise ExpoundError(f"a prompted model stays as it is: {recipe} trains it ({explaining} do not)")
            config["prompt"] = to_dict(model.prompt)
        # Arguments that the outcome does not depend on, as the number of data loader workers, are no part of the key.
        others = {key: value for key, value in arguments.items() if key not in config["arguments"]}
        where = {"train": data.train.resolve(), "dev": data.dev.resolve(), "model": model.source_for_seed(place.seed)}
        title = make_title(runs.name, place)
        return Cell(
            config, train_model, title, _unique_keys([*needs, other]), where | {"arguments": others, "parts": parts}
        )

    def judge(
        self,
        name: str,
        runs: Runs | Sequence[Runs],
        on: Data | Sequence[Data],
        explainers: Mapping[str, str | Explainer] | None = None,
        metrics: Specs | None = None,
        *,
        model: Runs | None = None,
        protocol: str | None = None,
        limits: Mapping[str, int] | None = None,
        target: str | int = "predicted",
        keep_attributions: bool = False,
        layers: bool = False,
        special_tokens: bool = False,
        unit: UnitName | None = None,
        **options: Any,
    ) -> None:
        """Record a judgement of each run on each dataset: its performance, and metrics of its explanations.

        Args:
            name: the judgement's name in titles and tables.
            runs: the runs that are judged.
            on: the datasets.
            explainers: spec (or `Explainer`) by name.
            metrics: spec by name; `{run:RECIPE}` in it is the folder of other runs, which their text gives: f"{runs}".
            model: judge the model of these runs instead, as when the judged runs learned an explainer of it.
            protocol: further figures of the model, see `expound_papers.protocols`.
            limits: number of examples that an explainer is judged on; a smaller sample is part of a larger one.
            target: explain the `predicted` class, the `label`, or a class.
            keep_attributions: keep the scores, for figures of their agreement.
            layers: also judge each layer's scores by the metrics on rationales.
            special_tokens: metrics that use special tokens see their scores; otherwise these count as 0.
            unit: the units of generated text that are scored and removed; default: sources, or else sentences.
            **options: of the protocol; runs, datasets and models as in `train`.

        Raises:
            ExpoundError: an unknown explainer, metric, protocol or option, or a run that does not exist.
        """
        chosen = {key: _as_explainer(each) for key, each in (explainers or {}).items()}
        _check_protocol(name, protocol, chosen, options, is_limited=bool(limits or metrics))
        for key in limits or ():
            check_choice("explainer", key, chosen)
        for key, each in chosen.items():
            _check_explainer(each)
            _add(self.explainers, "explainer", key, each)
        for key, spec in (metrics or {}).items():
            metric(spec)
            _add(self.metrics, "metric", key, spec)
        self.judgements[name] = model
        how: dict[str, Any] = {"target": target, "keep_attributions": keep_attributions, "layers": layers}
        # As above: left out at their defaults.
        how |= {"special_tokens": True} if special_tokens else {}
        how |= {} if unit is None else {"unit": unit}
        for judged in as_list(runs):
            for place in judged.cells:
                for data in as_list(on):
                    self._add_judgements(
                        name, judged, place, data, chosen, metrics or {}, model, protocol, limits or {}, how, options
                    )

    def _add_judgements(
        self,
        name: str,
        runs: Runs,
        place: Place,
        data: Data,
        explainers: Mapping[str, Explainer],
        metrics: Specs,
        other: Runs | None,
        protocol: str | None,
        limits: Mapping[str, int],
        how: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        """Add the judgements of one run on one dataset: one for each limit of explainers."""
        judged, start = other or runs, runs.models[place.model]
        cell = judged.cells[judged.find_place(place)]
        configs, needs = dict[str, tuple[str, Mapping[str, Any]]](), [cell]
        for key, part in explainers.items():
            learner = self._find_learner(key, part, runs, place)
            configs[key] = _describe_explainer(part, None if learner is None else learner.key)
            needs.append(learner)
        values, more, parts = self._resolve(options, place)
        metric_configs, of_metrics = self._describe_metrics(metrics, place)
        address = self._add_data("judged", data)
        for limit, names in _group_by_limit(explainers, limits, address.rows).items():
            config = {
                "kind": "judge",
                "explainers": {configs[key][0]: configs[key][1] for key in names},
                "metrics": metric_configs,
                "model": self._address_model(start, place, judged),
                "dataset": address.address,
                "seed": place.seed,
                **how,
            }
            if protocol is not None:
                config["protocol"] = {"name": protocol, "options": protocols.add_default_options(protocol, values)}
            if cell is None and start.prompt is not None:
                config["prompt"] = to_dict(start.prompt)
            if explainers and start.full_attention:
                config["full_attention"] = True
            title = [name, data.name]
            if limit:
                config["limit"] = limit
                title = [name, f"first {limit}", data.name]
            where = {"model": start.source_for_seed(place.seed), "dataset": data.resolve(self.reserved), "parts": parts}
            keys = _unique_keys([*needs, *more, *of_metrics])
            made = Cell(config, judge_model, make_title(runs.name, place, *title), keys, where)
            specs = {key: configs[key][0] for key in names}
            run = StudyRun(made, *place[:2], runs.name, place.seed, data.name, name, specs, partly=limit > 0)
            self._runs.append(run)

    def _find_learner(self, name: str, part: Explainer, runs: Runs, place: Place) -> Cell | None:
        """Return the cell that learned an explainer; None for one without such a cell."""
        if OWN_RUN not in part.spec:
            return None
        if part.run is not None:
            return part.run.find_cell(place)
        cell = runs.cells[place]
        if cell is None:
            raise ExpoundError(f"{name} comes from the judged run, but {runs.name} trains nothing: name a run")
        return cell

    def _describe_metrics(self, metrics: Specs, place: Place) -> tuple[dict[str, Any], list[Cell]]:
        """Return a judgement's metrics with all parameters, by spec, and the cells that their specs name."""
        configs, needs = dict[str, Any](), list[Cell]()
        for spec in metrics.values():
            made = metric(spec)
            configs[spec] = {"name": made.name, **made.params}
            named = dict[str, Cell]()
            for recipe in RUN_IN_SPEC.findall(spec):
                check_choice("recipe", recipe, self.recipes)
                named[recipe] = self.recipes[recipe].find_cell(place)
            if named:
                configs[spec]["runs"] = {recipe: cell.key for recipe, cell in named.items()}
            needs += named.values()
        return configs, needs

    def _resolve(
        self, given: Mapping[str, Any], place: Place
    ) -> tuple[dict[str, Any], list[Cell | None], dict[str, Any]]:
        """Return values with addresses of runs, datasets and models; the runs' cells; and where data and models are."""
        values, needs, parts = dict(given), list[Cell | None](), dict[str, Any]()
        for name, value in given.items():
            if isinstance(value, Runs):
                at = value.find_place(place)
                cell, start = value.cells[at], value.models[at.model]
                values[name] = self._address_model(start, at, value)
                if cell is None:
                    values[name], parts[name] = {"model": values[name]}, start.source_for_seed(at.seed)
                needs.append(cell)
            elif isinstance(value, RunFigure):
                cells = [value.runs.find_cell(place._replace(seed=seed)) for seed in _seeds_of(value.runs)]
                how = {"metric": value.metric, "of": value.of, "times": value.times}
                values[name] = {"runs": list(_unique_keys(cells)), **how}
                needs += cells
            elif isinstance(value, Data):
                values[name], parts[name] = {"dataset": self._add_data("datasets", value).address}, value.resolve()
            elif isinstance(value, Model):
                address = self._address_model(value, place)
                values[name], parts[name] = {"model": address}, value.source_for_seed(place.seed)
        return values, needs, parts

    def _address_model(self, model: Model, place: Place, runs: Runs | None = None) -> dict[str, Any]:
        """Return the address of the model of a run, or of one that was not trained here."""
        if runs is None:
            return dict(self._find_model(model, place.seed).address)
        cell = runs.cells[runs.find_place(place)]
        if cell is None and runs.path:
            raise ExpoundError(f"{runs.name} trains nothing, so it has no folder")
        if cell is None:
            return dict(self._find_model(model, place.seed).address)
        return {TRAINED: cell.key, **({"path": runs.path} if runs.path else {})}

    def _add_data(self, kind: str, data: Data) -> sources.SourceAddress:
        """Return the address of a dataset, which is recorded with its name."""
        if data.name not in self.datasets:
            open_reader(fill_variables(data.spec), seed=data.seed, **data.options)
        _add(self.datasets, "dataset", data.name, data)
        found = sources.dataset_address(data.resolve(self.reserved if kind == "judged" else ()))
        return self._record(kind, data.name, found)

    def _find_model(self, model: Model, seed: int) -> sources.SourceAddress:
        _add(self.models, "model", model.name, model)
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

    def compare(self, name: str, judgements: Names, measure: str = "kendall", against: Runs | None = None) -> None:
        """Record a comparison of kept attributions as a figure of each run, see `ComparisonPart`."""
        names = [judgements] if isinstance(judgements, str) else list(judgements)
        for judgement in names:
            check_choice("judgement", judgement, self.judgements)
        self.comparisons[name] = ComparisonPart(names, measure, against.name if against else None)

    def table(self, name: str, caption: str, **fields: Any) -> None:
        """Record a table, with the fields of `TablePart`."""
        part = TablePart(caption, **fields)
        self._check_filter(part.where)
        for row in part.gain.values():
            valid = [*self.recipes, *self.explainers, *self.trainings, *self.models]
            check_choice("recipe, explainer, training or model", row, valid)
        self.tables[name] = part

    def figure(self, name: str, kind: str, caption: str = "", **fields: Any) -> None:
        """Record a figure, with the fields of `FigurePart`."""
        part = FigurePart(kind, caption, **fields)
        self._check_filter(part.where)
        if part.table:
            check_choice("table", part.table, self.tables)
        for axis in (*as_list(part.x), *as_list(part.y)):
            self._check_filter({"dataset": as_list(axis.dataset), "explainer": as_list(axis.explainer)})
        self.figures[name] = part

    def _check_filter(self, where: Mapping[str, Any]) -> None:
        known: dict[str, Collection[str]] = {
            "training": self.trainings, "model": self.models, "recipe": self.recipes, "dataset": self.datasets,
            "judgement": self.judgements, "explainer": self.explainers,
        }  # fmt: skip
        for field, names in where.items():
            for name in names if field in known else ():
                check_choice(field, name, known[field])

    @property
    def runs(self) -> list[StudyRun]:
        """The runs in the order in which they start: by training data, model, recipe and seed, judgements last."""
        # Tables ask often: they are sorted again only after another call was recorded.
        if len(self._ordered) != len(self._runs):
            self._ordered = self._sort_runs()
        return self._ordered

    def _sort_runs(self) -> list[StudyRun]:
        order = {"training": list(self.trainings), "model": list(self.models), "recipe": list(self.recipes)}
        names = list(self.judgements)

        def place(run: StudyRun) -> tuple[int, ...]:
            at = [known.index(getattr(run, field)) if known else 0 for field, known in order.items()]
            seeds = _seeds_of(self.recipes[run.recipe])
            return (*at, seeds.index(run.seed), names.index(run.judgement) if run.judgement else -1)

        # Needs come first, also those on other training data.
        ordered, by_key = dict[int, StudyRun](), {run.cell.key: run for run in self._runs}

        def add(run: StudyRun) -> None:
            if id(run) not in ordered:
                for key in run.cell.needs:
                    add(by_key[key])
                ordered[id(run)] = run

        for run in sorted(self._runs, key=place):
            add(run)
        return list(ordered.values())

    @property
    def cells(self) -> list[Cell]:
        """The cells of all runs, each once."""
        return list({run.cell.key: run.cell for run in self.runs}.values())

    def describe(self) -> dict[str, Any]:
        """Return what the study consists of as JSON values, for its report."""
        recipes = {}
        for name, runs in self.recipes.items():
            parameters = {key: str(value) for key, value in runs.parameters.items()}
            recipes[name] = {"recipe": runs.recipe, "parameters": parameters, "arguments": dict(runs.arguments)}
        return {
            "name": self.name,
            "datasets": {name: data.resolve() for name, data in self.datasets.items()},
            "models": {name: model.source for name, model in self.models.items()},
            "recipes": recipes,
            "arguments": dict(self.arguments),
            "explainers": {name: each.spec for name, each in self.explainers.items()},
            "metrics": dict(self.metrics),
        }

    def select(self, pattern: str | None) -> Study:
        """Return the study of the runs whose title contains a pattern (with * and ?), and of what they need."""
        if pattern is None:
            return self
        selected = set[str]()
        for run in self._runs:
            # Also as plain text: a title may contain brackets, which a pattern would read as a set of characters.
            if pattern in run.title or fnmatchcase(run.title, f"*{pattern}*"):
                selected.add(run.cell.key)
        needs = {run.cell.key: run.cell.needs for run in self._runs}
        pending = list(selected)
        while pending:
            added = set(needs.get(pending.pop(), ())) - selected
            selected |= added
            pending += added
        found = copy(self)
        found._runs = [run for run in self._runs if run.cell.key in selected]
        return found


StudyFunction: TypeAlias = Callable[[Study], None]


def choose(parts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return some of named parts, in the order of the names. Raises ExpoundError for an unknown name."""
    for name in names:
        check_choice("name", name, parts)
    return {name: parts[name] for name in names}


def _list_seeds(seeds: int | Sequence[int]) -> list[int]:
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def _seeds_of(runs: Runs) -> list[int]:
    return list(dict.fromkeys(place.seed for place in runs.cells))


def _add(parts: dict[str, Any], kind: str, name: str, part: Any) -> None:
    """Add a named part. Raises ExpoundError if another one has this name."""
    if parts.setdefault(name, part) != part:
        raise ExpoundError(f"two parts are called {name!r}: each {kind} needs a name of its own")


def _as_explainer(part: str | Explainer) -> Explainer:
    if isinstance(part, str):
        return Explainer(fill_variables(part))
    return part


def _check_protocol(
    name: str,
    protocol: str | None,
    explainers: Mapping[str, Explainer],
    options: Mapping[str, Any],
    *,
    is_limited: bool,
) -> None:
    """Raise ExpoundError for an unknown protocol or option, or explainers that the protocol cannot use."""
    if protocol is not None:
        protocols.check_protocol(protocol, options)
    elif options:
        raise ExpoundError(f"{name}: {', '.join(options)}: options are for a protocol")
    if protocols.uses_explainers(protocol):
        if is_limited or not explainers:
            raise ExpoundError(f"{protocol} runs the explainers itself: name some, and neither metrics nor limits")
    elif any(each.spec == NO_EXPLAINER for each in explainers.values()):
        raise ExpoundError("the explainer none is for protocols with students")


def _check_explainer(part: Explainer) -> None:
    """Raise ExpoundError for an unknown id or parameter; of an explainer to be learned only the id is checked."""
    if part.noisy is not None:
        metric(part.noisy.best_by)
    if OWN_RUN in part.spec:
        learned = [name for name, card in EXPLAINERS.cards(MethodCard).items() if card.learned]
        check_choice("learned method", part.spec.partition(":")[0], learned)
    elif part.run is not None:
        raise ExpoundError(f"{part.spec!r} takes nothing from the run {part.run.name!r}: expected {OWN_RUN} in it")
    elif part.spec != NO_EXPLAINER:
        explainer(part.spec)


def _describe_explainer(part: Explainer, run: str | None) -> tuple[str, Mapping[str, Any]]:
    """Return the spec that an explainer's results are stored under, and the facts that they depend on.

    `run` is the key of the cell that learned it, if any.
    """
    stored, facts = part.spec, dict[str, Any]()
    if part.spec == NO_EXPLAINER:
        return stored, {"name": stored}
    if OWN_RUN in part.spec:
        # With another run's explainer the name must tell which run, as the judged run's own keeps `{run}`.
        stored = part.spec if part.run is None else part.spec.replace(OWN_RUN, f"{{{run}}}")
        facts |= {"spec": part.spec, "run": run}
    else:
        made = explainer(part.spec)
        facts |= {"name": made.name, **made.params}
    if part.noisy is None:
        return stored, facts
    noisy = to_dict(part.noisy)
    title = "best of {maps} by {best_by}, noise {spread:g}".format(**noisy)
    return f"{stored} ({title})", facts | {"spec": part.spec, NOISY: noisy}


def _group_by_limit(explainers: Iterable[str], limits: Mapping[str, int], rows: int) -> dict[int, list[str]]:
    """Group explainers by the number of examples that they are judged on; 0 is all examples and always exists."""
    # The run on all examples gives the model's own performance, even if every explainer has a limit.
    groups: dict[int, list[str]] = {0: []}
    for name in explainers:
        limit = limits.get(name, rows)
        groups.setdefault(0 if limit >= rows else limit, []).append(name)
    return groups


def _unique_keys(cells: Iterable[Cell | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cell.key for cell in cells if cell is not None))
