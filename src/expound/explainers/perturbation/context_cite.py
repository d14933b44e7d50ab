"""ContextCite: a sparse linear model of an answer's log-odds, as a function of the present parts of the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Lasso
from torch import Tensor

from expound.data.cards import MethodCard
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.base import OutputExplainer, TokenScores
from expound.explainers.perturbation.coalitions import coalition_values
from expound.explainers.units import number_units, spread
from expound.models import Batch, ExplainedModel
from expound.models.perturbation.run import RemovalMethod
from expound.models.tasks import Task

# scikit-learn's default tolerance of 1e-4 limits the accuracy of the weights to four digits.
TOLERANCE = 1e-10
SWEEPS = 10_000


@dataclass(frozen=True)
class ContextCite(OutputExplainer):
    """Weights of a LASSO of the answer on the units present in random ablations (Cohen-Wang et al. 2024). Signed.

    f = log p/(1 − p) of the target's probability p, for generated text of all its tokens together; for spans of the
    input, which removal can make impossible, f is p itself. f / R, with R the number of explained tokens, is regressed
    on standardized masks, min 1/(2M) ‖f/R − Zw − b‖² + alpha ‖w‖₁. The weights are converted back to the scale of the
    masks and of f: a unit's score is how much its presence increases f. `TokenScores.bias` [B] is the intercept.

    Args:
        n_samples: number of random ablations, M.
        unit: the units, `word`, `token`, `sentence`, `paragraph` or `source`; default: sentences (or the units
            of `Batch.unit_of`) of a prompt, otherwise words. A unit's weight is shared equally by its tokens.
        perturbation: how absent units are removed: `remove`, `mask`, `pad`, `zero` or `attend`.
        keep_probability: probability that a unit is present.
        alpha: weight of the penalty ‖w‖₁; a larger one sets more units to zero.
        seed: determines the masks, which depend on the number of units and not on the text; 0: the authors' masks.
        output: `logit`, `log_prob` or `prob` is regressed; default: f.

    Raises:
        ExpoundError: a number out of range.
    """

    n_samples: int = 64
    unit: UnitName | None = None
    perturbation: RemovalMethod = "remove"
    keep_probability: float = 0.5
    alpha: float = 0.01
    seed: int = 0
    card: ClassVar = MethodCard(
        name="context_cite", label="ContextCite", family="perturbation", signed=True, cost="min(n_samples, 2^words) F",
        paper="Cohen-Wang et al. 2024", unit="weight in a linear model of the {output|log-odds}",
        equation=r"\min_w \frac{1}{2M} \lVert f / R - Z w - b \rVert^2 + \alpha \lVert w \rVert_1",
        use="Use it to cite sources or sentences of a prompt for an answer, when most of them matter little.",
        avoid="Do not use it when every unit matters a little: the penalty sets small weights to zero.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_samples < 2 or not 0 < self.keep_probability < 1 or self.alpha <= 0 or self.seed < 0:
            raise ExpoundError(
                "context_cite needs n_samples of at least 2, keep_probability between 0 and 1, alpha above 0, a seed "
                f"of 0 or more, got {self.n_samples}, {self.keep_probability}, {self.alpha}, {self.seed}"
            )

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of forward and backward passes: one per ablation, at most."""
        return float(min(self.n_samples, 2 ** min(length, 60))), 0.0

    def cost(self, length: int) -> float:
        """Return half of the passes: half of the units are removed on average."""
        return self.passes(length)[0] / 2

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> TokenScores:
        """Return the weights of the LASSO as scores, fitted example by example."""
        unit = number_units(batch, self.unit or default_unit(batch))
        counts = (unit.max(1).values + 1).tolist()
        present = self.draw_masks(unit)
        values = self.evaluate_masks(model, batch, target, present, unit).double().cpu().numpy()
        sizes = model.task.count_tokens(target).tolist()
        weights, biases = torch.zeros(len(batch), present.shape[2], dtype=torch.float64), []
        for row, count in enumerate(counts):
            own, bias = fit_lasso(present[:, row, :count].cpu().numpy(), values[:, row], sizes[row], self.alpha)
            weights[row, :count] = torch.from_numpy(own)
            biases.append(bias)
        scores = weights.to(batch.device, model.dtype)
        return TokenScores(spread(scores, unit), bias=torch.tensor(biases).to(scores))

    def draw_masks(self, unit: Tensor) -> Tensor:
        """Return the units present in each ablation [M, B, U], given the unit of each position [B, L]."""
        return batch_ablation_masks(self.n_samples, unit.amax(1) + 1, self.keep_probability, self.seed * self.n_samples)

    def evaluate_masks(
        self, model: ExplainedModel, batch: Batch, target: Tensor, present: Tensor, unit: Tensor
    ) -> Tensor:
        """Return f with only the `present` [M, B, U] units: [M, B]."""
        value: Callable[[Tensor, Tensor], Tensor] = partial(log_odds, model.task)
        if self.output is not None or batch.foil is not None or model.task.predicts_number or model.task.reads_context:
            value = model.task.score_removal
        return coalition_values(model, batch, target, present, unit, self.perturbation, value)


def default_unit(batch: Batch) -> UnitName:
    """Return `sentence` for a prompt whose sentences are known, otherwise `word`."""
    known = batch.unit_of is not None or batch.alignments is not None
    return "sentence" if batch.response is not None and known else "word"


def ablation_masks(count: int, units: int, keep_probability: float = 0.5, seed: int = 0) -> NDArray[np.bool_]:
    """Return random masks of present units [count, units]; mask i depends on seed + i and the number of units only."""
    # The legacy generator with one seed per mask is the authors': their published masks are reproduced.
    masks = [
        np.random.RandomState(seed + i).choice([False, True], units, p=[1 - keep_probability, keep_probability])
        for i in range(count)
    ]
    return np.array(masks, dtype=np.bool_).reshape(count, units)


def batch_ablation_masks(n_samples: int, counts: Tensor, keep_probability: float = 0.5, seed: int = 0) -> Tensor:
    """Return masks [n_samples, B, U] for examples with `counts` [B] units; padding is absent."""
    masks = torch.zeros(n_samples, len(counts), max(1, int(counts.max())), dtype=torch.bool)
    for row, count in enumerate(counts.tolist()):
        masks[:, row, :count] = torch.from_numpy(ablation_masks(n_samples, count, keep_probability, seed))
    return masks.to(counts.device)


def log_odds(task: Task, logits: Tensor, target: Tensor) -> Tensor:
    """Return log p − log(1 − p) of the target's probability [..., B]; of a contrast, first minus second."""
    if task.is_contrast(target):
        first, second = (log_odds(task, logits, each) for each in target.unbind(-1))
        return first - second
    log_p = task.with_output("log_prob").score_removal(logits, target)
    # p rounds to 1 for confident models, and the odds to ∞: use the largest p below 1 of the number format.
    log_p = log_p.clamp(max=-torch.finfo(log_p.dtype).eps / 2).double()
    # expm1 keeps the digits of 1 − p that `1 - exp` loses near p = 1.
    return log_p - (-log_p.expm1()).log()


def fit_lasso(
    present: NDArray[np.bool_], values: NDArray[np.float64], size: int, alpha: float
) -> tuple[NDArray[np.float64], float]:
    """Return the weights [U] and intercept of a LASSO of f [M] on masks [M, U].

    f is divided by `size`, the number of explained tokens, so that the penalty acts per token.
    """
    masks = present.astype(np.float64)
    mean, deviation = masks.mean(0), masks.std(0)
    # A unit that no mask changes gets weight 0 instead of 0 / 0.
    deviation[deviation == 0] = 1.0
    if not masks.shape[1]:
        return mean, float(values.mean())
    fitted = Lasso(alpha=alpha, tol=TOLERANCE, max_iter=SWEEPS).fit((masks - mean) / deviation, values / size)
    weights = size * fitted.coef_ / deviation
    return weights, float(size * fitted.intercept_ - weights @ mean)
