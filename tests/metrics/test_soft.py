from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

import families
from expound.errors import ExpoundError
from expound.metrics import metric
from expound.metrics.faithfulness import soft
from expound.metrics.faithfulness.soft import drop_elements, scale_scores
from expound.models import Batch, ExplainedModel
from judged import attribution_for, inputs_of, model_of

NAMES = ("soft_sufficiency", "soft_comprehensiveness")


def load_token_classifier(folder):
    """A decoder whose classes are its next tokens."""
    decoder = hf.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float64)
    config = hf.GPT2Config.from_pretrained(folder, num_labels=decoder.config.vocab_size, pad_token_id=0)
    model = hf.GPT2ForSequenceClassification(config).double().eval()
    model.transformer.load_state_dict(decoder.transformer.state_dict())
    with torch.no_grad():
        model.score.weight.copy_(decoder.lm_head.weight)
    return ExplainedModel(model)


@pytest.mark.real
@torch.no_grad()
def test_values_with_the_published_draws_equal_published_ones(golden_generation, monkeypatch):
    published = np.load(golden_generation / "gpt2-tiny_soft_f64.npz")
    model = load_token_classifier(golden_generation / "gpt2-tiny")
    for row, length in enumerate(published["lengths"]):
        batch = Batch.from_ids(torch.from_numpy(published["ids"][row : row + 1, :length]))
        scores = torch.from_numpy(published["scores"][row : row + 1, :length])
        uniform = torch.from_numpy(published["uniform"][row : row + 1, :length])
        monkeypatch.setattr(soft, "_draw_uniform", lambda *_, drawn=uniform: drawn)
        whole, nothing = (
            model.predict_perturbed(batch, torch.full((1, 1, length), stays), "zero")[0].double()
            for stays in (True, False)
        )
        target = whole.argmax(-1)
        for name, kind in zip(NAMES, ("sufficiency", "comprehensiveness"), strict=True):
            judge = metric(name, distance="reagent", n_samples=1)
            farthest = judge.distance_between(model, whole, nothing, target)
            moved = judge._mean_distance(model, batch, judge.keep_probabilities(scores), whole, target)
            plain = 1 - moved if kind == "sufficiency" else moved
            assert float(plain) == pytest.approx(published[f"soft_{kind}"][row], abs=1e-7)
            assert 1 - float(farthest) == pytest.approx(published["sufficiency_zero"][row], abs=1e-7)
            got = float(judge.value(moved, farthest))
            assert got == pytest.approx(published[f"soft_norm_{kind}"][row], abs=1e-7)


@pytest.mark.parametrize("distance", ["hellinger", "reagent", "probability"])
@pytest.mark.parametrize("share", [None, 0.4])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_agrees_with_one_pass_after_another(family, share, distance):
    model = model_of(family, dtype=torch.float64)
    batch = model.encode(families.examples(family)[:3])
    attribution, target = attribution_for(batch), model.predict(batch)
    found = {
        name: metric(name, fraction=share, distance=distance, n_samples=2, seed=3).evaluate(model, batch, attribution)[
            name
        ]
        for name in NAMES
    }
    for row in range(len(batch)):
        one, columns = batch.select([row]).trim_padding()
        content = one.content[0]
        embeddings = model.embed(one).detach()
        random = soft.example_generators(one, 3)[0]
        drawn = [torch.from_numpy(random.random((int(content.sum()), embeddings.shape[2]))) for _ in range(2)]
        stay = scale_scores(attribution[row : row + 1, columns], one.content, share)[0, content]

        def answer(keep, one=one, content=content, embeddings=embeddings):
            changed = embeddings.clone()
            changed[0, content] *= keep
            with torch.no_grad():
                return model.task.probabilities(model(one, embeddings=changed).logits)[0]

        def measure_distance(p, q, own=int(target[row])):
            half = float(((p.sqrt() - q.sqrt()) ** 2).sum() / 2)
            return {"hellinger": half**0.5, "reagent": 2**0.5 * half, "probability": max(0, float(p[own] - q[own]))}[
                distance
            ]

        whole, nothing = answer(1.0), answer(0.0)
        farthest = measure_distance(whole, nothing)
        enough, missing = (
            np.mean([measure_distance(whole, answer((uniform < chance[:, None]).double())) for uniform in drawn])
            for chance in (stay, 1 - stay)
        )
        if farthest < 1e-6:
            assert all(value[row].isnan() for value in found.values())
            continue
        share_gone = missing / farthest if distance != "probability" else min(1, missing / farthest)
        assert float(found["soft_sufficiency"][row]) == pytest.approx(max(0, 1 - enough / farthest), abs=1e-6)
        assert float(found["soft_comprehensiveness"][row]) == pytest.approx(share_gone, rel=1e-5, abs=1e-6)


def test_soft_metrics_at_keep_probabilities_of_zero_and_one():
    model = model_of("bert", dtype=torch.float64)
    batch = model.encode(families.SENTENCES[:3])
    target = model.predict(batch)
    whole, nothing = model.predict_perturbed(batch, torch.stack([batch.content, ~batch.content]), "zero")
    for stays, expected in ((1.0, 1.0), (0.0, 0.0)):
        for name in NAMES:
            judge = metric(name, n_samples=1)
            chances = judge.keep_probabilities(torch.full(batch.content.shape, stays).double())
            moved = judge._mean_distance(model, batch, chances, whole, target)
            assert judge.value(moved, judge.distance_between(model, whole, nothing, target)).tolist() == pytest.approx(
                [expected] * 3, abs=1e-12
            )


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_every_method_keeps_the_same_expected_share(share):
    content = torch.tensor([[False, True, True, True, True, True, False]] * 4)
    scores = torch.tensor(
        [[0, 5, 1, 3, 2, 4, 0], [0, 0, 0, 7, 0, 0, 0], [0, 1, 1, 1, 1, 1, 0], [0, -9, -8, -1, -1, 0, 0]]
    ).double()
    kept = scale_scores(scores, content, share)
    torch.testing.assert_close(kept.sum(1), torch.full((4,), 5 * share, dtype=torch.float64))
    assert ((kept >= 0) & (kept <= 1 + 1e-12)).all()
    assert (kept[~content] == 0).all()
    for row in range(4):  # an order is never turned around
        own, had = kept[row, content[row]], scores[row, content[row]]
        assert (own[had.argsort()].diff() >= -1e-12).all()


def test_shares_by_hand():
    content = torch.tensor([[True] * 5])
    scores = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])
    assert scale_scores(scores, content).tolist() == [[0, 0.25, 0.5, 0.75, 1]]
    assert scale_scores(scores, content, 0.5)[0].tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    # Twice the scores would keep ⅗ and give the last two more than 1: these are certain, the others get ¾ · 4/3.
    assert scale_scores(scores, content, 0.6)[0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    assert scale_scores(scores, content, 0.9)[0].tolist() == pytest.approx([0.5, 1, 1, 1, 1])


def test_only_content_is_zeroed():
    embeddings, content = torch.ones(1, 3, 2), torch.tensor([[False, True, True]])
    kept = drop_elements(embeddings, content, torch.tensor([[0.0, 0.0, 0.5]]), torch.tensor([[[0.9, 0.9]] * 3]) / 2)
    assert kept[0].tolist() == [[1, 1], [0, 0], [1, 1]]


def test_spans_are_compared_by_both_ends_and_regressions_are_refused():
    model = model_of("bert", "QuestionAnswering", dtype=torch.float64)
    batch = model.encode(inputs_of("bert", "QuestionAnswering"))
    judge = metric("soft_sufficiency")
    p, q = model.predict_perturbed(batch, torch.stack([batch.content, ~batch.content]), "zero")
    start, end = ((p * q).sqrt().sum(-1))[:, 0], ((p * q).sqrt().sum(-1))[:, 1]
    torch.testing.assert_close(judge.distance_between(model, p, q, model.predict(batch)), (1 - start * end).sqrt())
    assert judge.evaluate(model, batch, attribution_for(batch))["soft_sufficiency"].isfinite().all()
    regression = model_of("bert", num_labels=1)
    assert not judge.supports(regression)
    with pytest.raises(ExpoundError, match="a regression has none"):
        judge.evaluate(regression, batch, attribution_for(batch))


def test_soft_metrics_compare_one_label_of_many_as_on_or_off():
    model = model_of("bert", dtype=torch.float64, problem_type="multi_label_classification")
    p, q = torch.tensor([[0.9, 0.2]]).double(), torch.tensor([[0.4, 0.2]]).double()
    judge = metric("soft_sufficiency")
    expected = (1 - (0.9 * 0.4) ** 0.5 - (0.1 * 0.6) ** 0.5) ** 0.5
    assert float(judge.distance_between(model, p, q, torch.tensor([0]))) == pytest.approx(expected)
    assert float(judge.distance_between(model, p, q, torch.tensor([1]))) == 0


@pytest.mark.parametrize("params", [{"distance": "euclid"}, {"fraction": 0.0}, {"fraction": 1.0}, {"n_samples": 0}])
def test_wrong_parameters_are_refused(params):
    with pytest.raises(ExpoundError):
        metric("soft_sufficiency", **params)
