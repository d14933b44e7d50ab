"""Tokenizers without a fast version: characters of tokens that spell their text, removal by hand, and refusals."""

import pytest
import torch
import transformers as hf

import expound
from expound.errors import ExpoundError
from expound.models.encoding.template import encode_slowly

PROTEINS = [
    "MKTAYIAKQR",
    ("MKA", "QQ"),
    ("MKTAYIAKQRMKTAY", "LAGVSERTIDPK"),
    "MKJ<mask>T U",
    "MKTAYIAKQRMKTAYIAKQRMKTAYIAKQR",
]


@pytest.fixture(scope="module")
def esm(tmp_path_factory):
    """A random ESM of 16 tokens with its tokenizer of amino acids, loaded from its folder."""
    folder = tmp_path_factory.mktemp("esm")
    names = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
    (folder / "vocab.txt").write_text("\n".join(names))
    hf.EsmTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    marks = {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "max_position_embeddings": 18, "num_labels": 2}
    hf.EsmForSequenceClassification(hf.EsmConfig(**sizes, **marks)).double().save_pretrained(folder)
    return expound.load(folder, dtype="float64")


def test_proteins_have_the_tokens_and_the_letters_of_their_tokenizer(esm):
    for example in PROTEINS:
        texts = (example,) if isinstance(example, str) else example
        batch = esm.encode([example])
        own = esm.tokenizer(*texts, truncation="longest_first", max_length=16)["input_ids"]
        assert batch.inputs["input_ids"][0].tolist() == own
        (alignment,) = batch.alignments
        letters = [names for names in alignment.tokens if names not in ("<cls>", "<eos>")]
        spans = [span for span in alignment.spans if span is not None]
        spelled = [alignment.texts[segment][start:end] for segment, start, end in spans]
        assert [name if name != "<unk>" else "J" for name in letters] == spelled
        assert alignment.truncated == (sum(map(len, texts)) > 20)
        if not alignment.truncated:
            assert "".join(spelled) == "".join(texts).replace(" ", "")


def test_a_removed_amino_acid_is_the_model_s_own_answer_without_it(esm):
    item = expound.attribute(esm, PROTEINS[0], "occlusion?perturbation=remove", unit="token")[0]
    ids = esm.tokenizer(PROTEINS[0])["input_ids"]

    def answer(kept):
        kept = torch.tensor([kept])
        with torch.no_grad():
            logits = esm.model.eval()(input_ids=kept, attention_mask=torch.ones_like(kept)).logits
        return float(logits.softmax(-1)[0, item.target.value])

    assert item.unit_texts == tuple(PROTEINS[0])
    drops = [answer(ids) - answer([*ids[:place], *ids[place + 1 :]]) for place in range(1, len(ids) - 1)]
    assert item.scores[0].tolist() == pytest.approx(drops, rel=1e-5)


def test_bytes_are_parts_of_their_characters_and_of_words():
    torch.manual_seed(0)
    sizes = {"vocab_size": 384, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4}
    config = hf.T5Config(**sizes, decoder_start_token_id=0, feed_forward_proj="gated-gelu")
    model = expound.load((hf.T5ForConditionalGeneration(config).eval(), hf.ByT5Tokenizer()), task="generation")
    row = {"prompt": "Wo ist das Café 🤗?", "response": " dort é"}
    item = expound.attribute(model, [row], "occlusion", unit="word", target="words")[0]
    assert item.unit_texts == ("Wo", "ist", "das", "Café", "🤗?")
    assert item.target_texts == ("dort", "é")
    by_token = expound.attribute(model, [row], "input_x_gradient", unit="token")[0]
    assert "".join(by_token.unit_texts) == "Wo ist das Caféé 🤗🤗🤗🤗?"
    by_word = expound.attribute(model, [row], "input_x_gradient", unit="word")[0]
    assert by_word.scores[0, 3] == pytest.approx(by_token.scores[0, 11:16].sum(), rel=1e-5)
    chat = {"prompt": "{sources} where ?", "sources": {"doc": "a shop</s> at nine"}, "response": " there"}
    with pytest.raises(ExpoundError, match="special tokens stand in the text"):
        model.encode([chat])


def test_tokens_that_do_not_spell_their_text_are_refused(esm):
    class Folding(hf.ByT5Tokenizer):
        def _tokenize(self, text):
            return super()._tokenize(text.lower())

    assert encode_slowly(Folding(), ("a film",)).offsets[:2] == [(0, 1), (1, 2)]
    with pytest.raises(
        ExpoundError, match="Folding has no fast version, and its tokens do not spell the text 'A film'"
    ):
        encode_slowly(Folding(), ("A film",))
    with pytest.raises(ExpoundError, match="in their order"):
        # A text that ends with the end mark gets no second one, which the tokenizer's mask does not say.
        encode_slowly(hf.ByT5Tokenizer(), ("a film</s>",))
