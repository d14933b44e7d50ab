"""Vision-language models: images in the messages of a prompt, explained by regions that are filled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from expound.data.alignment import Alignment, split_words
from expound.errors import ExpoundError, check_choice
from expound.models.batch import Batch, Capture, Outputs, require_response
from expound.models.encoding.template import Template
from expound.models.generation.examples import encode_rows
from expound.models.generation.image_tokens import (
    keep_position_offsets,
    measure_shares,
    read_embeddings,
    replace_decoder_input,
)
from expound.models.generation.model import GeneratingModel
from expound.models.generation.prompt import PLACEHOLDER, Prompt, number_duplicates
from expound.models.hugging_face import Baselines
from expound.models.regions import FILLS, Region, cut_regions, fill_regions
from expound.models.state import with_lock
from expound.reports.records import Exchange

GRID = (3, 3)
"""Rows and columns of the regions of an image by default."""
CHANGED = "the chat template changes the messages, or leaves out an image: it is not explained"
TYPE_IDS = ("mm_token_type_ids", "token_type_ids")
"""Names of inputs that tell image tokens from text."""


class VisionLanguageModel(GeneratingModel):
    """A model of images and text whose response to a prompt with images is explained.

    An image is a visible text of the prompt, whose words are its regions: `r1c2` is row 1, column 2. Where a region is
    removed, its pixels are filled before the processor reads the image, and all image tokens stay. Each input is run
    alone, with the positions that the model itself counts.

    Args:
        model: a model of transformers' `AutoModelForImageTextToText`.
        processor: its processor, with a tokenizer, an image processor and a chat template.
        max_length: the most tokens of prompt and response together.
    """

    def __init__(self, model: PreTrainedModel, processor: Any, max_length: int | None = None) -> None:
        super().__init__(model, processor.tokenizer, max_length)
        self.processor = processor

    @property
    def image_token_id(self) -> int:
        """The token that is repeated in the place of an image."""
        for name in ("image_token_id", "image_token_index"):
            if isinstance(getattr(self.config, name, None), int):
                return int(getattr(self.config, name))
        raise ExpoundError(f"model type {self.config.model_type!r} has no image token: its images are not explained")

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of tokens that never carry attribution; those of images do."""
        return super().special_ids - {self.image_token_id}

    def parse_prompt(self, row: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a row; each image is a visible text, of the tokens that the model reads for it."""
        return parse_image_prompt(row, self.processor) if read_images(row) else super().parse_prompt(row)

    def make_generator(self, row: Mapping[str, Any], prompt_ids: Sequence[int]) -> Any:
        """Return an object that generates a response to the row's prompt, with its images."""
        images = read_images(row)
        if not images:
            return self.generator
        given = self.process_images(torch.tensor([list(prompt_ids)], device=self.device), images)

        def generate(**arguments: Any) -> Any:
            with keep_position_offsets(self.model):
                return self.model.generate(**given, **arguments)

        return SimpleNamespace(
            generate=generate, device=self.device, config=self.config, generation_config=self.model.generation_config
        )

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Encode chats with images as one batch, see `GeneratingModel.encode`.

        A message's content is a list of parts, `{"type": "text", "text": …}` and `{"type": "image", "image": …}`, a
        picture of PIL or the path of one. A row's `image_regions` are the rows and columns of a grid (default: 3, 3),
        "whole", or a list of boxes (left, top, right, bottom) in pixels or of boolean masks; its `image_fill` is
        `grey`, `mean` or `blur`.

        Raises:
            ExpoundError: also an image that cannot be read, or more regions than an image has tokens.
        """
        rows = self.respond(examples)
        batch, images = encode_rows(self, rows, device), [read_images(row) for row in rows]
        if not any(images):
            return batch
        if (batch.inputs["input_ids"] == self.image_token_id)[require_response(batch)].any():
            raise ExpoundError(
                f"a response contains {self.processor.image_token}, which stands for an image: give another"
            )
        inputs = {name: value for name, value in batch.inputs.items() if name != "position_ids"}
        batch = replace(batch, inputs=inputs, images=tuple(map(tuple, images)))
        return self._add_regions(batch, rows)

    def add_position_ids(self, batch: Batch) -> Batch:
        """Return a batch with images as it is: models count the positions of images in ways of their own."""
        return batch if batch.images is not None else super().add_position_ids(batch)

    def run_pass(self, batch: Batch, embeddings: Tensor | None, capture: Capture) -> Outputs:
        """Run a pass for each row with images, without padding.

        Raises:
            ExpoundError: something else than answers is asked for, of several rows.
        """
        if batch.images is None:
            return super().run_pass(batch, embeddings, capture)
        if len(batch) == 1 and batch.attended.all():
            with keep_position_offsets(self.model):
                return super().run_pass(batch, embeddings, capture)
        if replace(capture, differentiable_twice=False) != Capture():
            raise ExpoundError("what happens inside layers is explained for one prompt with images: batch_size=1")
        logits = []
        for row in range(len(batch)):
            alone, columns = batch.select([row]).trim_padding()
            given = None if embeddings is None else embeddings[row : row + 1, columns]
            logits.append(self.run_pass(alone, given, capture).logits[0])
        return Outputs(pad_sequence(logits, batch_first=True), embeddings)

    @with_lock
    def embed(self, batch: Batch) -> Tensor:
        """Return what the language model reads [B, L, d]: for image tokens, what the vision encoder made of them."""
        if batch.images is None:
            return super().embed(batch)
        rows = []
        for row in range(len(batch)):
            alone, columns = batch.select([row]).trim_padding()
            read = read_embeddings(self, alone)[0]
            rows.append(nn.functional.pad(read, (0, 0, columns.start, batch.length - columns.stop)))
        return torch.stack(rows)

    def embed_reference(self, batch: Batch, kind: Baselines = "mask") -> Tensor:
        """Return embeddings [B, L, d] of an uninformative prompt; `mask` and `pad` also fill all regions of its images.

        Raises:
            ExpoundError: token ids for a prompt with images.
        """
        if batch.images is None or kind == "zero":
            return super().embed_reference(batch, kind)
        if not isinstance(kind, str):
            raise ExpoundError("prompts with images take the baselines mask, pad and zero, not token ids")
        assert batch.regions is not None
        assert batch.region_of is not None
        filled = []
        for images, regions in zip(batch.images, batch.regions, strict=True):
            filled.append(tuple(fill_regions(image, number, regions) for number, image in enumerate(images)))
        blank = self.embed(replace(batch, images=tuple(filled)))
        word = self.embedding(torch.tensor(self.mask_id if kind == "mask" else self.pad_id, device=batch.device))
        is_text = batch.content & (batch.region_of < 0)
        return torch.where(is_text[..., None], nn.functional.pad(word, (0, blank.shape[-1] - len(word))), blank)

    def replace_embeddings(self, batch: Batch, embeddings: Tensor) -> AbstractContextManager[None]:
        """Return a context in which the language model reads these embeddings [B, L, d]."""
        if batch.images is None:
            return super().replace_embeddings(batch, embeddings)
        is_image = batch.inputs["input_ids"] == self.image_token_id
        return replace_decoder_input(self.model.get_decoder(), is_image, embeddings)

    def get_attending_part(self, batch: Batch) -> PreTrainedModel:
        """Return the language model for prompts with images: attention of the vision encoder is among patches."""
        decoder: PreTrainedModel = self.model if batch.images is None else self.model.get_decoder()
        return decoder

    def sum_by_region(self, batch: Batch, scores: Tensor) -> Tensor:
        """Return scores [..., B, L] whose image tokens share the sum of their region's, see `measure_shares`."""
        if batch.region_of is None:
            return scores
        summed = scores.clone()
        for row in range(len(batch)):
            alone, columns = batch.select([row]).trim_padding()
            assert alone.region_of is not None
            assert alone.regions is not None
            shares = measure_shares(self, alone).to(scores.dtype)
            own, count = alone.region_of[0], len(alone.regions[0])
            is_image, sizes = own >= 0, torch.bincount(own[own >= 0], minlength=count)
            by_region = scores[..., row, columns] @ shares / sizes
            summed[..., row, columns] = torch.where(
                is_image, by_region[..., own.clamp(min=0)], summed[..., row, columns]
            )
        return summed

    def process_images(self, ids: Tensor, images: Sequence[Image.Image], response: int = 0) -> dict[str, Any]:
        """Return the inputs of the model's forward for the images in a row of token ids [1, L].

        Tokens of images and of texts have the types that the processor gives them. The last `response` tokens have the
        type that the model gives to what it generates: PaliGemma masks what is later only for those.
        """
        # The text has a token that is not of an image, whose type is that of texts.
        text = self.processor.image_token * len(images) + "."
        made = self.processor(images=[list(images)], text=[text], return_tensors="pt", add_special_tokens=False)
        is_image, end = made["input_ids"] == self.image_token_id, ids.shape[1] - response
        given: dict[str, Any] = {}
        for name, value in made.items():
            if name not in self.forward_parameters or name in ("input_ids", "attention_mask", "labels"):
                continue
            if name in TYPE_IDS:
                types = torch.where(ids == self.image_token_id, value[is_image][0], value[~is_image][-1])
                grown = self.generator._update_model_kwargs_for_generation(ModelOutput(), {name: types[:, :end]})
                types[:, end:] = grown[name][:, -1:]
                given[name] = types
            else:
                given[name] = value.to(self.device, self.dtype if value.is_floating_point() else None)
        return given

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        arguments = super()._forward_arguments(batch, capture)
        if batch.images is None or not batch.images[0]:
            return arguments
        response = int(require_response(batch).sum())
        return arguments | self.process_images(batch.inputs["input_ids"], batch.images[0], response)

    def _add_regions(self, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Return the batch with the regions of its images as units."""
        assert batch.images is not None
        content, word_of = batch.content.clone(), batch.word_of.clone()
        region_of, regions = torch.full_like(word_of, -1), list[tuple[Region, ...]]()
        alignments, exchanges = list[Alignment](), list[Exchange]()
        for row, (alignment, exchange) in enumerate(zip(batch.alignments or (), batch.exchanges or (), strict=True)):
            if alignment.truncated:
                raise ExpoundError(f"the prompt of example {row} is too long: images and their texts are not cut")
            fill = rows[row].get("image_fill", "grey")
            check_choice("image_fill", fill, FILLS)
            own, texts, names = list[Region](), list(alignment.texts), dict[int, list[str]]()
            sides = [side for side, kind in enumerate(exchange.kinds) if kind == "image"]
            region_row, start = region_of[row], batch.length - len(alignment.tokens)
            for number, (side, image) in enumerate(zip(sides, batch.images[row], strict=True)):
                masks = cut_regions(image, rows[row].get("image_regions", GRID))
                ids = batch.inputs["input_ids"][row, start:].tolist()
                tokens = [
                    place
                    for place, span in enumerate(alignment.spans)
                    if span is not None and span[0] == side and ids[place] == self.image_token_id
                ]
                if len(tokens) < len(masks):
                    raise ExpoundError(
                        f"image {number + 1} of example {row} has {len(tokens)} tokens for {len(masks)} regions: "
                        "choose fewer, by image_regions"
                    )
                for order, place in enumerate(tokens):
                    region_row[start + place] = len(own) + order * len(masks) // len(tokens)
                names[side] = list(masks)
                own += [Region(number, mask, fill) for mask in masks.values()]
                texts[side] = " ".join(masks)
            made = _name_regions(alignment, texts, names, region_row[start:].tolist())
            alignments.append(made)
            exchanges.append(_replace_images(exchange, texts))
            content[row, start:] &= torch.tensor([span is not None for span in made.spans], device=batch.device)
            word_of[row, start:] = torch.tensor(made.word_of, device=batch.device)
            regions.append(tuple(own))
        return replace(
            batch, content=content, word_of=word_of, region_of=region_of, regions=tuple(regions),
            alignments=tuple(alignments), exchanges=tuple(exchanges),
        )  # fmt: skip


def read_images(row: Mapping[str, Any]) -> list[Image.Image]:
    """Return the images in a row's messages, in their order.

    Raises:
        ExpoundError: a part that is neither a text nor an image, an image behind an address, or one that is not read.
    """
    images = []
    for message in row.get("messages") or ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind == "image":
                images.append(_open_image(part.get("image", part.get("path"))))
            elif kind != "text":
                raise ExpoundError(f"a part of a message is a text or an image (of PIL, or a path), not {part!r:.80}")
    return images


def _open_image(source: Any) -> Image.Image:
    if isinstance(source, Image.Image):
        return source.convert("RGB")
    if isinstance(source, str) and "://" in source:
        raise ExpoundError(f"an image is given as a picture or a path, and nothing is loaded from {source:.80}")
    if not isinstance(source, str | Path):
        raise ExpoundError(f"an image is a picture of PIL or a path, not {source!r:.80}")
    try:
        with Image.open(source) as picture:
            return picture.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ExpoundError(f"the image {source} cannot be read: {error}") from error


def parse_image_prompt(row: Mapping[str, Any], processor: Any) -> Prompt:
    """Return the prompt of messages with images, rendered by the processor's chat template.

    Without a chat template, the prompt is the user's message alone. What the processor itself writes into a prompt, as
    PaliGemma's does, is part of it. Visible are the images and the texts of the user's last message.

    Raises:
        ExpoundError: sources or tools; several messages without a chat template; one that changes texts or images.
    """
    for key in ("sources", "tools", "chat_template_kwargs"):
        if row.get(key):
            raise ExpoundError(f"prompts with images take no {key}: write them into the message")
    texts, marked, plain = _mark_texts(row["messages"], processor.image_token)
    images, is_raw = read_images(row), processor.chat_template is None
    render = partial(processor.apply_chat_template, tokenize=False, add_generation_prompt=True)
    if is_raw:
        render = partial(_join_parts, image_token=processor.image_token)
    mold = processor.prepare_inputs_layout(images=[images], text=[render(marked)])[1][0]
    if mold.count(processor.image_token) != len(images):
        raise ExpoundError(CHANGED)
    made = processor(
        images=[images], text=[render(plain)], return_text_replacement_offsets=True, add_special_tokens=is_raw
    )
    replacements = [found["replacement"] for found in made["text_replacement_offsets"][0]]
    pieces, visible, kinds, end = list[str](), list[str](), list[str](), 0
    for found in re.finditer(f"{PLACEHOLDER.pattern}|{re.escape(processor.image_token)}", mold):
        pieces.append(mold[end : found.start()])
        is_text = found[1] is not None
        visible.append(texts[int(found[1])] if is_text else replacements[kinds.count("image") % len(replacements)])
        kinds.append("user" if is_text else "image")
        end = found.end()
    template = Template((*pieces, mold[end:]), tuple(range(len(visible))))
    expanded = template.fill(tuple(visible))[0]
    is_same = list(processor.tokenizer(expanded, add_special_tokens=is_raw)["input_ids"]) == list(made["input_ids"][0])
    if not is_same or kinds.count("user") != len(texts):
        raise ExpoundError(CHANGED)
    names = number_duplicates(["image" if kind == "image" else "user" for kind in kinds])
    return Prompt(template, tuple(visible), names, tuple(kinds), special=is_raw)


def _mark_texts(messages: Sequence[Any], image_token: str) -> tuple[list[str], list[Any], list[Any]]:
    """Return the visible texts, the messages with placeholders for them, and the messages without images' pictures."""
    texts, marked, plain = list[str](), list[Any](), list[Any]()
    last = max((number for number, message in enumerate(messages) if message["role"] == "user"), default=0)
    for number, message in enumerate(messages):
        content, parts, originals = message["content"], list[Any](), list[Any]()
        for given in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            part = {"type": "image"} if given["type"] == "image" else given
            text = part.get("text") or ""
            if image_token in text or PLACEHOLDER.search(text):
                raise ExpoundError(f"a text contains {image_token}, which stands for an image: leave it out")
            originals.append(part)
            if number == last and text.strip():
                texts.append(text.strip())
                part = part | {"text": text.replace(texts[-1], f"\ue000{len(texts) - 1}\ue001")}
            parts.append(part)
        for rendered, own in ((marked, parts), (plain, originals)):
            rendered.append({"role": message["role"], "content": own if isinstance(content, list) else own[0]["text"]})
    return texts, marked, plain


def _join_parts(messages: Sequence[Mapping[str, Any]], image_token: str) -> str:
    """Return the parts of the user's only message, one after another."""
    if len(messages) > 1 or messages[0]["role"] != "user":
        raise ExpoundError("its processor has no chat template: a prompt with images is one message of the user")
    return "".join(part.get("text", image_token) for part in messages[0]["content"])


def _name_regions(
    alignment: Alignment, texts: Sequence[str], names: Mapping[int, Sequence[str]], region_of: Sequence[int]
) -> Alignment:
    """Return the alignment with the names of regions as the words of images; `region_of`: [L], or −1."""
    words = [word for side, text in enumerate(texts) for word in split_words(text, side)]
    index = {(word.segment, word.start, word.end): number for number, word in enumerate(words)}
    of_regions = [word for word in words if word.segment in names]
    spans, word_of = list(alignment.spans), list(alignment.word_of)
    for place, span in enumerate(spans):
        if span is None:
            continue
        if span[0] not in names:
            old = alignment.word_of[place]
            if old >= 0:
                own = alignment.words[old]
                word_of[place] = index[own.segment, own.start, own.end]
            continue
        word_of[place], spans[place] = -1, None
        if region_of[place] >= 0:
            word = of_regions[region_of[place]]
            extent = word.segment, word.start, word.end
            spans[place], word_of[place] = extent, index[extent]
    return replace(alignment, texts=tuple(texts), words=tuple(words), spans=tuple(spans), word_of=tuple(word_of))


def _replace_images(exchange: Exchange, texts: Sequence[str]) -> Exchange:
    """Return the exchange whose prompt has these texts in the places of its visible texts."""
    prompt, places, end = "", list[tuple[int, int]](), 0
    for (start, stop), text in zip(exchange.places, texts, strict=True):
        prompt += exchange.prompt[end:start]
        places.append((len(prompt), len(prompt) + len(text)))
        prompt, end = prompt + text, stop
    return replace(exchange, prompt=prompt + exchange.prompt[end:], places=tuple(places))
