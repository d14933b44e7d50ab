"""IvRA's interpretable attention: learned coefficients of features, heads and layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from expound.data.cards import MethodCard
from expound.data.registry import check_choices
from expound.errors import ExpoundError
from expound.explainers.learned.learned_attention import (
    NORMS,
    LearnedAttention,
    Norm,
    disable_autocast,
    explained_positions,
    find_queries_of_layers,
    mean_logits,
    normalize_each,
    normalize_jointly,
    normalize_rows,
    softmax_over,
)
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.batch import to_float32

Mix = Literal["literal", "per_head", "coefs"]


class InterpretableAttention(LearnedAttention):
    """Attention recomputed from weighted features, heads and layers (IvRA, eq. 1 to 5). Unsigned.

    `literal`: Q̃ = NORM(ω_Q ⊙ q) and K̃ = NORM(ω_K ⊙ k) over features, ψ^h_m = mean_n ⟨Q̃_n, K̃_m⟩,
    Ψ_l = Σ_h NORM(τ₁ λ_h ψ^h) with NORM over heads and positions together, r = Σ_l NORM(τ₂ η_l Ψ_l) with NORM over
    layers and positions. With softmax, r is nearly uniform unless `scales` are large: see `calibrate`.
    `per_head`: NORM is over the positions of each head, Ψ_l = mean_h NORM(τ₁ λ_h ψ^h), and of each layer,
    r = mean_l NORM(τ₂ η_l Ψ_l). Sparsemax leaves more words a score than `literal`, which shares one 1 among all heads.
    `coefs`: r_m = softmax_m(Σ_l NORM(η)_l Σ_h NORM(λ_l)_h s^h_m), s^h_m = mean_n ⟨ω_Q ⊙ q_n, ω_K ⊙ k_m⟩ times the
    model's scaling; untrained, it equals the untrained `parameterized_attention`.
    The means are over the queries that can see the key; r sums to 1 over positions.

    Args:
        n_layers: number of layers of the models to explain.
        n_heads: number of heads of each layer.
        head_dim: number of features of each head.
        normalizer: NORM, one of `sparsemax`, `softmax`, `entmax15`.
        mix: `literal`, `per_head` or `coefs`, see above; default: `coefs` for softmax, `literal` otherwise.
        learn_features: learn ω_Q and ω_K; otherwise they keep their initial value 1.
        learn_heads: learn λ; otherwise it keeps its initial value 1.
        learn_layers: learn η; otherwise it keeps its initial value 1.
        scales: τ₁ and τ₂ of `literal` and `per_head`.
        special_tokens: give special tokens a part in r, so that attention to them is not moved to other tokens; the
            paper's L positions are all of the input's. Otherwise NORM is over content only. They are queries in both
            cases.
    """

    query_features: Tensor
    key_features: Tensor
    head_coefficients: Tensor
    layer_coefficients: Tensor
    card: ClassVar = MethodCard(
        name="interpretable_attention", family="learned", differentiable=True, cost="F", paper="Xie et al. 2024",
        learned=True, unit="share of attention",
        equation=r"r = \sum_l \text{NORM}(\tau_2 \eta_l \Psi_l), \; \Psi_l = \sum_h \text{NORM}(\tau_1 \lambda_h "
        r"\psi^h)",
        use="Trained with `expound train ivra` for the criterion that you will judge it by.",
        avoid="Do not use it when the model must not change, or when a method without training is enough.",
    )  # fmt: skip

    def __init__(
        self,
        n_layers: int,
        n_heads: int,
        head_dim: int,
        normalizer: Norm = "sparsemax",
        mix: Mix | None = None,
        learn_features: bool = True,
        learn_heads: bool = True,
        learn_layers: bool = True,
        scales: tuple[float, ...] = (1.0, 1.0),
        special_tokens: bool = True,
    ) -> None:
        super().__init__(n_layers, n_heads)
        self.normalizer, self.mix = normalizer, mix or ("coefs" if normalizer == "softmax" else "literal")
        check_choices(self)
        self.head_dim = head_dim
        self.learn_features, self.learn_heads, self.learn_layers = learn_features, learn_heads, learn_layers
        self.scales, self.special_tokens = _check_scales(scales), special_tokens
        self._add_coefficients("query_features", (n_layers, n_heads, head_dim), learned=learn_features)
        self._add_coefficients("key_features", (n_layers, n_heads, head_dim), learned=learn_features)
        self._add_coefficients("head_coefficients", (n_layers, n_heads), learned=learn_heads)
        self._add_coefficients("layer_coefficients", (n_layers,), learned=learn_layers)

    @classmethod
    def for_model(cls, model: ExplainedModel, **options: Any) -> Self:
        """Return the explainer for a model, untrained: every coefficient is 1; `options` as in the class."""
        config = model.config
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(config.num_hidden_layers, config.num_attention_heads, width, **options)

    def check(self, layers: Sequence[Tensor]) -> None:
        """Raise ExpoundError unless layers, heads and features match the coefficients."""
        super().check(layers)
        if layers[0].shape[-1] != self.head_dim:
            raise ExpoundError(
                f"this {self.name} is for heads of {self.head_dim} features, the model's have "
                f"{layers[0].shape[-1]}: use one made for this model"
            )

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Return a distribution over real positions, or over content without `special_tokens`: [B, L]."""
        self.check(outputs.queries)
        places = explained_positions(batch, self.special_tokens)
        # Differences between positions are far smaller than half precision resolves.
        with disable_autocast(batch.device):
            if self.mix != "coefs":
                return self._mix_grid(self._layer_grid(self._head_grid(model, batch, outputs), places), places)
            logits = self._similarities(model, batch, outputs)
            heads = NORMS[self.normalizer](self.head_coefficients, -1).to(logits)
            layers = NORMS[self.normalizer](self.layer_coefficients, -1).to(logits)
            return softmax_over(torch.einsum("n,nh,bnhm->bm", layers, heads, logits), places)

    @torch.no_grad()
    def calibrate(self, model: ExplainedModel, batch: Batch) -> None:
        """Set `scales` so that the inputs of the NORMs of heads and layers have standard deviation 1 on this batch.

        Raises:
            ExpoundError: the inputs are constant on the batch, or the mix has no scales.
        """
        if self.mix == "coefs":
            raise ExpoundError("mix='coefs' has no scales to calibrate: choose literal or per_head")
        self.scales = (1.0, 1.0)
        with model.evaluation_mode():
            outputs = model(batch, capture=replace(self.capture, differentiable_twice=False))
        self.check(outputs.queries)
        grid, places = self._head_grid(model, batch, outputs), explained_positions(batch, self.special_tokens)
        first = _standard_deviation(grid.flatten(1, 2), places)
        second = _standard_deviation(self._layer_grid(grid / first, places), places)
        self.scales = _check_scales((1 / first, 1 / second))

    def _head_grid(self, model: ExplainedModel, batch: Batch, outputs: Outputs) -> Tensor:
        """Return the heads' similarities times scale and coefficient, τ₁ λ_h ψ^h of eq. 3: [B, N, H, L]."""
        similarities = self._similarities(model, batch, outputs)
        return self.scales[0] * self.head_coefficients.to(similarities)[..., None] * similarities

    def _layer_grid(self, heads: Tensor, places: Tensor) -> Tensor:
        """Return the layers' distributions times scale and coefficient, τ₂ η_l Ψ_l of eq. 4: [B, N, L]."""
        mixed = self._mix_grid(heads, places)
        return self.scales[1] * self.layer_coefficients.to(mixed)[:, None] * mixed

    def _mix_grid(self, grid: Tensor, places: Tensor) -> Tensor:
        """Return one distribution [B, …, L] over positions of a grid [B, …, K, L] of K heads or layers (eq. 3, 4)."""
        mix = normalize_jointly if self.mix == "literal" else normalize_rows
        return mix(self.normalizer, grid, places)

    def _similarities(self, model: ExplainedModel, batch: Batch, outputs: Outputs) -> Tensor:
        """Return each head's similarity of the queries to every key, ψ of eq. 2 (`coefs`: logits): [B, N, H, L]."""
        attended, causal = batch.attended, model.is_decoder
        visible, similarities = list(find_queries_of_layers(outputs, attended, causal)), []
        if self.mix == "coefs":
            for layer in range(self.n_layers):
                # ⟨ω_Q ⊙ q, ω_K ⊙ k⟩ = ⟨q, (ω_Q ⊙ ω_K) ⊙ k⟩: one product of weights instead of two of states.
                weights = self.query_features[layer] * self.key_features[layer]
                heads = outputs.queries[layer], outputs.keys[layer]
                logits = mean_logits(*heads, attended, causal, visible[layer], weights)
                similarities.append(outputs.scalings[layer] * logits)
            return torch.stack(similarities, 1)
        queries = map(_weight_features, outputs.queries, self.query_features)
        keys = map(_weight_features, outputs.keys, self.key_features)
        # All layers are normalized in one call, which shares the iterations of sparsemax (eq. 1).
        normalized = normalize_each(self.normalizer, [*queries, *keys])
        features = [layer.transpose(1, 2) for layer in normalized]
        for query, key, seen in zip(features[: self.n_layers], features[self.n_layers :], visible, strict=True):
            similarities.append(mean_logits(query, key, attended, causal, seen))
        return torch.stack(similarities, 1)

    @torch.no_grad()
    def measure_change(self) -> float:
        """Return the largest difference between a learned coefficient and its initial value 1; NaN if all are fixed.

        Rankings change with the coefficients' ratios, so that a change far below 1 leaves the untrained explainer.
        """
        changes = [float((weight - 1).abs().max()) for weight in self.parameters() if weight.numel()]
        return max(changes, default=float("nan"))

    def _add_coefficients(self, name: str, shape: tuple[int, ...], *, learned: bool) -> None:
        if learned:
            self.register_parameter(name, nn.Parameter(torch.ones(shape)))
        else:
            self.register_buffer(name, torch.ones(shape))


def _weight_features(x: Tensor, weight: Tensor) -> Tensor:
    """Return ω ⊙ x of every head and token [B, L, H, d], in the order in memory of most models."""
    return weight.to(to_float32(x)) * to_float32(x).transpose(1, 2)


def _check_scales(scales: Sequence[float]) -> tuple[float, float]:
    if len(scales) != 2 or not all(0 < scale < float("inf") for scale in scales):
        raise ExpoundError(f"expected two positive scales, got {tuple(scales)}")
    return scales[0], scales[1]


def _standard_deviation(grid: Tensor, places: Tensor) -> float:
    """Return the standard deviation of the entries of a grid [B, K, L] at `places` [B, L]."""
    deviation = float(grid.masked_select(places[:, None].expand_as(grid)).std())
    if not deviation > 0:
        raise ExpoundError("the attention is constant on this batch: calibrate with longer texts or more of them")
    return deviation
