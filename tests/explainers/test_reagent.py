"""A published run with its draws, and properties of importance by replacement."""

import numpy as np
import pytest
import torch

import expound
import families
from expound import explainer
from expound.errors import ExpoundError
from expound.explainers.perturbation.reagent import candidate_tokens, probability_drops, sum_steps
from expound.models.generation.model import GeneratingModel
from small import shared, small, uneven


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
