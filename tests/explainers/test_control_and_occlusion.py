"""The random control, and occlusion against brute force; words and tokens as units."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from expound import Batch, ExpoundError, attribute, explainer
from expound.explainers.units import number_units, spread
from small import PAIRS, shared, uneven


def random_scores(examples, batch_size=None, seed=0):
    return [item.scores for item in attribute(shared("bert"), examples, "random", seed=seed, batch_size=batch_size)]


def test_random_scores_depend_on_the_input_and_the_seed_only():
    texts = [*uneven("bert"), uneven("bert")[1]]
    usual = random_scores(texts)
    for size in (1, 2, 3):
        assert all(map(np.array_equal, random_scores(texts, size), usual))
    assert all(map(np.array_equal, random_scores(texts[::-1]), usual[::-1]))
    assert np.array_equal(usual[1], usual[-1])
    assert not np.array_equal(usual[1], random_scores(texts, seed=1)[1])
    assert not np.array_equal(usual[0][:5], usual[2][:5])


def test_random_scores_of_images():
    model = shared("vit")
    pictures = uneven("vit")
    usual = attribute(model, pictures, "random")
    again = attribute(model, pictures[::-1], "random", batch_size=1)
    assert [item.scores.tolist() for item in usual] == [item.scores.tolist() for item in again][::-1]
    assert usual[0].scores.tolist() != usual[1].scores.tolist()


def test_random_scores_are_normal():
    batch = Batch.from_ids(torch.arange(5, 125)[None].repeat(30, 1) + torch.arange(30)[:, None])
    scores = explainer("random").attribute(shared("bert"), batch).flatten()
    assert kstest(scores.numpy(), "norm").pvalue > 0.01
    assert abs(float(scores.mean())) < 0.06
    assert abs(float(scores.std()) - 1) < 0.06


@pytest.mark.parametrize("output", ["logit", "log_prob", "prob"])
@pytest.mark.parametrize("target", [[1, 2], [(1, 0), (0, 2)]])
@torch.no_grad()
def test_removal_reports_the_output_that_is_asked_for(output, target):
    """Of two classes as well: the difference of logits is that of log-probabilities."""
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    full = model.model(**batch.inputs).logits

    def value(logits, row):
        number = {"logit": logits, "log_prob": logits.log_softmax(-1), "prob": logits.softmax(-1)}[output]
        first, *second = target[row] if isinstance(target[row], tuple) else (target[row],)
        return number[first] - (number[second[0]] if second else 0)

    found = explainer("occlusion", unit="token", output=output).attribute(model, batch, target)
    shapley = explainer("kernel_shap", unit="token", output=output, perturbation="mask", n_samples=2000)
    total = shapley.attribute(model, batch.select([1]).trim_padding()[0], [target[1]]).sum()
    for row, position in batch.content.nonzero().tolist():
        ids = batch.inputs["input_ids"][row].clone()
        ids[position] = model.mask_id
        inputs = {name: values[row : row + 1] for name, values in batch.inputs.items()} | {"input_ids": ids[None]}
        without = model.model(**inputs).logits[0]
        torch.testing.assert_close(found[row, position], value(full[row], row) - value(without, row))
    ids = batch.inputs["input_ids"][1].masked_fill(batch.content[1], model.mask_id)
    inputs = {name: values[1:2] for name, values in batch.inputs.items()} | {"input_ids": ids[None]}
    empty = model.model(**inputs).logits[0]
    torch.testing.assert_close(total, value(full[1], 1) - value(empty, 1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("perturbation", ["remove", "mask"])
@pytest.mark.parametrize("unit_name", ["word", "token"])
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
@torch.no_grad()
def test_occlusion_by_brute_force(family, unit_name, perturbation):
    model = shared(family)
    examples = [("small town", "a naïve town is small"), ("someone's", "camera, café")]
    batch = model.encode(examples)
    target = model.predict(batch)
    scores = explainer("occlusion", unit=unit_name, perturbation=perturbation).attribute(model, batch)
    for row, alignment in enumerate(batch.alignments):
        ids = batch.inputs["input_ids"][row][batch.attended[row]]
        types = batch.inputs["token_type_ids"][row][batch.attended[row]] if "token_type_ids" in batch.inputs else None
        content = batch.content[row][batch.attended[row]].tolist()
        word_of = alignment.word_of

        def chance(keep, ids=ids, types=types, row=row):
            if perturbation == "mask":
                inputs = {"input_ids": ids.where(keep, torch.tensor(model.mask_id))[None]}
            else:
                inputs = {"input_ids": ids[keep][None]}
            if types is not None:
                inputs["token_type_ids"] = (types if perturbation == "mask" else types[keep])[None]
            return model.model(**inputs).logits.softmax(-1)[0, target[row]]

        own = scores[row][batch.attended[row]]
        whole = chance(torch.ones(len(ids), dtype=torch.bool))
        for i, inside in enumerate(content):
            if not inside:
                assert own[i] == 0
                continue
            same = [
                j
                for j in range(len(ids))
                if content[j] and (j == i or (unit_name == "word" and word_of[j] == word_of[i]))
            ]
            keep = torch.ones(len(ids), dtype=torch.bool)
            keep[same] = False
            torch.testing.assert_close(own[i], (whole - chance(keep)) / len(same), rtol=1e-9, atol=1e-12)
        assert {word_of[i] for i, inside in enumerate(content) if inside} == set(range(len(alignment.words)))


@torch.no_grad()
def test_the_same_word_in_both_texts_of_a_pair_is_two_words():
    model = shared("bert")
    batch = model.encode([("town", "town")])
    unit = number_units(batch, "word")[0][batch.content[0]]
    sides = [span[0] for span in batch.alignments[0].spans if span is not None]
    assert len(set(zip(unit.tolist(), sides, strict=True))) == 2
    assert len(set(unit.tolist())) == 2


def make_batch(words):
    """A batch with the given words; -1 is no content, -2 is content without a word."""
    word_of = torch.tensor(words)
    batch = Batch.from_ids(torch.ones_like(word_of) * 7, content=word_of != -1)
    return Batch(batch.inputs, batch.attended, batch.content, word_of.clamp(min=-1))


WORDS = st.integers(1, 4).flatmap(
    lambda rows: st.integers(1, 9).flatmap(
        lambda length: st.lists(
            st.lists(st.integers(-2, 5), min_size=length, max_size=length), min_size=rows, max_size=rows
        )
    )
)


@settings(max_examples=80, deadline=None)
@given(WORDS, st.sampled_from(["word", "token"]))
def test_units_and_spread(words, unit_name):
    batch = make_batch(words)
    unit = number_units(batch, unit_name)
    for row, (numbers, found) in enumerate(zip(words, unit.tolist(), strict=True)):
        inside = [n >= 0 if unit_name == "word" else n != -1 for n in numbers]
        assert [number >= 0 for number in found] == inside
        assert sorted({n for n in found if n >= 0}) == list(range(len({n for n in found if n >= 0})))
        if unit_name == "word":
            pairs = {(n, f) for n, f in zip(numbers, found, strict=True) if f >= 0}
            assert len(pairs) == len({n for n, _ in pairs}) == len({f for _, f in pairs})
        else:
            assert [f for f in found if f >= 0] == list(range(sum(inside)))
        assert batch.content[row].tolist() == [n != -1 for n in numbers]
    count = int(unit.max()) + 1
    if not count:
        return
    scores = torch.randn(len(words), count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = spread(scores, unit)
    assert (positions[unit < 0] == 0).all()
    for row in range(len(words)):
        for number in range(count):
            shares = positions[row][unit[row] == number]
            assert shares.unique().numel() <= 1
            if len(shares):
                torch.testing.assert_close(shares.sum(), scores[row, number])


def test_unknown_unit_is_refused():
    with pytest.raises(ExpoundError, match="token, tool_result, word"):
        number_units(make_batch([[0, 1]]), "letter")


@torch.no_grad()
def test_occlusion_of_spans_drops_the_probability_of_the_answer():
    model = shared("bert", "QuestionAnswering")
    batch = model.encode(PAIRS)
    target = model.predict(batch)
    scores = explainer("occlusion?unit=token&perturbation=mask").attribute(model, batch)
    for row, (start, end) in enumerate(target.tolist()):
        own, _ = batch.select([row]).trim_padding()
        for position in batch.content[row].nonzero().flatten().tolist():
            ids = own.inputs["input_ids"].clone()
            ids[0, position] = model.mask_id
            after = model.model(**(own.inputs | {"input_ids": ids}))
            before = model.model(**own.inputs)
            chances = [o.start_logits.softmax(-1)[0, start] * o.end_logits.softmax(-1)[0, end] for o in (before, after)]
            torch.testing.assert_close(scores[row, position], chances[0] - chances[1], rtol=1e-7, atol=1e-12)
