"""What a language model reads for the tokens of images, and the regions that these tokens are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import Batch
from expound.models.outputs import Capture
from expound.models.passes.capture import PassEnded, record_attention
from expound.models.probe import TOLERANCE, remember
from expound.models.regions import Mask

UNPLACED = "the tokens of an image have no places in it"


@contextmanager
def replace_decoder_input(decoder: nn.Module, embeddings: Tensor) -> Iterator[None]:
    """Let the language model read these embeddings [B, L, d], of texts and images, at its first call in the block.

    Raises:
        ExpoundError: the language model was not called with embeddings.
    """
    is_replaced = False

    def replace_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal is_replaced
        if is_replaced or kwargs.get("inputs_embeds") is None:
            return None
        is_replaced = True
        given = embeddings.to(kwargs["inputs_embeds"].dtype)
        # A model may multiply its embeddings in place, which autograd forbids for a leaf.
        given = given.clone() if given.requires_grad and embeddings.is_leaf else given
        return args, kwargs | {"inputs_embeds": given}

    with decoder.register_forward_pre_hook(replace_input, with_kwargs=True):
        yield
    if not is_replaced:
        raise ExpoundError("the language model was not called with the embeddings of images and texts")


def read_embeddings(model: Any, alone: Batch, *, mixes: bool = True) -> Tensor:
    """Return what the language model reads for a prompt with images: [1, L, d].

    Args:
        model: a vision-language model.
        alone: one example without padding.
        mixes: False takes attention's part out of the vision encoder, so that its patches do not see each other.

    Raises:
        ExpoundError: attention cannot be taken out, or the language model is not called with embeddings.
    """
    found: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("inputs_embeds") is not None:
            found.append(kwargs["inputs_embeds"])
        raise PassEnded

    with ExitStack() as scope:
        if not mixes:
            zeroed = torch.ones(1, 1, dtype=torch.bool, device=alone.device)
            scope.enter_context(record_attention(model.model, Capture(), zeroed))
        decoder = model.model.get_decoder()
        scope.enter_context(decoder.register_forward_pre_hook(keep, with_kwargs=True))
        scope.enter_context(suppress(PassEnded))
        model.model(**model._forward_arguments(alone, Capture()))
    if not found:
        raise ExpoundError("the language model was not called with the embeddings of images and texts")
    return found[0]


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
