"""Right for the right reasons: plain autograd, finite differences, and which words the term is about."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import families
from expound import ExpoundError
from expound.models import ExplainedModel
from expound.objectives import CrossEntropy, GradientPenalty, RightReasonsLoss, StepContext
from expound.objectives.right_reasons import select_irrelevant
from expound.testing.models import replace_layer_norms
from expound.training.loop.training_module import TrainingModule
from smooth import along_directions

TINY = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "dtype": torch.float64}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def model(head="SequenceClassification", **changes):
    return ExplainedModel(families.tiny("bert", head, **TINY, **QUIET, **changes), families.tokenizer("bert"))


def make_marked_rows():
    """Return a text with a marked word, an annotated text without marks, and a text without an annotation."""
    texts = families.examples("bert", 3)
    first_word = [0, len(texts[0].split()[0])]
    return [
        {"text": texts[0], "label": 0, "rationale": [first_word]},
        {"text": texts[1], "label": 1, "rationale": []},
        {"text": texts[2], "label": 2, "rationale": None},
    ]


def test_the_term_is_that_of_plain_autograd():
    explained = model()
    rows = make_marked_rows()
    batch = explained.encode(rows)
    module = TrainingModule(explained, [CrossEntropy(), RightReasonsLoss(), GradientPenalty()]).train()
    found = module(batch, StepContext())["terms"][1]
    found.backward()
    gradients = {name: value.grad for name, value in explained.model.named_parameters()}
    explained.model.zero_grad()

    # transformers and torch alone, one text at a time; the third was not annotated
    total, tokenizer, bert = 0.0, families.tokenizer("bert"), explained.model
    for row in rows[:2]:
        encoded = tokenizer(row["text"], return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        embeddings = bert.get_input_embeddings()(encoded.pop("input_ids"))
        # the fused kernel of a CPU has no second derivative
        with sdpa_kernel(SDPBackend.MATH):
            logits = bert(inputs_embeds=embeddings, **encoded).logits
        (slope,) = torch.autograd.grad(logits.log_softmax(-1).sum(), embeddings, create_graph=True)
        for position, (start, end) in enumerate(offsets):
            is_special = start == end
            is_marked = any(start < last and first < end for first, last in row["rationale"])
            if not is_special and not is_marked:
                total = total + slope[0, position].square().sum()
    expected = total / len(rows)
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=0)
    for name, value in bert.named_parameters():
        torch.testing.assert_close(gradients[name], value.grad, rtol=1e-6, atol=1e-14)
    judged = TrainingModule(explained, [RightReasonsLoss()]).eval()
    with torch.no_grad():
        torch.testing.assert_close(judged(batch, StepContext(training=False))["terms"][0], expected.detach())


def test_derivatives_of_first_and_second_order():
    explained = model(num_hidden_layers=2)
    replace_layer_norms(explained)
    batch = explained.encode(make_marked_rows()[:1])
    at = along_directions(TrainingModule(explained, [RightReasonsLoss()]).train(), batch)
    point = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(at, (point,), eps=1e-6, atol=1e-7, rtol=1e-4)
    assert torch.autograd.gradgradcheck(at, (point,), eps=1e-6, atol=1e-6, rtol=1e-3)


def test_nothing_is_irrelevant_without_an_annotation():
    explained = model()
    batch = explained.encode([{"text": row["text"], "label": row["label"]} for row in make_marked_rows()])
    assert not select_irrelevant(batch).any()


def test_other_tasks_and_weights_are_refused():
    explained = model(num_labels=1)
    batch = explained.encode([{"text": "fine", "label": 0.5, "rationale": [[0, 4]]}])
    with pytest.raises(ExpoundError, match="does not apply to regression"):
        TrainingModule(explained, [RightReasonsLoss()])(batch, StepContext())
    with pytest.raises(ExpoundError, match="weight of right_reasons is at least 0"):
        RightReasonsLoss(-1.0)
