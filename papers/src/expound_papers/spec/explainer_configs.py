"""Explainers of a study: checks of their specs, and what their results depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from expound.data.cards import MethodCard
from expound.errors import ExpoundError, check_choice
from expound.explainers import EXPLAINERS, explainer
from expound.metrics import metric
from expound_papers.spec.run_ref import OWN_RUN
from expound_papers.spec.schema import ExplainerPart

NOISY = "noisy"
NONE = "none"
"""The spec of no explainer, for students that learn from answers alone."""


class ExplainerConfig(NamedTuple):
    """An explainer of a judgement: the `spec` that its results are stored under, and the facts that these depend on."""

    spec: str
    facts: Mapping[str, Any]


def check_explainer(part: ExplainerPart) -> None:
    """Raise ExpoundError for an unknown id or parameter; of an explainer to be learned only the id is checked."""
    if part.noisy is not None:
        metric(part.noisy.best_by)
    if OWN_RUN not in part.spec:
        if part.run is not None:
            raise ExpoundError(f"{part.spec!r} takes nothing from the run {part.run!r}: expected {OWN_RUN} in it")
        if part.spec != NONE:
            explainer(part.spec)
        return
    learned = [name for name, card in EXPLAINERS.cards(MethodCard).items() if card.learned]
    check_choice("learned method", part.spec.partition(":")[0], learned)


def make_explainer_config(part: ExplainerPart, run: str | None) -> ExplainerConfig:
    """Return an explainer's configuration in a judgement; `run` is the key of the cell that learned it, if any."""
    if part.spec == NONE:
        return ExplainerConfig(NONE, {"name": NONE})
    if OWN_RUN in part.spec:
        # With another run's explainer the name must tell which run, as the judged run's own keeps `{run}`.
        stored = part.spec if part.run is None else part.spec.replace(OWN_RUN, f"{{{run}}}")
        facts: dict[str, Any] = {"spec": part.spec, "run": run}
    else:
        made = explainer(part.spec)
        stored, facts = part.spec, {"name": made.name, **made.params}
    if part.noisy is None:
        return ExplainerConfig(stored, facts)
    noisy = part.noisy.model_dump()
    title = "best of {maps} by {best_by}, noise {spread:g}".format(**noisy)
    return ExplainerConfig(f"{stored} ({title})", facts | {"spec": part.spec, NOISY: noisy})
