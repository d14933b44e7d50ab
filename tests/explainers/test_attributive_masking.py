"""The masking model: its masks, its losses, its reading of texts, and refinement against one example at a time."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import transformers as hf

import expound
import families
from expound import Batch, ExpoundError
from expound.explainers.attributive_masking import AttributiveMasking, losses
from expound.explainers.attributive_masking.explainer import answer_distribution
from expound.explainers.attributive_masking.losses import MaskWeights
from expound.explainers.attributive_masking.modes import SoftMasking
from expound.explainers.attributive_masking.refinement import (
    evaluate_maps,
    group_by_length,
    record_lower_layers,
    select_best,
    trajectory,
)
from expound.models.passes.hooks import replace_embeddings, skip_unread_positions
from expound.testing.no_side_effects import simulate_use, snapshot
from small import alone, shared, small, uneven

ENCODERS = ["bert", "roberta", "distilbert", "electra"]
LABELS = {"negative": "N", "positive": "P"}
TEXTS = families.SENTENCES[:3]


def load_prompted_model(family="llama"):
    torch.manual_seed(1)
    model = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model(family, **families.TEXT[family]))
    template = "Is it good ?\n\nText:a joy\nLabel:P\n\nText:{text}\nLabel:"
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return expound.load(
        model.double().eval(), families.tokenizer("gpt2"), task="prompt", template=template, labels=LABELS
    )


def make_masking(model, seed=0, **choices):
    torch.manual_seed(seed)
    return AttributiveMasking.for_model(model, **choices).double()


def load_model(kind):
    return load_prompted_model() if kind == "prompted" else shared(kind)


def make_soft_masking(mode, model):
    made = SoftMasking(mode, width=model.embed(model.encode(["a"])).shape[-1]).double()
    made.set_learned_embedding(model)
    return made


def draw_reference(made, model, batch):
    drawn = torch.rand(batch.content.shape, generator=torch.Generator().manual_seed(0))
    return made.reference(model, batch, drawn)


@torch.no_grad()
def test_a_full_mask_changes_nothing_and_an_empty_one_leaves_only_special_tokens():
    for mode in ["mask", "random", "learned"]:
        for kind in ["bert", "roberta", "gpt2", "prompted"]:
            model = load_model(kind)
            batch = model.encode(TEXTS)
            made = make_soft_masking(mode, model)
            m = draw_reference(made, model, batch)
            ones = torch.ones(batch.content.shape, dtype=torch.float64)
            assert torch.equal(made.logits(model, batch, ones, m), model(batch).logits)
            assert torch.equal(m[~batch.content], model.embed(batch)[~batch.content])
            assert (m != model.embed(batch)).any(-1)[batch.content].float().mean() > 0.8
            empty = made.logits(model, batch, 0 * ones, m)
            assert torch.equal(empty, model(batch, embeddings=m).logits)
            if mode in ("mask", "learned"):
                ids = batch.inputs["input_ids"].masked_fill(batch.content, model.mask_id)
                by_ids = model(replace(batch, inputs=batch.inputs | {"input_ids": ids})).logits
                torch.testing.assert_close(empty, by_ids, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["bert", "prompted"])
@torch.no_grad()
def test_special_tokens_and_prompts_are_intact_in_a_mask_and_in_its_inverse(kind):
    """Scores of 0 at special tokens, as the masking model gives them, would be 1 in one mask and 0 in the other."""
    model = load_model(kind)
    batch = model.encode(TEXTS)
    made = make_soft_masking("mask", model)
    scores = torch.rand(batch.content.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores = scores.masked_fill(~batch.content, 0.0)
    original, m = model.embed(batch), made.reference(model, batch, scores)
    for keep in (scores, 1 - scores):
        blended = keep[..., None] * original + (1 - keep)[..., None] * model.embedding(torch.tensor(model.mask_id))
        expected = model(batch, embeddings=torch.where(batch.content[..., None], blended, original)).logits
        torch.testing.assert_close(made.logits(model, batch, keep, m), expected, rtol=0, atol=1e-12)
        seen = (model(batch, embeddings=blended).logits - expected).abs().max() > 1e-6
        assert seen == (keep is scores), "the premise: a masked special token shows"


@torch.no_grad()
def test_omission_of_whole_tokens_is_an_attention_mask():
    for family in ["bert", "distilbert", "roberta", "llama", "qwen2", "gpt2"]:
        model = shared(family)
        batch = model.encode(uneven(family, 3))
        keep = torch.rand(batch.content.shape, generator=torch.Generator().manual_seed(2)) < 0.5
        # A decoder answers at the last position, which attends to itself even if no other position does.
        keep[:, -1] = True
        found = SoftMasking("omit").logits(model, batch, keep.double(), None)
        seen = (keep | ~batch.content) & batch.attended
        expected = model(replace(batch, inputs=batch.inputs | {"attention_mask": seen.long()})).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert (found - model(batch).logits).abs().max() > 1e-3


def test_omission_and_every_other_mask_have_a_gradient_at_every_word():
    model = shared("bert")
    batch = model.encode(TEXTS)
    for mode in ("mask", "random", "learned", "omit"):
        keep = torch.full(batch.content.shape, 0.5, dtype=torch.float64, requires_grad=True)
        made = make_soft_masking(mode, model)
        answer = made.logits(model, batch, keep, draw_reference(made, model, batch)).square().sum()
        (slope,) = torch.autograd.grad(answer, keep)
        assert torch.equal(slope != 0, batch.content), mode


@torch.no_grad()
def test_predicted_tokens_are_those_of_the_masked_language_model_one_by_one(tmp_path):
    model = shared("bert")
    predictor = families.tiny("bert", "MaskedLM", seed=3)
    predictor.save_pretrained(tmp_path)
    families.tokenizer("bert").save_pretrained(tmp_path)
    batch = model.encode(TEXTS)
    made = SoftMasking("predicted", str(tmp_path))
    found = made.reference(model, batch, torch.zeros(batch.content.shape))
    barred = sorted(model.special_ids)
    for row in range(len(batch)):
        own, _ = alone(model, batch, row)
        ids = own.inputs["input_ids"]
        for position in own.content[0].nonzero().flatten().tolist():
            masked = ids.clone()
            masked[0, position] = model.mask_id
            scores = predictor(masked).logits[0, position]
            scores[[*barred, int(ids[0, position])]] = -torch.inf
            assert torch.equal(found[row, position], model.embedding(scores.argmax()))


def test_losses_by_hand():
    kept = torch.tensor([[math.log(0.6), math.log(0.3), math.log(0.1)]], dtype=torch.float64)
    answer = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    expected = -(0.7 * math.log(0.6) + 0.2 * math.log(0.3) + 0.1 * math.log(0.1))
    assert losses.preservation(kept, answer).item() == pytest.approx(expected, rel=1e-12)
    assert losses.inverse(kept, answer).item() == pytest.approx(-math.log(1 - 0.6), rel=1e-12)
    assert losses.inverse(kept, answer, "probability").item() == pytest.approx(0.6, rel=1e-12)
    entropy = 0.6 * math.log(0.6) + 0.3 * math.log(0.3) + 0.1 * math.log(0.1)
    assert losses.inverse(kept, answer, "negative_entropy").item() == pytest.approx(entropy, rel=1e-12)
    scores = torch.tensor([[0.9, 0.5, 0.25, 0.1]], dtype=torch.float64)
    counted = torch.tensor([[False, True, True, False]])
    bce = -(math.log(0.5) + math.log(0.75)) / 2
    assert losses.sparsity(scores, counted).item() == pytest.approx(bce, rel=1e-12)
    assert losses.sparsity(scores, counted, "l1").item() == pytest.approx(0.375, rel=1e-12)
    total = MaskWeights(0.2, 0.3, 0.5).total(kept, kept, answer, scores, counted)
    assert total.item() == pytest.approx(0.2 * expected + 0.3 * bce - 0.5 * math.log(0.4), rel=1e-12)
    sure = torch.tensor([[200.0, 0.0]], requires_grad=True)
    losses.inverse(sure, torch.tensor([[1.0, 0.0]])).sum().backward()
    assert torch.allclose(sure.grad, torch.tensor([[1.0, -1.0]])), "where F is 1 the gradient is still there"


def test_gradients_of_the_losses():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    answer = torch.rand(3, 4, generator=generator, dtype=torch.float64).softmax(-1)
    scores = torch.rand(3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    counted = torch.rand(3, 5, generator=generator) < 0.8
    for form in losses.INVERSE:
        torch.autograd.gradcheck(lambda x, form=form: losses.inverse(x, answer, form), logits)
    for form in losses.SPARSITY:
        torch.autograd.gradcheck(lambda x, form=form: losses.sparsity(x, counted, form), scores)
    torch.autograd.gradcheck(lambda x: losses.preservation(x, answer), logits)


@pytest.mark.parametrize("family", ENCODERS)
@torch.no_grad()
def test_the_answer_embedding_follows_the_last_token_and_gets_no_score(family):
    """Against one pass of the backbone on a text alone, the embedding put in by hand."""
    model = shared(family)
    made = make_masking(model)
    batch = model.encode(uneven(family, 3))
    answer = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]], dtype=torch.float64)
    found = made(made.retokenize(model, batch), answer)
    for row in range(len(batch)):
        own, columns = alone(model, batch, row)
        z = made.answers[0] + sum(answer[row, j] * made.answers[j + 1] for j in range(3))
        ids = torch.cat([own.inputs["input_ids"], own.inputs["input_ids"][:, -1:]], 1)
        words = torch.cat([made.reader.embedding(own.inputs["input_ids"]), z[None, None]], 1)
        with replace_embeddings(made.reader.embedding, words):
            hidden = made.reader.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, :-1]
        _, first, _, second = made.head
        scores = (hidden @ first.weight.T + first.bias).tanh() @ second.weight.T + second.bias
        expected = scores.squeeze(-1).sigmoid() * own.content[0]
        torch.testing.assert_close(found[row, columns], expected, rtol=0, atol=1e-9)
    assert found[~batch.content].abs().sum() == 0


@torch.no_grad()
def test_the_answer_and_the_target_matter():
    model = shared("bert")
    made, batch = make_masking(model), model.encode(TEXTS)
    predicted = model.predict(batch)
    other = (predicted + 1) % 3
    assert not torch.allclose(made.attribute(model, batch), made.attribute(model, batch, other))
    logits = model(batch).logits
    assert torch.equal(answer_distribution(model, logits, predicted), logits.softmax(-1))
    assert torch.equal(answer_distribution(model, logits, other), torch.nn.functional.one_hot(other, 3).double())


@pytest.mark.parametrize("kind", ["roberta", "gpt2", "prompted"])
@torch.no_grad()
def test_a_model_of_another_tokenizer_is_explained_along_the_characters(kind):
    model = load_model(kind)
    made = make_masking(model, backbone=families.tiny("bert").base_model, tokenizer=families.tokenizer("bert"))
    texts = [*TEXTS, "naïve café — 日本 ok"]
    batch = model.encode(texts)
    scores = made.attribute(model, batch)
    assert (scores[batch.content] > 0).all()
    assert scores[~batch.content].abs().sum() == 0
    reading = made.retokenize(model, batch)
    own = made(reading, answer_distribution(model, model(batch).logits, model.predict(batch)))
    for row, (theirs, mine) in enumerate(zip(batch.alignments, reading.own.alignments, strict=True)):
        start = int(batch.attended[row].long().argmax())
        for position, span in enumerate(theirs.spans, start):
            if span is None or span[1] == span[2]:
                continue
            overlap = [
                i for i, s in enumerate(mine.spans) if s and s[0] == span[0] and s[1] < span[2] and s[2] > span[1]
            ]
            if overlap:
                largest = max(own[row, i] for i in overlap)
                torch.testing.assert_close(scores[row, position], largest, rtol=1e-12, atol=0)


@torch.no_grad()
def test_equal_tokenizers_need_no_map_and_give_what_the_map_gives():
    model = shared("bert")
    made, batch = make_masking(model), model.encode(uneven("bert", 4))
    assert made.retokenize(model, batch).sources is None
    direct = made.attribute(model, batch)
    made.retokenize._compared = (model.processing_class, False)
    assert made.retokenize(model, batch).sources is not None
    torch.testing.assert_close(made.attribute(model, batch), direct, rtol=0, atol=1e-12)


@torch.no_grad()
def test_tokens_beyond_what_the_masking_model_can_read_score_zero():
    model = shared("bert")
    made = make_masking(
        model, backbone=families.tiny("bert", max_position_embeddings=12).base_model, tokenizer=model.tokenizer
    )
    batch = model.encode([" ".join(TEXTS)])
    scores = made.attribute(model, batch)[0]
    assert made.reader.max_length == 11
    assert (scores[1:10] > 0).all()
    assert scores[10:].abs().sum() == 0
    with pytest.raises(ExpoundError, match="reads at most 11 tokens"):
        made.attribute(model, Batch.from_ids(batch.inputs["input_ids"]))


def refine_one_example(made, model, batch, row, steps, rate, fixed=()):
    """The paper's refinement of one example: fine-tunes G; returns its maps before each step and after the last."""
    own, columns = alone(model, batch, row)
    network, weights = deepcopy(made).eval(), made.settings.weights
    for part in ("answers", *(f"reader.model.{part}" for part in fixed)):
        weight = network.get_parameter(part) if part == "answers" else network.get_submodule(part)
        weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([w for w in network.parameters() if w.requires_grad], lr=rate, weight_decay=0.01)
    with torch.no_grad():
        logits = model(own).logits
    answer, maps = logits.softmax(-1), []
    m = model.embed_reference(own, "mask").detach()
    for step in range(steps + 1):
        a = network(network.retokenize(model, own), answer)
        maps.append(a.detach()[0])
        if step == steps:
            return maps, columns
        embeddings, content = model.embed(own).detach(), own.content[..., None]
        kept = model(own, torch.where(content, a[..., None] * embeddings + (1 - a[..., None]) * m, embeddings)).logits
        rest = model(own, torch.where(content, (1 - a[..., None]) * embeddings + a[..., None] * m, embeddings)).logits
        loss = -weights.preservation * (answer * kept.log_softmax(-1)).sum()
        loss = loss - weights.inverse * (1 - rest.softmax(-1)[0, answer.argmax()]).log()
        loss = loss - weights.sparsity * (1 - a[own.content]).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate * (1 - step / 20)
        optimizer.step()
    raise AssertionError


@pytest.mark.parametrize(
    ("family", "upper", "fixed"),
    [
        ("bert", None, ()),
        ("distilbert", None, ()),
        ("bert", 2, ()),
        ("distilbert", 1, ("transformer.layer.0",)),
        ("electra", 1, ("embeddings_project", "encoder.layer.0")),
        ("roberta", 0, ("encoder",)),
    ],
)
def test_refinement_side_by_side_equals_refinement_one_example_at_a_time(family, upper, fixed):
    model = small(family)
    made = make_masking(model, weights=MaskWeights(0.5, 0.2, 0.5))
    batch = model.encode(uneven(family, 4))
    spec = "aopc_comprehensiveness?fractions=0.2,0.5&perturbation=mask"
    made.with_params(refine_steps=3, refine_rate=0.02, metric=spec, refine_layers=upper)
    model.model.requires_grad_(True)
    found = made.attribute(model, batch)
    assert all(weight.grad is None for weight in model.parameters())
    better = 0
    for row in range(len(batch)):
        maps, columns = refine_one_example(made, model, batch, row, 3, 0.02, fixed)
        own, _ = alone(model, batch, row)
        judge = expound.metric(spec)
        values = [float(judge.evaluate(model, own, each[None])["aopc_comprehensiveness"]) for each in maps]
        first = max(range(4), key=lambda i, values=values: values[i])
        torch.testing.assert_close(found[row, columns], maps[first], rtol=0, atol=1e-7)
        better += first > 0
    assert better, "the premise: some step helped"


def test_low_rank_refinement_starts_at_the_model_and_lowers_its_loss():
    model = shared("bert")
    made, batch = make_masking(model), model.encode(TEXTS)
    plain = made.attribute(model, batch)
    values, judge = [], expound.metric("comprehensiveness?perturbation=mask")
    for steps in (0, 6):
        made.with_params(
            refine_steps=steps, refine_rate=0.05, lora_rank=2, metric="comprehensiveness?perturbation=mask"
        )
        values.append(judge.evaluate(model, batch, made.attribute(model, batch))["comprehensiveness"])
    assert torch.equal(made.with_params(refine_steps=0).attribute(model, batch), plain)
    assert (values[1] >= values[0]).all()
    assert (values[1] > values[0]).any()


@pytest.mark.parametrize("mode", ["random", "learned", "omit"])
def test_refinement_does_not_depend_on_the_batch(mode):
    model = shared("bert")
    made, batch = make_masking(model, mode=mode), model.encode(uneven("bert", 3))
    made.with_params(refine_steps=2, refine_rate=0.02, batch_size=2)
    scores = made.attribute(model, batch)
    for row in range(len(batch)):
        own, columns = alone(model, batch, row)
        torch.testing.assert_close(scores[row, columns], made.attribute(model, own)[0], rtol=0, atol=1e-7)


def test_fixed_layers_run_once_and_the_explained_model_is_not_trained():
    model = small("bert")
    made, batch = make_masking(model), model.encode(uneven("bert", 3))
    below, above = made.reader.model.encoder.layer
    runs, asking = [], []
    below.register_forward_hook(lambda *_: runs.append(1))
    above.register_forward_hook(lambda *_: runs.append(2))
    weights = list(model.model.requires_grad_(True).parameters())
    model.model.register_forward_hook(
        lambda *_: asking.append(any(w.requires_grad for w in weights)) if torch.is_grad_enabled() else None
    )
    made.with_params(refine_steps=4, refine_rate=0.02, refine_layers=1)
    made.attribute(model, batch)
    assert runs == [1, 2] + 5 * [2], "a whole pass, then the upper layer for each map"
    assert asking == [False] * 4
    assert all(weight.requires_grad and weight.grad is None for weight in weights)


@pytest.mark.parametrize("steps", [1, 4])
def test_whole_copies_take_three_forward_and_three_backward_passes_a_step(steps):
    """The paper counts 4n + 1 forward passes; the answer, n + 1 maps and 2n masked inputs are 3n + 2 of an example."""
    model = small("bert")
    made, batch = make_masking(model).with_params(refine_steps=steps, refine_rate=0.02), model.encode(uneven("bert", 3))
    forward, backward = [], []
    with skip_unread_positions(model, batch):
        pass  # the first use of the shortcut compares it with the plain pass

    def count_passes(_, inputs, output):
        rows = output if isinstance(output, torch.Tensor) else output[0]
        forward.append(len(rows))
        if rows.requires_grad:
            rows.register_hook(lambda slope: backward.append(len(slope)))

    for encoder in (model.model.bert.encoder, made.reader.model.encoder):
        encoder.layer[-1].register_forward_hook(count_passes)
    with torch.no_grad():
        answer = model(batch).logits.softmax(-1)
    list(trajectory(made, model, batch, answer))
    assert sum(forward) == (3 * steps + 2) * len(batch) <= (4 * steps + 2) * len(batch)
    assert sum(backward) == 3 * steps * len(batch)


@pytest.mark.parametrize("spec", ["aopc_comprehensiveness", "log_odds", "consistency"])
def test_all_maps_are_evaluated_in_one_call_without_repeated_inputs(spec):
    model = small("bert")
    batch = model.encode(uneven("bert", 3))
    maps = torch.rand(4, *batch.content.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    maps = maps.masked_fill(~batch.content, 0.0)
    maps[2], target = 2 * maps[1], model.predict(batch)
    metric = expound.metric(spec)
    expected = torch.stack([metric.evaluate(model, batch, each, target)[metric.name] for each in maps])
    rows = []
    model.model.register_forward_pre_hook(
        lambda _, inputs, named: rows.extend(map(str, named["input_ids"].tolist())), with_kwargs=True
    )
    found = evaluate_maps(metric, model, batch, maps, target)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6, equal_nan=True)
    assert len({*found.flatten().tolist()}) > 3
    if spec == "aopc_comprehensiveness":
        assert len(rows) == len(set(rows))


def test_the_best_map_is_selected_and_nan_never_wins():
    maps = torch.tensor([1.0, 2.0, 3.0])[:, None, None].expand(3, 3, 1)
    values = torch.tensor([[0.5, 0.5, torch.nan], [0.4, torch.nan, 0.1], [0.4, 0.6, 0.1]])
    assert select_best(maps, values, higher_is_better=False).flatten().tolist() == [2.0, 1.0, 2.0]
    assert select_best(maps, values, higher_is_better=True).flatten().tolist() == [1.0, 3.0, 2.0]


@pytest.mark.parametrize(("steps", "upper"), [(0, None), (2, None), (2, 1)])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_model_and_the_process_are_left_as_they_were(kind, steps, upper):
    model = simulate_use(small(kind))
    made = make_masking(model, backbone=families.tiny("bert").base_model, tokenizer=families.tokenizer("bert"))
    made.with_params(refine_steps=steps, refine_rate=0.01, refine_layers=upper)
    own = {name: value.clone() for name, value in made.state_dict().items()}
    before, modes = snapshot(model), [module.training for module in made.modules()]
    made.attribute(model, model.encode(uneven(kind, 2)))
    assert snapshot(model) == before
    assert [module.training for module in made.modules()] == modes
    assert all(torch.equal(value, own[name]) for name, value in made.state_dict().items())
    assert all(weight.grad is None for weight in made.parameters())


def test_saved_and_loaded_it_is_the_same_explainer(tmp_path):
    model = shared("bert")
    made = make_masking(
        model, mode="learned", weights=MaskWeights(0.1, 0.2, 0.3, "probability", "l1"), aggregation="mean"
    ).float()
    made.save_pretrained(tmp_path)
    loaded = expound.explainer(f"attributive_masking:{tmp_path}?refine_steps=2&metric=log_odds&lora_rank=1")
    assert loaded.settings == made.settings
    assert (loaded.refinement.refine_steps, loaded.refinement.metric, loaded.refinement.lora_rank) == (2, "log_odds", 1)
    assert loaded.params["digest"] == made.params["digest"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backbone", "config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?refine_step=2", "Did you mean 'refine_steps'"),
        ("?metric=nonsense", "unknown metric"),
        ("?refine_steps=-1", "at least 0"),
        ("?refine_rate=0", "above 0"),
        ("?refine_steps=many", "expected int"),
        ("?refine_layers=-1", "refine_layers of at least 0"),
    ],
)
def test_bad_parameters_are_errors(tmp_path, query, message):
    make_masking(shared("bert")).save_pretrained(tmp_path)
    with pytest.raises(ExpoundError, match=message):
        expound.explainer(f"attributive_masking:{tmp_path}{query}")


def test_what_cannot_be_explained_is_an_error(tmp_path):
    model = shared("bert")
    made = make_masking(model)
    with pytest.raises(ExpoundError, match="not a regression task"):
        AttributiveMasking.for_model(small("bert", num_labels=1))
    with pytest.raises(ExpoundError, match="not images"):
        AttributiveMasking.for_model(shared("vit"))
    with pytest.raises(ExpoundError, match="explained by an encoder"):
        AttributiveMasking.for_model(shared("gpt2"))
    with pytest.raises(ExpoundError, match="reads in both directions"):
        AttributiveMasking.for_model(model, shared("gpt2").model.base_model, families.tokenizer("gpt2"))
    other = small("bert", num_labels=5)
    with pytest.raises(ExpoundError, match="explains 3 classes, the model has 5"):
        made.attribute(other, other.encode(TEXTS))
    with pytest.raises(ExpoundError, match="encode texts instead"):
        made.attribute(shared("roberta"), Batch.from_ids(torch.tensor([[0, 5, 6, 2]])))
    with pytest.raises(ExpoundError, match="Valid choices: learned, mask, omit"):
        AttributiveMasking.for_model(model, mode="blur")
    with pytest.raises(ExpoundError, match="at most 2, the number of layers, got 3"):
        made.with_params(refine_steps=1, refine_layers=3).attribute(model, model.encode(TEXTS))
    with pytest.raises(ExpoundError, match="the layers of AlbertModel share their weights"):
        record_lower_layers(families.tiny("albert").base_model, 1, list)
    with pytest.raises(ExpoundError, match="as predictor"):
        AttributiveMasking.for_model(model, mode="predicted")
    local = shared("modernbert")
    batch = local.encode(TEXTS)
    with pytest.raises(
        ExpoundError, match=r"attention to words cannot be weighed for modernbert, whose attention .* windows"
    ):
        SoftMasking("omit").logits(local, batch, batch.content.double(), None)
    with pytest.raises(ExpoundError, match="one above"):
        MaskWeights(0.0, 0.0, 0.0)
    with pytest.raises(ExpoundError, match="expected a folder with a saved attributive_masking"):
        expound.explainer(f"attributive_masking:{tmp_path / 'nowhere'}")
    with pytest.raises(ExpoundError, match="takes no parameter"):
        expound.explainer("random", seed=1).with_params(refine_steps=1)


def test_examples_are_grouped_by_length_with_at_most_a_fifth_of_padding():
    lengths = torch.tensor([20, 3, 21, 9, 20, 22, 10, 19, 20, 40])
    batch = Batch.from_ids(torch.ones(10, 40, dtype=torch.long), torch.arange(40) < lengths[:, None])
    parts = [part.tolist() for part in group_by_length(batch, 3)]
    assert parts == [[1], [3, 6], [7, 0, 4], [8, 2, 5], [9]]
    assert [part.tolist() for part in group_by_length(batch, 99)] == [[1], [3, 6], [7, 0, 4, 8, 2, 5], [9]]
