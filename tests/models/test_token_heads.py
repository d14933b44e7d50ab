"""Tags of spans of text and words for masks, against removal by hand, captum, and the model's own numbers."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from captum.attr import InputXGradient, IntegratedGradients

import expound
import families
from expound import ExpoundError
from expound.cli import main
from expound.models.token_heads import MaskedModel, TaggingModel
from small import make_explainer

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXT = "a moving film about a small town and its river"
ROWS = [{"text": TEXT, "span": [2, 13], "label": "PER"}, {"text": "the plot is dull", "span": [4, 8], "label": "LOC"}]
MASKED = {"bert": ["a moving [MASK] about a small town", {"text": "the [MASK] is [MASK]", "mask": 1}],
          "roberta": ["a moving <mask> about a small town", {"text": "the<mask> is<mask>", "mask": 1}]}  # fmt: skip


def loaded(family, head):
    changes = {"num_labels": len(TAGS), "id2label": dict(enumerate(TAGS))} if head == "TokenClassification" else {}
    model = families.tiny(family, head, dtype=torch.float64, **changes)
    return expound.load((model, families.processor(family)))


@pytest.fixture(scope="module")
def tagger():
    return loaded("bert", "TokenClassification")


@pytest.fixture(scope="module")
def filler():
    return loaded("bert", "MaskedLM")


def logits_by_hand(model, text):
    with torch.no_grad():
        return model.model(**model.tokenizer(text, return_tensors="pt")).logits[0]


def test_a_stretchs_logit_and_probability_are_those_of_its_words_tags(tagger):
    assert isinstance(tagger, TaggingModel)
    assert tagger.labels == ("O", "PER", "LOC")
    batch = tagger.encode(ROWS)
    logits = tagger(batch).logits.detach()
    hand, places = logits_by_hand(tagger, TEXT), batch.readout_mask[0].nonzero().flatten().tolist()
    assert [batch.alignments[0].words[batch.alignments[0].word_of[place]].text for place in places] == [
        "moving",
        "film",
    ]
    target = torch.tensor([1, 1])
    per = [1, 2]  # the numbers of B-PER and I-PER
    both = torch.stack([hand[place, per].max() for place in places])
    torch.testing.assert_close(tagger.task.score(logits, target)[0], both.sum())
    chance = torch.stack([hand[place].softmax(-1)[per].max() for place in places]).prod()
    torch.testing.assert_close(tagger.task.probability(tagger.task.probabilities(logits), target)[0], chance)
    torch.testing.assert_close(tagger.task.log_probability(logits, target)[0], chance.log())
    assert tagger.resolve_target(batch, "label").tolist() == [1, 2]


def test_occlusion_is_what_replacing_words_by_hand_gives(tagger):
    found = expound.attribute(tagger, ROWS[0], "occlusion", "PER")[0]

    def chance(ids):
        with torch.no_grad():
            out = tagger.model(input_ids=ids).logits[0].softmax(-1)
        return out[places[0], 1:3].max() * out[places[1], 1:3].max()

    batch = tagger.encode(ROWS[:1])
    ids, places = batch.inputs["input_ids"], batch.readout_mask[0].nonzero().flatten().tolist()
    whole = chance(ids)
    expected = [
        float(whole - chance(ids.masked_fill(batch.word_of == word, tagger.mask_id)))
        for word in range(len(found.units))
    ]
    np.testing.assert_allclose(found.scores[0], expected, rtol=1e-5, atol=1e-8)
    assert abs(expected[1]) > 0


def test_a_removed_word_whose_tag_is_read_leaves_a_mask_and_others_nothing(tagger):
    batch = tagger.encode(ROWS[1:])
    keep = torch.ones(2, 1, batch.length, dtype=torch.bool)
    keep[0, 0, batch.word_of[0] == 0] = False
    keep[1, 0, batch.word_of[0] == 1] = False
    got = tagger.predict_perturbed(batch, keep, "remove")[:, 0]
    for version, (text, place) in enumerate((("plot is dull", 1), ("the [MASK] is dull", 2))):
        tags = logits_by_hand(tagger, text)[place].softmax(-1)
        torch.testing.assert_close(got[version], torch.stack([tags[0], tags[1:3].max(), tags[3:].max()]))


@pytest.mark.parametrize("head", ["TokenClassification", "MaskedLM"])
def test_gradients_are_captums(head):
    model = loaded("bert", head)
    batch = model.encode(ROWS if head == "TokenClassification" else MASKED["bert"])
    target, embeddings = model.resolve_target(batch), model.embed(batch).detach()

    def score(given):
        rows = torch.arange(len(given)) // (len(given) // len(batch)) if len(given) > len(batch) else slice(None)
        several = batch.select(torch.arange(len(batch)).repeat_interleave(len(given) // len(batch)))
        out = model(several, embeddings=given).logits
        return model.task.score(out, target[rows])

    ours = expound.explainer("input_x_gradient").attribute(model, batch, target)
    theirs = InputXGradient(score).attribute(embeddings).sum(-1) * batch.content
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    for row in range(len(batch)):
        one = batch.select([row])
        captum = IntegratedGradients(
            lambda given, one=one, row=row: model.task.score(
                model(one.select([0] * len(given)), embeddings=given).logits, target[row : row + 1].expand(len(given))
            )
        )
        method = expound.explainer("integrated_gradients", n_steps=5)
        reference = model.embed_reference(one, "mask") if method.params["baselines"] == "mask" else None
        assert reference is not None
        mine = method.attribute(model, one, target[row : row + 1])
        theirs = captum.attribute(model.embed(one), reference, n_steps=5).sum(-1).detach() * one.content
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
@pytest.mark.parametrize("head", ["TokenClassification", "MaskedLM"])
def test_decompositions_sum_to_the_logit_through_every_head(family, head):
    model = loaded(family, head)
    batch = model.encode(ROWS if head == "TokenClassification" else MASKED.get(family, MASKED["bert"]))
    logit = model.task.score(model(batch).logits, model.resolve_target(batch)).detach()
    linear = expound.explainer("decompx_linear").explain(model, batch, special_tokens=True)
    torch.testing.assert_close(linear.scores.sum(1) + linear.bias, logit)
    whole = expound.explainer("decompx_classifier").explain(model, batch, special_tokens=True)
    torch.testing.assert_close(whole.scores.sum(1), logit, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", ["alti", "attention_rollout", "lime", "kernel_shap", "solvex", "gim", "smooth_grad"])
def test_methods_of_every_kind_give_finite_scores(tagger, filler, method):
    for model, rows in ((tagger, ROWS), (filler, MASKED["bert"])):
        batch = model.encode(rows)
        scores = make_explainer(method).attribute(model, batch)
        assert torch.isfinite(scores).all()
        assert scores[batch.content].abs().sum() > 0


def test_a_text_alone_is_explained_in_all_that_is_tagged_in_it(tagger):
    text = "the plot is dull, but nobody laughs at (the café's) naïve jokes"
    tagger = TaggingModel(tagger.model, tagger.processing_class)
    found = expound.attribute(tagger, text, "saliency")
    encoded = tagger.tokenizer(text, return_offsets_mapping=True)
    tags = dict(zip((start for start, _ in encoded["offset_mapping"][1:-1]),
                    logits_by_hand(tagger, text)[1:-1].argmax(-1).tolist(), strict=True))  # fmt: skip
    expected, before = [], "O"
    for word in re.finditer(r"[^\W_]+(?:'\w+)?", text):
        tag = TAGS[tags[word.start()]]
        if tag != "O" and tag[2:] == before and tag[0] == "I":
            expected[-1][2] = word.end()
        elif tag != "O":
            expected.append([tag[2:], word.start(), word.end()])
        before = tag[2:]
    assert len(expected) > 1
    assert [[item.target.text, *item.target.place[1:]] for item in found] == expected


def test_the_word_for_a_mask(filler):
    assert isinstance(filler, MaskedModel)
    found = expound.attribute(filler, MASKED["bert"], "occlusion")
    hand = logits_by_hand(filler, MASKED["bert"][0]).softmax(-1)[3]
    assert found[0].target[1:3] == (int(hand.argmax()), pytest.approx(float(hand.max())))
    ids = filler.tokenizer(MASKED["bert"][0], return_tensors="pt")["input_ids"]
    word = int(filler.encode(MASKED["bert"][:1]).word_of[0, 1])
    hidden = ids.clone()
    hidden[0, 1] = filler.mask_id
    with torch.no_grad():
        without = filler.model(input_ids=hidden).logits[0, 3].softmax(-1)[found[0].target.value]
    assert found[0].scores[0][word] == pytest.approx(float(hand.max() - without), rel=1e-5)
    named = filler.tokenizer.convert_ids_to_tokens(found[0].target.value)
    target = expound.attribute(filler, MASKED["bert"][0], "saliency", named)[0].target
    # Occlusion runs this text beside its perturbed copies; the size of a batch changes the last bits of a probability.
    assert target._replace(probability=found[0].target.probability) == found[0].target
    assert target.probability == pytest.approx(found[0].target.probability)
    assert found[0].special[3]
    second = filler.encode(MASKED["bert"][1:])
    assert second.readout_mask[0].nonzero().flatten().tolist() == [4]


@pytest.mark.parametrize(
    ("head", "row", "message"),
    [
        ("TokenClassification", {"text": TEXT, "span": [10, 10]}, "covers no token"),
        ("MaskedLM", "no mask here", r"has 0 masks and is asked for number 0 \(from 0\): write \[MASK\]"),
        ("MaskedLM", {"text": "one [MASK]", "mask": 1}, "has 1 masks and is asked for number 1"),
    ],
)
def test_bad_rows_are_told(head, row, message):
    with pytest.raises(ExpoundError, match=message):
        expound.attribute(loaded("bert", head), [row], "saliency")


def test_a_word_that_is_no_single_token_is_told(filler):
    with pytest.raises(ExpoundError, match="no single token"):
        filler.label_id("incomprehensibilities")


@pytest.mark.parametrize("head", ["NextSentencePrediction", "PreTraining"])
def test_heads_that_are_not_explained_say_what_to_take(head, tmp_path):
    families.tiny("bert", head).save_pretrained(tmp_path) if head != "PreTraining" else _save_pretraining_model(
        tmp_path
    )
    with pytest.raises(ExpoundError, match="whose head is not explained: "):
        expound.load(tmp_path)


def _save_pretraining_model(folder):
    from transformers import BertForPreTraining

    BertForPreTraining(families.tiny("bert").config).save_pretrained(folder)


def test_conll_goes_through_explain_and_compare(tmp_path, capsys):
    import corpora

    (tmp_path / "data").mkdir()
    corpora.conll(tmp_path / "data")
    model = loaded("bert", "TokenClassification")
    model.model.float().save_pretrained(tmp_path / "model")
    model.processing_class.save_pretrained(tmp_path / "model")
    data = expound.load_data(f"conll:{tmp_path / 'data'}", "dev")
    assert [(row["text"][slice(*row["span"])], data.features["label"].names[row["label"]]) for row in data] == [
        ("John Smith", "PER"), ("Rome", "LOC"), ("Mary", "PER"), ("John", "PER"),
    ]  # fmt: skip
    given = ["--model", str(tmp_path / "model"), "--device", "cpu"]
    corpus = ["--data", f"conll:{tmp_path / 'data'}"]
    assert main(["compare", *given, *corpus, "--methods", "saliency,random", "-o", str(tmp_path / "out"), "-q"]) == 0
    assert main(["explain", *given, *corpus, "-o", str(tmp_path / "corpus"), "--target", "label"]) == 0
    (tmp_path / "texts.jsonl").write_text('{"text": "John Smith sees Rome"}\n{"text": "Mary"}\n')
    texts = ["--data", f"jsonl:{tmp_path / 'texts.jsonl'}"]
    assert main(["explain", *given, *texts, "-o", str(tmp_path / "tagged")]) == 0
    found = expound.attribute(expound.load(tmp_path / "model", device="cpu"), ["John Smith sees Rome", "Mary"])
    rows = pq.read_table(tmp_path / "tagged" / "part-000000.parquet").to_pylist()
    assert [row["targets"][0]["place"] for row in rows] == [list(item.target.place) for item in found]
    assert {row["index"] for row in rows} <= {0, 1}
    stored = expound.Explanations.load(tmp_path / "out" / "attributions")
    assert stored[0].texts[0][slice(*stored[0].target.place[1:])] == "John Smith"
    assert dataclasses.replace(stored[0]) == stored[0]
    capsys.readouterr()
    assert main(["explain", "John Smith sees Rome", *given, "--methods", "saliency"]) == 0
    assert "of “" in capsys.readouterr().out


def test_tags_of_iob1_bioes_and_without_prefixes():
    from expound.data.readers.conll import find_stretches

    assert find_stretches(["I-A", "I-A", "B-A", "O", "I-B"]) == [("A", 0, 2), ("A", 2, 3), ("B", 4, 5)]
    assert find_stretches(["B-A", "I-A", "E-A", "S-A", "I-A"]) == [("A", 0, 3), ("A", 3, 4), ("A", 4, 5)]
    assert find_stretches(["NN", "NN", "O", "VB"]) == [("NN", 0, 1), ("NN", 1, 2), ("VB", 3, 4)]
