"""Rows of word embeddings in place of the whole table: the same numbers and the same gradients, row by row."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from expound.training.bilevel.inner_optimizers import make_inner_optimizer
from expound.training.bilevel.used_embeddings import UsedEmbeddings
from small import small, uneven


def losses(model, weights, batch):
    return functional_call(model, weights, (batch,)).logits.square().sum()


def rows_of(model, *batches):
    weights = dict(model.named_parameters())
    rows = UsedEmbeddings(model, *batches)
    return (
        rows,
        weights,
        *rows.select(weights, make_inner_optimizer(torch.optim.SGD(weights.values(), lr=0.1), weights)),
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "distilbert", "electra", "big_bird"])
def test_logits_and_gradients_are_those_of_the_whole_table(family):
    """Padding, whose row has no gradient in some families, is among the rows."""
    model = small(family)
    batch = model.encode(uneven(family, 3))
    assert not batch.attended.all()
    before = model.embedding.padding_idx
    rows, weights, own, _ = rows_of(model, batch)
    with rows.use_rows_in_lookup():
        found = torch.autograd.grad(losses(model, own, batch), list(own.values()), materialize_grads=True)
    assert model.embedding.padding_idx == before
    expected = torch.autograd.grad(losses(model, weights, batch), list(weights.values()), materialize_grads=True)
    (name,) = (key for key, weight in own.items() if len(weight) != len(weights[key]))
    assert len(own[name]) == len(rows.used) < len(weights[name])
    for key, one, other in zip(weights, found, expected, strict=True):
        if key == name:
            rest = torch.ones(len(other), dtype=torch.bool)
            rest[rows.used] = False
            assert not other[rest].any()
        torch.testing.assert_close(one, other[rows.used] if key == name else other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_padding_that_is_attended_to_has_no_gradient_either(family):
    model = small(family)
    batch = model.encode(uneven(family, 3))
    batch.inputs["input_ids"][:, 1] = model.pad_id
    assert batch.attended[:, 1].all()
    assert model.embedding.padding_idx == model.pad_id
    rows, _, own, _ = rows_of(model, batch)
    (name,) = (key for key, weight in own.items() if weight.shape[0] == len(rows.used) and "word" in key)
    with rows.use_rows_in_lookup():
        (found,) = torch.autograd.grad(losses(model, own, batch), [own[name]])
    assert not found[rows.used == model.pad_id].any()
    assert found[rows.used != model.pad_id].any()


def test_a_word_of_no_batch_is_not_looked_up():
    model = small("bert")
    short, long = (model.encode(uneven("bert", 4)[half]) for half in (slice(0, 1), slice(1, 4)))
    rows, _, own, _ = rows_of(model, short)
    with rows.use_rows_in_lookup(), pytest.raises(IndexError):
        losses(model, own, long)
    assert torch.isfinite(model(long).logits).all()


@pytest.mark.parametrize("family", ["gpt2", "vit"])
def test_decoders_and_images_keep_the_whole_table(family):
    model = small(family)
    batch = model.encode(uneven(family, 2))
    rows, weights, own, _ = rows_of(model, batch)
    with rows.use_rows_in_lookup():
        found = losses(model, own, batch)
    assert all(own[key] is weight for key, weight in weights.items())
    assert torch.equal(found, losses(model, weights, batch))


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_table_stays_whole(frozen):
    model = small("bert")
    model.embedding.requires_grad_(not frozen)
    batch = model.encode(uneven("bert", 2))
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    rows = UsedEmbeddings(model, batch)
    own, _ = rows.select(weights, make_inner_optimizer(torch.optim.SGD(weights.values(), lr=0.1), weights))
    assert all(own[key] is weight for key, weight in weights.items()) == frozen
    with rows.use_rows_in_lookup():
        found = losses(model, own, batch)
    torch.testing.assert_close(found, losses(model, {}, batch))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_update_of_rows_equals_that_of_the_table(kind):
    table = torch.nn.Parameter(torch.randn(6, 3))
    optimizer = kind([table], lr=0.1, weight_decay=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    for _ in range(2):
        table.grad = torch.randn(6, 3)
        optimizer.step()
    rows, gradient = torch.tensor([1, 4]), torch.randn(6, 3)
    update, weight = make_inner_optimizer(optimizer, {"table": table}), table.detach()
    whole = update("table", weight, gradient)[rows]
    torch.testing.assert_close(update.for_rows("table", rows)("table", weight[rows], gradient[rows]), whole)
