"""A response in a batch: its positions, its targets, and that padding and the number of passes do not matter."""

import functools

import pytest
import torch

import expound
import families
from expound import Batch, ExplainedModel, ExpoundError
from expound.models.batch import find_predicting_columns, find_response_positions
from expound.models.generation.model import GeneratingModel
from expound.models.tasks import base as generation_task

PROMPTS = [[9, 40, 7, 120, 11, 23, 60, 8, 31], [14, 15, 90], [5, 66, 7, 8, 101, 44]]
RESPONSES = [[50, 51], [17, 180, 19, 33, 21], [70, 10, 99]]


def generating(family="llama", dtype=torch.float64):
    return GeneratingModel(families.tiny(family, "CausalLM", dtype=dtype, seed=1), families.processor(family))


shared_generating = functools.cache(generating)
"""The same model for all tests that do not change it, whose assumptions are checked once."""


def padded_right(prompts, responses):
    """Return the examples as a batch that is padded on the right."""
    rows = [torch.tensor(asked + said) for asked, said in zip(prompts, responses, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    step = torch.arange(ids.shape[1])
    mask = step < torch.tensor([len(row) for row in rows])[:, None]
    return Batch.from_ids(ids, mask, response=mask & (step >= torch.tensor([len(p) for p in prompts])[:, None]))


@torch.no_grad()
def step_by_step(model, prompt, response):
    """Return the log-probability and the logit of each token, each from a pass over the tokens before it."""
    found = []
    for count, token in enumerate(response):
        logits = model.model(torch.tensor([prompt + response[:count]])).logits[0, -1]
        found.append(torch.stack([logits.log_softmax(-1)[token], logits[token]]))
    return torch.stack(found)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
@torch.no_grad()
def test_one_pass_equals_decoding_step_by_step(family, monkeypatch):
    model = generating(family)
    left, right = model.batch(PROMPTS, RESPONSES), padded_right(PROMPTS, RESPONSES)
    for batch, at_once in ((left, 2**23), (right, 2**23), (left, 1)):
        monkeypatch.setattr(generation_task, "LOGITS_AT_ONCE", at_once)
        table = model(batch).logits
        assert table.shape == (3, 5, 2)
        for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
            expected = step_by_step(model, prompt, response)
            torch.testing.assert_close(table[row, : len(response)], expected, rtol=1e-9, atol=1e-9)
            assert not table[row, len(response) :].any()


@torch.no_grad()
def test_a_tokenizer_with_token_types_changes_no_answer():
    model = GeneratingModel(families.tiny("gpt2", "CausalLM", dtype=torch.float64, seed=1), families.tokenizer("bert"))
    rows = [{"prompt": prompt, "response": "a dull film"} for prompt in ("a warm story", "what a slow and warm film")]
    batch = model.encode(rows)
    for row, table in enumerate(model(batch).logits):
        ids, inside = batch.inputs["input_ids"][row], batch.attended[row]
        prompt, response = (ids[inside & part].tolist() for part in (~batch.response[row], batch.response[row]))
        torch.testing.assert_close(table, step_by_step(model, prompt, response), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_logits_are_computed_only_where_a_token_is_predicted(monkeypatch):
    model, seen = generating().without_checks(), []
    hook = model.model.lm_head.register_forward_hook(lambda _, inputs, output: seen.append(output.shape[1]))
    model(model.batch(PROMPTS[0], RESPONSES[0]))
    model(model.batch(PROMPTS, RESPONSES))
    hook.remove()
    assert seen == [2, 5]
    whole = model(model.batch(PROMPTS, RESPONSES)).logits
    monkeypatch.setattr(model, "forward_parameters", model.forward_parameters - {"logits_to_keep"})
    torch.testing.assert_close(model(model.batch(PROMPTS, RESPONSES)).logits, whole)


@torch.no_grad()
def test_outputs_of_a_span_and_of_a_contrast():
    model = generating()
    foils = [[50, 7], [17, 180, 19, 33, 90], [70, 10, 99]]
    plain, contrast = model.batch(PROMPTS, RESPONSES), model.batch(PROMPTS, RESPONSES, foil_ids=foils)
    target = model.resolve_target(plain, [(0, 2), 4, (1, 3)])
    assert target.tolist() == [[0, 2], [4, 5], [1, 3]]
    log_prob, logit = (
        torch.stack(
            [step_by_step(model, PROMPTS[i], RESPONSES[i])[slice(*span), k].sum() for i, span in enumerate(target)]
        )
        for k in (0, 1)
    )
    other = torch.stack(
        [
            step_by_step(model, PROMPTS[0], [50, 7])[1, 1] + step_by_step(model, PROMPTS[0], [50])[0, 1],
            step_by_step(model, PROMPTS[1], foils[1])[4, 1],
            step_by_step(model, PROMPTS[2], foils[2])[1:3, 1].sum(),
        ]
    )
    for output, expected in {None: log_prob, "log_prob": log_prob, "logit": logit, "prob": log_prob.exp()}.items():
        task = model.task.with_output(output)
        torch.testing.assert_close(task.score(model(plain).logits, target), expected)
        torch.testing.assert_close(task.score_removal(model.probabilities(plain), target), expected)
    for output in ("log_prob", "logit"):
        found = model.task.with_output(output).score(model(contrast).logits, target)
        torch.testing.assert_close(found, logit - other)
    assert found[2] == 0, "equal tokens give exactly nothing"
    prob = model.task.with_output("prob").score(model(contrast).logits, target)
    torch.testing.assert_close(prob, log_prob.exp() - (log_prob - logit + other).exp())
    torch.testing.assert_close(model.task.probability(model.probabilities(contrast), target), log_prob.exp())


def test_the_default_target_is_the_whole_response():
    model = generating()
    batch = model.batch(PROMPTS, RESPONSES)
    assert model.resolve_target(batch).tolist() == [[0, 2], [0, 5], [0, 3]]
    assert model.resolve_target(batch, (0, 2)).tolist() == [[0, 2]] * 3
    assert model.resolve_target(batch, 1).tolist() == [[1, 2]] * 3


def test_the_readout_is_before_the_tokens():
    model = generating()
    for batch, prompt in ((model.batch(PROMPTS, RESPONSES), 3), (padded_right(PROMPTS, RESPONSES), 0)):
        weights = model.readout_weights(batch, torch.tensor([[0, 2], [0, 1], [2, 3]]))
        start = batch.attended.long().argmax(1)
        expected = torch.zeros_like(weights)
        expected[0, start[0] + 8] = expected[0, start[0] + 9] = 0.5
        expected[1, start[1] + 2] = expected[2, start[2] + 7] = 1
        assert start[1] == prompt
        torch.testing.assert_close(weights, expected)


def test_places_of_responses():
    response = torch.tensor([[0, 0, 1, 1, 0], [0, 0, 0, 1, 0]], dtype=torch.bool)
    places = find_response_positions(response)
    assert places.positions.tolist() == [[2, 3], [3, 1]]
    assert places.real.tolist() == [[True, True], [True, False]]
    assert find_predicting_columns(response).tolist() == [1, 2]


@torch.no_grad()
def test_the_answer_is_never_removed():
    model = generating()
    everything = [[True] * (len(p) + len(r)) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    batch = model.batch(PROMPTS, RESPONSES, content=everything)
    target = model.resolve_target(batch)
    keep = torch.rand(6, *batch.content.shape, generator=torch.Generator().manual_seed(0)) > 0.5
    for perturbation in ("remove", "mask", "pad", "zero"):
        value = model.task.score_removal(model.predict_perturbed(batch, keep, perturbation), target)
        for number, kept in enumerate(keep):
            for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
                own = kept[row, batch.length - len(prompt) - len(response) :][: len(prompt)].tolist()
                if perturbation == "remove":
                    left = [token for token, stays in zip(prompt, own, strict=True) if stays] or [model.mask_id]
                else:
                    other = model.mask_id if perturbation == "mask" else model.pad_id
                    left = [token if stays else other for token, stays in zip(prompt, own, strict=True)]
                if perturbation != "zero":
                    expected = step_by_step(model, left, response)[:, 0].sum()
                    torch.testing.assert_close(value[number, row], expected, rtol=1e-8, atol=1e-8)
    nothing = model.predict_perturbed(batch, torch.zeros_like(keep[:1]), "remove")
    expected = step_by_step(model, [model.mask_id], RESPONSES[0])[:, 0].sum()
    torch.testing.assert_close(model.task.score_removal(nothing, target)[0, 0], expected)


@torch.no_grad()
def test_equal_inputs_with_other_responses_are_told_apart():
    model = generating()
    batch = model.batch([[9, 40, 7], [9, 40]], [[50, 51], [7, 50, 51]])
    with model.cache_perturbed():
        for perturbation in ("remove", "mask"):
            keep = torch.ones(1, *batch.content.shape, dtype=torch.bool)
            torch.testing.assert_close(
                model.predict_perturbed(batch, keep, perturbation)[0], model.probabilities(batch)
            )
        foil = model.batch([9, 40, 7], [50, 51], foil_ids=[50, 99])
        assert model.predict_perturbed(foil, foil.content[None], "remove").shape == (1, 1, 2, 3)


def test_soft_masks_leave_the_answer_alone():
    model = generating()
    everything = [[True] * (len(p) + len(r)) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    batch = model.batch(PROMPTS, RESPONSES, content=everything)
    keep = torch.full(batch.content.shape, 0.5)[None].requires_grad_()
    value = model.task.score_removal(model.predict_perturbed(batch, keep, "mask"), model.resolve_target(batch))
    (slope,) = torch.autograd.grad(value.sum(), keep)
    assert (slope[0][batch.content & ~batch.response] != 0).any()
    assert not slope[0][batch.response].any()


def test_ids_that_make_no_batch():
    cases = [
        ({"prompt_ids": []}, "one row of integers"),
        ({"prompt_ids": [[5], []], "response_ids": [[6], [7]]}, "example 1 has an empty prompt"),
        ({"response_ids": [[]]}, "example 0 has an empty response"),
        ({"response_ids": [[1], [2]]}, "a response for each of 1 prompts, got 2"),
        ({"prompt_ids": [[0.5]]}, "integers"),
        ({"prompt_ids": [["a"]]}, "integers"),
        ({"prompt_ids": [[5, 300]]}, "from 0 to 299"),
        ({"content": [True]}, "its 2 prompt tokens or all 4"),
        ({"unit_of": [[0], [1]]}, "unit_of for 1 examples"),
        ({"foil_ids": [1]}, "a foil for each response token"),
    ]
    for change, message in cases:
        given = {"prompt_ids": [[5, 6]], "response_ids": [[7, 8]]} | change
        with pytest.raises(ExpoundError, match=message):
            generating().batch(**given)


def test_targets_that_are_no_span():
    cases = [
        ((0, 3), "within the 2 tokens of response 0"),
        ((1, 1), "start < end"),
        (-1, "start < end"),
        ([(0, 1), (0, 1)], r"integers \[3, 2\]"),
        ("last", "a span"),
        ((0, 1, 2), r"\[3, 2\]"),
    ]
    for target, message in cases:
        model = generating()
        with pytest.raises(ExpoundError, match=message):
            model.resolve_target(model.batch(PROMPTS, RESPONSES), target)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ([[0, 0, 0]], "one token at least"),
        ([[1, 1, 0]], "after a prompt"),
        ([[0, 1, 0], [0, 1, 1]], "without padding"),
    ],
)
def test_responses_that_cannot_be(response, message):
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])[: len(response)]
    with pytest.raises(ExpoundError, match=message):
        Batch.from_ids(torch.ones(len(response), 3, dtype=torch.long), mask, response=torch.tensor(response))


def test_a_response_in_two_pieces():
    with pytest.raises(ExpoundError, match="side by side"):
        Batch.from_ids(torch.ones(1, 5, dtype=torch.long), response=torch.tensor([[0, 1, 0, 1, 0]]))


def test_what_cannot_generate():
    bert = families.tiny("bert")
    with pytest.raises(ExpoundError, match="no language modeling head"):
        expound.load(bert, families.processor("bert"), task="generation")
    model = generating()
    with pytest.raises(ExpoundError, match="where the response is"):
        model.probabilities(Batch.from_ids(torch.tensor([[5, 6, 7]])))
    loaded = expound.load(model.model, model.tokenizer, task="generation")
    assert isinstance(loaded, GeneratingModel)
    assert loaded.settings["task"] == "generation"


def test_other_outputs_of_a_classifier():
    model = ExplainedModel(families.tiny("bert", dtype=torch.float64), families.processor("bert"))
    batch = model.encode(["a moving film", "the plot is dull"])
    target = torch.tensor([0, 2])
    logits, rows = model(batch).logits, torch.arange(2)
    chance = logits.softmax(-1)[rows, target]
    for output, expected in {"logit": logits[rows, target], "prob": chance, "log_prob": chance.log()}.items():
        torch.testing.assert_close(model.task.with_output(output).score(logits, target), expected)
    scores = expound.explainer("occlusion?output=log_prob").attribute(model, batch, target)
    keep = torch.ones(2, *batch.content.shape, dtype=torch.bool)
    keep[1, :, 1] = False
    value = model.predict_perturbed(batch, keep, "mask").log().gather(2, target.expand(2, -1)[..., None])[..., 0]
    word = batch.word_of == batch.word_of[:, 1:2]
    torch.testing.assert_close((scores * word).sum(1)[1], (value[0] - value[1])[1])
    with pytest.raises(ExpoundError, match="logit, prob"):
        expound.explainer("saliency?output=odds")
    with pytest.raises(ExpoundError, match="logit, prob"):
        expound.explainer("saliency", output="odds").attribute(model, batch, target)
