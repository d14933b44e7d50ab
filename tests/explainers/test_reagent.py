"""A published run with its draws, and properties of importance by replacement."""

import math

import numpy as np
import pytest
import torch

import expound
import families
from expound import explainer
from expound.errors import ExpoundError
from expound.explainers.perturbation import reagent
from expound.explainers.perturbation.reagent import TargetRank, candidate_tokens, probability_drops, sum_steps
from expound.models.generation.model import GeneratingModel
from models.test_generation import PROMPTS, generating
from small import alone, shared, small, uneven


@pytest.mark.real
@torch.no_grad()
def test_published_scores_from_published_draws(golden_generation):
    numbers = {
        name.removeprefix("reagent_"): torch.from_numpy(values)
        for name, values in np.load(golden_generation / "gpt2-tiny_soft_f64.npz").items()
        if name.startswith("reagent_")
    }
    model = expound.load(golden_generation / "gpt2-tiny", task="generation", device="cpu", dtype="float64")
    prompt, target = numbers["ids"], numbers["target"]
    batch = model.batch(prompt, target)
    replaced = numbers["draws"] < numbers["ratio"]
    changed = torch.where(replaced, numbers["replacements"], prompt)
    ids = torch.cat([changed, target.expand(len(changed), 1)], 1)[:, None]
    drops = probability_drops(model, batch, model.resolve_target(batch), ids)
    found = sum_steps(numbers["init"][None], replaced[:, None], drops).softmax(1)
    torch.testing.assert_close(found[0], numbers["scores"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("family", ["bert", "gpt2", "vit"])
def test_distributions_that_do_not_depend_on_the_batch(family):
    model = shared(family)
    batch = model.encode(uneven(family, 3))
    method = explainer("reagent?n_steps=6")
    scores = method.attribute(model, batch, [0, 1, 2])
    torch.testing.assert_close(scores.sum(1), torch.ones(3, dtype=scores.dtype))
    assert not scores[~batch.content].any()
    for row in range(3):
        alone, columns = batch.select([row]).trim_padding()
        torch.testing.assert_close(method.attribute(model, alone, [row])[0], scores[row, columns])
    assert not torch.allclose(scores, explainer("reagent?n_steps=6&seed=1").attribute(model, batch, [0, 1, 2]))


def test_the_word_that_decides_is_found():
    model = small("bert")
    batch = model.encode([uneven("bert", 1)[0]])
    place = int(batch.content[0].nonzero()[2])
    word = batch.inputs["input_ids"][0, place]
    torch.manual_seed(0)
    replaced = torch.rand(200, 1, batch.length) < 0.3
    drops = 0.5 * replaced[:, :, place].double()
    found = sum_steps(torch.zeros(1, batch.length), replaced, drops)
    assert int(found[0].argmax()) == place
    assert word in candidate_tokens(model)
    assert not set(candidate_tokens(model)) & set(model.special_ids)


def test_a_span_is_the_geometric_mean_of_its_tokens():
    model = GeneratingModel(families.tiny("llama", "CausalLM", dtype=torch.float64, seed=1))
    batch = model.batch([5, 6, 7, 8], [9, 10])
    ids = batch.inputs["input_ids"].clone()[None]
    ids[0, 0, 1] = 20
    one, other, both = (
        probability_drops(model, batch, model.resolve_target(batch, span), torch.cat([ids, ids]))
        for span in (0, 1, (0, 2))
    )
    assert one.shape == (2, 1)
    with torch.no_grad():
        clean = model(batch).logits[0, :, 0].exp()
    expected = clean.prod().sqrt() - ((clean[0] - one[0, 0]) * (clean[1] - other[0, 0])).sqrt()
    torch.testing.assert_close(both[0, 0], expected)


def test_refusals():
    with pytest.raises(ExpoundError, match="a fraction between 0 and 1"):
        explainer("reagent?fraction=1")
    model = GeneratingModel(families.tiny("llama", "CausalLM", dtype=torch.float64, seed=1))
    with pytest.raises(ExpoundError, match="no difference from a foil"):
        explainer("reagent").attribute(model, model.batch([5, 6], [7], foil_ids=[8]))


def scores_by_steps(ids, kept, batches, chance, suffices):
    """softmax(ζ) of one example and its steps, one by one over recorded draws until the best positions suffice."""
    start, blocks = batches
    zeta, steps, clean = start.clone(), 0, chance(ids)
    for (changed, replaced), (others, _) in blocks:
        for one, where, filled in zip(changed, replaced, others, strict=True):
            steps += 1
            fall = clean - chance(one)
            zeta = zeta + math.log((1 + fall) / (1 - fall)) * torch.where(where, 1, -1)
            best = set(zeta.masked_fill(~kept, -9e9).topk(5).indices.tolist())
            mixed = [
                old if j in best or not kept[j] else new for j, (old, new) in enumerate(zip(ids, filled, strict=True))
            ]
            if suffices(torch.stack(mixed)):
                return zeta[kept].softmax(0), steps
    return zeta[kept].softmax(0), steps


def make_case(family):
    """A model, an example, its likeliest answer, and functions of ids [L]: p of that answer, and if it is predicted."""
    if family == "bert":
        model = shared("bert")
        batch = model.encode([uneven("bert", 1)[0]])
        target = model.predict(batch)
        answer = int(target[0])

        def chance(ids):
            return float(model.model(ids[None]).logits[0].softmax(-1)[answer])

        return model, batch, target, chance, lambda ids: int(model.model(ids[None]).logits[0].argmax()) == answer
    model, prompt = generating("llama"), PROMPTS[1] * 3
    response = []
    for _ in range(3):
        response.append(int(model.model(torch.tensor([prompt + response])).logits[0, -1].argmax()))

    def rows(ids):
        return model.model(ids[None]).logits[0, len(prompt) : len(prompt) + 2]

    def probability(ids):
        return float(rows(ids).log_softmax(-1)[[0, 1], response[1:]].mean().exp())

    def is_likely(ids):
        return all(token in row.topk(3).indices for row, token in zip(rows(ids), response[1:], strict=True))

    return model, model.batch(prompt, response), torch.tensor([[1, 3]]), probability, is_likely


@pytest.mark.parametrize("family", ["bert", "llama"])
@torch.no_grad()
def test_it_stops_once_the_best_positions_suffice(family, monkeypatch):
    drawn, blocks = reagent.draw_replacements, []
    monkeypatch.setattr(reagent, "draw_replacements", lambda *given: blocks.append(drawn(*given)) or blocks[-1])
    monkeypatch.setattr(reagent, "MAX_STEPS", 20)
    model, batch, target, chance, suffices = make_case(family)
    ids, inside, counts = batch.inputs["input_ids"][0], batch.removable[0], []
    for seed in range(6):
        blocks.clear()
        found = explainer("reagent", n_steps="auto", seed=seed).attribute(model, batch, target)[0]
        start = torch.zeros(len(ids), dtype=torch.float64)
        start[inside] = torch.from_numpy(reagent.example_generators(batch, seed)[0].random(int(inside.sum())))
        pairs = [tuple((x[:, 0], y[:, 0]) for x, y in pair) for pair in zip(blocks[::2], blocks[1::2], strict=True)]
        expected, steps = scores_by_steps(ids, inside, (start, pairs), chance, suffices)
        torch.testing.assert_close(found[inside], expected, rtol=1e-8, atol=1e-10)
        assert len(pairs) == -(-steps // reagent.BLOCK)
        counts.append(steps)
    assert len(set(counts)) > 1 or family == "bert"


def test_stopping_does_not_depend_on_the_batch(monkeypatch):
    monkeypatch.setattr(reagent, "MAX_STEPS", 40)
    for family in ("bert", "gpt2", "vit"):
        model = shared(family)
        batch = model.encode(uneven(family, 3))
        scores = explainer("reagent?n_steps=auto").attribute(model, batch, [0, 1, 2])
        for row in range(3):
            own, columns = alone(model, batch, row)
            single = explainer("reagent?n_steps=auto").attribute(model, own, [row])[0]
            torch.testing.assert_close(scores[row, columns], single)
    model = small("bert", num_labels=1)
    batch = model.encode(uneven("bert", 1))
    with pytest.raises(ExpoundError, match="no likeliest answer"):
        explainer("reagent?n_steps=auto").attribute(model, batch)


def test_target_rank_counts_likelier_answers():
    model = shared("bert", "QuestionAnswering")
    batch = model.encode([("what is small", "a moving film")])
    logits = model(batch).logits
    for start, end in ((5, 6), (6, 7)):
        ranks = [int((row > row[place]).sum()) for row, place in zip(logits[0], (start, end), strict=True)]
        assert int(TargetRank(model.task).score(logits, torch.tensor([[start, end]]))[0]) == max(ranks)
