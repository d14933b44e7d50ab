"""Gradients and attention at image tokens, summed by region: equal to differences of the model's own passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import expound
import pictures
from expound import ExpoundError
from expound.explainers.seeding import gaussian_noise
from expound.models.generation.image_tokens import measure_shares
from families import replace_rms_norms, sweep_others

TEXT, RESPONSE, SIDE = "what color is the square ?", " it is red", 48
SIDES = {"llava": 4, "qwen2_vl": 6, "qwen2_5_vl": 6, "qwen3_vl": 6, "gemma3": 4, "paligemma": 4, "internvl": 4}
"""Kinds whose image tokens are one grid, from top left, and its side; those of other kinds are one region."""


def make_row(image, regions=(2, 2)):
    parts = [{"type": "image", "image": image}, {"type": "text", "text": TEXT}]
    return {"messages": [{"role": "user", "content": parts}], "response": RESPONSE, "image_regions": regions}


class Reference:
    """A model that is read and changed where its language model is called, by hooks of this test."""

    def __init__(self, kind, image):
        network, self.processor = pictures.make_model(kind)
        self.network = network.double()
        replace_rms_norms(network)
        self.given = self.process(image)
        ids = self.given["input_ids"][0]
        names = ("image_token_id", "image_token_index")
        token = next(getattr(network.config, name) for name in names if hasattr(network.config, name))
        self.is_image = self.given["input_ids"] == token
        places, side = self.is_image[0].nonzero().flatten().tolist(), SIDES.get(kind)
        assert side is None or len(places) == side * side
        self.regions = [places] if side is None else [[] for _ in range(4)]
        for number, place in enumerate(places if side else ()):
            self.regions[2 * (2 * (number // side) // side) + 2 * (number % side) // side].append(place)
        after = ["\n"] if kind == "paligemma" else [".", "assistant", ":"]
        end = len(ids) - len(RESPONSE.split()) - len(after)
        self.units = self.regions + [[place] for place in range(end - len(TEXT.split()), end)]
        self.own, self.grey = self.read(self.given), self.read(self.process(Image.new("RGB", image.size, (128,) * 3)))

    def process(self, image):
        given = pictures.read_prompt(self.processor, [image], TEXT, RESPONSE)
        given.pop("labels", None)
        return {name: value.double() if value.is_floating_point() else value for name, value in given.items()}

    def run(self, given, change=None, **more):
        """The input embeddings, with what later layers read of images beside them, and the outputs."""
        read = []

        def hook(module, args, kwargs):
            parts, places = [kwargs["inputs_embeds"]], self.is_image
            for later in kwargs.get("deepstack_visual_embeds") or ():
                parts.append(torch.zeros_like(parts[0]).masked_scatter(places[..., None], later))
            read.append(torch.cat(parts, -1))
            if change is None:
                return args, kwargs
            first, *later = change.chunk(len(parts), -1)
            changed = {"deepstack_visual_embeds": [part[places] for part in later]} if later else {}
            return args, kwargs | {"inputs_embeds": first} | changed

        with self.network.get_decoder().register_forward_pre_hook(hook, with_kwargs=True):
            return read, self.network(**given, **more)

    def read(self, given):
        with torch.no_grad():
            return self.run(given)[0][0]

    def score(self, logits):
        said = self.given["input_ids"][0, -3:, None]
        return logits[0, -4:-1].log_softmax(-1).gather(1, said).sum()

    def slopes(self, at, direction, step=1e-6):
        """The derivative along the part of a direction that each unit has, by central differences."""
        found = []
        for places in self.units:
            part = torch.zeros_like(direction)
            part[:, places] = direction[:, places]
            with torch.no_grad():
                ends = [self.score(self.run(self.given, at + sign * step * part)[1].logits) for sign in (1, -1)]
            found.append(float(ends[0] - ends[1]) / (2 * step))
        return np.array(found)

    def sum_tokens(self, scores):
        return np.array([float(scores[places].sum().detach()) for places in self.units])


# One grid, layers that read images later on, attention in both directions, and tiles.
@pytest.mark.parametrize("kind", sweep_others([*SIDES, "idefics3"], ["llava", "qwen3_vl", "paligemma", "idefics3"]))
def test_scores_are_those_of_finite_differences_and_of_the_models_own_attention(kind):
    image = pictures.make_picture((SIDE, SIDE), 3)
    reference = Reference(kind, image)
    network, own = reference.network, reference.own
    model = expound.load((network, reference.processor), task="generation")
    cut, count = (2, 2) if kind in SIDES else "whole", len(reference.regions)

    def explain(method, regions=cut):
        return expound.attribute(model, [make_row(image, regions)], method, "response", unit="word")[0].scores[0]

    found = explain("input_x_gradient")
    assert np.abs(found[:count]).min() > 1e-4
    np.testing.assert_allclose(found, reference.slopes(own, own), rtol=1e-4, atol=1e-6)

    # The reference fills the regions and has the unknown token for words.
    start, width = own.clone(), network.get_input_embeddings().weight.shape[1]
    for places in reference.regions:
        start[:, places] = reference.grey[:, places]
    for places in reference.units[count:]:
        start[:, places, :width] = network.get_input_embeddings()(torch.tensor(2))
    nodes, weights = np.polynomial.legendre.leggauss(3)
    expected = np.zeros(len(reference.units))
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        expected += weight * reference.slopes(start + node * (own - start), own - start)
    np.testing.assert_allclose(explain("integrated_gradients?n_steps=3"), expected, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        change = [reference.score(reference.run(reference.given, point)[1].logits) for point in (own, start)]
    for regions in (cut, (3, 3))[: 2 if kind == "llava" else 1]:
        total = explain("integrated_gradients?n_steps=auto&tolerance=0.001&max_steps=2000", regions).sum()
        assert total == pytest.approx(float(change[0] - change[1]), rel=0.002)

    leaf = own.clone().requires_grad_()
    (slope,) = torch.autograd.grad(reference.score(reference.run(reference.given, leaf)[1].logits), leaf)
    expected = reference.sum_tokens(slope[0].norm(dim=-1))
    np.testing.assert_allclose(explain("saliency"), expected, rtol=1e-4)

    before, offsets = network.config._attn_implementation, getattr(network.model, "rope_deltas", None)
    scores = {name: explain(name) for name in ("attention_last", "attention_rollout", "generic_attention")}
    assert network.config._attn_implementation == before
    assert getattr(network.model, "rope_deltas", None) is offsets
    assert not network.get_decoder()._forward_pre_hooks
    network.set_attn_implementation("eager")
    outputs = reference.run(reference.given, output_attentions=True)[1]
    maps = outputs.attentions
    slopes = torch.autograd.grad(reference.score(outputs.logits), maps)
    rolled = relevance = torch.eye(maps[0].shape[-1]).double()
    for layer, slope in zip(maps, slopes, strict=True):
        rolled = (layer[0].mean(0) + torch.eye(len(rolled))) / 2 @ rolled
        relevance = relevance + (layer * slope)[0].clamp(min=0).mean(0) @ relevance
    expected = {"attention_last": maps[-1][0].mean(0), "attention_rollout": rolled, "generic_attention": relevance}
    for name, rows in expected.items():
        np.testing.assert_allclose(scores[name], reference.sum_tokens(rows[-4:-1].mean(0)), rtol=1e-4, atol=1e-7)


def test_tokens_at_a_border_are_shared_and_those_of_tiles_belong_to_their_tile():
    model = expound.load(pictures.make_model("idefics3"), task="generation")
    batch = model.encode([make_row(pictures.make_picture((SIDE, SIDE), 3))])
    shares = measure_shares(model, batch)[batch.region_of[0] >= 0]
    # Four tiles of nine tokens, one in each region, then nine of the whole image.
    torch.testing.assert_close(shares[:36], torch.eye(4).repeat_interleave(9, 0))
    torch.testing.assert_close(shares[36:].sum(1), torch.ones(9))
    torch.testing.assert_close(shares[[36, 38, 42, 44]], torch.eye(4))
    assert ((shares[36:] > 0).sum(1) == torch.tensor([1, 2, 1, 2, 4, 2, 1, 2, 1])).all()
    # What is in no box is in no unit.
    batch = model.encode([make_row(pictures.make_picture((SIDE, SIDE), 3), [(0, 0, 24, 24)])])
    assert measure_shares(model, batch)[batch.region_of[0] >= 0].sum() == pytest.approx(9 + 1 + 4 / 2, abs=2)


def test_noise_is_a_share_of_the_range_of_images_and_of_that_of_words():
    model = expound.load(pictures.make_model("llava"), task="generation")
    batch = model.encode([make_row(pictures.make_picture((SIDE, SIDE), 3))])
    embeddings, is_image = model.embed(batch).detach(), batch.region_of >= 0
    embeddings[is_image] *= 100
    noise = gaussian_noise(batch, embeddings, 0.1, [0])
    for kind in (is_image, ~is_image):
        own = embeddings[kind]
        assert float(noise[kind].std()) == pytest.approx(0.1 * float(own.max() - own.min()), rel=0.1)


def test_methods_that_cannot_are_refused_in_a_sentence():
    network, processor = pictures.make_model("qwen3_vl")
    row, text = make_row(pictures.make_picture((SIDE, SIDE), 3)), {"prompt": TEXT, "response": RESPONSE}

    def add_brightness(module, args, kwargs):
        # Images that layers read in a way of their own.
        pixels = kwargs.get("pixel_values")
        shift = 0.0 if pixels is None else pixels.mean()
        hooks.append(network.get_decoder().layers[0].register_forward_hook(lambda *call: call[2] + shift))

    hooks = []
    network.register_forward_pre_hook(add_brightness, with_kwargs=True)
    network.register_forward_hook(lambda *call: hooks.pop().remove(), always_call=True)
    qwen3 = expound.load((network, processor), task="generation")
    # What was found for texts does not count for images.
    expound.attribute(qwen3, [text], "input_x_gradient", "response", unit="word")
    with pytest.raises(ExpoundError, match=r"reads? images beside its input embeddings.*occlusion") as caught:
        expound.attribute(qwen3, [row], "input_x_gradient", "response", unit="word")
    assert "\n" not in str(caught.value)
    assert np.abs(expound.attribute(qwen3, [row], "attention_last", "response", unit="word")[0].scores).max() > 0
    llava = expound.load(pictures.make_model("llava"), task="generation")
    with pytest.raises(ExpoundError, match="not token ids"):
        expound.attribute(llava, [row], "integrated_gradients", "response", unit="word", baselines=(1, 2))
