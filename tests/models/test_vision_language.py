"""Prompts with images: the drop when a region is filled is that of the model's own answer to the filled image."""

from __future__ import annotations

from copy import copy
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

import expound
import pictures
from expound import ExpoundError
from expound.models.regions import cut_regions
from expound.reports.explanations import Explanations
from expound.reports.highlighted.highlight import highlight_explanation
from families import sweep_others

RESPONSE = " it is red"


def chat(*images, text="what color is the square ?", **more):
    parts = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": parts}], "response": RESPONSE, **more}


def log_prob(model, processor, images, text):
    """The log-probability of the response by the processor and the model alone."""
    said = processor.tokenizer(RESPONSE, add_special_tokens=False)["input_ids"]
    total = 0.0
    for number, token in enumerate(said):
        given = pictures.read_prompt(processor, images, text, f" {processor.tokenizer.decode(said[:number])}")
        with torch.no_grad():
            given.pop("labels", None)
            total += float(model(**given).logits[0, -1].log_softmax(-1)[token])
    return total


def fill(image, box, way):
    pixels = np.array(image.convert("RGB"))
    other = np.full_like(pixels, 128)
    if way == "mean":
        other[:] = np.round(pixels.reshape(-1, 3).mean(0))
    if way == "blur":
        other = np.array(image.filter(ImageFilter.GaussianBlur(max(image.size) / 8)))
    left, top, right, bottom = box
    pixels[top:bottom, left:right] = other[top:bottom, left:right]
    return Image.fromarray(pixels)


# An image as one grid, in a grid of its own size, before the text, and in tiles.
@pytest.mark.parametrize("kind", sweep_others(pictures.KINDS, ["llava", "qwen2_5_vl", "paligemma", "idefics3"]))
def test_scores_are_those_of_regions_filled_by_hand(kind):
    network, processor = pictures.make_model(kind)
    model, images = (
        expound.load((network, processor), task="generation"),
        [pictures.make_picture(), pictures.make_picture((48, 48), 1)],
    )
    text = "what color is the square ?"
    whole = log_prob(network, processor, images, text)
    for way in ("grey", "mean", "blur"):
        row = chat(*images, image_regions=(2, 2), image_fill=way)
        found = expound.attribute(model, [row], "occlusion", "response", unit="word")[0]
        assert found.target.log_prob == pytest.approx(whole, abs=1e-4)
        assert list(found.unit_texts) == ["r1c1", "r1c2", "r2c1", "r2c2"] * 2 + text.split()
        expected = []
        for number, image in enumerate(images):
            width, height = image.size
            for top, left in ((0, 0), (0, 1), (1, 0), (1, 1)):
                box = (left * width // 2, top * height // 2, (left + 1) * width // 2, (top + 1) * height // 2)
                changed = list(images)
                changed[number] = fill(image, box, way)
                expected.append(whole - log_prob(network, processor, changed, text))
        words = text.split()
        for place in range(len(words)):
            expected.append(whole - log_prob(network, processor, images, " ".join(words[:place] + words[place + 1 :])))
        assert np.abs(expected[:8]).max() > 1e-4
        np.testing.assert_allclose(found.scores[0], expected, atol=1e-5)
    del row["response"]
    given = pictures.read_prompt(processor, images, text)
    given.pop("labels", None)
    own = network.generate(**given, max_new_tokens=3, do_sample=False)[0, given["input_ids"].shape[1] :]
    assert model.respond([row], max_new_tokens=3, allow_empty=True)[0]["response"] == own.tolist()


@pytest.fixture(scope="module")
def llava():
    return expound.load(pictures.make_model("llava"), task="generation")


def test_boxes_masks_and_the_whole_image_are_regions(llava):
    image = pictures.make_picture((48, 48))
    halves, mask = [(0, 0, 48, 24), (0, 24, 48, 48)], np.zeros((48, 48), bool)
    mask[:24] = True
    scores = {}
    for name, regions in {"whole": "whole", "box": [(0, 0, 48, 48)], "half": halves, "mask": [mask]}.items():
        row = chat(image, image_regions=regions)
        scores[name] = expound.attribute(llava, [row], "occlusion", "response", unit="word")[0]
    assert scores["whole"].scores[0, 0] == pytest.approx(scores["box"].scores[0, 0], abs=1e-6)
    assert scores["half"].scores[0, 0] == pytest.approx(scores["mask"].scores[0, 0], abs=1e-6)
    assert tuple(scores["half"].unit_texts[:2]) == ("region1", "region2")
    dots = Image.new("RGB", (48, 48))
    dots.paste((255, 255, 255), (24, 0, 48, 48))
    if find_spec("skimage"):
        cut = cut_regions(dots, "superpixels:16")
        assert np.array_equal(sum(mask.astype(int) for mask in cut.values()), np.ones((48, 48)))
        assert 4 <= len(cut) <= 16
        # None crosses the border between black and white.
        assert {len(np.unique(np.asarray(dots)[mask])) for mask in cut.values()} == {1}
    else:
        with pytest.raises(ExpoundError, match="extra superpixels"):
            cut_regions(dots, "superpixels:16")
    by_text = expound.attribute(llava, [chat(image)], "occlusion", "response", unit="source")[0]
    assert tuple(by_text.unit_texts) == ("image", "user")
    assert by_text.scores[0, 0] == pytest.approx(scores["whole"].scores[0, 0], abs=1e-6)
    alone = {"messages": [{"role": "user", "content": [{"type": "image", "image": image}]}], "response": RESPONSE}
    named = expound.attribute(llava, [alone | {"image_regions": (1, 2)}], "occlusion", "response", unit="word")[0]
    assert tuple(named.unit_texts) == ("r1c1", "r1c2")
    for method in ("lime?n_samples=40", "kernel_shap?n_samples=40", "context_cite?n_samples=40", "random"):
        found = expound.attribute(llava, [chat(image, image_regions=(2, 2))], method, "response", unit="word")[0]
        assert np.abs(found.scores).max() > 1e-4


def test_a_folder_and_a_path_are_loaded_and_the_answer_is_the_models_own(llava, tmp_path):
    llava.model.save_pretrained(tmp_path / "model")
    llava.processor.save_pretrained(tmp_path / "model")
    pictures.make_picture().save(tmp_path / "picture.png")
    loaded = expound.load(tmp_path / "model", task="generation")
    row = chat(str(tmp_path / "picture.png"))
    del row["response"]
    (said,) = loaded.respond([row], max_new_tokens=4, allow_empty=True)
    given = pictures.read_prompt(llava.processor, [pictures.make_picture()], row["messages"][0]["content"][1]["text"])
    own = llava.model.generate(**given, max_new_tokens=4, do_sample=False)[0, given["input_ids"].shape[1] :]
    assert said["response"] == own.tolist()
    found = expound.attribute(loaded, [chat(str(tmp_path / "picture.png"))], unit="word")[0]
    assert found.method == "occlusion"
    assert len(found.unit_texts) == 9 + 6
    rows = [chat(str(tmp_path / "picture.png"), image_regions=(2, 2))] * 2
    compared = expound.compare(loaded, rows, ["attention_last", "random"], unit="word", show_progress=False)
    found = [item for item in compared.attributions if item.method == "attention_last"]
    assert len(found) == 2
    assert np.array_equal(found[0].scores, found[1].scores)
    disk = np.hypot(*(np.mgrid[:48, :60] - 24)) < 12
    drawn = expound.attribute(
        loaded, [chat(pictures.make_picture(), image_regions=[disk, (40, 0, 60, 48)])], unit="word"
    )
    drawn.save(tmp_path / "saved")
    assert list(Explanations.load(tmp_path / "saved")) == list(drawn)
    (image,) = highlight_explanation(drawn[0]).images
    assert (image.width, image.height, image.name) == (60, 48, "image")
    covered = np.zeros((48, 60), int)
    for x, y, width, height in image.regions[0].rectangles:
        covered[y : y + height, x : x + width] += 1
    assert np.array_equal(covered, disk)
    assert image.regions[1].path == "M40 0h20v48h-20z"
    assert [region.score for region in image.regions] == drawn[0].scores[0, :2].tolist()
    page = drawn.to_html()
    assert page.count("<path data-unit=") == 2
    assert 'd="M40 0h20v48h-20z"' in page
    picture, bars = drawn[0].plot().axes
    assert len(picture.patches) == len(image.regions[0].rectangles) + 1
    assert len(bars.patches) == 8
    drawn[0].metadata["images"][0]["url"] = "https://example.org/a.png"
    for draw in (drawn.to_html, drawn[0].plot):
        with pytest.raises(ExpoundError, match="nothing is loaded"):
            draw()


def test_what_is_not_possible_with_images_is_refused_in_a_sentence(llava, tmp_path):
    image = pictures.make_picture()
    cases = {
        "nothing is loaded from https": chat("https://example.org/a.png"),
        "cannot be read": chat(str(tmp_path / "none.png")),
        "choose fewer": chat(image, image_regions=(5, 5)),
        "image_fill": chat(image, image_fill="black"),
        "a grid": chat(image, image_regions="words"),
        "superpixels are 1 to 1000": chat(image, image_regions="superpixels:x"),
        "at most 50 rows": chat(image, image_regions=(51, 1)),
        "stands for an image": chat(image, text="what is <image> ?"),
        "take no sources": chat(image, sources={"a": "a film"}),
        "response contains <image>": chat(image) | {"response": [8, llava.image_token_id]},
    }
    for message, row in cases.items():
        with pytest.raises(ExpoundError, match=message) as caught:
            expound.attribute(llava, [row], unit="word")
        assert "\n" not in str(caught.value)
    for method in ("decompx", "attn_lrp", "cp_lrp", "gim", "decompx_linear"):
        with pytest.raises(ExpoundError, match=f"{method} is refused for prompts with images"):
            expound.attribute(llava, [chat(image)], method, unit="word")
    with pytest.raises(ExpoundError, match="images by path"):
        expound.compare(llava, [chat(image)], ["occlusion"], unit="word")
    with pytest.raises(ExpoundError, match="as a whole"):
        expound.attribute(llava, [chat(image, image_regions="whole")], "occlusion", unit="token")
    with pytest.raises(ExpoundError, match="perturbation='remove'"):
        expound.attribute(llava, [chat(image)], "occlusion?perturbation=mask", unit="word")
    turns = [{"role": "user", "content": "what ?"}, {"role": "assistant", "content": "a"}, *chat(image)["messages"]]
    for template, messages in {"{{ messages[0].content[1].text }}": chat(image)["messages"], "a": turns}.items():
        processor = copy(llava.processor)
        processor.chat_template = template
        model = expound.load((llava.model, processor), task="generation")
        with pytest.raises(ExpoundError, match="leaves out an image"):
            expound.attribute(model, [{**chat(image), "messages": messages}], unit="word")
    empty = {"type": "text", "text": ""}
    turns[2]["content"].append(empty)
    found = expound.attribute(llava, [{**chat(image), "messages": turns}], "random", "response", unit="source")[0]
    assert tuple(found.unit_texts) == ("image", "user")
    paligemma = expound.load(pictures.make_model("paligemma"), task="generation")
    with pytest.raises(ExpoundError, match="no chat template"):
        expound.attribute(paligemma, [{**chat(image), "messages": chat(image)["messages"] * 2}], unit="word")
