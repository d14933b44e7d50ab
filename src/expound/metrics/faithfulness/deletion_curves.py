"""Area under the curve of the prediction while units are deleted or inserted in the order of their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expound.data.cards import MetricCard
from expound.metrics.faithfulness.unit_order import UnitOrderMetric


@dataclass(frozen=True, kw_only=True)
class DeletionAuc(UnitOrderMetric):
    """Area under the target's probability over the share of deleted units (trapezoidal rule): low if it falls early.

    `n_steps`: the units are deleted in at most this number of steps of nearly equal size.

    Examples:
        >>> judge("deletion_auc", "good fine film", [2, 1, 0])  # (.7 / 2 + .4 + .2 + .2 / 2) / 3
        0.35
    """

    n_steps: int = 50
    positive_params: ClassVar = ("n_steps",)
    card: ClassVar = MetricCard(
        name="deletion_auc", label="Area under deletion",
        family="faithfulness", higher_is_better=False, paper="Petsiuk et al. 2018", bounds=(0, 1),
        equation=r"\int_0^1 p(x \setminus \text{top}_t) \, dt",
        computed="Words are masked by decreasing score, in at most 50 steps of nearly equal size (`n_steps`), until "
        "all are masked; the value is the area under the probability over the masked share. {p} {units} {masked}",
        read="Lower is better: the probability falls early. The curve starts at p(x), and a model that never changes "
        "its prediction scores p(x). {control}",
        use="You want the whole curve in one number, without choosing fractions.",
        avoid="Do not use it to compare models of different confidence; use `naopc_comprehensiveness`.",
    )  # fmt: skip

    def removal_sizes(self, counts: Tensor) -> Tensor:
        """Return how many units are deleted at each step, from 0 to all: [S + 1, B]."""
        count = counts.clamp(min=1)
        steps = count.clamp(max=self.n_steps)
        number = torch.arange(int(steps.max()) + 1, device=counts.device)[:, None].minimum(steps)
        # number · count / steps rounded half up, in integers: floats round differently on GPUs.
        return (2 * number * count + steps) // (2 * steps)

    def aggregate(self, answers: Tensor, sizes: Tensor, counts: Tensor) -> Tensor:
        """Return the area under the predictions [S + 1, B] over the share of deleted units: [B]."""
        return torch.trapezoid(answers, sizes / counts.clamp(min=1).double(), dim=0)


@dataclass(frozen=True, kw_only=True)
class InsertionAuc(DeletionAuc):
    """Area under the target's probability over the share of inserted units: high if the probability rises early.

    Examples:
        >>> judge("insertion_auc", "good fine film", [2, 1, 0])  # (.2 / 2 + .5 + .7 + .7 / 2) / 3
        0.55
    """

    card: ClassVar = MetricCard(
        name="insertion_auc", label="Area under insertion",
        family="faithfulness", higher_is_better=True, paper="Petsiuk et al. 2018", bounds=(0, 1),
        equation=r"\int_0^1 p(\text{top}_t) \, dt",
        computed="All words are masked and restored by decreasing score, in at most 50 steps of nearly equal size "
        "(`n_steps`); the value is the area under the probability over the restored share. {p} {units} {masked}",
        read="Higher is better: the probability rises early. {control}",
        use="Together with `deletion_auc`: are the words that the explanation names enough?",
        avoid="Do not use it to compare models of different confidence; use `naopc_sufficiency`.",
    )  # fmt: skip
    keeps_top: ClassVar = True
