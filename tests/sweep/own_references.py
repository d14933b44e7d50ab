"""Slow scores of classifiers of one's own by each method, from the Hugging Face model alone."""

from __future__ import annotations

import itertools
import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from captum.attr import GradientShap
from torch import Tensor

import equations
import families
from expound.explainers.perturbation.reagent import draw_replacements
from expound.explainers.seeding import example_generators, example_seeds, gaussian_noise
from sweep.derivatives import Relevance, Rescaled
from sweep.layers import Layers
from sweep.references import Reference

COALITIONS = ("kernel_shap", "shapley_sampling", "spex", "lime", "context_cite", "solvex")
PATHS = ("integrated_gradients", "sequential_integrated_gradients", "smooth_grad", "gradient_shap")
OF_LAYERS = (
    "value_zeroing", "alti", "globenc", "information_flow", "flash_trace", "decompx", "decompx_classifier"
)  # fmt: skip


class OwnReference(Reference):
    """Scores [L] by the definitions."""

    def explain(self, model: Any, alone: Any, explainer: Any, places: list[int]) -> Any:
        """Scores of the `places` by a method; `alone`: the example, from which random draws are seeded."""
        method, params = explainer.name, explainer.params
        if method in COALITIONS:
            return getattr(self, method)(params, places)
        if method in OF_LAYERS:
            return getattr(self.layers, method)()[places]
        if method == "attention_to_source":
            return self.by_attention("attention_all").detach()[places]
        if method in ("integrated_gradients", "sequential_integrated_gradients"):
            return self.integrate(params["n_steps"], places, one_by_one=method.startswith("seq"))
        if method in ("attn_lrp", "gim", "deep_lift"):
            return getattr(self, method)()[places]
        return getattr(self, method)(model, alone, params)[places]

    # -- gradients ---------------------------------------------------------------------------------------------------

    def integrate(self, steps: int, places: list[int], *, one_by_one: bool) -> Any:
        """Gradients on the straight path from masked places, of all places or of one at a time."""
        end, nodes = self.embeddings, np.polynomial.legendre.leggauss(steps)
        blank = self.table(torch.tensor(self.mask)).detach()
        scores = []
        for moved in [[place] for place in places] if one_by_one else [places]:
            rise = torch.zeros_like(end)
            rise[:, moved] = end[:, moved] - blank
            slopes = [
                weight / 2 * self.gradient(end - (1 - (node + 1) / 2) * rise)[1]
                for node, weight in zip(*nodes, strict=True)
            ]
            scores.append((sum(slopes) * rise[0]).sum(-1)[moved])
        return torch.cat(scores)

    def smooth_grad(self, model: Any, alone: Any, params: dict[str, Any]) -> Any:
        (seed,), slopes = example_seeds(alone, params["seed"]), []
        for number in range(params["n_samples"]):
            noise = gaussian_noise(alone, self.embeddings, params["stdevs"], [seed + number])
            slopes.append(self.gradient(self.embeddings + noise)[1])
        return torch.stack(slopes).mean(0).norm(dim=-1)

    def gradient_shap(self, model: Any, alone: Any, params: dict[str, Any]) -> Any:
        (seed,) = example_seeds(alone, params["seed"])
        start = torch.where(alone.content[..., None], self.table(torch.tensor(self.mask)), self.embeddings)
        torch.manual_seed(seed)
        np.random.seed(seed % (1 << 32))  # noqa: NPY002  # Captum draws from the global generator
        shap = GradientShap(lambda points: self.run_at(points).logits[:, self.target])
        both = torch.cat([start, self.embeddings]).detach()
        return shap.attribute(self.embeddings, both, n_samples=params["n_samples"], stdevs=0.0)[0].sum(-1)

    def follow(self, rules: Any, points: Tensor) -> tuple[Tensor, Tensor]:
        """Points [m, L, d] and the derivative of the first one's score by rules."""
        copy = self.copy()
        families.replace_rms_norms(copy.raw)
        copy.raw.requires_grad_(False)
        points = points.clone().requires_grad_()
        with rules:
            score = copy.score(copy.run_at(points))
        (slope,) = torch.autograd.grad(score, points)
        return points.detach(), slope

    def attn_lrp(self) -> Tensor:
        points, slope = self.follow(Relevance(holds_slopes=True), self.embeddings)
        return (points * slope)[0].sum(-1)

    def gim(self) -> Tensor:
        points, slope = self.follow(Relevance(holds_slopes=False, temperature=2.0), self.embeddings)
        base = self.table(torch.tensor(self.raw.config.pad_token_id)).detach()
        return ((points - base) * slope)[0].sum(-1)

    def deep_lift(self) -> Tensor:
        points = torch.cat([self.embeddings, torch.zeros_like(self.embeddings)])
        points, slope = self.follow(Rescaled(), points)
        return (points * slope)[0].sum(-1)

    # -- sets of words -----------------------------------------------------------------------------------------------

    @cached_property
    def known(self) -> dict[Any, dict[frozenset[int], float]]:
        """Values of sets by the places."""
        return {}

    @torch.no_grad()
    def value_sets(self, places: list[int]) -> dict[frozenset[int], float]:
        """The target's probability with each set of the words, without the others."""
        if tuple(places) not in self.known:
            values = self.known[tuple(places)] = {}
            stay = torch.ones(len(self.ids), dtype=torch.bool).index_fill(0, torch.tensor(places), False)
            for size in range(len(places) + 1):
                # Sets of one size are texts of one length.
                sets = list(itertools.combinations(range(len(places)), size))
                kept = stay.repeat(len(sets), 1)
                for row, present in zip(kept, sets, strict=True):
                    row[[places[i] for i in present]] = True
                ids = self.ids.expand(len(sets), -1)[kept].view(len(sets), -1)
                chances = self.run(ids).logits.softmax(-1)[:, self.target]
                values.update(zip(map(frozenset, sets), chances.tolist(), strict=True))
        return self.known[tuple(places)]

    @cached_property
    def layers(self) -> Layers:
        return Layers(self)

    def kernel_shap(self, params: dict[str, Any], places: list[int]) -> Tensor:
        """Shapley values: all sets are asked."""
        values, count = self.value_sets(places), len(places)
        scores = torch.zeros(count, dtype=torch.float64)
        for present, value in values.items():
            for i in set(range(count)) - present:
                share = math.factorial(len(present)) * math.factorial(count - len(present) - 1) / math.factorial(count)
                scores[i] += share * (values[present | {i}] - value)
        return scores

    shapley_sampling = spex = kernel_shap

    def lime(self, params: dict[str, Any], places: list[int]) -> Tensor:
        values, count = self.value_sets(places), len(places)
        sets = np.array([[float(i in present) for i in range(count)] for present in values])
        distance = 1 - np.sqrt(sets.sum(1) / count)
        weights = params["n_samples"] / len(sets) * np.exp(-(distance**2) / (2 * params["kernel_width"] ** 2))
        design = np.column_stack([sets, np.ones(len(sets))])
        penalty = np.diag([params["alpha"]] * count + [0.0])
        weighted = design.T * weights
        return torch.tensor(np.linalg.solve(weighted @ design + penalty, weighted @ list(values.values()))[:count])

    def context_cite(self, params: dict[str, Any], places: list[int]) -> Tensor:
        values, drawn = self.value_sets(places), []
        for number in range(params["n_samples"]):
            drawn.append(np.random.RandomState(number).choice([0, 1], len(places), p=[0.5, 0.5]))
        chances = [values[frozenset(np.flatnonzero(mask).tolist())] for mask in drawn]
        odds = [math.log(p / (1 - p)) for p in chances]
        return equations.lasso(torch.tensor(np.array(drawn)), torch.tensor(odds).double(), params["alpha"])[0]

    def solvex(self, params: dict[str, Any], places: list[int]) -> Tensor:
        """The best of all orders, found from the largest sets on, and shifted to agree with single drops."""
        values, count = self.value_sets(places), len(places)
        everything = frozenset(range(count))
        best: dict[frozenset[int], tuple[float, tuple[int, ...]]] = {frozenset(): (0.0, ())}
        for size in range(1, count):
            for gone in map(frozenset, itertools.combinations(range(count), size)):
                gain = round(values[gone] - values[everything - gone], 6)
                options = [(best[gone - {i}][0] + gain, (*best[gone - {i}][1], i)) for i in gone]
                best[gone] = max(options)
        _, order = max(best[everything - {i}] for i in range(count))
        ranks = np.zeros(count)
        ranks[list(order)] = np.arange(count - 1, 0, -1)
        drops = np.array([values[everything] - values[everything - {i}] for i in range(count)])
        signs = np.sign(np.where(np.abs(drops) < 1e-6, 0.0, drops))
        agreeing = [(np.sign(ranks - shift + 0.5) == signs).sum() for shift in range(count + 1)]
        return torch.tensor(ranks - np.argmax(agreeing) + 0.5)

    def reagent(self, model: Any, alone: Any, params: dict[str, Any]) -> Tensor:
        (random,) = example_generators(alone, params["seed"])
        content = alone.content[0]
        zeta = torch.zeros(len(content), dtype=torch.float64)
        zeta[content] = torch.from_numpy(random.random(int(content.sum())))
        ids, replaced = draw_replacements(model, alone, [random], params["n_steps"], params["fraction"])
        with torch.no_grad():
            whole = self.score(self.run(), probability=True)
            for given, changed in zip(ids[:, 0], replaced[:, 0], strict=True):
                fall = whole - self.score(self.run(given), probability=True)
                zeta += ((1 + torch.where(changed, fall, -fall)) / 2).logit()
        return zeta.masked_fill(~content, -math.inf).softmax(0)
