"""Occlusion: the change of the prediction when a word is removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from expound.data.cards import MethodCard
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.base import OutputExplainer, TokenScores, select_target
from expound.explainers.perturbation.tree_search import find_parents, search_tree
from expound.explainers.units import number_units, spread
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.perturbation.run import RemovalMethod, run_perturbed, run_with_hidden_units

Search = Literal["all", "tree", "cache"]
UNITS_AT_ONCE = 128
"""Changed inputs that are prepared at a time: memory does not grow with the number of units."""


@dataclass(frozen=True)
class Occlusion(OutputExplainer):
    """Drop of the target's probability when a word (or another unit) is removed (Zeiler and Fergus 2014). Signed.

    For generated text it is the drop of the log-probability, unless `output` is given.

    `unit`: `word`, `token`, `sentence`, `paragraph` or `source`; a unit's drop is shared equally by its
    tokens. `perturbation`: `mask`, `remove`, `pad`, `zero` or `attend`.

    `search`: `all` removes every unit; `tree` removes groups of paragraphs, then halves of those whose removal costs
    the target most (hierarchical attribution of AttriBoT, Liu et al. 2025, but on the whole input). Units that were not
    removed alone share the drop of their group; a group whose parts act against each other can hide them. `budget`: the
    most inputs that `tree` reads per example; if it is enough for all units, both searches are the same. An eighth of
    the units finds one decisive unit of 140, three of 280 or five of 560 that are far from each other. `cache`: only
    the units are removed that a causal language model misses most when question and answer do not see their keys and
    values, at the cost of one more pass and the end of the prompt per unit; other units have the score 0.

    Raises:
        ExpoundError: an unknown search, or a budget below 3.

    Examples:
        >>> explain("occlusion", "good fine film")  # .7 − .4, .7 − .5, .7 − .7
        [0.3, 0.2, 0.0]
    """

    returns_logits: ClassVar[bool] = True
    unit: UnitName = "word"
    perturbation: RemovalMethod = "mask"
    search: Search = "all"
    budget: int = 64
    card: ClassVar = MethodCard(
        name="occlusion", family="perturbation", signed=True, cost="(words + 1) F", paper="Zeiler and Fergus 2014",
        unit="drop in {output} when removed",
        equation=r"s_i = p_c(x) - p_c(x \setminus i)",
        use="Use it beside any other method: it needs only the model's predictions, and everybody understands it.",
        avoid="Do not use it when several words say the same (removing one of them changes nothing), or for long "
        "texts without `search=tree`.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget < 3:
            raise ExpoundError(f"occlusion needs a budget of at least 3 inputs, got {self.budget}")

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of passes: at most one per unit, plus one for the full input; equal inputs are run once."""
        most = {"all": length + 1.0, "tree": self.budget, "cache": self.budget + 1.0}[self.search]
        return min(length + 1.0, most), 0.0

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Return the drops p_c(x) − p_c(x without the unit), and the logits of the full input."""
        unit = number_units(batch, self.unit)
        if self.search != "all" and int(unit.max()) + 2 > self.budget:
            return self._search(model, batch, targets, unit)
        parts, count = list[Tensor](), max(int(unit.max()), 0) + 1
        # Number −1 keeps everything: the full input runs in the same passes, and its logits serve for the prediction.
        for first in range(-1, count, UNITS_AT_ONCE):
            number = torch.arange(first, min(first + UNITS_AT_ONCE, count), device=batch.device)[:, None, None]
            keep = (unit != number) | (number < 0)
            parts.append(run_perturbed(model, batch, keep, self.perturbation, model.perturbation_cache))
        logits = torch.cat(parts)
        explanations = []
        for target in targets:
            value = model.task.score_removal(logits, select_target(model, batch, target, logits[0]))
            explanations.append(TokenScores(spread((value[0] - value[1:]).T, unit), logits=logits[0]))
        return explanations

    def _search(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], unit: Tensor
    ) -> list[TokenScores]:
        """Return the drops that a search finds, example by example."""
        scores: list[list[Tensor]] = [[] for _ in targets]
        answers: list[Tensor] = []
        for row in range(len(batch)):
            alone, number = batch.select([row]), unit[row]
            full = run_perturbed(model, alone, alone.attended[None], self.perturbation, model.perturbation_cache)
            own = [
                select_target(model, alone, None if target is None else target[row : row + 1], full[0])
                for target in targets
            ]
            measure = partial(self._measure_drops, model, alone, number, own, full)
            if self.search == "cache":
                found = self._search_by_cache(model, alone, number, own, full)
            else:
                found = search_tree(measure, find_parents(alone, self.unit, number), self.budget - 1)
            answers.append(full[0, 0])
            for target_scores, drops in zip(scores, found, strict=True):
                target_scores.append(spread(drops[None], number[None])[0])
        logits = pad_sequence(answers, batch_first=True)
        return [TokenScores(torch.stack(rows), logits=logits) for rows in scores]

    def _search_by_cache(
        self, model: ExplainedModel, batch: Batch, number: Tensor, targets: Sequence[Tensor], full: Tensor
    ) -> Tensor:
        """Return the drops [T, U] of the units that T targets of one example miss most in the cache, 0 of others."""
        units = range(int(number.max()) + 1)
        logits = run_with_hidden_units(model, batch, [number == unit for unit in units])
        score = model.task.score_removal
        missed = torch.stack([(score(full, target) - score(logits, target))[:, 0] for target in targets])
        largest = missed.abs().amax(1, keepdim=True).clamp(min=torch.finfo(missed.dtype).tiny)
        chosen = (missed / largest).amax(0).topk(self.budget - 1).indices.sort().values
        groups = [range(unit, unit + 1) for unit in chosen.tolist()]
        drops = torch.zeros_like(missed)
        drops[:, chosen] = self._measure_drops(model, batch, number, targets, full, groups)
        return drops

    def _measure_drops(
        self, model: ExplainedModel, batch: Batch, number: Tensor, targets: Sequence[Tensor], full: Tensor,
        groups: Sequence[range],
    ) -> Tensor:  # fmt: skip
        """Return the drops [T, G] of T targets of one example without each of G groups of units."""
        keep = torch.stack([(number < group.start) | (number >= group.stop) for group in groups])[:, None]
        logits = run_perturbed(model, batch, keep, self.perturbation, model.perturbation_cache)
        score = model.task.score_removal
        return torch.stack([(score(full, target) - score(logits, target))[:, 0] for target in targets])
