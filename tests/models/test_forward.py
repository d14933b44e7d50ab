"""One forward pass: through ids or embeddings, padded or alone, as transformers itself would answer."""

import pytest
import torch

import families
from expound import Batch, ExpoundError
from expound.models import Capture
from expound.models.passes.hooks import replace_embeddings
from small import FAMILIES, PAIRS, SPAN_FAMILIES, TEXT, alone, shared, small, uneven

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def ids_of(*lengths, low=5, high=200, seed=0, left=False):
    """Random ids, padded with other random ids (not with a padding token), and their mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(low, high, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids, mask.flip(1).long() if left else mask.long()


def batches_of(family, model):
    """The same family's inputs in every form: encoded, alone, right-padded and left-padded ids."""
    yield "encoded", model.encode(uneven(family))
    yield "alone", model.encode(uneven(family)[:1])
    if family != "vit":
        if model.config.pad_token_id is not None and "roberta" in family:
            ids, mask = ids_of(9, 5, 2)
            yield "right", Batch.from_ids(ids.where(mask.bool(), torch.tensor(model.pad_id)), mask)
        else:
            yield "right", Batch.from_ids(*ids_of(9, 5, 2))
        yield "pairs", model.encode(PAIRS)
    if family in families.DECODERS:
        yield "left", Batch.from_ids(*ids_of(9, 5, 2, left=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
@torch.no_grad()
def test_embeddings_give_bit_equal_logits(family, dtype):
    model = shared(family, dtype=dtype)
    for form, batch in batches_of(family, model):
        by_ids, by_embeddings = model(batch).logits, model(batch, model.embed(batch)).logits
        assert by_ids.dtype == dtype
        assert torch.equal(by_ids, by_embeddings), form
        elsewhere = model(batch, model.embed(batch) + torch.randn(model.embed(batch).shape, dtype=dtype)).logits
        assert not torch.equal(by_ids, elsewhere), f"{form}: the embeddings given are not used"


def test_embeddings_that_the_model_does_not_read_are_an_error():
    model = shared("bert")
    with (
        pytest.raises(ExpoundError, match="did not read"),
        replace_embeddings(torch.nn.Embedding(300, 32), torch.zeros(4, 9, 32)),
    ):
        model(model.encode(uneven("bert")))


@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
@torch.no_grad()
def test_padding_changes_nothing(family):
    model = shared(family)
    for form, batch in batches_of(family, model):
        together = model(batch).logits
        for row in range(len(batch)):
            own, _ = alone(model, batch, row)
            assert own.attended.all()
            torch.testing.assert_close(model(own).logits[0], together[row], **EXACT, msg=f"{form} {row}")


@pytest.mark.parametrize("family", families.sweep_others(TEXT))
@torch.no_grad()
def test_logits_are_those_of_transformers(family):
    model = shared(family)
    for text in uneven(family):
        encoded = model.tokenizer(text, return_tensors="pt")
        expected = model.model(**encoded).logits
        assert torch.equal(model(model.encode([text])).logits, expected)
    ids, mask = ids_of(7, 7)
    if model.config.pad_token_id is not None:
        assert torch.equal(model(Batch.from_ids(ids, mask)).logits, model.model(ids, attention_mask=mask).logits)


@torch.no_grad()
def test_decoders_answer_at_the_last_token_whatever_the_padding_token():
    for pad in [None, 0, 2]:
        for family in ["gpt2", "llama"]:
            model = small(family, pad_token_id=pad)
            for left in (False, True):
                ids, mask = ids_of(8, 5, 1, left=left)
                ids[0, -1] = 7
                logits = model(Batch.from_ids(ids, mask)).logits
                for row, (own, real) in enumerate(zip(ids, mask.bool(), strict=True)):
                    torch.testing.assert_close(model.model(own[real][None]).logits[0], logits[row], **EXACT)
            assert model.config.pad_token_id == pad


@torch.no_grad()
def test_padding_tokens_inside_the_text_are_read_as_transformers_reads_them():
    model = small("llama", pad_token_id=3)
    ids = torch.tensor([[9, 8, 7, 3, 3], [3, 3, 3, 3, 3], [5, 3, 6, 9, 4]])
    batch = Batch.from_ids(ids)
    assert torch.equal(model(batch).logits, model.model(ids, attention_mask=torch.ones_like(ids)).logits)
    assert model.readout_weights(batch, torch.zeros(3)).argmax(1).tolist() == [2, 0, 4]


@torch.no_grad()
def test_token_types_of_gpt2_keep_their_own_embeddings():
    model = shared("gpt2")
    ids, _ = ids_of(6)
    types = torch.tensor([[11, 11, 11, 12, 12, 12]])
    batch = Batch.from_ids(ids, token_type_ids=types)
    expected = model.model(ids, token_type_ids=types).logits
    assert torch.equal(model(batch).logits, expected)
    assert torch.equal(model(batch, model.embed(batch)).logits, expected)
    assert not torch.equal(model(Batch.from_ids(ids)).logits, expected)


@torch.no_grad()
def test_block_sparse_attention_pads_itself():
    model = shared("big_bird")
    for length in (36, 37):
        batch = Batch.from_ids(*ids_of(length, length))
        with model.evaluation_mode():
            by_ids = model(batch).logits
            assert torch.equal(by_ids, model(batch, model.embed(batch)).logits)
            assert torch.equal(by_ids, model.model(**batch.inputs).logits)
            for states in model(batch, capture=Capture(hidden_states=True)).hidden_states:
                assert states.shape == (2, length, 32)


@torch.no_grad()
def test_spans():
    for family in SPAN_FAMILIES:
        model = shared(family, "QuestionAnswering")
        batch = model.encode(PAIRS)
        logits = model(batch).logits
        assert logits.shape == (3, 2, batch.length)
        assert torch.equal(logits, model(batch, model.embed(batch)).logits)
        assert (logits.masked_select(~batch.attended[:, None].expand_as(logits)) < -1e30).all()
        for row, pair in enumerate(PAIRS):
            real = batch.attended[row]
            single = model.model(**model.tokenizer(*pair, return_tensors="pt"))
            torch.testing.assert_close(
                logits[row][:, real], torch.cat([single.start_logits, single.end_logits]), **EXACT
            )
        assert (model.probabilities(batch).sum(-1) - 1).abs().max() < 1e-12


@torch.no_grad()
def test_predicted_span_is_the_best_of_all_allowed():
    model = shared("bert", "QuestionAnswering")
    batch = model.encode(PAIRS)
    logits = model(batch).logits
    for row, (start, end) in enumerate(model.predict(batch).tolist()):
        allowed = batch.answerable[row].nonzero().flatten().tolist()
        pairs = [(s, e) for s in allowed for e in allowed if s <= e < s + 30]
        assert (start, end) == max(pairs, key=lambda span: float(logits[row, 0, span[0]] + logits[row, 1, span[1]]))
        tokens = batch.alignments[row].spans
        assert {tokens[i][0] for i in allowed if tokens[i] is not None} == {1}


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "modernbert"])
@torch.no_grad()
def test_regression(family):
    model = small(family, num_labels=1)
    batch = model.encode(uneven(family))
    logits = model(batch).logits
    assert (model.task.name, logits.shape) == ("regression", (4, 1))
    assert torch.equal(logits, model(batch, model.embed(batch)).logits)
    assert torch.equal(model.probabilities(batch), logits)
    assert model.predict(batch).tolist() == [0] * 4
    assert torch.equal(model.task.score(logits, model.resolve_target(batch)), logits[:, 0])


@torch.no_grad()
def test_multi_label_probabilities_are_apart():
    model = small("bert", problem_type="multi_label_classification")
    batch = model.encode(uneven("bert"))
    torch.testing.assert_close(model.probabilities(batch), 1 / (1 + (-model(batch).logits).exp()))


def test_a_nan_is_told():
    model = small("bert")
    with torch.no_grad():
        model.model.classifier.bias.fill_(torch.nan)
    batch = model.encode(["a film"])
    for call in (model.predict, model.probabilities, model.resolve_target):
        with pytest.raises(ExpoundError, match="NaN"):
            call(batch)
