"""Versions that share beginnings against each of them alone, in transformers itself."""

import pytest
import torch

from causal import CAUSAL, causal
from expound.models.layers.architecture import find_cache_argument
from expound.models.perturbation import prefix_tree
from expound.models.perturbation import run as engine
from expound.models.perturbation.prefix_tree import (
    PerturbedText,
    build_tree,
    count_tokens,
    run_prefix_tree,
    supports_prefix_sharing,
)

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def versions_of(*texts, response=2):
    return [PerturbedText(torch.tensor(text), response) for text in texts]


def run_alone(model, version):
    """The log-probability and the logit of each response token, from a plain pass."""
    ids, count = version.ids, version.response
    logits = model.model(ids[None]).logits[0, -count - 1 : -1]
    both = torch.stack([logits.log_softmax(-1), logits], -1)
    return both[torch.arange(count), ids[-count:]]


def random_versions(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(4, 60, (24,), generator=generator)
    keep = torch.rand(count, 24, generator=generator).repeat_interleave(1, 1) < 0.7
    keep[:, :2] = keep[:, -3:] = True
    keep[0] = True
    return [PerturbedText(text[row], 2) for row in torch.unique(keep, dim=0)]


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_a_tree_answers_as_each_version_alone(family):
    model = causal(family, **({"dtype": torch.float32} if "experts" in str(CAUSAL[family]) else {}))
    close = EXACT if model.dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    assert supports_prefix_sharing(model)
    versions = random_versions(12)
    branches = build_tree(versions)
    assert count_tokens(versions, branches) < 0.8 * sum(len(version.ids) for version in versions)
    for budget in (30, 1000):
        for version, found in zip(versions, run_prefix_tree(model, versions, budget), strict=True):
            torch.testing.assert_close(found, run_alone(model, version), **close)


class TakesCache(torch.nn.Module):
    """As a model of transformers 5.24 and later."""

    def forward(self, input_ids, cache=None, use_cache=None):
        return input_ids


class TakesPastKeyValues(torch.nn.Module):
    """As a model of earlier versions."""

    def forward(self, input_ids, past_key_values=None, use_cache=None):
        return input_ids


def test_the_cache_has_the_name_of_the_models_own_argument():
    assert find_cache_argument(TakesCache()) == "cache"
    assert find_cache_argument(TakesPastKeyValues()) == "past_key_values"
    assert find_cache_argument(torch.nn.Linear(1, 1)) is None


def test_every_shared_token_is_read_once():
    versions = versions_of([1, 2, 3, 4, 9, 9], [1, 2, 5, 9, 9], [1, 2, 3, 6, 9, 9], [7, 9, 9], [1, 2, 3, 4, 8, 9, 9])
    branches = build_tree(versions)
    read = set()
    for version in versions:
        read |= {tuple(version.ids[: n + 1].tolist()) for n in range(version.shareable_tokens)}
    assert count_tokens(versions, branches) == len(read) + 3 * len(
        versions
    )  # and the last of each prompt, and its response
    assert all(one.parent < number for number, one in enumerate(branches))
    assert all(one.begin <= versions[branches[one.parent].version].shareable_tokens for one in branches if one.begin)


def test_many_versions_wait_for_few_passes():
    text = list(range(4, 40))
    versions = versions_of(text, *(text[:n] + text[n + 1 :] for n in range(30)))
    assert max(branch.level for branch in build_tree(versions)) == 1


@pytest.mark.parametrize("perturbation", ["remove", "mask", "pad", "zero"])
@torch.no_grad()
def test_perturbed_answers_do_not_depend_on_the_tree(perturbation, monkeypatch):
    model = causal("llama")
    prompts, responses = [list(range(5, 25)), list(range(9, 20))], [[4, 5, 6], [7]]
    batch = model.batch(prompts, responses, foil_ids=[[9, 9, 9], [8]])
    model.config.unk_token_id = 3
    keep = torch.rand(20, *batch.content.shape, generator=torch.Generator().manual_seed(0)) < 0.8
    keep[:3] = torch.tensor([1, 0, 1], dtype=torch.bool)[:, None, None]
    grown, cached = [], []
    monkeypatch.setattr(engine, "run_prefix_tree", lambda *given: grown.append(0) or run_prefix_tree(*given))
    build = prefix_tree._build_cache
    monkeypatch.setattr(prefix_tree, "_build_cache", lambda past, n: cached.append(len(past) * n) or build(past, n))
    # Keys and values of two texts at most are in one pass, however short their ends are.
    monkeypatch.setitem(prefix_tree.CACHED_TOKENS, "cpu", 50)
    found = model.predict_perturbed(batch, keep, perturbation)
    assert max(cached, default=0) <= 50
    monkeypatch.setattr(engine, "supports_prefix_sharing", lambda model: False)
    torch.testing.assert_close(found, model.predict_perturbed(batch, keep, perturbation), **EXACT)
    assert bool(grown) == (perturbation != "zero")
