"""What a language model reads for the tokens of images, and the regions that these tokens are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import Batch, Capture
from expound.models.hugging_face import TOLERANCE, remember
from expound.models.passes.capture import PassEnded, record_attention
from expound.models.regions import Mask

UNPLACED = "the tokens of an image have no places in it"


@contextmanager
def keep_position_offsets(model: nn.Module) -> Iterator[None]:
    """Restore after the block the offsets of positions after images, which Qwen VL keeps for the user's generation."""
    before = [(module, module.rope_deltas) for module in model.modules() if "rope_deltas" in vars(module)]
    try:
        yield
    finally:
        for module, offsets in before:
            module.rope_deltas = offsets


@contextmanager
def replace_decoder_input(decoder: nn.Module, is_image: Tensor, embeddings: Tensor) -> Iterator[None]:
    """Let the language model read these embeddings [B, L, d], of texts and images, at its first call in the block.

    Args:
        decoder: the language model.
        is_image: [B, L] the tokens of images.
        embeddings: as `read_embeddings` returns them.

    Raises:
        ExpoundError: the language model was not called with embeddings.
    """
    is_replaced = False

    def replace_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal is_replaced
        own = kwargs.get("inputs_embeds")
        if is_replaced or own is None:
            return None
        is_replaced = True
        first, *later = embeddings.to(own.dtype).split(own.shape[-1], -1)
        # A model may multiply its embeddings in place, which autograd forbids for a leaf.
        given = kwargs | {"inputs_embeds": first.clone() if first.requires_grad else first}
        for name in find_later_features(kwargs, is_image):
            given[name] = [later.pop(0)[is_image] for _ in kwargs[name]]
        return args, given

    with decoder.register_forward_pre_hook(replace_input, with_kwargs=True):
        yield
    if not is_replaced:
        raise ExpoundError("the language model was not called with the embeddings of images and texts")


def find_later_features(kwargs: Mapping[str, Any], is_image: Tensor) -> list[str]:
    """Return the arguments of a language model that are lists of features [N, d] for the N tokens of images.

    Its later layers read them, as those of Qwen 3 VL do.
    """
    size = (int(is_image.sum()), kwargs["inputs_embeds"].shape[-1])
    found = []
    for name, value in kwargs.items():
        if isinstance(value, list | tuple) and value and all(getattr(each, "shape", ()) == size for each in value):
            found.append(name)
    return found


def read_embeddings(model: Any, alone: Batch, *, mixes: bool = True) -> Tensor:
    """Return what the language model reads for a prompt with images: [1, L, d], or [1, L, (1 + K) d].

    Where K later layers read features of images, too, these follow the input embeddings; they are zero for texts.

    Args:
        model: a vision-language model.
        alone: one example without padding.
        mixes: False takes attention's part out of the vision encoder, so that its patches do not see each other.

    Raises:
        ExpoundError: attention cannot be taken out, or the language model is not called with embeddings.
    """
    found: list[Tensor] = []
    is_image = alone.inputs["input_ids"] == model.image_token_id

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = kwargs.get("inputs_embeds")
        if first is not None:
            found.append(first)
            for name in find_later_features(kwargs, is_image):
                found.extend(first.new_zeros(first.shape).index_put((is_image,), part) for part in kwargs[name])
        raise PassEnded

    with ExitStack() as scope:
        scope.enter_context(keep_position_offsets(model.model))
        if not mixes:
            zeroed = torch.ones(1, 1, dtype=torch.bool, device=alone.device)
            scope.enter_context(record_attention(model.model, Capture(), zeroed))
        decoder = model.model.get_decoder()
        scope.enter_context(decoder.register_forward_pre_hook(keep, with_kwargs=True))
        scope.enter_context(suppress(PassEnded))
        model.model(**model._forward_arguments(alone, Capture()))
    if not found:
        raise ExpoundError("the language model was not called with the embeddings of images and texts")
    return torch.cat(found, -1)


@torch.no_grad()
def measure_shares(model: Any, alone: Batch) -> Tensor:
    """Return the share of each position in each region of the images: [L, regions], and at most 1 per position.

    A region is white in a black image, and attention is taken out of the vision encoder: tokens whose embedding changes
    are made of the region's pixels. A token of several regions is shared by how far each changes it. The pixels outside
    of all regions are one more region, whose share is left out.

    Raises:
        ExpoundError: image tokens that have no places in the image, as those of a resampler.
    """
    assert alone.images is not None
    assert alone.regions is not None
    assert alone.region_of is not None
    regions, images = alone.regions[0], alone.images[0]
    is_image = alone.region_of[0] >= 0
    reason = remember(model, "places of image tokens", lambda: _check_places(model, alone, is_image))
    if reason:
        raise ExpoundError(reason)
    masks = [(region.image, region.mask) for region in regions]
    for number, image in enumerate(images):
        rest = np.ones((image.height, image.width), bool)
        for region in regions:
            if region.image == number:
                rest &= ~region.mask
        masks.append((number, rest))
    changes = _measure_changes(model, alone, masks)
    shares = changes / changes.sum(1, keepdim=True).clamp(min=torch.finfo(changes.dtype).tiny)
    return shares[:, : len(regions)] * is_image[:, None]


def _measure_changes(model: Any, alone: Batch, masks: Sequence[tuple[int, Mask]]) -> Tensor:
    """Return how far each position's embedding moves if pixels of an image, (number, mask), are white: [L, masks]."""
    assert alone.images is not None
    black = tuple(Image.new("RGB", image.size) for image in alone.images[0])
    before = read_embeddings(model, replace(alone, images=(black,)), mixes=False)[0]
    changes = []
    for number, mask in masks:
        pictures = list(black)
        pictures[number] = Image.fromarray(np.repeat(mask[..., None] * np.uint8(255), 3, axis=2))
        after = read_embeddings(model, replace(alone, images=(tuple(pictures),)), mixes=False)[0]
        changes.append((after - before).norm(dim=-1))
    found = torch.stack(changes, 1)
    return found * (found > TOLERANCE[model.dtype.itemsize] * found.max())


def _check_places(model: Any, alone: Batch, is_image: Tensor) -> str:
    """Check that halves of images change some of the tokens, and leave some as they are."""
    assert alone.images is not None
    halves = list[tuple[int, Mask]]()
    for number, image in enumerate(alone.images[0]):
        top, left = np.zeros((image.height, image.width), bool), np.zeros((image.height, image.width), bool)
        top[: image.height // 2], left[:, : image.width // 2] = True, True
        halves += [(number, top), (number, left)]
    try:
        changed = _measure_changes(model, alone, halves)[is_image] > 0
    except ExpoundError as error:
        return f"{UNPLACED}: {error}"
    if changed.any(0).all() and not changed.all(0).any():
        return ""
    return f"{UNPLACED}: its vision encoder mixes all patches, also without attention"
