"""The engine for perturbed inputs against a loop of plain forward passes, one input at a time."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import transformers as hf

import families
from expound import Batch, ExplainedModel, ExpoundError, attribute
from expound.models import batch as batches
from expound.models.encoding.images import select_patches
from small import PAIRS, SPAN_FAMILIES, TEXT, alone, shared, small, uneven

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def masks(batch, count=5, seed=0):
    """Return random keep-masks, then one of ones, one of zeros, and the first again."""
    generator = torch.Generator().manual_seed(seed)
    random = torch.rand((count, *batch.content.shape), generator=generator) < 0.6
    return torch.cat([random, torch.ones_like(random[:1]), torch.zeros_like(random[:1]), random[:1]])


def ask(model, **inputs):
    """Return the answer of plain transformers, without expound's code."""
    output = model.model(**inputs)
    if model.task.name == "span":
        return torch.stack([output.start_logits[0], output.end_logits[0]]).softmax(-1)
    return output.logits[0] if model.task.name == "regression" else output.logits[0].softmax(-1)


def inputs_at(model, batch, row, positions):
    """Return ids and types of one example at these positions, or one mask token if there are no positions."""
    names = [name for name in ("input_ids", "token_type_ids") if name in batch.inputs]
    if not len(positions):
        first = batch.attended[row].long().argmax()
        inputs = {name: batch.inputs[name][row, first].view(1, 1) for name in names}
        return inputs | {"input_ids": torch.tensor([[model.mask_id]])}
    return {name: batch.inputs[name][row, positions][None] for name in names}


def remove_by_hand(model, batch, row, keep):
    """Return the answer to one example without the positions that are not kept; spans in the batch's coordinates."""
    positions = ((keep | ~batch.content[row]) & batch.attended[row]).nonzero().flatten()
    answer = ask(model, **inputs_at(model, batch, row, positions))
    if model.task.name != "span":
        return answer
    where = positions if len(positions) else batch.attended[row].long().argmax().view(1)
    grid = torch.zeros(2, batch.length, dtype=answer.dtype)
    grid[:, where] = answer
    return grid


def replace_by_hand(model, batch, row, keep, perturbation):
    """Return the answer to one example if the embedding layer gives another embedding where `keep` is false."""
    real = batch.attended[row]
    inputs = inputs_at(model, batch, row, real.nonzero().flatten())
    gone = (batch.content[row] & ~keep)[real]
    layer = model.model.get_input_embeddings()
    # Called, since Gemma's layer multiplies its weights.
    blank = (
        torch.zeros(1)
        if perturbation == "zero"
        else layer(torch.tensor(model.mask_id if perturbation == "mask" else model.pad_id))
    )
    hook = layer.register_forward_hook(lambda _, i, output: torch.where(gone[:, None], blank, output))
    answer = ask(model, **inputs)
    hook.remove()
    if model.task.name != "span":
        return answer
    grid = torch.zeros(2, batch.length, dtype=answer.dtype)
    grid[:, real] = answer
    return grid


def by_hand(model, batch, keep, perturbation):
    rows = [
        [
            remove_by_hand(model, batch, row, mask[row])
            if perturbation == "remove"
            else replace_by_hand(model, batch, row, mask[row], perturbation)
            for row in range(len(batch))
        ]
        for mask in keep
    ]
    return torch.stack([torch.stack(row) for row in rows])


@contextmanager
def count_passes(model):
    """Record the numbers of sequences and tokens of each forward pass inside the block."""
    seen = []
    hook = model.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(next(v.shape for k, v in kwargs.items() if k != "use_cache")),
        with_kwargs=True,
    )
    try:
        yield seen
    finally:
        hook.remove()


@pytest.mark.parametrize("perturbation", ["remove", "mask", "pad", "zero"])
@pytest.mark.parametrize("family", families.sweep_others(TEXT, [*families.USUAL, "deberta-v2"]))
@torch.no_grad()
def test_against_one_input_at_a_time(family, perturbation):
    model = shared(family)
    batch = model.encode(uneven(family))
    keep = masks(batch, 3)
    torch.testing.assert_close(
        model.predict_perturbed(batch, keep, perturbation), by_hand(model, batch, keep, perturbation), **EXACT
    )


@pytest.mark.parametrize("family", families.sweep_others(TEXT, [*families.USUAL, "deberta-v2"]))
@torch.no_grad()
def test_what_is_not_attended_to_keeps_its_place_and_no_effect(family):
    """AT2's ablation: an attention mask of 0 at the unit, position ids of the whole input."""
    model = shared(family)
    batch = model.encode(uneven(family))
    keep = masks(batch, 3)[:3]
    # Decoders have no special token before the text, and their last token is read.
    keep[:, torch.arange(len(batch)), batch.attended.long().argmax(1)] = True
    found = model.predict_perturbed(batch, keep, "attend")
    for version, answers in zip(keep, found, strict=True):
        for row, answer in enumerate(answers):
            real = batch.attended[row].nonzero().flatten()
            inputs = inputs_at(model, batch, row, real)
            mask = (version[row] | ~batch.content[row])[real]
            positions = {"position_ids": torch.arange(len(real))[None]} if model.is_decoder else {}
            torch.testing.assert_close(
                answer, ask(model, **inputs, **positions, attention_mask=mask[None].long()), **EXACT
            )
            if model.is_decoder:
                mask[-1] = True
            inputs["input_ids"] = inputs["input_ids"].where(mask, 7)
            other = ask(
                model, **inputs, **positions, attention_mask=(version[row] | ~batch.content[row])[real][None].long()
            )
            torch.testing.assert_close(answer, other, **EXACT)
    assert (found - model.predict_perturbed(batch, torch.ones_like(keep[:1]))).abs().max() > 1e-4


def test_attention_cannot_be_masked_everywhere():
    model = shared("gpt2")
    batch = model.encode(["a moving film"])
    with pytest.raises(ExpoundError, match="a position to attend to in every input"):
        model.predict_perturbed(batch, ~batch.content[None], "attend")
    pictures = shared("vit").encode(uneven("vit"))
    with pytest.raises(ExpoundError, match="reads one row of text with an attention mask"):
        shared("vit").predict_perturbed(pictures, pictures.content[None], "attend")


@pytest.mark.parametrize("perturbation", ["remove", "mask"])
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "deberta-v2", "gpt2"])
@torch.no_grad()
def test_pairs(family, perturbation):
    model = shared(family)
    batch = model.encode(PAIRS)
    keep = masks(batch)
    torch.testing.assert_close(
        model.predict_perturbed(batch, keep, perturbation), by_hand(model, batch, keep, perturbation), **EXACT
    )


@pytest.mark.parametrize("perturbation", ["remove", "mask", "pad", "zero"])
@pytest.mark.parametrize("family", SPAN_FAMILIES)
@torch.no_grad()
def test_spans_come_back_to_where_they_stood(family, perturbation):
    model = shared(family, "QuestionAnswering")
    batch = model.encode(PAIRS)
    keep = masks(batch)
    answers = model.predict_perturbed(batch, keep, perturbation)
    torch.testing.assert_close(answers, by_hand(model, batch, keep, perturbation), **EXACT)
    gone = batch.content & ~keep if perturbation == "remove" else ~batch.attended.expand_as(keep)
    if perturbation == "remove":
        gone = gone & (keep | ~batch.content).any(-1, keepdim=True)
        gone[-2] = False
    assert answers.masked_select(gone[:, :, None].expand_as(answers)).abs().sum() == 0


@pytest.mark.parametrize("perturbation", ["remove", "mask"])
@torch.no_grad()
def test_padding_on_the_other_side(perturbation):
    for family, head in (
        ("gpt2", "SequenceClassification"),
        ("gpt2", "QuestionAnswering"),
        ("bert", "QuestionAnswering"),
    ):
        model = shared(family, head)
        ids = torch.randint(5, 200, (3, 8), generator=torch.Generator().manual_seed(0))
        mask = torch.arange(8) < torch.tensor([8, 5, 2])[:, None]
        batch = Batch.from_ids(ids, mask)
        keep = masks(batch)
        torch.testing.assert_close(
            model.predict_perturbed(batch, keep, perturbation), by_hand(model, batch, keep, perturbation), **EXACT
        )


@torch.no_grad()
def test_regression_gives_values():
    model = small("bert", num_labels=1)
    batch = model.encode(uneven("bert"))
    keep = masks(batch)
    torch.testing.assert_close(model.predict_perturbed(batch, keep), by_hand(model, batch, keep, "remove"), **EXACT)


@pytest.mark.parametrize("pad", [None, 0, 2])
@torch.no_grad()
def test_an_emptied_text_is_one_mask_token(pad):
    model = small("gpt2", pad_token_id=pad)
    batch = model.encode(uneven("gpt2"))
    assert batch.content.equal(batch.attended), "the tokenizer adds no special token"
    keep = masks(batch)
    expected = model.model(torch.tensor([[model.mask_id]])).logits.softmax(-1)
    answers = model.predict_perturbed(batch, keep)
    torch.testing.assert_close(answers[-2], expected.expand(4, -1), **EXACT)
    torch.testing.assert_close(answers, by_hand(model, batch, keep, "remove"), **EXACT)


@torch.no_grad()
def test_patches_are_taken_out_of_pictures():
    model = shared("vit")
    batch = model.encode(uneven("vit"))
    keep = masks(batch)
    answers = model.predict_perturbed(batch, keep)
    vit = model.model.base_model
    embedded = vit.embeddings(batch.inputs["pixel_values"])
    for version, mask in enumerate(keep):
        for row in range(len(batch)):
            hidden = embedded[row, mask[row] | ~batch.content[row]][None]
            for layer in vit.layers if hasattr(vit, "layers") else vit.encoder.layer:
                hidden = layer(hidden)
                hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            logits = model.model.classifier(vit.layernorm(hidden)[:, 0])
            torch.testing.assert_close(answers[version, row], logits[0].softmax(-1), **EXACT)


@pytest.mark.parametrize(("family", "leading"), [("DeiT", 2), ("Dinov2WithRegisters", 5), ("Dinov2", 1)])
@torch.no_grad()
def test_all_that_stands_before_the_patches_stays(family, leading):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.3}
    config = getattr(hf, f"{family}Config")(image_size=8, patch_size=2, num_channels=1, **sizes)
    loaded = getattr(hf, f"{family}ForImageClassification")(config).double().eval()
    model = ExplainedModel(loaded, families.processor("vit"))
    batch = model.encode(uneven("vit", 2))
    assert batch.content.tolist() == [[False] * leading + [True] * 16] * 2
    keep = masks(batch)
    keep[..., -1] = True  # DINOv2 also reads the mean of the patches, which has to be one of something
    answers = model.predict_perturbed(batch, keep)
    for version, mask in enumerate(keep):
        for row, real in enumerate(mask | ~batch.content):
            hook = loaded.base_model.embeddings.register_forward_hook(lambda _, i, out, real=real: out[:, real])
            expected = loaded(batch.inputs["pixel_values"][row : row + 1]).logits[0].softmax(-1)
            hook.remove()
            torch.testing.assert_close(answers[version, row], expected, **EXACT)
    item = attribute(model, uneven("vit", 1), "input_x_gradient")[0]
    assert item.unit_texts == tuple(f"patch {number}" for number in range(16))


def test_patches_that_cannot_be_told_apart_are_not_removed():
    model = shared("vit")
    batch = model.encode(uneven("vit", 1))
    with (
        pytest.raises(ExpoundError, match="cannot be removed"),
        select_patches(model.model, torch.arange(batch.length)[None], batch.length + 1),
    ):
        model(batch)


@pytest.mark.parametrize("perturbation", ["mask", "pad", "zero"])
@torch.no_grad()
def test_patches_are_replaced_in_pictures(perturbation):
    model = shared("vit")
    batch = model.encode(uneven("vit"))
    keep = masks(batch)
    layer = model.model.get_input_embeddings()
    blank = layer(torch.zeros_like(batch.inputs["pixel_values"][:1])) if perturbation != "zero" else torch.zeros(())
    answers = model.predict_perturbed(batch, keep, perturbation)
    for version, mask in enumerate(keep):
        hook = layer.register_forward_hook(
            lambda _, i, output, mask=mask: torch.where(mask[:, 1:, None], output, blank)
        )
        expected = model.model(**batch.inputs).logits.softmax(-1)
        hook.remove()
        torch.testing.assert_close(answers[version], expected, **EXACT)


@pytest.mark.parametrize("perturbation", ["remove", "mask", "zero"])
@pytest.mark.parametrize(
    ("family", "head"),
    [("bert", "SequenceClassification"), ("bert", "QuestionAnswering"), ("gpt2", "QuestionAnswering")],
)
@torch.no_grad()
def test_memory_answers_the_same_and_asks_once(family, head, perturbation):
    model = shared(family, head)
    examples = PAIRS if head == "QuestionAnswering" else uneven(family)
    batch = model.encode(examples)
    keep = masks(batch)
    expected = model.predict_perturbed(batch, keep, perturbation)
    with model.cache_perturbed():
        first = model.predict_perturbed(batch, keep, perturbation)
        with count_passes(model) as passes:
            again = model.predict_perturbed(batch, keep.flip(0), perturbation).flip(0)
            shorter, columns = alone(model, batch, len(examples) - 1)
            part = model.predict_perturbed(shorter, keep[:, -1:, columns], perturbation)
            assert not passes
            model.predict_perturbed(batch, masks(batch, seed=1), perturbation)
            assert passes
    assert model.perturbation_cache is None
    assert torch.equal(first, expected)
    assert torch.equal(again, expected)
    whole = expected[:, -1:, :, columns] if head == "QuestionAnswering" else expected[:, -1:]
    torch.testing.assert_close(part, whole, rtol=1e-14, atol=0)  # sums of as many numbers, and zeros among them


@torch.no_grad()
def test_memory_keeps_ways_of_perturbing_apart():
    model = shared("bert")
    batch = model.encode(uneven("bert"))
    keep = masks(batch)
    expected = {
        perturbation: model.predict_perturbed(batch, keep, perturbation)
        for perturbation in ("remove", "mask", "pad", "zero")
    }
    with model.cache_perturbed():
        for perturbation, answer in expected.items():
            assert torch.equal(model.predict_perturbed(batch, keep, perturbation), answer)
        with model.cache_perturbed():
            assert model.perturbation_cache
        assert model.perturbation_cache


@torch.no_grad()
def test_the_same_call_is_answered_from_memory_and_no_other(monkeypatch):
    model = shared("bert")
    batch = model.encode(uneven("bert"))
    keep, others = masks(batch), masks(batch, seed=1)
    first, second = model.predict_perturbed(batch, keep, "mask"), model.predict_perturbed(batch, others, "mask")
    with model.cache_perturbed():
        model.predict_perturbed(batch, keep, "mask").zero_()
        with monkeypatch.context() as only:
            only.setattr("expound.models.perturbation.run.Replacement", None)
            assert torch.equal(model.predict_perturbed(batch, keep, "mask"), first), "what was given out is another's"
        keep.copy_(others)
        torch.testing.assert_close(model.predict_perturbed(batch, keep, "mask"), second, rtol=1e-12, atol=0)
        assert torch.equal(
            model.predict_perturbed(batch, keep, "pad"), model.predict_perturbed(replace(batch), keep, "pad")
        )


@torch.no_grad()
def test_equal_inputs_are_run_once():
    model = shared("bert")
    batch = model.encode(["small town small town", "river town", "river town"])
    keep = torch.ones(4, *batch.content.shape, dtype=torch.bool)
    same = batch.word_of[0]
    keep[1, 0, same == 0] = False
    keep[2, 0, same == 2] = False
    with count_passes(model) as passes:
        answers = model.predict_perturbed(batch, keep)
    assert sum(shape[0] for shape in passes) == 4, "two texts, and two orders of three words"
    assert torch.equal(answers[0, 1], answers[0, 2])
    with count_passes(model) as passes:
        model.predict_perturbed(batch, keep, "mask")
    assert sum(shape[0] for shape in passes) == 4


@pytest.mark.parametrize("perturbation", ["remove", "mask"])
@torch.no_grad()
def test_passes_hold_at_most_so_many_tokens(perturbation, monkeypatch):
    model = shared("bert")
    batch = model.encode(uneven("bert"))
    keep = masks(batch, 12)
    whole = model.predict_perturbed(batch, keep, perturbation)
    monkeypatch.setitem(batches.TOKENS_PER_PASS, "cpu", 30)
    with count_passes(model) as passes:
        torch.testing.assert_close(model.predict_perturbed(batch, keep, perturbation), whole, **EXACT)
    assert len(passes) > 5
    assert all(rows * length <= 30 for rows, length in passes)
    monkeypatch.setitem(batches.TOKENS_PER_PASS, "cpu", 1)
    with count_passes(model) as passes:
        torch.testing.assert_close(model.predict_perturbed(batch, keep, perturbation), whole, **EXACT)
    assert {rows for rows, _ in passes} == {1}


@pytest.mark.parametrize("perturbation", ["mask", "pad", "zero"])
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "vit"])
def test_soft_masks_of_zeros_and_ones_are_hard_ones(family, perturbation):
    model = shared(family)
    batch = model.encode(uneven(family))
    keep = masks(batch)
    soft = model.predict_perturbed(batch, keep.double(), perturbation)
    torch.testing.assert_close(soft.detach(), model.predict_perturbed(batch, keep, perturbation), **EXACT)


def test_gradient_flows_to_soft_masks_and_stops_at_special_tokens():
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    keep = torch.full((2, *batch.content.shape), 0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda weights: model.predict_perturbed(batch, weights, "mask"), keep)
    (slope,) = torch.autograd.grad(model.predict_perturbed(batch, keep, "mask")[..., 0].sum(), keep)
    assert (slope[:, batch.content] != 0).all()
    assert (slope[:, ~batch.content] == 0).all()


def test_what_cannot_be_done_is_told():
    model = shared("bert")
    batch = model.encode(uneven("bert"))
    keep = masks(batch)
    with pytest.raises(ExpoundError, match="removed by half"):
        model.predict_perturbed(batch, keep.float(), "remove")
    with pytest.raises(ExpoundError, match="mask, pad, remove, zero"):
        model.predict_perturbed(batch, keep, "delete")
    with pytest.raises(ExpoundError, match=r"expected keep of shape \[N, 4"):
        model.predict_perturbed(batch, keep[0])
    bare = ExplainedModel(families.tiny("bert"))
    with pytest.raises(ExpoundError, match="mask"):
        bare.predict_perturbed(Batch.from_ids(torch.tensor([[5, 6]])), torch.zeros(1, 1, 2, dtype=torch.bool), "mask")


def test_passes_cover_every_row_once():
    for uniform in [False, True]:
        for lengths in [[], [7], [9, 9, 5, 5, 5, 2, 1], [40, 3, 3]]:
            parts = list(batches.pack(lengths, 10, overhead=0 if uniform else None))
            assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(lengths)))
            for part in parts:
                rows = lengths[part]
                assert len(rows) == 1 or max(rows) * len(rows) <= 10
                assert not uniform or len(set(rows)) == 1
