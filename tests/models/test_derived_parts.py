"""What is derived from usual families computes their layers and heads, and a record that is wrong is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification

import families
from expound.errors import ExpoundError
from expound.explainers import explainer
from expound.explainers.decomposition.trace import compute_by_parts, trace_examples
from expound.models import Batch, ExplainedModel
from expound.models.layers import activations
from expound.models.layers.layer_parts import LayerParts, get_head_parts
from expound.models.passes import layer_calls
from families import replace_rms_norms

LENGTHS = (9, 6, 2)
METHODS = ("input_x_gradient", "attention_rollout", "decompx_linear", "occlusion?unit=token&perturbation=remove")
EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-10}


class PartsOfFamily:
    """Contract tests of what is derived from a model type, on a small random model in float64."""

    small_config: dict[str, Any] = {}  # noqa: RUF012  # entries of a small configuration, for subclasses to replace

    @pytest.fixture
    def model(self, family: str) -> ExplainedModel:
        """A random classifier of texts or images with the small configuration."""
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{"num_labels": 3} | self.small_config)
        is_of_texts = type(config) in AutoModelForSequenceClassification._model_mapping
        model_class = AutoModelForSequenceClassification if is_of_texts else AutoModelForImageClassification
        model = model_class.from_config(config)
        with torch.no_grad():
            # initial biases are 0 and norms are 1: noise makes mistakes with them visible
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        replace_rms_norms(model.double().eval())
        return ExplainedModel(model)

    @torch.no_grad()
    def test_the_parts_of_a_layer_compute_what_the_layer_computes(self, model: ExplainedModel) -> None:
        """Values, attention, output and norms, and the feed-forward with its gate, give each layer's hidden states."""
        for trace in trace_examples(model, make_inputs(model)):
            following = [state.x for state in trace.layers[1:]]
            for state, after in zip(trace.layers, [*following, None], strict=True):
                assert isinstance(state.parts, LayerParts)
                middle, answer = compute_by_parts(state, state.parts)
                torch.testing.assert_close(middle, state.middle, **EXACT)
                torch.testing.assert_close(answer, state.answer(torch.arange(len(middle))), **EXACT)
                if after is not None:
                    torch.testing.assert_close(answer, after, **EXACT)

    @torch.no_grad()
    def test_the_parts_of_a_head_compute_the_logits(self, model: ExplainedModel) -> None:
        """The parts of the head give the logits from the last hidden states at the readout position."""
        batch = make_inputs(model)
        parts = get_head_parts(model.model, layer_calls.find_record(model, batch).head)
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

    def test_scores_do_not_depend_on_the_batch(self, model: ExplainedModel) -> None:
        """Padding changes no score by gradients, attention, decomposition or perturbation."""
        batch = make_inputs(model)
        for method in map(explainer, METHODS):
            batch_scores = method.attribute(model, batch).detach()
            for row in range(len(batch)):
                single, columns = batch.select([row]).trim_padding()
                scores = method.attribute(model, single).detach()[0]
                torch.testing.assert_close(batch_scores[row, columns], scores, rtol=1e-5, atol=1e-8, msg=method.name)


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
        # decoders read the prediction at the last position: padding goes to the left
        attended = attended.flip(1)
    return model.add_position_ids(Batch.from_ids(ids.masked_fill(~attended, model.pad_id), attended))


@pytest.mark.parametrize("family", families.FAMILIES)
class TestNativeFamilies(PartsOfFamily):
    @pytest.fixture(autouse=True)
    def _small_config(self, family):
        whole = {"attention_type": "original_full"} if family == "big_bird" else {}
        self.small_config = families.FAMILIES[family].config | whole


@pytest.mark.parametrize(
    ("part", "changes", "test", "message"),
    [
        (
            None,
            {"norm_first": True},
            "test_the_parts_of_a_layer_compute_what_the_layer_computes",
            "layer 0 is not what",
        ),
        ("head", {"activation": "gelu"}, "test_the_parts_of_a_head_compute_the_logits", "Tensor-likes are not close"),
    ],
)
def test_a_wrong_record_is_caught(part, changes, test, message, monkeypatch):
    contract = PartsOfFamily()
    contract.small_config = families.FAMILIES["bert"].config
    model, derive = PartsOfFamily.model.__wrapped__(contract, "bert"), layer_calls.derive_record

    def derive_wrongly(*given):
        record = derive(*given)
        if part is None:
            return replace(record, layers=tuple(replace(layer, **changes) for layer in record.layers))
        return replace(record, **{part: replace(getattr(record, part), **changes)})

    monkeypatch.setattr(layer_calls, "derive_record", derive_wrongly)
    with pytest.raises((AssertionError, ExpoundError), match=message):
        getattr(contract, test)(model)
