"""A trained model's own citation: the method it was trained with, small scores set to 0, and calibrated bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expound.data.cards import MethodCard
from expound.data.hub import find_folder
from expound.data.provenance import write_json
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.base import Explainer, TokenScores
from expound.explainers.learned.base import CONFIG, load_config
from expound.explainers.learned.conformal import ConformalLowerBound
from expound.explainers.registry import EXPLAINERS, explainer
from expound.explainers.units import number_units, sum_by_unit
from expound.models import Batch, ExplainedModel, Outputs


@dataclass(frozen=True)
class TrainedCitation(Explainer):
    """Scores of the method that `expound train cite` trained a model with, made sparse by the threshold that it found.

    `method`: the trained method. `unit`: the units that it cites: sources, sentences or words. `threshold`: units below
    this share of the largest score get 0; None: all keep their scores. `lower_bound`: bounds on what an answer loses
    without a unit, calibrated on held-out examples; None: not calibrated.
    """

    method: Explainer
    unit: UnitName = "source"
    threshold: float | None = None
    lower_bound: ConformalLowerBound | None = field(default=None, compare=False)
    card: ClassVar = MethodCard(
        name="citation", label="Trained citation", family="learned", signed=True, cost="its method's", learned=True,
        equation=r"s_u \text{ of the trained method, } 0 \text{ where } s_u < \tau \max_v s_v",
        use="A model trained with `expound train cite`: it bounds from below how much the log-probability of an "
        "answer falls without a source.",
        avoid="Do not use it for a model that was not trained with `expound train cite`: its bounds hold only for "
        "such a model.",
    )  # fmt: skip

    @property
    def params(self) -> dict[str, Any]:
        """The trained method's id and parameters, and the citation's parameters."""
        own: dict[str, Any] = {"unit": self.unit, "threshold": self.threshold}
        if self.lower_bound is not None:
            own["error_rate"] = self.lower_bound.error_rate
        return {"of": self.method.name, **self.method.params, **own}

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of passes of the trained method."""
        return self.method.passes(length)

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Return the trained method's explanations with small scores set to 0."""
        explanations = self.method.compute(model.with_output(self.method.output), batch, targets, outputs)
        return [replace(each, scores=self._zero_small_units(batch, each.scores)) for each in explanations]

    def _zero_small_units(self, batch: Batch, scores: Tensor) -> Tensor:
        if self.threshold is None:
            return scores
        unit = number_units(batch, self.unit)
        small = sparsify(sum_by_unit(scores, unit), self.threshold) == 0
        return scores.masked_fill(small.gather(1, unit.clamp(min=0)) & (unit >= 0), 0.0)

    def lower_bounds(self, scores: NDArray[Any], unit: str) -> NDArray[np.float32] | None:
        """Return the bounds of the units' scores [T, U]; None for other units, or without a calibration."""
        if self.lower_bound is None or unit != self.unit:
            return None
        return self.lower_bound.lower_bounds(scores.astype(np.float64)).astype(np.float32)

    def save_pretrained(self, path: str | Path, spec: str, **more: Any) -> None:
        """Write the citation into the folder `citation` in `path`, with the spec of its method and further facts."""
        folder = Path(path) / self.card.name
        folder.mkdir(parents=True, exist_ok=True)
        lower_bound = None if self.lower_bound is None else asdict(self.lower_bound)
        facts = {"method": spec, "unit": self.unit, "threshold": self.threshold, "lower_bound": lower_bound} | more
        write_json(folder / CONFIG, {"explainer": self.card.name} | facts)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Load the citation from the folder of the model that was trained for it.

        Raises:
            ExpoundError: a folder without a citation, or a damaged one.
        """
        root = find_folder(path)
        facts = load_config(cls.card.name, root / cls.card.name)
        try:
            spec, saved_bound = str(facts["method"]), facts["lower_bound"]
            # A learned method is saved in the folder, too: `cite` writes it into a folder of its own, `at2` does not.
            is_learned = EXPLAINERS[spec.partition("?")[0]].card.learned
            lower_bound = None
            if saved_bound:
                # JSON has no NaN; it is written as null.
                bounds = []
                for value in saved_bound["bounds"]:
                    bounds.append(float("nan") if value is None else float(value))
                lower_bound = ConformalLowerBound(float(saved_bound["error_rate"]), tuple(bounds))
            if is_learned:
                spec = f"{spec}:{root}"
            return cls(explainer(spec), facts["unit"], facts["threshold"], lower_bound)
        except (KeyError, TypeError, ValueError) as error:
            raise ExpoundError(f"{root} holds no {cls.card.name} that can be read: {error}") from error


def sparsify(scores: Tensor, threshold: float) -> Tensor:
    """Return the scores of units [.., U]; scores below 0, or below `threshold` times the largest, become 0."""
    smallest = threshold * scores.amax(-1, keepdim=True).clamp(min=0)
    return torch.where((scores < smallest) | (scores <= 0), 0.0, scores)
