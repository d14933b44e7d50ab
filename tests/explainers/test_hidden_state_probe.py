"""The probe of hidden states, against loops over layers, positions and dimensions; what it learns; files and errors."""

import pytest
import torch

from causal import CAUSAL, causal
from expound import ExpoundError, explainer
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.explainers.learned.hidden_state_probe import HiddenStateProbe
from expound.explainers.units import number_units, sum_by_unit
from expound.training.source_attention import Effects, fit_coefficients, negative_correlation
from models.test_generation import PROMPTS, RESPONSES, generating, padded_right
from small import FAMILIES, alone, shared, small, uneven
from two_sided import two_sided

TARGET = torch.tensor([[0, 2], [2, 5], [1, 2]])


def make_probe(model, kind=HiddenStateProbe):
    """A probe in float64 whose coefficients all differ."""
    made = kind.for_model(model).double()
    made.set_coefficients(torch.randn(made.coefficients.numel(), generator=torch.Generator().manual_seed(0)))
    return made


def scores_by_loops(states, weights, readouts):
    """Scores [L] of one example from the states of Hugging Face's own pass, by loops over layers, q, k and dims."""
    scores = [0.0] * states[0].shape[1]
    for layer, own in zip(states, weights.tolist(), strict=True):
        rows = [[x / (sum(y * y for y in row) / len(row)) ** 0.5 for x in row] for row in layer[0].tolist()]
        for q in readouts:
            for k, row in enumerate(rows):
                product = sum(w * x * y for w, x, y in zip(own, rows[q], row, strict=True))
                scores[k] += product / len(readouts)
    return torch.tensor(scores, dtype=torch.float64)


@torch.no_grad()
def test_classifiers_against_loops():
    model = shared("bert")
    batch = model.encode(uneven("bert", 3))
    single = make_probe(model)
    scores = single.attribute(model, batch)
    for row in range(3):
        own, columns = alone(model, batch, row)
        states = model.model(**own.inputs, output_hidden_states=True).hidden_states
        expected = scores_by_loops(states, single.coefficients, [0]).masked_fill(~own.content[0], 0)
        torch.testing.assert_close(scores[row, columns], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_generated_text_against_loops(family):
    model = generating(family)
    single = make_probe(model)
    for batch in (model.batch(PROMPTS, RESPONSES), padded_right(PROMPTS, RESPONSES)):
        scores = single.attribute(model, batch, TARGET)
        for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
            states = model.model(torch.tensor([prompt + response]), output_hidden_states=True).hidden_states
            places = [len(prompt) - 1 + token for token in range(*TARGET[row].tolist())]
            expected = scores_by_loops(states, single.coefficients, places)[: len(prompt)]
            torch.testing.assert_close(scores[row, batch.content[row]], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", [AttentionToSource, HiddenStateProbe])
@pytest.mark.parametrize("unit_name", ["word", "source"])
@torch.no_grad()
def test_units_have_the_sums_of_their_positions(kind, unit_name):
    model = shared("bert")
    batch = model.encode(uneven("bert", 3))
    single, unit, target = make_probe(model, kind), number_units(batch, unit_name), torch.tensor([0, 1, 2])
    outputs = model(batch, capture=single.capture)
    found = single.features(model, batch, outputs, target, unit) @ single.coefficients.flatten()
    expected = sum_by_unit(single.attribute(model, batch, target), unit)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@torch.no_grad()
def test_untrained_it_is_the_mean_cosine_in_every_family():
    for family in FAMILIES:
        model = shared(family)
        batch = model.encode(uneven(family, 2))
        single = explainer("hidden_state_probe?untrained", model)
        assert single.signed
        states = torch.stack(model(batch, capture=single.capture).hidden_states)
        states = states / states.norm(dim=-1, keepdim=True).clamp(min=1e-9)  # DeBERTa has zeros at padding
        read = torch.einsum("bl,nbld->nbd", model.readout_weights(batch, torch.tensor([0, 0])), states)
        expected = torch.einsum("nbd,nbld->nbl", read, states).mean(0).masked_fill(~batch.content, 0)
        torch.testing.assert_close(single.attribute(model, batch, 0), expected, rtol=1e-6, atol=1e-7)


@torch.no_grad()
def test_untrained_it_explains_every_family_that_generates():
    for family in CAUSAL:
        model = causal(family, torch.float32)
        batch = model.batch(PROMPTS[0], RESPONSES[0])
        scores = explainer("hidden_state_probe?untrained", model).attribute(model, batch)
        assert (scores[batch.content].abs() <= 1 + 1e-6).all()
        assert scores[batch.content].abs().max() > 0.01


@torch.no_grad()
def test_planted_coefficients_are_found_again():
    model, generator = generating("llama"), torch.Generator().manual_seed(0)
    ids = torch.randint(5, 200, (96, 14), generator=generator)
    batch = model.batch(ids[:, :12], ids[:, 12:], unit_of=torch.arange(12).expand(96, 12) // 2)
    planted = make_probe(model)
    outputs, target = model(batch, capture=planted.capture), torch.tensor([[0, 2]] * 96)
    shares = planted.features(model, batch, outputs, target, batch.unit_of)
    inputs = (2.0 * torch.randint(0, 2, (96, 16, 6), generator=generator) - 1).to(shares) @ shares
    effects = Effects(inputs, inputs @ planted.coefficients.flatten())
    seen, unseen = (Effects(*(part[rows] for part in effects)) for rows in (slice(0, 72), slice(72, 96)))
    learned = HiddenStateProbe.for_model(model).double()
    untrained = negative_correlation(unseen.inputs @ learned.coefficients.flatten(), unseen.answers)
    learned.set_coefficients(fit_coefficients(seen, 400, 0.01))
    assert negative_correlation(unseen.inputs @ learned.coefficients.flatten(), unseen.answers) < -0.97
    assert untrained > -0.5
    similar = torch.corrcoef(torch.stack([learned.coefficients.flatten(), planted.coefficients.flatten()]))[0, 1]
    assert similar > 0.9


@torch.no_grad()
def test_saved_and_loaded_it_is_the_same(tmp_path):
    model = shared("bert")
    batch, single = model.encode(uneven("bert", 2)), make_probe(shared("bert"))
    single.save_pretrained(tmp_path)
    again = explainer(f"hidden_state_probe:{tmp_path}")
    assert again.params == single.params == {"n_layers": 2, "width": 32}
    assert torch.equal(again.attribute(model, batch), single.attribute(model, batch))
    with pytest.raises(ExpoundError, match=r"expected a saved attention_to_source in .*, got hidden_state_probe"):
        explainer(f"attention_to_source:{tmp_path}")


def test_states_of_another_size_are_refused():
    model, two = shared("bert"), two_sided("t5")
    for sizes, message in (
        ((3, 32), "for 3 layers of 32 dimensions, the model has 2 layers of 32"),
        ((2, 16), "for 2 layers of 16 dimensions, the model has 2 layers of 32"),
    ):
        with pytest.raises(ExpoundError, match=message):
            HiddenStateProbe(*sizes).attribute(model, model.encode(["a film"]))
    with pytest.raises(ExpoundError, match="expected at least 1 layer"):
        HiddenStateProbe(0, 4)
    with pytest.raises(ExpoundError, match="not followed through an encoder and a decoder"):
        explainer("hidden_state_probe?untrained", two).attribute(two, two.batch(PROMPTS[0], RESPONSES[0]))


def test_gradients_are_those_of_finite_differences():
    model = small("gpt2")  # norms in float64, which Llama has in float32
    batch, single, weights = model.encode(uneven("gpt2", 2)), make_probe(model), model.embedding.weight
    direction = torch.randn(weights.shape, generator=torch.Generator().manual_seed(0), dtype=weights.dtype)

    def total():
        return single.attribute(model, batch, 0).square().sum()

    slope, own = torch.autograd.grad(total(), [weights, single.coefficients])
    with torch.no_grad():
        ends = []
        for step in (1e-6, -2e-6):
            weights.add_(step * direction)
            ends.append(total())
    torch.testing.assert_close((slope * direction).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=0)
    torch.testing.assert_close((own * single.coefficients).sum(), 2 * total(), rtol=1e-3, atol=0)
