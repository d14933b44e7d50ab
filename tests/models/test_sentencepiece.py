"""Texts for an encoder-decoder whose tokenizer is SentencePiece alone (Marian's): characters, scores, errors."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import sentencepiece
import torch
import transformers as hf
from transformers import MarianTokenizer

import expound
from expound.cli import main
from expound.errors import ExpoundError
from expound.models.encoding.template import tokenize_text
from expound.reports.highlighted.pieces import find_prompt_extents
from two_sided import SMALL

TEXT = "the shop opens at nine .\nthe lake is cold .\na small film about the town .\nwomen laugh at it , né ?\n" * 20
CHAT = {
    "prompt": "{sources} when does the shop open ?",
    "sources": {"letter": "the shop opens  at nine .", "memo": "the lake is cold ."},
    "response": "it opens at nine .",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Marian with a tokenizer whose pieces were learned here, as it is saved."""
    folder = tmp_path_factory.mktemp("marian")
    (folder / "text").write_text(TEXT)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "source"), vocab_size=60, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    for side in ("source", "target"):
        shutil.copy(folder / "source.model", folder / f"{side}.spm")
    pieces = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    known = [pieces.id_to_piece(number) for number in range(pieces.get_piece_size())]
    names = dict.fromkeys(["</s>", "<unk>", ">>fr<<", *known, "<pad>"])
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    tokenizer = MarianTokenizer(*(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")))
    tokenizer.save_pretrained(folder / "saved")
    sizes = {
        "vocab_size": len(names),
        "pad_token_id": len(names) - 1,
        "decoder_start_token_id": len(names) - 1,
        "eos_token_id": 0,
    }
    config = hf.AutoConfig.for_model("marian", **SMALL["marian"] | sizes)
    torch.manual_seed(0)
    hf.MarianMTModel(config).save_pretrained(folder / "saved")
    return folder / "saved"


@pytest.fixture(scope="module")
def model(folder):
    return expound.load(folder, task="generation", device="cpu")


def test_every_piece_stands_where_its_characters_are(model):
    for target in [False, True]:
        for text in ["the shop opens", "  two   spaces ", "né ﬁne – the café", "the 日本 lake", "x"]:
            found = tokenize_text(model.tokenizer, text, target=target)
            given = {"text_target": text} if target else {"text": text}
            assert found.ids == model.tokenizer(**given)["input_ids"]
            covered = "".join(text[slice(*offset)] for offset in found.offsets)
            assert covered.strip() == text.strip()
            for token, (start, end), added in zip(found.tokens, found.offsets, found.special_tokens_mask, strict=True):
                plain = token.replace("▁", "").strip()
                assert (
                    added
                    or not plain
                    or not text[start:end]
                    or plain == text[start:end].strip()
                    or "ﬁ" in text[start:end]
                )
            assert found.special_tokens_mask == [0] * (len(found.ids) - 1) + [1]


def test_a_code_of_the_language_is_a_token(model):
    found = tokenize_text(model.tokenizer, ">>fr<< the lake")
    assert (found.tokens[0], found.offsets[0]) == (">>fr<<", (0, 6))
    assert ">>fr<< the lake"[slice(found.offsets[1][0], found.offsets[-2][1])].strip() == "the lake"


@pytest.mark.parametrize("unit", ["source", "word"])
def test_removing_a_unit_is_removing_its_tokens(model, unit):
    (found,) = expound.attribute(model, [CHAT], "occlusion", "response", unit=unit)
    batch = model.encode([CHAT])
    whole = "the shop opens  at nine . the lake is cold . when does the shop open ?".replace(" . the", " .\n\nthe", 1)
    assert found.exchange.prompt == whole
    prompt = model.tokenizer(whole)["input_ids"]
    said = model.tokenizer(text_target=CHAT["response"], add_special_tokens=False)["input_ids"]
    assert batch.inputs["input_ids"][0].tolist() == [*prompt, *model.decoder_start_ids, *said]

    def log_prob(ids):
        with torch.no_grad():
            made = torch.tensor([[*model.decoder_start_ids, *said[:-1]]])
            logits = model.generator(input_ids=torch.tensor([ids]), decoder_input_ids=made).logits
        return float(logits[0].log_softmax(-1)[range(len(said)), said].sum())

    full = log_prob(prompt)
    offsets = tokenize_text(model.tokenizer, whole).offsets
    for column, (start, end) in enumerate(find_prompt_extents(found)):
        kept = []
        for id_, (a, b) in zip(prompt, offsets, strict=True):
            first = min(a + len(whole[a:b]) - len(whole[a:b].lstrip()), b - 1)  # the white space before it aside
            inside = a < b and start <= first and b <= end
            kept += [] if inside and (unit == "source" or whole[a:b].strip()) else [id_]
        np.testing.assert_allclose(found.scores[0, column], full - log_prob(kept), rtol=1e-3, atol=2e-5)
    assert found.response == CHAT["response"]


def test_the_command_explains_and_what_it_generates_is_text(folder, capsys):
    command = ["explain", "--task", "generation", "--model", str(folder), "--device", "cpu", "the lake is cold ."]
    assert main([*command, "--max-new-tokens", "6", "--methods", "input_x_gradient"]) == 0
    assert "input_x_gradient" in capsys.readouterr().out


def test_special_tokens_in_a_text_are_refused(model):
    with pytest.raises(ExpoundError, match="special tokens stand in the text"):
        model.encode([{"prompt": "the lake </s> is", "response": "it"}])
