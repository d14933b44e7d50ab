"""Which region of an image is an answer read from? Planted: coloured digits at places of a grid.

Trains a small vision-language model (LLaVA's layout: a CLIP encoder, a Llama decoder) that is asked for the digit of a
colour. It answers "none" where no digit has it, so that an image with a digit removed is nothing new.

Claims, made before any run, of questions that the model answers right:
1. Each method that is accepted for prompts with images ranks the region of the asked digit first in 95 % at least.
2. Random scores do so in about one of nine.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.stats import binomtest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

import expound
from timing import parse_options, write_results

COLORS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 230), "yellow": (235, 220, 50)}
CELL, GRID, PATCH, MOST = 12, 3, 12, 3
SIDE = CELL * GRID
SPECIAL = ["[PAD]", "[END]", "[UNK]", "<image>"]
WORDS = ["the", "digit", "in", "none"]
QUESTION = "the digit in {color}"
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}{% if not loop.first %} {% endif %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
METHODS = (
    "occlusion", "lime?n_samples=64", "kernel_shap?n_samples=64", "context_cite?n_samples=64", "input_x_gradient",
    "input_x_gradient?aggregate=l2", "integrated_gradients?n_steps=20", "saliency", "smooth_grad?n_samples=10",
    "gradient_shap", "gradient_shap?n_samples=25", "deep_lift", "sequential_integrated_gradients", "attention_last",
    "attention_all", "attention_rollout", "scaled_attention", "generic_attention", "value_zeroing",
)  # fmt: skip


def draw_digits() -> np.ndarray:
    """Return the shapes of the ten digits as shares of ink [10, CELL, CELL]."""
    shapes, font = [], ImageFont.load_default(13)
    for digit in range(10):
        shape = Image.new("L", (CELL, CELL))
        ImageDraw.Draw(shape).text((CELL / 2, CELL / 2), str(digit), fill=255, font=font, anchor="mm")
        shapes.append(np.asarray(shape) / 255)
    return np.stack(shapes)


def make_case(draw: random.Random, shapes: np.ndarray, shown: int) -> tuple[np.ndarray, dict[str, tuple[str, int]]]:
    """Return an image [SIDE, SIDE, 3] with so many digits, and per colour the answer and its cell, −1 for none."""
    pixels = np.full((SIDE, SIDE, 3), 128.0)
    names, answers = draw.sample(list(COLORS), len(COLORS)), dict[str, tuple[str, int]]()
    cells = draw.sample(range(GRID * GRID), shown)
    for name, cell in zip(names[:shown], cells, strict=True):
        digit, top, left = draw.randrange(10), CELL * (cell // GRID), CELL * (cell % GRID)
        ink, place = shapes[digit][..., None], pixels[top : top + CELL, left : left + CELL]
        place[:] = (1 - ink) * place + ink * np.array(COLORS[name])
        answers[name] = str(digit), cell
    # In random order, so that no question's place tells its answer.
    order = draw.sample(names, len(names))
    return pixels.round().astype(np.uint8), {name: answers.get(name, ("none", -1)) for name in order}


def make_model(seed: int) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Return the untrained model with its processor."""
    words = [*SPECIAL, *WORDS, *COLORS, *map(str, range(10))]
    raw = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", eos_token="[END]", unk_token="[UNK]",
        additional_special_tokens=["<image>"],
    )  # fmt: skip
    size = {"height": SIDE, "width": SIDE}
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size), tokenizer, patch_size=PATCH,
        vision_feature_select_strategy="default", num_additional_image_tokens=1, chat_template=TEMPLATE,
    )  # fmt: skip
    torch.manual_seed(seed)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    vision = CLIPVisionConfig(**size, num_hidden_layers=1, image_size=SIDE, patch_size=PATCH, projection_dim=64)
    text = LlamaConfig(
        **size, num_hidden_layers=3, num_key_value_heads=4, vocab_size=len(words), max_position_embeddings=128,
        eos_token_id=1, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=image_id, vision_feature_layer=-1)
    model = LlavaForConditionalGeneration(config)
    # With the usual .02 models of this width do not begin to read the image.
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.1)
    return model, processor


def train(steps: int, seed: int) -> Any:
    """Return the trained model, ready to be explained."""
    (model, processor), draw, shapes = make_model(seed), random.Random(seed), draw_digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    image, scale = " ".join(["<image>"] * (SIDE // PATCH) ** 2), processor.image_processor
    mean, std = torch.tensor(scale.image_mean), torch.tensor(scale.image_std)
    for step in range(steps):
        # To read a digit is learned first, and to find one of several afterwards.
        most = 1 if step < 0.2 * steps else MOST
        cases = [make_case(draw, shapes, draw.randint(1, most)) for _ in range(48)]
        # Every colour is asked for, in one chat.
        texts = []
        for _, answers in cases:
            turns = [f"{QUESTION.format(color=color)} {answer}" for color, (answer, _) in answers.items()]
            texts.append(f"{image} {' '.join(turns)}")
        ids = torch.tensor(processor.tokenizer(texts)["input_ids"])
        # What the processor does to an image of this size, for all of them at once.
        pixels = (torch.from_numpy(np.stack([pixels for pixels, _ in cases])) / 255 - mean) / std
        # A turn is a question of four words and its answer.
        read = torch.arange((SIDE // PATCH) ** 2 + 3, ids.shape[1] - 1, 5)
        logits = model(input_ids=ids[:, :-1], pixel_values=pixels.permute(0, 3, 1, 2).float()).logits[:, read]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, read + 1].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(step, loss.item(), file=sys.stderr, flush=True)
    return expound.load((model.eval(), processor), task="generation")


def measure_ranks(model: Any, methods: tuple[str, ...], count: int, seed: int) -> dict[str, Any]:
    """Return how often each method ranks the asked digit's region first, of questions answered right."""
    draw, shapes, right = random.Random(seed + 1), draw_digits(), 0
    hits: dict[str, list[bool]] = {name: [] for name in (*methods, "random")}
    refused: dict[str, str] = {}
    for number in range(count):
        pixels, answers = make_case(draw, shapes, draw.randint(2, MOST))
        color, (answer, cell) = next(each for each in answers.items() if each[1][1] >= 0)
        parts = [{"type": "image", "image": Image.fromarray(pixels)}]
        parts.append({"type": "text", "text": QUESTION.format(color=color)})
        row = {"messages": [{"role": "user", "content": parts}], "image_regions": (GRID, GRID)}
        (own,) = model.respond([row], 1)
        if model.tokenizer.decode(own["response"]).strip() != answer:
            continue
        right += 1
        for name, values in hits.items():
            spec = f"random?seed={number}" if name == "random" else name
            try:
                (item,) = expound.attribute(model, [own], spec, "response", unit="word", show_progress=False)
            except expound.ExpoundError as error:
                refused[name] = str(error)
                continue
            values.append(int(item.scores[0][: GRID * GRID].argmax()) == cell)
        if number % 20 == 0:
            print(number, {name: np.mean(found) for name, found in hits.items() if found}, file=sys.stderr)
    results: dict[str, Any] = {"questions": count, "answered right": right, "refused": refused}
    for name, values in hits.items():
        if values:
            interval = binomtest(sum(values), len(values)).proportion_ci()
            results[name] = {"first": float(np.mean(values)), "low": interval.low, "high": interval.high}
    return results


def main() -> None:
    """Measure, print the numbers, and write them as JSON."""
    options = parse_options(__doc__, count=60, seeds=(0, 1), steps=600, methods=METHODS)
    results: dict[str, Any] = {"training steps": options.steps}
    for seed in options.seeds:
        model = train(options.steps, seed)
        results[f"seed {seed}"] = measure_ranks(model, tuple(options.methods), options.count, seed)
    write_results(results | {"load": os.getloadavg()[0]}, options.output)


if __name__ == "__main__":
    main()
