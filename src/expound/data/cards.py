"""Cards: descriptions of methods, metrics and datasets, from which lists, tables, pages and tests are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from expound.errors import check_choice

MethodFamily = Literal[
    "control",
    "gradients",
    "attention",
    "decomposition",
    "perturbation",
    "search",
    "interactions",
    "learned",
    "prompted",
]
MetricFamily = Literal[
    "faithfulness", "plausibility", "simulatability", "consistency", "robustness", "agreement", "conciseness", "cost"
]


METRIC_TERMS = {
    "p": "p(·) is the model's probability of the explained class: the predicted class of the whole text x, unless "
    "`--target` names another one (for a regression, the value itself).",
    "tokens": "The top is a share of the text's tokens, those with the highest scores (signed scores by value). The "
    "number is rounded up; special tokens are not counted and always stay.",
    "removed": "Removed tokens are deleted, and the rest closes up (`perturbation`).",
    "units": "Units are words unless `unit` names another unit; a unit's score is the sum of its tokens' scores, and "
    "special tokens always stay.",
    "masked": "Every token of a removed unit is replaced by the mask token (`perturbation`).",
    "control": "No threshold holds for every model: compare with `random` on the same texts.",
}
"""Sentences that several metrics share; their cards refer to them as {name}."""


def display_name(name: str, label: str = "") -> str:
    """Return the label of a part, or its id as words by default."""
    words = name.replace("_", " ")
    return label or words[:1].upper() + words[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodCard:
    """Properties of an explainer that hold for every input.

    Attributes:
        name: the id in the registry.
        label: the name that people use, if it differs from the words of the id.
        family: one of `MethodFamily`; another one raises ExpoundError.
        signed: whether negative scores mean evidence against the target.
        differentiable: whether attributions keep a graph to the model's weights.
        learned: whether the method has parameters of its own and is loaded from a path, as `id:PATH`.
        cost: forward (F) and backward (B) passes per example, as a formula for people.
        paper: authors and year of the source.
        unit: what a score is, as "part of the {output}" or "{output|log-odds}": the braces are replaced by the name of
            the output that is explained, with its default after the bar.
        equation: the formula of a score, in LaTeX.
        use: when to use the method.
        avoid: when not to use it.
    """

    name: str
    label: str = ""
    family: MethodFamily
    signed: bool = False
    differentiable: bool = False
    learned: bool = False
    cost: str
    paper: str = ""
    unit: str = ""
    equation: str = ""
    use: str = ""
    avoid: str = ""

    def __post_init__(self) -> None:
        check_choice(f"family of {self.name}", self.family, get_args(MethodFamily))

    def describe_scores(self, task: str = "", output: str | None = None, *, signed: bool = True) -> str:
        """Return what a score means, such as "part of the logit"; empty if the card has no unit.

        Args:
            task: name of the model's task.
            output: the output that is explained: logit, log_prob or prob. Default: the task's usual one.
            signed: whether these scores have signs.
        """
        default = "probability" if self.family in ("perturbation", "search", "interactions") else "logit"
        usual = {"generation": "log-probability", "regression": "value"}.get(task, default)
        chosen = {"logit": "logit", "log_prob": "log-probability", "prob": "probability"}.get(output or "", "")
        text = re.sub(r"\{output\|?(.*?)\}", lambda match: chosen or match[1] or usual, self.unit)
        if text and self.signed and not signed:
            return f"size of the {text}"
        return text

    @property
    def title(self) -> str:
        """The name that tables, reports and pages show; files and commands use `name`."""
        return display_name(self.name, self.label)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCard:
    """The description of a metric. `bounds`: lowest and highest value of one example; None: unbounded on that side.

    `label`: what people call it, if that differs from the words of its id. `family`: one of `MetricFamily`; another
    one raises ExpoundError. `equation`: the formula in LaTeX. `computed`: how a value is computed. `read`: how to
    interpret a value. `use` and `avoid`: when to use the metric, and when not. The texts may contain the names of
    `METRIC_TERMS` in braces; `text` returns them complete.
    """

    name: str
    family: MetricFamily
    higher_is_better: bool
    paper: str = ""
    bounds: tuple[float | None, float | None] = (None, None)
    needs_rationale: bool = False
    label: str = ""
    equation: str = ""
    computed: str = ""
    read: str = ""
    use: str = ""
    avoid: str = ""

    def __post_init__(self) -> None:
        check_choice(f"family of {self.name}", self.family, get_args(MetricFamily))

    def text(self, field: Literal["computed", "read", "use", "avoid"]) -> str:
        """Return one of the card's texts with the shared sentences of `METRIC_TERMS` inserted."""
        text: str = getattr(self, field)
        for name, sentence in METRIC_TERMS.items():
            text = text.replace(f"{{{name}}}", sentence)
        return text

    @property
    def range(self) -> str:
        """The bounds as text, such as "0 … 1" and "−∞ … ∞"."""
        low, high = self.bounds
        start = "−∞" if low is None else f"{low:.3g}"
        end = "∞" if high is None else f"{high:.3g}"
        return f"{start} … {end}"

    @property
    def heading(self) -> str:
        """The name that reports and pages show."""
        return display_name(self.name, self.label)

    @property
    def title(self) -> str:
        """The heading of a table's column: the name with an arrow in the better direction."""
        return f"{self.heading} {'↑' if self.higher_is_better else '↓'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """Facts about a dataset format. `form`: how its spec is written; `example`: a spec."""

    name: str
    what: str
    form: str
    source: str
    license: str
    example: str
