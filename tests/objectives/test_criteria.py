"""Criteria on explanations: examples by hand, loops, margins, gradients, and edge cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import families
from expound import ExpoundError, explainer
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.models import Capture
from expound.models.checks import weigh_attention
from expound.objectives import (
    ClusteringConsistencyLoss,
    ComprehensivenessLoss,
    ConsistencyLoss,
    CrossEntropy,
    ExplanationGuidedLoss,
    GradientPenalty,
    RationaleAlignment,
    StepContext,
    SufficiencyLoss,
    TrainingStep,
)
from expound.objectives.consistency import align_left, pairwise_kl, pool_hidden_states
from expound.objectives.criterion import LEAST_ATTENTION, select_top
from expound.training.loop.training_module import TrainingModule
from small import PAIRS, shared, small

CRITERIA = [ComprehensivenessLoss, SufficiencyLoss, ConsistencyLoss, ClusteringConsistencyLoss]
ERASING = [ComprehensivenessLoss, SufficiencyLoss]
COEFFICIENTS = ["query_features", "key_features", "head_coefficients", "layer_coefficients"]
FAMILIES = ["bert", "gpt2", "llama"]
EVALUATED = StepContext(training=False)


def make_explainer(model, **options):
    """Return an untrained explainer whose coefficients all differ."""
    single = InterpretableAttention.for_model(model, **options).double()
    torch.manual_seed(1)
    with torch.no_grad():
        for value in single.state_dict().values():
            value.mul_(1 + 0.3 * torch.randn_like(value))
    return single


def make_labeled_batch(model, texts=None):
    texts = families.examples("bert", 4) if texts is None else texts
    return model.encode([{"text": text, "label": i % 2} for i, text in enumerate(texts)])


def step_of(model, batch, objective, context=EVALUATED):
    outputs = model(batch, capture=objective.capture)
    return TrainingStep(model, batch, outputs, context)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_top_by_hand():
    scores = rows([0.4, 0.1, 0.2, 0.3, 0.0], [0.2, 0.2, 0.2, 0.0, 0.4])
    possible = torch.tensor([[True, True, True, True, True], [True, True, True, True, False]])
    for share, expected in (
        (0.01, [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]),
        (0.5, [[1, 0, 1, 1, 0], [1, 1, 0, 0, 0]]),
        (1.0, [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]),
    ):
        assert select_top(scores, possible, [share, share]).tolist() == expected
    each = select_top(scores, possible, torch.tensor([0.2, 0.75]))
    assert each.tolist() == [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_the_gradient_of_the_top_is_that_of_a_soft_choice(temperature):
    scores = rows([0.4, 0.1, 0.2, 0.3]).requires_grad_()
    weights = rows([1.0, -2.0, 3.0, 0.5])
    top = select_top(scores, torch.ones(1, 4, dtype=torch.bool), [0.5], temperature)
    (found,) = torch.autograd.grad((top * weights).sum(), scores)
    width = temperature * math.sqrt(0.0125)
    soft = torch.sigmoid((scores.detach() - 0.25) / width)
    torch.testing.assert_close(found, weights * soft * (1 - soft) / width)
    assert top.tolist() == [[1, 0, 0, 1]]


def test_scores_that_do_not_differ_have_a_top_and_no_gradient():
    for values, chosen in (([0.25] * 4, [1, 1, 0, 0]), ([0.0] * 4, [0] * 4)):
        scores = rows(values).requires_grad_()
        top = select_top(scores, torch.ones(1, 4, dtype=torch.bool), [0.5])
        assert top.tolist() == [chosen]
        (slope,) = torch.autograd.grad(top.sum(), scores)
        assert not slope.any()
    none = select_top(rows([0.5, 0.5]), torch.zeros(1, 2, dtype=torch.bool), [0.5])
    assert not none.any()


def by_hand(model, batch, single, kept, loss):
    """Return the mean loss over bins and examples, from ids with mask tokens put in by hand."""
    scores = single.explain(model, batch, special_tokens=True).scores
    target = model.predict(batch)
    clean = model.probabilities(batch)
    found = []
    for row in range(len(batch)):
        possible = batch.erasable[row].nonzero().flatten().tolist()
        ranked = sorted((p for p in possible if scores[row, p] > 0), key=lambda p: (-scores[row, p], p))
        for share in (0.01, 0.05, 0.1, 0.2, 0.5):
            top = ranked[: max(1, math.ceil(share * len(possible) - 1e-9))]
            gone = [p for p in possible if (p in top) != kept]
            ids = batch.inputs["input_ids"][[row]].clone()
            ids[0, gone] = model.mask_id
            one = replace(batch.select([row]), inputs=batch.select([row]).inputs | {"input_ids": ids})
            left = model.probabilities(one)[0]
            found.append(loss(clean[row], left, target[row]))
    return torch.stack(found).mean()


def log_of(probabilities, target):
    if target.ndim:
        return probabilities[0, target[0]].log() + probabilities[1, target[1]].log()
    return probabilities[target].log()


def comprehensive(clean, left, target):
    return (1.0 + log_of(left, target) - log_of(clean, target)).clamp(min=0)


def sufficient(clean, left, target):
    return (0.1 + log_of(clean, target) - log_of(left, target)).clamp(min=0)


def unlike(clean, left, target):
    return (log_of(clean, target) - log_of(left, target)).abs()


def divergent(clean, left, target):
    return (clean * (clean / left).log()).sum()


def reversed_divergent(clean, left, target):
    return divergent(left, clean, target)


@pytest.mark.parametrize(
    ("objective", "kept", "loss"),
    [
        (ComprehensivenessLoss, False, comprehensive),
        (SufficiencyLoss, True, sufficient),
        (lambda e: SufficiencyLoss(e, form="mae"), True, unlike),
        (lambda e: SufficiencyLoss(e, form="kl"), True, divergent),
        (lambda e: SufficiencyLoss(e, form="reverse_kl"), True, reversed_divergent),
    ],
)
@pytest.mark.parametrize("head", ["SequenceClassification", "QuestionAnswering"])
@torch.no_grad()
def test_losses_are_those_of_texts_with_mask_tokens(head, objective, kept, loss):
    model = shared("bert", head)
    texts = PAIRS[:2] if head == "QuestionAnswering" else families.examples("bert", 3)
    batch = model.encode(texts)
    batch = replace(batch, labels=model.predict(batch))
    single = make_explainer(model)
    term = objective(single)
    if head == "QuestionAnswering" and loss in (divergent, reversed_divergent):
        loss_of = loss
        loss = lambda clean, left, target: sum(  # noqa: E731
            loss_of(c[c > 0], q[c > 0], target) for c, q in zip(clean, left, strict=True)
        )
    found = term(step_of(model, batch, term))
    torch.testing.assert_close(found, by_hand(model, batch, single, kept, loss), rtol=1e-8, atol=1e-10)


def test_a_mixture_replaces_erased_positions_alone_by_each_reference_or_by_words_of_the_batch():
    model = shared("bert")
    batch = make_labeled_batch(model)
    term = ComprehensivenessLoss(make_explainer(model), perturbation="mixture")
    keep = torch.ones(batch.attended.shape, dtype=torch.float64)
    keep[:, 2] = 0.0
    words = model.embed(batch)[batch.content]
    blank = {kind: model.embed_reference(batch, kind)[:, 2] for kind in ("mask", "pad", "zero")}
    drawn = {"words": 0} | dict.fromkeys(blank, 0)
    for number in range(12):
        step = step_of(model, batch, term, StepContext(number=number))
        found = term._blend(step, keep)
        assert torch.equal(found, term._blend(step, keep))
        assert torch.equal(found[keep == 1], model.embed(batch)[keep == 1])
        for row, vector in enumerate(found[:, 2]):
            kinds = [kind for kind, values in blank.items() if torch.equal(values[row], vector)]
            drawn[kinds[0] if kinds else "words"] += 1
            assert kinds or (words == vector).all(1).any()
    # each of the four has 12 of 48 draws, with a standard deviation of 3
    assert min(drawn.values()) >= 3


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_positions_that_are_not_attended_to_have_the_slope_of_their_weight(family):
    model = shared(family)
    batch = make_labeled_batch(model, families.examples("bert", 1))
    term = ComprehensivenessLoss(make_explainer(model), perturbation="attend")
    step = step_of(model, batch, term)
    keep = torch.ones(batch.attended.shape, dtype=torch.float64)
    keep[:, [2, 4]] = 0.0
    keep.requires_grad_()
    seen = batch.attended.long() * keep.detach().long()
    positions = model.add_position_ids(batch)
    removed = model(replace(positions, inputs=positions.inputs | {"attention_mask": seen})).logits
    found = term._predict(step, keep)
    effect = (step.outputs.logits - removed).abs().max()
    assert (found - removed).abs().max() < 0.1 * effect
    (slope,) = torch.autograd.grad(found[:, 0].sum(), keep)
    for column, size in ((2, 0.1 * LEAST_ATTENTION), (3, 0.01)):
        moved = keep.detach().clamp(min=LEAST_ATTENTION)
        change = torch.zeros_like(moved)
        change[:, column] = size
        up, down = (
            model(weigh_attention(model, batch, each)).logits[:, 0] for each in (moved + change, moved - change)
        )
        torch.testing.assert_close(slope[:, column], (up - down) / (2 * size), rtol=1e-2, atol=1e-6)
        assert slope[:, column].abs().min() > 1e-7


def test_only_the_context_of_a_question_can_be_taken_away():
    model = shared("bert", "QuestionAnswering")
    batch = model.encode(PAIRS[:2])
    for row, alignment in enumerate(batch.alignments):
        sides = [None if span is None else span[0] for span in alignment.spans]
        assert batch.erasable[row, : len(sides)].tolist() == [side == 1 for side in sides]
    pair = shared("bert").encode(PAIRS[:2])
    assert torch.equal(pair.erasable, pair.content)


def make_logits(log_probability):
    """Return logits [B, 3] whose first class has this log-probability [B]."""
    rest = torch.log1p(-log_probability.exp()) - math.log(2)
    return torch.stack([log_probability, rest, rest], 1) + 5.0


def test_a_tokenizer_without_a_mask_token_has_a_stated_replacement(caplog):
    model = small("gpt2")
    TrainingModule(model, [ComprehensivenessLoss(make_explainer(model))])
    assert f"replaces words by {model.processing_class.convert_ids_to_tokens(model.mask_id)!r}" in caplog.text
    caplog.clear()
    TrainingModule(model, [ComprehensivenessLoss(make_explainer(model), perturbation="zero")])
    TrainingModule(shared("bert"), [ComprehensivenessLoss(make_explainer(shared("bert")))])
    assert not caplog.text


@pytest.mark.parametrize(("kind", "needed"), [(ComprehensivenessLoss, -1.0), (SufficiencyLoss, 0.1)])
def test_the_margin_is_inactive_exactly_when_it_is_met(kind, needed):
    model = shared("bert")
    objective = kind(InterpretableAttention.for_model(model))
    whole = rows(0.9, 0.8, 0.6).log()
    step = step_of(model, make_labeled_batch(model, ["a film", "dull", "great"]), objective)
    step = replace(step, outputs=replace(step.outputs, logits=make_logits(whole)))
    for further, expected in ((1e-6, 0.0), (0.5 if needed < 0 else 1e-3, 0.0), (-1e-6, 1e-6), (-0.3, 0.3)):
        change = needed - further if needed < 0 else needed + further
        logits = make_logits(whole + change).requires_grad_()
        losses = objective.compute_losses(step, logits, make_logits(whole))
        torch.testing.assert_close(losses, torch.full_like(losses, expected), rtol=1e-6, atol=1e-12)
        (slope,) = torch.autograd.grad(losses.sum(), logits)
        assert slope.any() == bool(expected)


def divergence_by_loops(scores, states, epsilon=1e-6, symmetric=False, order=2):
    """Return Eq. 13 and 19 by loops over pairs and numbers; states [B][L, d] are those of real positions."""
    total, count = 0.0, 0
    for i in range(len(scores)):
        for j in range(i + 1, len(scores)):
            pair = []
            for one, other in ((i, j), (j, i)):
                kl = 0.0
                for place, p in enumerate(scores[one].tolist()):
                    q = scores[other][place].item() if place < len(scores[other]) else 0.0
                    kl += p * (math.log(max(p, 1e-7)) - math.log(max(q, 1e-7)))
                pair.append(kl)
            distance = (states[i].mean(0) - states[j].mean(0)).norm(order).item()
            total += (sum(pair) / 2 if symmetric else pair[0]) / (distance + epsilon)
            count += 1
    return total / count


@torch.no_grad()
def test_consistency_is_the_loop_over_pairs():
    for family in FAMILIES:
        for symmetric, distance in [(False, "l2"), (True, "l2"), (False, "l1")]:
            model = shared(family)
            batch = make_labeled_batch(model)
            single = make_explainer(model)
            objective = ConsistencyLoss(single, symmetric=symmetric, distance=distance)
            found = objective(step_of(model, batch, objective))
            scores = single.explain(model, batch, special_tokens=True).scores
            layers = model(batch, capture=Capture(hidden_states=True)).hidden_states
            real = [batch.attended[row] for row in range(len(batch))]
            states = [torch.stack([layer[row][real[row]] for layer in layers]).mean(0) for row in range(len(batch))]
            said = [scores[row][real[row]] for row in range(len(batch))]
            expected = divergence_by_loops(said, states, symmetric=symmetric, order=int(distance[1]))
            assert found.item() == pytest.approx(expected, rel=1e-8)


def test_consistency_by_hand():
    scores = rows([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
    found = pairwise_kl(scores)
    assert found[0, 1].item() == pytest.approx(0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 1e-7))
    assert found[1, 0].item() == pytest.approx(math.log(2))
    assert torch.diagonal(found).tolist() == [0.0, 0.0]


def test_rows_from_their_first_real_position():
    values = torch.arange(8.0).view(2, 4)
    attended = torch.tensor([[False, False, True, True], [True, True, True, False]])
    assert align_left(values, attended).tolist() == [[2.0, 3.0, 0.0, 0.0], [4.0, 5.0, 6.0, 0.0]]


@torch.no_grad()
def test_clustering_is_the_loop_over_others():
    model = shared("bert")
    batch = replace(make_labeled_batch(model), labels=torch.tensor([0, 1, 0, 2]))
    single = make_explainer(model)
    objective = ClusteringConsistencyLoss(single)
    scores = single.explain(model, batch, special_tokens=True).scores
    total = 0.0
    for i in range(4):
        for sign, same in ((1, True), (-1, False)):
            others = [j for j in range(4) if j != i and (batch.labels[i] == batch.labels[j]) == same]
            if others:
                total += sign * sum((scores[i] - scores[j]).square().sum() for j in others) / len(others)
    torch.testing.assert_close(objective(step_of(model, batch, objective)), total / 4)


def test_every_coefficient_and_the_model_get_a_gradient():
    for family in FAMILIES:
        for kind in CRITERIA:
            for norm in ["sparsemax", "softmax"]:
                model = small(family)
                single = make_explainer(model, normalizer=norm)
                options = {"margin": 50.0} if kind in ERASING else {}
                module = TrainingModule(model, [kind(single, **options)]).train()
                batch = make_labeled_batch(model, [families.SENTENCES[i] for i in range(4)])
                module(batch, StepContext())["terms"].sum().backward()
                for name in COEFFICIENTS:
                    slope = getattr(single, name).grad
                    assert slope.isfinite().all()
                    assert slope.any(), name
                queries = [
                    name
                    for name, _ in model.named_parameters()
                    if "query.weight" in name or "q_proj" in name or "c_attn" in name
                ]
                assert all(model.get_parameter(name).grad.any() for name in queries)


@pytest.mark.parametrize("kind", CRITERIA)
def test_training_the_coefficients_alone_makes_each_criterion_smaller(kind):
    model = small("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    single = make_explainer(model)
    options = {"margin": 9.0, "sample_fractions": False} if kind in ERASING else {}
    module = TrainingModule(model, [kind(single, **options)]).train()
    batch = make_labeled_batch(model, families.SENTENCES[:4])
    optimizer = torch.optim.Adam(single.parameters(), lr=0.03)
    losses = []
    for _ in range(8):
        term = module(batch, StepContext())["terms"].sum()
        optimizer.zero_grad()
        term.backward()
        optimizer.step()
        losses.append(term.item())
    assert losses[-1] < losses[0]


def test_criteria_share_an_explainer_and_combine_with_other_papers_terms():
    model = small("bert")
    single = make_explainer(model)
    every = [kind(single) for kind in CRITERIA]
    others = [CrossEntropy(), GradientPenalty(), RationaleAlignment(explainer("attention_last"))]
    module = TrainingModule(model, [*others, *every]).train()
    assert list(module.learned) == ["comprehensiveness"]
    rows_of = [{"text": t, "label": i % 2, "rationale": [[0, 5]]} for i, t in enumerate(families.SENTENCES[:3])]
    batch = model.encode(rows_of)
    together = module(batch, StepContext())["terms"]
    together.sum().backward()
    assert single.head_coefficients.grad.any()
    model.eval()
    for place, objective in enumerate(every, len(others)):
        alone = TrainingModule(model, [objective]).eval()(batch, EVALUATED)["terms"]
        torch.testing.assert_close(module.eval()(batch, EVALUATED)["terms"][place], alone[0])


def test_a_drawn_bin_is_one_of_the_bins_and_its_mean_is_theirs():
    model = small("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    single = make_explainer(model)
    batch = make_labeled_batch(model, families.SENTENCES[:4])
    sampled, every = ComprehensivenessLoss(single), ComprehensivenessLoss(single, sample_fractions=False)
    with torch.no_grad():
        values = [sampled(step_of(model, batch, sampled, StepContext(number=number))) for number in range(60)]
        again = sampled(step_of(model, batch, sampled, StepContext(number=0)))
        mean = every(step_of(model, batch, every, StepContext()))
    assert torch.equal(values[0], again)
    assert len({value.item() for value in values}) > 10
    spread = torch.stack(values).std() / math.sqrt(len(values))
    assert abs(torch.stack(values).mean() - mean) < 4 * spread


@pytest.mark.parametrize("kind", CRITERIA)
def test_a_batch_of_one_word_and_equal_scores_are_defined(kind):
    model = small("bert")
    single = InterpretableAttention.for_model(
        model, normalizer="softmax", mix="literal", scales=(1e-30, 1e-30)
    ).double()
    for texts in (["a"], ["a", "dull film", "a moving film about a small town"]):
        batch = make_labeled_batch(model, texts)
        module = TrainingModule(model, [kind(single)]).train()
        term = module(batch, StepContext())["terms"]
        assert term.isfinite().all()
        term.sum().backward()
        assert all(weight.grad is None or weight.grad.isfinite().all() for weight in module.parameters())
    batch = make_labeled_batch(model, ["a"])
    objective = kind(make_explainer(model))
    if kind in (ConsistencyLoss, ClusteringConsistencyLoss):
        assert objective(step_of(model, batch, objective)).item() == 0
    if kind is ConsistencyLoss:
        assert objective.size(batch).item() == 0
        assert objective.size(make_labeled_batch(model)).item() == 6


def test_the_distance_is_held_still_unless_asked():
    model = small("bert")
    batch = make_labeled_batch(model)
    single = make_explainer(model)
    for param in single.parameters():
        param.requires_grad_(False)
    outputs = model(batch, capture=Capture(heads=True, hidden_states=True))
    kept = pool_hidden_states(outputs, batch)
    assert kept.requires_grad
    slopes = {}
    for held in (True, False):
        objective = ConsistencyLoss(single, detach_distances=held)
        frozen = tuple(layer.detach() for layer in outputs.queries), tuple(layer.detach() for layer in outputs.keys)
        step = TrainingStep(model, batch, replace(outputs, queries=frozen[0], keys=frozen[1]))
        slopes[held] = objective(step).requires_grad
    assert slopes == {True: False, False: True}


def test_any_explainer_of_one_pass_can_be_trained():
    model = small("bert")
    batch = make_labeled_batch(model)
    smat = ParameterizedAttention.for_model(model).double()
    module = TrainingModule(model, [ComprehensivenessLoss(smat, margin=9.0)])
    module(batch, StepContext())["terms"].sum().backward()
    assert smat.coefficients.grad.any()
    plain = ComprehensivenessLoss(explainer("attention_last"))
    assert plain.learned is None
    TrainingModule(model, [plain])(batch, StepContext())["terms"].sum().backward()


@pytest.mark.parametrize("kind", [ComprehensivenessLoss, RationaleAlignment, ExplanationGuidedLoss])
def test_a_record_tells_methods_with_other_coefficients_apart(kind):
    one, same, other = (ParameterizedAttention.for_model(small("bert")) for _ in range(3))
    torch.nn.init.normal_(other.coefficients)
    assert kind(one).params == kind(same).params
    assert kind(one).params != kind(other).params
    assert "digest" not in kind(explainer("attention_last")).params["explainer"]


def test_what_cannot_be_trained_says_why():
    single = InterpretableAttention(2, 4, 8)
    for make, message in (
        (lambda: ComprehensivenessLoss(explainer("lime")), "lime cannot be trained"),
        (lambda: ComprehensivenessLoss(single, fractions=(0.0,)), "above 0 and up to 1"),
        (lambda: SufficiencyLoss(single, temperature=0.0), "temperature of a soft choice is above 0"),
        (lambda: ComprehensivenessLoss(single, margin=0.0), "the margin is above 0"),
        (lambda: SufficiencyLoss(single, form="mse"), "unknown form 'mse'"),
        (lambda: ConsistencyLoss(single, epsilon=0.0), "epsilon is above 0"),
        (lambda: ConsistencyLoss(single, weight=-1.0), "at least 0"),
        (lambda: ConsistencyLoss(single, distance="l3"), "unknown distance 'l3'"),
    ):
        with pytest.raises(ExpoundError, match=message):
            make()
    model = small("bert", num_labels=1)
    batch = model.encode([{"text": "a film", "label": 0.5}])
    for kind, message in ((ComprehensivenessLoss, "no probability"), (ClusteringConsistencyLoss, "labels of classes")):
        objective = kind(InterpretableAttention.for_model(model))
        with pytest.raises(ExpoundError, match=message):
            objective(step_of(model, batch, objective))
    pictures = shared("vit")
    objective = ComprehensivenessLoss(InterpretableAttention.for_model(pictures))
    batch = replace(pictures.encode(families.examples("vit", 2)), labels=torch.tensor([0, 1]))
    with pytest.raises(ExpoundError, match="does not apply to images"):
        objective(step_of(pictures, batch, objective))
