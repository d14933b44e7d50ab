"""Contract tests for records of model families; inherit the class and define one fixture, `family`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification

from expound.explainers import explainer
from expound.explainers.decomposition.trace import compute_by_parts, trace_examples
from expound.models import Batch, ExplainedModel
from expound.models.families import FAMILIES
from expound.models.layers import activations
from expound.models.layers.architecture import get_architecture, get_head_module, get_layers, get_module
from expound.models.layers.layer_parts import get_head_parts, is_norm_layer, to_norm

LENGTHS = (9, 6, 2)
METHODS = ("input_x_gradient", "attention_rollout", "decompx_linear", "occlusion?unit=token&perturbation=remove")
EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-10}


class FamilyContract:
    """Contract tests of a model family's record, on a small random model in float64.

    Example:
        class TestMyFamily(FamilyContract):
            @pytest.fixture
            def family(self):
                return "my_model_type"
    """

    changes: dict[str, Any] = {}  # noqa: RUF012  # to the small configuration, for subclasses to replace

    @pytest.fixture
    def model(self, family: str) -> ExplainedModel:
        """A random classifier with the record's small configuration."""
        torch.manual_seed(0)
        record = FAMILIES[family]
        config = AutoConfig.for_model(family, **record.small_config | {"num_labels": 3} | self.changes)
        model_class = AutoModelForSequenceClassification if record.tokenizer else AutoModelForImageClassification
        model = model_class.from_config(config)
        with torch.no_grad():
            # initial biases are 0 and norms are 1: noise makes mistakes with them visible
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        replace_rms_norms(model.double().eval())
        return ExplainedModel(model)

    def test_every_path_of_the_record_exists(self, model: ExplainedModel) -> None:
        """The layers, their parts, the head and the final norm are modules at the paths of the record."""
        architecture = get_architecture(model.model)
        attention, feed_forward = architecture.attention, architecture.feed_forward
        paths: list[str | None] = [attention.value, attention.output, *architecture.norms]
        paths += [feed_forward.into, feed_forward.activation, feed_forward.out]
        if feed_forward.gate is not None:
            paths.append(feed_forward.gate)
        assert len(get_layers(model.model)) == model.config.num_hidden_layers
        for layer in get_layers(model.model):
            assert all(path and isinstance(get_module(layer, path), nn.Module) for path in paths)
        head = architecture.head
        for path in (head.output, head.dense, head.norm):
            assert path is None or isinstance(get_head_module(model.model, path), nn.Module)
        final = architecture.final_norm
        assert final is None or isinstance(get_module(model.model.base_model, final), nn.Module)

    @torch.no_grad()
    def test_the_parts_of_a_layer_compute_what_the_layer_computes(self, model: ExplainedModel) -> None:
        """Values, attention, output and norms, and the feed-forward with its gate, give each layer's hidden states."""
        for trace in trace_examples(model, make_inputs(model)):
            following = [state.x for state in trace.layers[1:]]
            for state, after in zip(trace.layers, [*following, None], strict=True):
                middle, answer = compute_by_parts(state)
                torch.testing.assert_close(middle, state.middle, **EXACT)
                torch.testing.assert_close(answer, state.answer(torch.arange(len(middle))), **EXACT)
                if after is not None:
                    torch.testing.assert_close(answer, after, **EXACT)

    @torch.no_grad()
    def test_the_parts_of_a_head_compute_the_logits(self, model: ExplainedModel) -> None:
        """The parts of the head give the logits from the last hidden states at the readout position."""
        batch, parts = make_inputs(model), get_head_parts(model.model)
        readout = model.readout_weights(batch, torch.zeros(len(batch), dtype=torch.long))
        for weights, trace in zip(readout, trace_examples(model, batch), strict=True):
            end = trace.layers[-1].answer(torch.arange(len(trace.positions)))
            if trace.final is not None:
                end = trace.final(end)
            pooled = weights[trace.positions] @ end
            if parts.dense is not None:
                height = parts.dense(pooled)
                pooled = activations.zero_origin_slope(parts.activation)(height) * height
            if parts.norm is not None:
                pooled = parts.norm(pooled)
            torch.testing.assert_close(parts.output(pooled), trace.logits, **EXACT)

    @pytest.mark.parametrize("method", METHODS)
    def test_scores_do_not_depend_on_the_batch(self, model: ExplainedModel, method: str) -> None:
        """Padding changes no score by gradients, attention, decomposition or perturbation."""
        batch, method_object = make_inputs(model), explainer(method)
        batch_scores = method_object.attribute(model, batch).detach()
        for row in range(len(batch)):
            single, columns = batch.select([row]).trim_padding()
            scores = method_object.attribute(model, single).detach()[0]
            torch.testing.assert_close(batch_scores[row, columns], scores, rtol=1e-5, atol=1e-8)


def make_inputs(model: ExplainedModel) -> Batch:
    """Return random token ids of different lengths, padded on the side of the model, or random images."""
    generator = torch.Generator().manual_seed(1)
    if model.modality == "image":
        pixels = torch.randn(len(LENGTHS), 1, 8, 8, generator=generator, dtype=torch.float64)
        everywhere = torch.ones(len(LENGTHS), 17, dtype=torch.bool)
        return Batch({"pixel_values": pixels}, everywhere, everywhere, torch.arange(17).expand(len(LENGTHS), -1))
    ids = torch.randint(5, model.config.vocab_size, (len(LENGTHS), max(LENGTHS)), generator=generator)
    attended = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    if model.is_decoder:
        # decoders read the answer at the last position: padding goes to the left
        attended = attended.flip(1)
    return model.add_position_ids(Batch.from_ids(ids.masked_fill(~attended, model.pad_id), attended))


def replace_rms_norms(model: nn.Module) -> None:
    """Replace transformers' RMSNorms by torch's, with the same weights."""
    # transformers' own compute in float32 even in a model in float64, far above the tolerance of these tests
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if is_norm_layer(child) and not isinstance(child, nn.RMSNorm | nn.LayerNorm):
                original = to_norm(child)
                assert original.weight is not None
                norm = nn.RMSNorm(original.weight.shape, eps=original.eps, dtype=original.weight.dtype)
                norm.weight.data.copy_(original.weight)
                setattr(parent, name, norm)
