"""Hierarchical removal against removal of every unit, by own removal of token ids, and where evidence is planted."""

import numpy as np
import pytest
import torch

import families
from chats import chatting
from expound import ExpoundError, attribute, explainer, load
from expound.explainers.perturbation import occlusion
from expound.explainers.perturbation.tree_search import divide, search_tree
from expound.explainers.units import number_units
from expound.models.perturbation.run import run_perturbed, run_with_hidden_units

WORDS = ["small", "town", "moving", "film", "long", "story", "dull", "plot", "great", "acting", "women", "packages"]


def make_row(paragraphs, seed=0):
    """A prompt of paragraphs of five sentences of random words, and its response."""
    draw = torch.Generator().manual_seed(seed)
    texts = []
    for _ in range(paragraphs):
        sentences = []
        for _ in range(5):
            picked = torch.randint(len(WORDS), (4,), generator=draw).tolist()
            sentences.append(" ".join(WORDS[number] for number in picked).capitalize() + ".")
        texts.append(" ".join(sentences))
    return {"prompt": "\n\n".join(texts), "response": " the town . Two women laugh ."}


@pytest.mark.parametrize("target", ["response", "sentences"])
def test_a_budget_for_all_units_is_exhaustive_removal(target):
    model, row = chatting(template=None), make_row(2)
    usual = attribute(model, row, "occlusion", target, unit="sentence")[0]
    found = attribute(model, row, "occlusion?search=tree&budget=11", target, unit="sentence")[0]
    assert len(usual.units) == 10
    assert (usual.scores == found.scores).all()
    assert (attribute(model, row, "occlusion?search=tree&budget=10", unit="sentence")[0].scores != usual.scores).any()


def test_units_removed_in_several_calls_have_the_same_effects(monkeypatch):
    model, row = chatting(template=None), make_row(2)
    whole = attribute(model, row, "occlusion", unit="sentence")[0]
    sizes = []

    def run(model, batch, keep, *rest):
        sizes.append(len(keep))
        return run_perturbed(model, batch, keep, *rest)

    monkeypatch.setattr(occlusion, "UNITS_AT_ONCE", 4)
    monkeypatch.setattr(occlusion, "run_perturbed", run)
    found = attribute(model, row, "occlusion", unit="sentence")[0]
    assert sizes == [4, 4, 3]
    np.testing.assert_allclose(found.scores, whole.scores, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("paragraphs", [3, 1])
def test_each_drop_is_that_of_a_group_without_which_the_ids_are_read(paragraphs, monkeypatch):
    model, measure, drops = chatting(template=None), occlusion.Occlusion._measure_drops, {}

    def record(self, *given):
        found = measure(self, *given)
        drops.update(zip(given[-1], found[0].tolist(), strict=True))
        return found

    monkeypatch.setattr(occlusion.Occlusion, "_measure_drops", record)
    batch = model.encode([make_row(paragraphs, seed=paragraphs)])
    unit, ids, response = number_units(batch, "sentence")[0], batch.inputs["input_ids"][0], batch.response[0]
    budget = 3 * paragraphs
    method = explainer("occlusion", unit="sentence", perturbation="remove", search="tree", budget=budget)
    scores = method.attribute(model, batch)[0]

    def read(keep):
        logits = model.model(ids[keep][None]).logits[0].log_softmax(-1)
        count = int(response.sum())
        return float(logits[-count - 1 : -1].gather(1, ids[response][:, None]).sum())

    own = torch.zeros(int(unit.max()) + 1, dtype=torch.float64)
    own.index_add_(0, unit.clamp(min=0), scores)
    assert 2 <= len(drops) < budget
    for group, drop in drops.items():
        keep = (unit < group.start) | (unit >= group.stop)
        assert drop == pytest.approx(read(keep | True) - read(keep), abs=1e-5)
        assert len(group) > 1 or own[group.start] == pytest.approx(drop, abs=1e-9)


def test_planted_evidence_is_found_within_the_budget_and_by_every_target():
    """Of an additive effect, the strongest units are found by an eighth of the removals."""
    draw = torch.Generator().manual_seed(0)
    units, hits = 400, 0
    parents = [unit // 8 for unit in range(units)]
    for _ in range(50):
        effects = 0.01 * torch.randn(2, units, generator=draw, dtype=torch.float64)
        planted = torch.randperm(units, generator=draw)[:3]
        effects[0, planted[:2]] += 1
        effects[1, planted[2:]] += 1
        removed = []

        def measure(groups, effects=effects, removed=removed):
            removed.extend(groups)
            return torch.stack([effects[:, group.start : group.stop].sum(1) for group in groups], 1)

        found = search_tree(measure, parents, 50)
        assert len(removed) <= 50
        torch.testing.assert_close(found.sum(1), effects.sum(1))
        best = [set(found[row].topk(count).indices.tolist()) for row, count in ((0, 2), (1, 1))]
        hits += best == [set(planted[:2].tolist()), set(planted[2:].tolist())]
    assert hits >= 48


def test_of_two_halves_one_is_removed_and_the_other_has_what_is_left():
    removed, effects = [], torch.tensor([[0.0, 3, 0, 0, 1, 0, 0, 0]])

    def measure(groups):
        removed.append(list(groups))
        return torch.stack([effects[:, group.start : group.stop].sum(1) for group in groups], 1)

    found = search_tree(measure, [0, 0, 0, 0, 1, 1, 1, 1], 6)
    assert removed == [[range(4), range(4, 8)], [range(2, 4), range(6, 8)], [range(1), range(1, 2)]]
    assert found.tolist() == [[0, 3, 0, 0, 0.5, 0.5, 0, 0]]


def test_groups_are_cut_where_larger_units_end():
    assert divide(range(7), [0, 0, 1, 1, 1, 2, 2], 8) == [range(2), range(2, 5), range(5, 7)]
    assert divide(range(7), [0, 0, 1, 1, 1, 2, 2], 2) == [range(5), range(5, 7)]
    assert divide(range(2, 5), [0, 0, 1, 1, 1, 2, 2], 2) == [range(2, 4), range(4, 5)]


@torch.no_grad()
def test_units_that_the_answer_misses_in_the_cache_are_removed():
    """What a unit's keys and values are worth is that of a pass with our own mask; drops of the strongest are exact."""
    model, row = chatting(template=None), make_row(2)
    batch = model.encode([row])
    unit, ids = number_units(batch, "sentence")[0], batch.inputs["input_ids"]
    count, end = int(batch.response.sum()), int((unit == 9).nonzero()[0])
    full = model.model(ids).logits[0].log_softmax(-1)[-count - 1 : -1].gather(1, ids[0, -count:, None]).sum()
    hidden = run_with_hidden_units(model, batch, [unit == number for number in range(10)])
    misses = []
    for number in range(9):
        mask = torch.ones(len(unit), len(unit)).tril().bool()
        mask[end:, unit == number] = False
        bias = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -1e300)
        logits = model.model(ids, attention_mask=bias[None, None]).logits[0].log_softmax(-1)
        own = logits[-count - 1 : -1].gather(1, ids[0, -count:, None]).sum()
        assert float(hidden[number, 0, :, 0].sum()) == pytest.approx(float(own), abs=1e-6)
        misses.append(float(full - own))
    usual = attribute(model, row, "occlusion", unit="sentence")[0].scores[0]
    found = attribute(model, row, "occlusion?search=cache&budget=5", unit="sentence")[0].scores[0]
    removed = np.flatnonzero(found)
    assert len(removed) == 4
    np.testing.assert_allclose(found[removed], usual[removed], atol=1e-6)
    assert set(np.argsort(misses)[::-1][:3]) <= set(removed)
    with pytest.raises(ExpoundError, match="take search='tree'"):
        attribute(
            load((families.tiny("bert"), families.tokenizer())),
            "small town . moving film . long story",
            "occlusion?search=cache&budget=3",
        )


def test_a_search_needs_a_budget():
    for params in ({"search": "deep"}, {"budget": 2}):
        with pytest.raises(ExpoundError, match=r"search 'deep'. Valid|budget of at least 3"):
            explainer("occlusion", **params)
