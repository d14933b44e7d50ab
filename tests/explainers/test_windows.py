"""Long texts in windows are what an explicit loop over transformers' own windows gives; paragraphs are units."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.data.alignment import find_paragraph_ends
from expound.explainers.units import number_units
from expound.models import Batch
from expound.models.windowed import WindowedModel
from small import shared

LONG = " ".join(families.SENTENCES[:4])
SHORT = "the plot is dull"
PAIRS = [(LONG, "dull"), ("dull", LONG), ("dull", "in the rain")]


@pytest.fixture(scope="module", params=["bert", "roberta", "gpt2"])
def model(request):
    return shared(request.param).with_max_length(16)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def pair_model(request):
    """Models whose tokenizers put special tokens between two texts."""
    return shared(request.param).with_max_length(16)


def windows_of(model, example, stride):
    """Transformers' windows of one example, each as a batch with its positions in the text, and the text's length."""
    texts = example if isinstance(example, tuple) else (example,)
    longer = int(len(texts) == 2 and len(texts[1]) > len(texts[0]))
    how = ("only_first", "only_second")[longer] if len(texts) == 2 else True
    given = {"truncation": how, "max_length": 16, "stride": stride, "return_overflowing_tokens": True}
    step, all_sides, found = 0, model.tokenizer(*texts).encodings[0].sequence_ids, []
    for number, one in enumerate(model.tokenizer(*texts, **given).encodings):
        own = torch.tensor([not special for special in one.special_tokens_mask])
        types = (
            {"token_type_ids": torch.tensor([one.type_ids])} if "token_type_ids" in model.encode([SHORT]).inputs else {}
        )
        batch, sides = Batch.from_ids(torch.tensor([one.ids]), content=own[None], **types), one.sequence_ids
        step = step if number else sides.count(longer) - stride
        shift = number * step
        places = [
            None if side is None else all_sides.index(side) + sides[:at].count(side) + shift * (side == longer)
            for at, side in enumerate(sides)
        ]
        found.append((batch, places))
    return found, len(all_sides)


def check_windows(model, example, stride):
    windowed = WindowedModel(model, stride)
    batch = windowed.encode([example, example])
    expected, _ = windows_of(model, example, stride)
    found = windowed.make_windows(batch)
    if found is None:
        assert len(expected) == 1
        return
    assert len(found.owner) == 2 * len(expected) > 2
    for row, (one, _) in enumerate(expected):
        ids = found.batch.inputs["input_ids"][row, found.real[row]]
        assert ids.tolist() == one.inputs["input_ids"][0].tolist()
        assert found.batch.content[row, found.real[row]].tolist() == one.content[0].tolist()


def test_windows_are_those_of_transformers(model):
    for stride in [0, 3, 6]:
        check_windows(model, LONG, stride)
        check_windows(model, SHORT, stride)


def test_windows_of_pairs_are_those_of_transformers(pair_model):
    for pair in PAIRS:
        for stride in [0, 3, 6]:
            check_windows(pair_model, pair, stride)


@pytest.mark.parametrize("target", ["predicted", 1, (0, 2)])
def test_scores_are_means_over_windows_in_an_explicit_loop(model, target):
    check_means_over_windows(model, "input_x_gradient", target, LONG, SHORT)


@pytest.mark.parametrize("perturbation", ["mask", "remove"])
def test_removal_is_judged_by_the_answer_to_the_whole_text(model, perturbation):
    windowed = WindowedModel(model, 4)
    batch = windowed.encode([LONG, SHORT])
    scores = expound.explainer("occlusion", unit="token", perturbation=perturbation).attribute(windowed, batch, 1)
    keep = torch.ones(batch.length + 1, 2, batch.length, dtype=torch.bool)
    for position in range(batch.length):
        keep[position + 1, :, position] = False
    chances = windowed.predict_perturbed(batch, keep, perturbation)[..., 1]
    expected = (chances[0] - chances[1:]).T.masked_fill(~batch.content, 0)
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-9)
    assert scores.abs().max() > 1e-6


@pytest.mark.parametrize("method", ["kernel_shap", "shapley_sampling"])
def test_shapley_values_of_a_long_text_sum_to_the_fall_of_its_answer(model, method):
    windowed = WindowedModel(model, 4)
    batch = windowed.encode([LONG])
    # White space of GPT-2 belongs to no word and stays.
    keep = torch.stack([batch.attended, batch.word_of < 0])
    chances = windowed.predict_perturbed(batch, keep, "mask")[..., 1]
    scores = expound.explainer(method, n_samples=80, perturbation="mask").attribute(windowed, batch, 1)
    torch.testing.assert_close(scores.sum(1), chances[0] - chances[1], rtol=1e-4, atol=1e-6)


def test_scores_of_pairs_are_means_over_windows(pair_model):
    check_means_over_windows(pair_model, "input_x_gradient", 1, PAIRS[1], PAIRS[2])


def check_means_over_windows(model, method, target, example, short):
    item, other = expound.attribute(model, [example, short], method, target, stride=4)
    spans, length = windows_of(model, example, 4)
    with torch.no_grad(), model.evaluation_mode():
        logits = torch.cat([model(batch).logits for batch, _ in spans]).mean(0)
    chosen = int(logits.argmax()) if target == "predicted" else target
    total, count = np.zeros(length), np.zeros(length)
    for batch, places in spans:
        scores = expound.explainer(method).attribute(model, batch, chosen)[0]
        for at, score in zip(places, scores.tolist(), strict=True):
            if at is not None:
                total[at] += score
                count[at] += 1
    assert count.max() > 1
    np.testing.assert_allclose(item.token_scores[0], total / count.clip(1), rtol=1e-5, atol=1e-7)
    assert [(side, text) for text, side, _, _ in item.units] == [
        (side, word) for side, text in enumerate(item.texts) for word in text.split()
    ]
    assert item.prediction.value == int(logits.argmax())
    first = chosen[0] if isinstance(chosen, tuple) else chosen
    assert item.target.probability == pytest.approx(float(logits.softmax(-1)[first]))
    alone = expound.attribute(model, short, method, target)[0]
    np.testing.assert_allclose(other.scores, alone.scores, rtol=1e-5, atol=1e-7)
    assert (other.index, item.truncated) == (1, False)


def test_windows_are_made_of_the_remaining_tokens(model):
    windowed = WindowedModel(model, 4)
    batch = windowed.encode([LONG])
    keep = torch.ones(3, 1, batch.length, dtype=torch.bool)
    keep[1, 0, 3:9] = False
    keep[2, 0, 2:-3] = False
    found = windowed.predict_perturbed(batch, keep)
    for version, answer in zip(keep, found, strict=True):
        shorter = batch.select([0])
        stays = (version | ~batch.content)[0]
        shorter = Batch.from_ids(batch.inputs["input_ids"][:, stays], content=batch.content[:, stays])
        with torch.no_grad(), model.evaluation_mode():
            cut = windowed.make_windows(shorter)
            rows = (
                [shorter]
                if cut is None
                else [cut.batch.select([row]).trim_padding()[0] for row in range(len(cut.owner))]
            )
            expected = torch.cat([model(row).logits for row in rows]).mean(0).softmax(-1)
        torch.testing.assert_close(answer[0], expected)
    assert windowed.make_windows(batch) is not None
    masked = windowed.predict_perturbed(batch, keep, "mask")
    torch.testing.assert_close(masked[0], found[0])


def test_gradients_reach_all_of_a_long_text(model):
    windowed = WindowedModel(model, 4)
    batch = windowed.encode([LONG])
    with windowed.evaluation_mode():
        embeddings = windowed.embed(batch).detach().requires_grad_()
        (found,) = torch.autograd.grad(windowed(batch, embeddings).logits[0, 0], embeddings)
        step = 1e-5 * torch.randn_like(embeddings)
        moved = [windowed(batch, embeddings + sign * step).logits[0, 0] for sign in (1, -1)]
    assert bool((found != 0).any(-1).all())
    torch.testing.assert_close((found * step).sum(), (moved[0] - moved[1]) / 2, rtol=1e-4, atol=1e-12)


def test_a_comparison_explains_by_windows_and_asks_about_whole_texts(model, tmp_path):
    rows = [{"text": LONG, "rationale": [[0, 8]]}, {"text": SHORT, "rationale": [[4, 8]]}]
    given = {
        "methods": ["saliency", "attention_last"],
        "metrics": ["aopc_comprehensiveness", "rationale_auc"],
        "stride": 4,
    }
    found = expound.compare(model, rows, output_dir=tmp_path, **given)
    assert len(found.results) == 4
    assert not found.results["truncated"].any()
    windowed, batch = WindowedModel(model, 4), WindowedModel(model, 4).encode(rows)
    for method in given["methods"]:
        expected = expound.attribute(model, rows, method, stride=4)
        scores = expound.explainer(method).attribute(windowed, batch)
        values = expound.metric("aopc_comprehensiveness").evaluate(windowed, batch, scores)["aopc_comprehensiveness"]
        mine = found.results[found.results["method"] == method]
        np.testing.assert_allclose(mine["aopc_comprehensiveness"], values, rtol=1e-5, atol=1e-7)
        kept = [item for item in found.attributions if item.method == method]
        for one, other in zip(kept, expected, strict=True):
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-6)
    again = expound.compare(model, rows, output_dir=tmp_path, **given)
    assert again.results.equals(found.results)
    with pytest.raises(ExpoundError, match="something else"):
        expound.compare(model, rows, output_dir=tmp_path, **given | {"stride": 5})


def test_unsupported_uses_of_windows_are_refused(model):
    refused = "nothing parts its texts" if model.config.model_type == "gpt2" else "both texts of a pair are long"
    with pytest.raises(ExpoundError, match=refused):
        expound.attribute(model, [(LONG, LONG)], "saliency", stride=4)
    with pytest.raises(ExpoundError, match="expected a stride from 0 to"):
        expound.attribute(model, LONG, "saliency", stride=40)
    with pytest.raises(ExpoundError, match="not for span"):
        expound.attribute(shared("bert", "QuestionAnswering"), [(SHORT, LONG)], "saliency", stride=4)
    special = model.tokenizer.sep_token or model.tokenizer.eos_token
    with pytest.raises(ExpoundError, match="special tokens in its text"):
        expound.attribute(model, f"a {special} {LONG}", "saliency", stride=4)
    with pytest.raises(ExpoundError, match="several passes"):
        expound.compare(model, [LONG], ["saliency"], ["consistency"], stride=4)


def test_paragraphs_end_at_blank_lines():
    text = "\n\none. two\nstill one\n \n\ntwo\n\n"
    assert [
        text[a:b].strip() for a, b in zip([0, *find_paragraph_ends(text)], find_paragraph_ends(text), strict=False)
    ] == [
        "one. two\nstill one",
        "two",
    ]
    model = shared("bert")
    batch = model.encode(["the plot is dull\n\na small town\nin the rain"])
    assert number_units(batch, "paragraph")[0][batch.content[0]].tolist() == sorted(
        number_units(batch, "paragraph")[0][batch.content[0]].tolist()
    )
    assert int(number_units(batch, "paragraph").max()) == 1
    assert int(number_units(batch, "sentence").max()) == 2
    drop = expound.explainer("occlusion", unit="paragraph").attribute(model, batch)
    kept = model.encode(["the plot is dull"])
    assert len(set(drop[0][batch.content[0]].tolist())) == 2
    assert kept.length < batch.length
