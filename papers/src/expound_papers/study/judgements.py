"""A judgement of a study as cells: one for each number of examples that its explainers are judged on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from expound.data.cards import MethodCard
from expound.errors import ExpoundError, check_choice
from expound.explainers import EXPLAINERS
from expound.explainers.registry import describe_spec
from expound.metrics import metric
from expound_papers.protocols import registry as protocols
from expound_papers.runs.execution import judge_model
from expound_papers.runs.recipe_configs import omit_added
from expound_papers.runs.run_files import NOISY, OWN_RUN, RUN_IN_SPEC
from expound_papers.runs.store import Cell
from expound_papers.study.addresses import AddressBook, unique_keys
from expound_papers.study.parts import (
    Data,
    Explainer,
    Place,
    Runs,
    StudyRun,
    fill_variables,
    make_title,
    to_dict,
)

Specs: TypeAlias = Mapping[str, str]
NO_EXPLAINER = "none"
"""The spec of no explainer, for students that learn from answers alone."""


@dataclass(frozen=True)
class JudgementCall:
    """What all runs of one call of `Study.judge` share: its arguments.

    Attributes:
        explainers: the explainers by name.
        how: the part of the configuration that is the same for all runs.
        recipes: all runs of the study by name, which specs of metrics refer to.
    """

    name: str
    explainers: Mapping[str, Explainer]
    metrics: Specs
    model: Runs | None
    protocol: str | None
    limits: Mapping[str, int]
    options: Mapping[str, Any]
    how: Mapping[str, Any]
    recipes: Mapping[str, Runs]

    def check(self) -> None:
        """Raise ExpoundError for an unknown explainer, metric, protocol or option."""
        self._check_protocol()
        for key in self.limits:
            check_choice("explainer", key, self.explainers)
        for each in self.explainers.values():
            _check_explainer(each)
        for spec in self.metrics.values():
            metric(spec)

    def _check_protocol(self) -> None:
        """Raise ExpoundError for an unknown protocol or option, or explainers that the protocol cannot use."""
        if self.protocol is not None:
            protocols.check_protocol(self.protocol, self.options)
        elif self.options:
            raise ExpoundError(f"{self.name}: {', '.join(self.options)}: options are for a protocol")
        if protocols.uses_explainers(self.protocol):
            if self.limits or self.metrics or not self.explainers:
                raise ExpoundError(
                    f"{self.protocol} runs the explainers itself: name some, and neither metrics nor limits"
                )
        elif any(each.spec == NO_EXPLAINER for each in self.explainers.values()):
            raise ExpoundError("the explainer none is for protocols with students")


def make_judgements(book: AddressBook, call: JudgementCall, runs: Runs, place: Place, data: Data) -> Iterator[StudyRun]:
    """Yield the judgements of one run on one dataset: one for each limit of explainers."""
    judged, start = call.model or runs, runs.models[place.model]
    cell = judged.cells[judged.find_place(place)]
    configs, needs = dict[str, tuple[str, Mapping[str, Any]]](), [cell]
    for key, part in call.explainers.items():
        learner = _find_learner(key, part, runs, place)
        configs[key] = _describe_explainer(part, None if learner is None else learner.key)
        needs.append(learner)
    values, more, parts = book.resolve(call.options, place)
    metric_configs, of_metrics = _describe_metrics(call, place)
    address = book.add_data("judged", data)
    keys = unique_keys([*needs, *more, *of_metrics])
    where = {"model": start.source_for_seed(place.seed), "dataset": data.resolve(book.reserved), "parts": parts}
    for limit, names in _group_by_limit(call.explainers, call.limits, address.rows).items():
        config = {
            "kind": "judge",
            "explainers": {configs[key][0]: configs[key][1] for key in names},
            "metrics": metric_configs,
            "model": book.address_model(start, place, judged),
            "dataset": address.address,
            "seed": place.seed,
            **call.how,
        }
        # Keys that came later are left out at their default, so that older cells keep their addresses.
        if call.protocol is not None:
            options = protocols.add_default_options(call.protocol, values)
            config["protocol"] = {"name": call.protocol, "options": options}
        if cell is None and start.prompt is not None:
            config["prompt"] = to_dict(start.prompt)
        if call.explainers and start.full_attention:
            config["full_attention"] = True
        if limit:
            config["limit"] = limit
        title = make_title(runs.name, place, call.name, f"first {limit}" if limit else "", data.name)
        made = Cell(config, judge_model, title, keys, where)
        specs = {key: configs[key][0] for key in names}
        yield StudyRun(made, *place[:2], runs.name, place.seed, data.name, call.name, specs, partly=limit > 0)


def _find_learner(name: str, part: Explainer, runs: Runs, place: Place) -> Cell | None:
    """Return the cell that learned an explainer; None for one without such a cell."""
    if OWN_RUN not in part.spec:
        return None
    if part.run is not None:
        return part.run.find_cell(place)
    cell = runs.cells[place]
    if cell is None:
        raise ExpoundError(f"{name} comes from the judged run, but {runs.name} trains nothing: name a run")
    return cell


def _describe_metrics(call: JudgementCall, place: Place) -> tuple[dict[str, Any], list[Cell]]:
    """Return a judgement's metrics with all parameters, by spec, and the cells that their specs name."""
    configs, needs = dict[str, Any](), list[Cell]()
    for spec in call.metrics.values():
        made = metric(spec)
        configs[spec] = {"name": made.name, **omit_added(made.name, made.params)}
        named = dict[str, Cell]()
        for recipe in RUN_IN_SPEC.findall(spec):
            check_choice("recipe", recipe, call.recipes)
            named[recipe] = call.recipes[recipe].find_cell(place)
        if named:
            configs[spec]["runs"] = {recipe: cell.key for recipe, cell in named.items()}
        needs += named.values()
    return configs, needs


def as_explainer(part: str | Explainer) -> Explainer:
    """Return an explainer, or a spec of one, as an explainer."""
    if isinstance(part, str):
        return Explainer(fill_variables(part))
    return part


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
        describe_spec(part.spec)


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
        described = describe_spec(part.spec)
        facts |= omit_added(described["name"], described)
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
