"""Methods of decoders and encoders against transformers and explanations written out from their equations."""

import functools
import math

import numpy as np
import pytest
import torch

import equations
import families
from expound import Batch, explainer
from expound.explainers.perturbation import reagent
from expound.models import ExplainedModel
from expound.models.generation.model import GeneratingModel
from families import replace_rms_norms
from models.test_generation import PROMPTS, RESPONSES, padded_right

WINDOWED = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
DECODERS = {"llama": {}, "mistral": {"sliding_window": 4}, "qwen2": WINDOWED, "gpt2": {}}
ENCODERS = ("bert", "roberta")
SPAN = (1, 2)
RULES = ("attn_lrp", "cp_lrp", "gim")
EXACT = {"rtol": 1e-8, "atol": 1e-10}


@functools.cache
def decoder(family, *, stock=False):
    """A language model in float64 and its written-out version, with norms in float64 too unless `stock`."""
    made = families.tiny(family, "CausalLM", dtype=torch.float64, seed=3, **DECODERS[family])
    written = equations.Written(made)
    if not stock:
        replace_rms_norms(made)
    return GeneratingModel(made), written


@functools.cache
def encoder(family):
    made = families.tiny(family, dtype=torch.float64, seed=3)
    return ExplainedModel(made), equations.Written(made)


@functools.cache
def run_row(family, row):
    """The written-out pass of a row, and the position that predicts the first token of its response."""
    return decoder(family)[1].run(torch.tensor(PROMPTS[row] + RESPONSES[row])), len(PROMPTS[row]) - 1


@functools.cache
def texts(family):
    """The ids of three texts, and a batch of them."""
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(5, 300, (length,), generator=generator) for length in (8, 5, 3)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=encoder(family)[0].pad_id)
    mask = torch.arange(8) < torch.tensor([[len(own)] for own in rows])
    return rows, Batch.from_ids(ids, mask)


def check_decoders(family, method, expected, span=SPAN, tolerance=EXACT, **how):
    """Compares each row of batches padded left and right with `expected(row)` on the prompt."""
    model = decoder(family, **how)[0]
    for batch in (model.batch(PROMPTS, RESPONSES), model.add_position_ids(padded_right(PROMPTS, RESPONSES))):
        scores = method.attribute(model, batch, span).detach()
        for row, prompt in enumerate(PROMPTS):
            torch.testing.assert_close(scores[row, batch.content[row]], expected(row)[: len(prompt)], **tolerance)


def test_written_out_models_equal_the_library_models():
    for family in DECODERS:
        model, written = decoder(family)
        for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
            ids = torch.tensor(prompt + response)
            with torch.no_grad():
                torch.testing.assert_close(written.run(ids).logits, model.model(ids[None]).logits[0], **EXACT)
            for rule in RULES:
                torch.testing.assert_close(written.run(ids, rule).logits, written.run(ids).logits, **EXACT)
    for family in ENCODERS:
        model, written = encoder(family)
        rows, batch = texts(family)
        with torch.no_grad():
            found = torch.stack([written.run(ids).logits for ids in rows])
            torch.testing.assert_close(found, model(batch).logits, **EXACT)


def test_windows_are_shorter_than_the_texts():
    for family in ("mistral", "qwen2"):
        weights = run_row(family, 0)[0].layers[1].attention
        assert not weights[:, -1, 0].any()
        assert family == "mistral" or run_row(family, 0)[0].layers[0].attention[:, -1, 0].all()


@pytest.mark.parametrize("stock", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("family", DECODERS)
def test_backward_rules_of_decoders(family, rule, stock):
    """Modules of the library compute norms in float32."""
    written = decoder(family, stock=stock)[1]
    base = written.table[7] if rule == "gim" else 0.0

    def compute_expected(row):
        run = written.run(torch.tensor(PROMPTS[row] + RESPONSES[row]), rule)
        place = len(PROMPTS[row]) - 1 + SPAN[0]
        return equations.times_gradient(run, run.logits[place, RESPONSES[row][SPAN[0]]], base)

    method = explainer(rule, output="logit", **({"baseline_id": 7} if rule == "gim" else {}))
    check_decoders(
        family, method, compute_expected, tolerance={"rtol": 1e-5, "atol": 1e-5} if stock else EXACT, stock=stock
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("family", DECODERS)
def test_backward_rules_of_a_summed_log_probability(family, rule):
    written = decoder(family)[1]
    base = written.table[7] if rule == "gim" else 0.0

    def compute_expected(row):
        response = RESPONSES[row]
        run = written.run(torch.tensor(PROMPTS[row] + response), rule)
        place = len(PROMPTS[row]) - 1
        chances = run.logits.log_softmax(-1)
        return equations.times_gradient(run, sum(chances[place + t, response[t]] for t in (0, 1)), base)

    method = explainer(rule, **({"baseline_id": 7} if rule == "gim" else {}))
    check_decoders(family, method, compute_expected, (0, 2))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("family", ENCODERS)
def test_backward_rules_of_encoders(family, rule):
    model, written = encoder(family)
    base = written.table[7] if rule == "gim" else 0.0
    method = explainer(rule, **({"baseline_id": 7} if rule == "gim" else {}))
    rows, batch = texts(family)
    scores = method.attribute(model, batch, [0, 1, 2]).detach()
    for row, ids in enumerate(rows):
        run = written.run(ids, rule)
        expected = equations.times_gradient(run, run.logits[row], base)
        torch.testing.assert_close(scores[row, batch.content[row]], expected, **EXACT)


@pytest.mark.parametrize("family", DECODERS)
def test_generic_attention_of_decoders(family):
    def make_expected(span):
        def compute_expected(row):
            response = RESPONSES[row]
            run = decoder(family)[1].run(torch.tensor(PROMPTS[row] + response))
            places = [len(PROMPTS[row]) - 1 + t for t in range(*span)]
            score = sum(run.logits[p, response[t]] for p, t in zip(places, range(*span), strict=True))
            return equations.chefer(run, score, places)

        return compute_expected

    for span in (SPAN, (0, 2)):
        check_decoders(family, explainer("generic_attention", output="logit"), make_expected(span), span)


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_information_flow_of_decoders(family):
    def compute_rollout(row):
        run, place = run_row(family, row)
        return equations.flow_rollout(run, [place + SPAN[0]])

    def compute_flash(row):
        run, place = run_row(family, row)
        return equations.flash(run, torch.eye(len(run.embeddings), dtype=torch.float64)[place + SPAN[0]])

    check_decoders(family, explainer("information_flow"), compute_rollout)
    check_decoders(family, explainer("flash_trace"), compute_flash)


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_flash_trace_hops_of_decoders(family):
    """The answer is the response's last token, its reasoning what was said before."""
    model = decoder(family)[0]
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        run, _ = run_row(family, row)
        places = torch.arange(len(run.embeddings))
        span = (places == len(places) - 2).double()
        reasoning = (places >= len(prompt)) & (places < len(places) - 1)
        assert reasoning.any()
        expected = equations.flash_hops(run, span, reasoning, 2)[: len(prompt)]
        target = (len(response) - 1, len(response))
        scores = explainer("flash_trace", hops=2).attribute(model, model.batch(prompt, response), target)
        torch.testing.assert_close(scores[0, : len(prompt)], expected, **EXACT)


@pytest.mark.parametrize("family", ENCODERS)
def test_attention_and_flows_of_encoders(family):
    model, written = encoder(family)
    rows, batch = texts(family)
    found = {
        name: explainer(name).attribute(model, batch, [0, 1, 2]).detach()
        for name in ("generic_attention", "information_flow", "flash_trace")
    }
    for row, ids in enumerate(rows):
        run = written.run(ids)
        expected = {
            "generic_attention": equations.chefer(run, run.logits[row], [0]),
            "information_flow": equations.flow_rollout(run, [0]),
            "flash_trace": equations.flash(run, torch.eye(len(ids), dtype=torch.float64)[0]),
        }
        for name, wanted in expected.items():
            torch.testing.assert_close(found[name][row, batch.content[row]], wanted, **EXACT)


def logit(chance):
    """log p − log(1 − p) of a log-probability."""
    return chance - math.log(-math.expm1(chance))


def ablate_units(count, units, value):
    """The published masks of the units, and `value` of each mask."""
    drawn = [np.random.RandomState(m).choice([0, 1], units, p=[0.5, 0.5]) for m in range(count)]
    return torch.tensor(np.array(drawn)), torch.tensor([value(mask) for mask in drawn], dtype=torch.float64)


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_context_cite_of_decoders(family):
    written = decoder(family)[1]

    def compute_expected(row):
        prompt, response = PROMPTS[row], RESPONSES[row]

        def value(mask):
            left = [token for token, present in zip(prompt[1:], mask, strict=True) if present]
            chances = written.run(torch.tensor([prompt[0], *left, *response])).logits.log_softmax(-1)
            return logit(float(sum(chances[len(left) + t, token] for t, token in enumerate(response)))) / len(response)

        masks, values = ablate_units(16, len(prompt) - 1, value)
        weights, _ = equations.lasso(masks, values, 0.01)
        return weights * len(response)

    method = explainer("context_cite?n_samples=16&unit=token")
    model = decoder(family)[0]
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        batch = model.batch(prompt, response, content=[False] + [True] * (len(prompt) - 1))
        scores = method.attribute(model, batch)[0]
        torch.testing.assert_close(scores[batch.content[0]], compute_expected(row), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", ENCODERS)
@torch.no_grad()
def test_context_cite_of_encoders(family):
    model, written = encoder(family)
    rows, batch = texts(family)
    visible = batch.attended.clone()
    visible[:, 0] = False
    batch = Batch.from_ids(batch.inputs["input_ids"], batch.attended, content=visible)
    scores = explainer("context_cite?n_samples=16&unit=token").attribute(model, batch, [0, 1, 2])
    for row, ids in enumerate(rows):

        def value(mask, ids=ids, row=row):
            left = torch.cat([ids[:1], ids[1:][torch.from_numpy(mask).bool()]])
            return logit(float(written.run(left).logits.log_softmax(-1)[row]))

        weights, _ = equations.lasso(*ablate_units(16, len(ids) - 1, value), 0.01)
        torch.testing.assert_close(scores[row, visible[row]], weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
@torch.no_grad()
def test_reagent_equals_replacing_tokens_one_by_one(family, monkeypatch):
    """Its own draws, each input run alone, ζ counted up position by position."""
    drawn = []
    own = reagent.sum_steps
    monkeypatch.setattr(reagent, "sum_steps", lambda *given: drawn.append(given[:2]) or own(*given))
    seen = []
    drops = reagent.probability_drops
    monkeypatch.setattr(reagent, "probability_drops", lambda *given: seen.append(given[3]) or drops(*given))
    method = explainer("reagent?n_steps=5")
    if family in DECODERS:
        model, written = decoder(family)
        batch = model.batch(PROMPTS[0], RESPONSES[0])
        scores = method.attribute(model, batch, SPAN)[0]
        place, token = len(PROMPTS[0]) - 1 + SPAN[0], RESPONSES[0][SPAN[0]]
    else:
        model, written = encoder(family)
        batch = texts(family)[1].select([0])
        scores = method.attribute(model, batch, [1])[0]
    (start, replaced), (ids,) = drawn[0], seen

    def chance(ids):
        logits = written.run(ids).logits
        return float(logits[place].softmax(-1)[token] if family in DECODERS else logits.softmax(-1)[1])

    zeta = start[0].tolist()
    clean = chance(batch.inputs["input_ids"][0])
    for step in range(5):
        fall = clean - chance(ids[step, 0])
        for j in range(len(zeta)):
            p = 0.5 + 0.5 * (fall if replaced[step, 0, j] else -fall)
            zeta[j] += math.log(p / (1 - p))
    inside = batch.content[0]
    expected = torch.tensor(zeta, dtype=torch.float64)[inside].softmax(0)
    torch.testing.assert_close(scores[inside], expected, **EXACT)
    assert not (ids[:, 0, ~inside] != batch.inputs["input_ids"][0, ~inside]).any()
