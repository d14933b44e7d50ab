"""DecompX: the network's output as a sum of the contributions of the input positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.data.cards import MethodCard
from expound.explainers.base import OF_DECOMPOSITION, Explainer, TokenScores, select_target
from expound.explainers.decomposition.components import (
    Activation,
    Bias,
    DecompositionRules,
    add_bias,
    apply_norm,
    decompose_layers,
)
from expound.explainers.decomposition.trace import Trace, Traces, read_traces, trace_examples
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.checks import CHECKS
from expound.models.hugging_face import Probe, are_close
from expound.models.layers import activations
from expound.models.layers.layer_parts import HeadParts, get_head_parts
from expound.models.token_heads import Tagging


@dataclass(frozen=True)
class DecompX(Explainer):
    """Length of each position's component of the last hidden state where the prediction is read. Unsigned.

    Hidden states are kept as sums of components, one per position, through attention, residuals, norms held at their
    scales, and feed-forwards held at their activation slopes; every bias is shared among the components (Modarressi et
    al. 2023). In pre-norm families a norm's bias is shared at the norm, in gated feed-forwards the gate is held, as is
    the routing to experts, and the length is that of the residual stream; components sum to the hidden states too.
    `TokenScores.layers` contains the lengths after every layer.

    Args:
        bias: how a bias is shared: in proportion to `absdot` |⟨x_k, b⟩|, `dot`, `norm` ‖x_k‖ or `abssim` |cos(x_k, b)|;
            in `equal` parts; to the `first` position; to a `token` of its own; `none` drops it.
        activation: the slope at which activations are held: `zero_origin` f(x)/x, `tangent` f'(x) with the rest shared
            as a bias, or `relu`, as if they were ReLUs (components then do not sum to the hidden states).
        feed_forward: include the feed-forwards; GlobEnc does not.
        max_memory: bytes per chunk of intermediate tensors; the decomposed state, L²·d floats, is extra.
    """

    returns_logits: ClassVar[bool] = True
    bias: Bias = "absdot"
    activation: Activation = "zero_origin"
    feed_forward: bool = True
    max_memory: int = 1 << 25
    assumes: ClassVar[tuple[str, ...]] = OF_DECOMPOSITION
    card: ClassVar = MethodCard(
        name="decompx", label="DecompX", family="decomposition", cost="≈ L F / 2", paper="Modarressi et al. 2023",
        unit="length of a part of the last hidden state",
        equation=r"x^{(N)}_q = \sum_k x^{(N)}_{q \Leftarrow k}, \; s_k = \lVert x^{(N)}_{q \Leftarrow k} \rVert_2",
        use="Parts of the hidden states that sum to them exactly, layer by layer.",
        avoid="Do not use it for long texts (it keeps L² · d numbers), or for scores of one class: see "
        "`decompx_classifier`.",
    )  # fmt: skip

    def cost(self, length: int) -> float:
        """Return the cost: every layer is applied to one part per position, but only its linear operations."""
        return length / 2 + 1

    @property
    def rules(self) -> DecompositionRules:
        """The parameters for the decomposition of layers."""
        return DecompositionRules(self.bias, self.activation, self.feed_forward, self.max_memory)

    @torch.no_grad()
    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute ‖X_i←k‖₂ after every layer, example by example."""
        read = read_traces(model, batch, targets, self._compute_lengths)
        return [TokenScores(layers[:, -1], layers=layers, logits=logits) for layers, logits in read]

    def _compute_lengths(self, trace: Trace, weights: Tensor) -> Tensor:
        """Return norms [N, L] of each position's component at every layer, weighted by the readout."""
        needed = weights.nonzero().flatten()
        weights = weights[needed].to(trace.layers[0].x.dtype)
        lengths = []
        for number, state in enumerate(decompose_layers(trace, self.rules, needed), 1):
            read = state if number == len(trace.layers) else state[needed]
            lengths.append(weights @ read[:, : len(trace.positions)].square().sum(-1).sqrt())
        return torch.stack(lengths)


@dataclass(frozen=True)
class DecompXClassifier(DecompX):
    """Contribution of each position to the target's logit, with the classifier included. Signed, exact.

    As `decompx`, continued through pooler or head with the activation held at its slope (Modarressi et al. 2023).
    `TokenScores.convergence_delta` [B] is the sum minus the logit: rounding, unless a rule drops something.

    Args:
        head_activation: as `activation`, for the activation in the head: `zero_origin` or `tangent`.
    """

    head_activation: Literal["zero_origin", "tangent"] = "zero_origin"
    supports_contrasts: ClassVar[bool] = True
    assumes: ClassVar = (*OF_DECOMPOSITION, "head")
    card: ClassVar = MethodCard(
        name="decompx_classifier", label="DecompX with classifier", family="decomposition", signed=True,
        cost="≈ L F / 2", paper="Modarressi et al. 2023", unit="part of the {output}",
        equation=r"f_c = \sum_k s_k, \; s_k = w_c \cdot \text{head}(x^{(N)}_{q \Leftarrow k})",
        use="Signed contributions that sum to the logit, with the biases shared among positions.",
        avoid="Do not use it for long texts: `decompx_linear` gives nearly the same in one backward pass.",
    )  # fmt: skip

    @torch.no_grad()
    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute the target's column of the contributions to all outputs."""
        traces = trace_examples(model, batch)
        resolved = [select_target(model, batch, target, traces.logits) for target in targets]
        return [self._explain_target(model, batch, traces, target) for target in resolved]

    def _explain_target(self, model: ExplainedModel, batch: Batch, traces: Traces, target: Tensor) -> TokenScores:
        rows = make_readout_weights(model, batch, target)
        scores, biases_own, deltas = [], [], []
        for number, trace in enumerate(traces):
            classes = self.compute_contributions(model, trace, rows[number][:, trace.positions])
            own = self._select_target_scores(model, classes, target[number], batch, number)
            count = len(trace.positions)
            true = model.task.score(trace.logits[None], target[number : number + 1])[0]
            scores.append(trace.spread(own[:count], batch.length))
            biases_own.append(own[count:].sum())
            deltas.append(own.sum() - true)
        bias = torch.stack(biases_own) if self.bias == "token" else None
        return TokenScores(torch.stack(scores), convergence_delta=torch.stack(deltas), bias=bias, logits=traces.logits)

    @torch.no_grad()
    def compute_contributions(
        self, model: ExplainedModel, trace: Trace, readout: Tensor, *, whole: bool = False
    ) -> Tensor:
        """Return contributions of K components to each of C outputs at Q readouts [Q, L]: [Q, K, C].

        The components are the positions, or the last hidden states as one if `whole`.
        """
        needed = readout.any(0).nonzero().flatten()
        point = trace.layers[-1].answer(needed)
        state = point[:, None]
        if not whole:
            *_, state = decompose_layers(trace, self.rules, needed)
        if trace.final is not None:
            before = trace.layers[-1].end[needed]
            state, point = apply_norm(trace.final, state, before, self.bias), trace.final(before)
        weights = readout[:, needed].to(point.dtype)
        pooled = torch.einsum("qr,rkd->qkd", weights, state)
        return propagate_head(
            get_head_parts(model.model, trace.record.head), pooled, weights @ point, self.bias, self.head_activation
        )

    def _select_target_scores(
        self, model: ExplainedModel, classes: Tensor, target: Tensor, batch: Batch, number: int
    ) -> Tensor:
        """Return contributions [K] to the target's logit: for spans start plus end, for tags the sum over words."""
        if isinstance(model.task, Tagging):
            assert batch.readout_mask is not None
            return model.task.sum_over_words(classes[: int(batch.readout_mask[number].sum())], target)
        if model.task.reads_context:
            return classes[0, :, 0] + classes[1, :, 1]
        return model.task.pick(classes[0], target.expand(classes.shape[1], *target.shape))


def make_readout_weights(model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
    """Return weights [B, Q, L] of the positions that the head pools.

    Q is 1; for spans 2, the start and the end; for tags the most words of an example, with zero rows after the last.
    """
    if isinstance(model.task, Tagging) and batch.readout_mask is not None:
        read = batch.readout_mask.long()
        rows = torch.nn.functional.one_hot((read.cumsum(1) - 1).masked_fill(read == 0, int(read.sum(1).max())))
        return rows[..., : int(read.sum(1).max())].transpose(1, 2).to(model.dtype)
    if model.task.reads_context:
        return torch.nn.functional.one_hot(target, batch.length).to(model.dtype)
    return model.readout_weights(batch, target)[:, None]


def propagate_head(
    parts: HeadParts, components: Tensor, point: Tensor, bias: str, activation: Literal["zero_origin", "tangent"]
) -> Tensor:
    """Propagate components [Q, K, d] of the inputs `point` [Q, d] through the head: [Q, K, C]."""
    if parts.dense is not None:
        components = add_bias(bias, components @ parts.dense.weight.T, parts.dense.bias)
        height = parts.dense(point)
        slope = activations.zero_origin_slope(parts.activation)(height)
        point = slope * height
        if activation == "tangent":
            slope, rest = activations.compute_tangent(parts.activation, height)
            components = add_bias(bias, components * slope[:, None], rest)
        else:
            components = components * slope[:, None]
    if parts.norm is not None:
        scale = parts.norm.scale(point)
        components = add_bias(bias, parts.norm.linear(components, scale[:, None]), parts.norm.bias)
    return add_bias(bias, components @ parts.output.weight.T, parts.output.bias)


def check_head(model: ExplainedModel, probe: Probe) -> str:
    """Check that the whole last hidden states give the logit, so that no part of the head is left out."""
    if model.task.is_generated:
        return "its head gives the next token, not a class"
    method, alone = DecompXClassifier(), probe.alone
    (trace,) = trace_examples(model, alone)
    logits = trace.logits[None]
    target = select_target(model, alone, None, logits)
    readout = make_readout_weights(model, alone, target)[0][:, trace.positions]
    # The layers are checked by themselves.
    classes = method.compute_contributions(model, trace, readout, whole=True)
    found = method._select_target_scores(model, classes, target[0], alone, 0)
    expected = model.task.score(logits, target)
    if are_close(found, expected, probe):
        return ""
    return f"a part of its head is not understood: it gives {float(found[0]):.4g}, the model {float(expected[0]):.4g}"


# The checks of models lie below the explainers, and this one needs an explainer.
CHECKS["head"] = check_head
