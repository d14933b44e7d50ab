"""Facts about a method or a metric that tables, help texts, pages and contract tests are generated from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MethodFamily = Literal[
    "control", "gradients", "attention", "decomposition", "perturbation", "search", "learned", "prompted"
]
MetricFamily = Literal[
    "faithfulness", "plausibility", "simulatability", "consistency", "robustness", "agreement", "conciseness", "cost"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodCard:
    """Properties of an explainer that hold for every input.

    `signed`: whether negative scores mean evidence against the target. `differentiable`: whether its attributions keep
    a graph to the model's weights. `cost`: forward (F) and backward (B) passes an example, as a formula for people.
    `learned`: it has parameters of its own and is loaded from a path, as `id:PATH`.
    """

    name: str
    family: MethodFamily
    signed: bool = False
    differentiable: bool = False
    learned: bool = False
    cost: str
    paper: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCard:
    """A metric's facts. `bounds` are those of one example's value; None means unbounded on that side."""

    name: str
    family: MetricFamily
    higher_is_better: bool
    paper: str = ""
    bounds: tuple[float | None, float | None] = (None, None)
    needs_rationale: bool = False
    label: str = ""

    @property
    def title(self) -> str:
        """The heading of a table's column: the label and an arrow to the better side."""
        return f"{self.label or self.name} {'↑' if self.higher_is_better else '↓'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """A reader's facts. `form`: how its spec is written; `example`: a call that works where the data is."""

    name: str
    what: str
    form: str
    source: str
    licence: str
    example: str
