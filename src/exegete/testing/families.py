"""Contract tests for every record of a model family; inherit the class and give it one fixture, `family`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification

from exegete.explainers import explainer
from exegete.explainers.decomposition.trace import trace_examples
from exegete.models import Batch, ExplainedModel
from exegete.models.families import FAMILIES
from exegete.models.layers import activations
from exegete.models.layers.architecture import get_architecture, get_head_module, get_layers, get_module
from exegete.models.layers.layer_parts import get_head_parts, is_norm_layer

LENGTHS = (9, 6, 2)
METHODS = (
    "input_x_gradient",
    "attention_rollout",
    "decompx_linear",
    "occlusion?granularity=token&perturbation=remove",
)
EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-10}


class FamilyContract:
    """Contract tests of a model family's record, on a small random model in float64.

    Example:
        class TestMyFamily(FamilyContract):
            @pytest.fixture
            def family(self):
                return "my_model_type"
    """

    changes: dict[str, Any] = {}  # noqa: RUF012  # of the small configuration, for subclasses to replace

    @pytest.fixture
    def model(self, family: str) -> ExplainedModel:
        """A random model of the record's small configuration, with classes as its task."""
        torch.manual_seed(0)
        record = FAMILIES[family]
        config = AutoConfig.for_model(family, **record.small_config | {"num_labels": 3} | self.changes)
        kind = AutoModelForSequenceClassification if record.tokenizer else AutoModelForImageClassification
        made = kind.from_config(config)
        with torch.no_grad():
            for weight in made.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        replace_rms_norms(made.double().eval())
        return ExplainedModel(made)

    def test_every_path_leads_somewhere(self, model: ExplainedModel) -> None:
        """The layers, their parts, the head and the final norm are where the record says."""
        found, attention = get_architecture(model.model), get_architecture(model.model).attention
        wide = found.feed_forward
        assert len(get_layers(model.model)) == model.config.num_hidden_layers
        for layer in get_layers(model.model):
            for path in (attention.value, attention.output, *found.norms, wide.into, wide.activation, wide.out):
                assert isinstance(get_module(layer, path), nn.Module)
            assert wide.gate is None or isinstance(get_module(layer, wide.gate), nn.Module)
        for place in (found.head.output, found.head.dense, found.head.norm):
            assert place is None or isinstance(get_head_module(model.model, place), nn.Module)
        assert found.final_norm is None or isinstance(get_module(model.model.base_model, found.final_norm), nn.Module)

    @torch.no_grad()
    def test_the_parts_of_a_layer_compute_what_the_layer_computes(self, model: ExplainedModel) -> None:
        """Attention by its values, output and norm, and the feed-forward with its gate, layer by layer."""
        for trace in trace_examples(model, inputs(model)):
            following = [state.x for state in trace.layers[1:]]
            for state, after in zip(trace.layers, [*following, None], strict=True):
                middle, answer = _compute_by_parts(state)
                torch.testing.assert_close(middle, state.middle, **EXACT)
                torch.testing.assert_close(answer, state.answer(torch.arange(len(middle))), **EXACT)
                if after is not None:
                    torch.testing.assert_close(answer, after, **EXACT)

    @torch.no_grad()
    def test_the_parts_of_a_head_compute_the_logits(self, model: ExplainedModel) -> None:
        """From the last layer's answer, read out where the model reads it."""
        batch, parts = inputs(model), get_head_parts(model.model)
        readout = model.readout_weights(batch, torch.zeros(len(batch), dtype=torch.long))
        for weights, trace in zip(readout, trace_examples(model, batch), strict=True):
            end = trace.layers[-1].answer(torch.arange(len(trace.positions)))
            pooled = weights[trace.positions] @ (end if trace.final is None else trace.final(end))
            if parts.dense is not None:
                height = parts.dense(pooled)
                pooled = activations.get_slope(parts.activation)(height) * height
            pooled = pooled if parts.norm is None else parts.norm(pooled)
            torch.testing.assert_close(parts.output(pooled), trace.logits, **EXACT)

    @pytest.mark.parametrize("method", METHODS)
    def test_it_is_explained_alike_alone_and_in_a_batch(self, model: ExplainedModel, method: str) -> None:
        """By gradients, attention, decomposition and perturbation: padding changes nothing."""
        batch, explains = (
            inputs(model),
            explainer(method, **({"granularity": "token"} if method == "occlusion" else {})),
        )
        together = explains.attribute(model, batch).detach()
        for row in range(len(batch)):
            single, columns = batch.select([row]).trim_padding()
            scores = explains.attribute(model, single).detach()[0]
            torch.testing.assert_close(together[row, columns], scores, rtol=1e-5, atol=1e-8)


def inputs(model: ExplainedModel) -> Batch:
    """Random ids of uneven length, padded on the model's side, or random pictures."""
    generator = torch.Generator().manual_seed(1)
    if model.modality == "image":
        pixels = torch.randn(len(LENGTHS), 1, 8, 8, generator=generator, dtype=torch.float64)
        everywhere = torch.ones(len(LENGTHS), 17, dtype=torch.bool)
        return Batch({"pixel_values": pixels}, everywhere, everywhere, torch.arange(17).expand(len(LENGTHS), -1))
    ids = torch.randint(5, model.config.vocab_size, (len(LENGTHS), max(LENGTHS)), generator=generator)
    attended = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    attended = attended.flip(1) if model.is_decoder else attended
    return model.add_position_ids(Batch.from_ids(ids.masked_fill(~attended, model.pad_id), attended))


def replace_rms_norms(model: nn.Module) -> None:
    """Puts torch's RMSNorm in the place of transformers' own, which computes in float32 whatever the model's type."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if is_norm_layer(child) and not isinstance(child, nn.RMSNorm | nn.LayerNorm):
                own: Any = child
                norm = nn.RMSNorm(own.weight.shape, eps=own.variance_epsilon, dtype=own.weight.dtype)
                norm.weight.data.copy_(own.weight)
                setattr(parent, name, norm)


def _compute_by_parts(state: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The states behind the attention's residual, and the layer's answer."""
    parts = state.parts
    before = parts.norms[0](state.x) if parts.norm_first else state.x
    values = parts.value(before).unflatten(-1, (len(state.values), -1)).transpose(0, 1)
    middle = parts.output((state.attention @ values).transpose(0, 1).flatten(1)) + state.x
    between = parts.norms[1 if parts.norm_first else 0](middle)
    wide = parts.into(between)
    height = wide if parts.gate is None else parts.gate(between)
    active = activations.get_slope(parts.activation)(height) * height
    out = parts.out(active if parts.gate is None else active * wide)
    return middle, out + middle if parts.norm_first else parts.norms[1](out + between)
