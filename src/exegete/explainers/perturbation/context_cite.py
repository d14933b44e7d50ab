"""A sparse linear model of an answer's log-odds in which parts of the input are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Lasso
from torch import Tensor

from exegete.data.cards import MethodCard
from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.explainers.base import Explanation, OutputExplainer, TargetSelector
from exegete.explainers.perturbation.coalitions import coalition_values
from exegete.explainers.units import number_units, spread
from exegete.models import Batch, ExplainedModel
from exegete.models.perturbation.run import RemovalMethod
from exegete.models.tasks import Task

TOLERANCE = 1e-10
SWEEPS = 10_000


@dataclass(frozen=True)
class ContextCite(OutputExplainer):
    """Weights of a LASSO of the answer on the units present in random ablations (Cohen-Wang et al. 2024). Signed.

    f = log p/(1 − p) of the target's probability p, generated tokens together (where the answer is a span of the input,
    which removal can make impossible: p itself); f divided by the number R of tokens
    explained is regressed on standardised masks, min 1/(2M) ‖f/R − Zw − b‖² + alpha ‖w‖₁, and weights are taken back to
    the masks' own scale and to f: how much f gains from the unit. `Explanation.bias` [B] is the intercept.

    Args:
        n_samples: how many random ablations are asked, M.
        granularity: the units, `word`, `token`, `sentence`, `paragraph` or `source`; default: sentences (or what
            `Batch.unit_of` says) of a prompt, words elsewhere. A unit's weight is shared equally by its tokens.
        perturbation: what happens to absent units: `remove`, `mask`, `pad` or `zero`.
        keep: the probability that a unit is present.
        alpha: the weight of the penalty ‖w‖₁; a larger one sets more units to zero.
        seed: decides the masks, which depend on the number of units and not on the text; 0: the authors' masks.
        output: `logit`, `log_prob` or `prob` is regressed; default: f.

    Raises:
        ExegeteError: a number out of range.
    """

    n_samples: int = 64
    granularity: Granularity | None = None
    perturbation: RemovalMethod = "remove"
    keep: float = 0.5
    alpha: float = 0.01
    seed: int = 0
    card: ClassVar = MethodCard(
        name="context_cite", label="ContextCite", family="perturbation", signed=True, cost="n_samples F",
        paper="Cohen-Wang et al. 2024", unit="weight in a linear model of the {output|log-odds}",
        equation=r"\min_w \frac{1}{2M} \lVert f / R - Z w - b \rVert^2 + \alpha \lVert w \rVert_1",
        use="Use it to cite sources or sentences of a prompt for an answer, when most of them matter little.",
        avoid="Do not use it when every unit matters a little: the penalty sets small weights to zero.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.n_samples < 2 or not 0 < self.keep < 1 or self.alpha <= 0 or self.seed < 0:
            raise ExegeteError(
                "context_cite needs n_samples of at least 2, keep between 0 and 1, alpha above 0, a seed of 0 or more, "
                f"got {self.n_samples}, {self.keep}, {self.alpha}, {self.seed}"
            )

    def passes(self, length: int) -> tuple[float, float]:
        """One an ablation, at most: equal inputs are run once."""
        return float(self.n_samples), 0.0

    def compute(self, model: ExplainedModel, batch: Batch, select_target: TargetSelector) -> Explanation:
        """Asks for the answer under every mask, and fits example by example."""
        target = select_target(None)
        unit = number_units(batch, self.granularity or default_granularity(batch))
        counts = (unit.max(1).values + 1).tolist()
        draw_masks = self.draw_masks(unit)
        values = self.evaluate_masks(model, batch, target, draw_masks, unit).double().cpu().numpy()
        sizes = (target[:, 1] - target[:, 0]).tolist() if model.task.name == "generation" else [1] * len(batch)
        weights, biases = torch.zeros(len(batch), draw_masks.shape[2], dtype=torch.float64), []
        for row, count in enumerate(counts):
            found, bias = fit_lasso(draw_masks[:, row, :count].cpu().numpy(), values[:, row], sizes[row], self.alpha)
            weights[row, :count] = torch.from_numpy(found)
            biases.append(bias)
        scores = weights.to(batch.device, model.dtype)
        return Explanation(spread(scores, unit), bias=torch.tensor(biases).to(scores))

    def draw_masks(self, unit: Tensor) -> Tensor:
        """[M, B, U] Which units [B, L] are there in each ablation."""
        return batch_ablation_masks(self.n_samples, unit.amax(1) + 1, self.keep, self.seed * self.n_samples)

    def evaluate_masks(
        self, model: ExplainedModel, batch: Batch, target: Tensor, draw_masks: Tensor, unit: Tensor
    ) -> Tensor:
        """[M, B] f with only the `draw_masks` [M, B, U] units."""
        plain = self.output is not None or batch.foil is not None or model.task.name in ("regression", "span")
        value = (
            model.task.score_probabilities
            if plain
            else lambda evaluate_masks, target: log_odds(model.task, evaluate_masks, target)
        )
        return coalition_values(model, batch, target, draw_masks, unit, self.perturbation, value)


def default_granularity(batch: Batch) -> Granularity:
    """Sentences of a prompt, where they are known; words otherwise."""
    known = batch.unit_of is not None or batch.alignments is not None
    return "sentence" if batch.response is not None and known else "word"


def ablation_masks(count: int, units: int, keep: float = 0.5, seed: int = 0) -> NDArray[np.bool_]:
    """[count, units] Who is present: mask i is drawn by the seed + i alone."""
    drawn = [np.random.RandomState(seed + i).choice([False, True], units, p=[1 - keep, keep]) for i in range(count)]
    return np.array(drawn, dtype=np.bool_).reshape(count, units)


def batch_ablation_masks(samples: int, counts: Tensor, keep: float = 0.5, seed: int = 0) -> Tensor:
    """[samples, B, U] Masks of examples that have `counts` [B] units each; what an example does not have is absent."""
    found = torch.zeros(samples, len(counts), max(1, int(counts.max())), dtype=torch.bool)
    for row, count in enumerate(counts.tolist()):
        found[:, row, :count] = torch.from_numpy(ablation_masks(samples, count, keep, seed))
    return found.to(counts.device)


def log_odds(task: Task, evaluate_masks: Tensor, target: Tensor) -> Tensor:
    """[..., B] log p − log(1 − p) of the target's probability, no larger than the number format tells from 1."""
    if task.is_contrast(target):
        first, second = (log_odds(task, evaluate_masks, each) for each in target.unbind(-1))
        return first - second
    chance = task.with_output("log_prob").score_probabilities(evaluate_masks, target)
    chance = chance.clamp(max=-torch.finfo(chance.dtype).eps / 2).double()
    return chance - (-chance.expm1()).log()


def fit_lasso(
    draw_masks: NDArray[np.bool_], values: NDArray[np.float64], size: int, alpha: float
) -> tuple[NDArray[np.float64], float]:
    """Weights [U] and intercept of f [M] by masks [M, U], penalised per one of the `size` tokens explained."""
    masks = draw_masks.astype(np.float64)
    mean, deviation = masks.mean(0), masks.std(0)
    deviation[deviation == 0] = 1.0
    if not masks.shape[1]:
        return mean, float(values.mean())
    fitted = Lasso(alpha=alpha, tol=TOLERANCE, max_iter=SWEEPS).fit((masks - mean) / deviation, values / size)
    weights = size * fitted.coef_ / deviation
    return weights, float(size * fitted.intercept_ - weights @ mean)
