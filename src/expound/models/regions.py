"""Regions of an image, and images in which some of them are filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from expound.errors import ExpoundError

Mask = NDArray[np.bool_]
BLUR = 0.125
"""The radius of the blur, as a share of the longer side."""
SUPERPIXELS, MOST_SUPERPIXELS, MOST_DIGITS = 20, 1000, 6
"""Superpixels by default and at most, and the digits of a number that is read."""
MOST_LINES = 50
"""Most rows and columns of a grid: each region has a mask of the image's size."""


class Region(NamedTuple):
    """A region of image number `image` of a prompt, its pixels [height, width], and what replaces them."""

    image: int
    mask: Mask
    fill: str


def cut_regions(image: Image.Image, regions: Any) -> dict[str, Mask]:
    """Return the masks of an image's regions by name: `r1c2` of a grid (rows, columns), `whole`, `region1`, ….

    `superpixels:N` are about N regions of even color (SLIC, Achanta et al. 2012), 20 without a number.

    Raises:
        ExpoundError: no regions, an empty one, or one of another size than the image.
    """
    width, height = image.size
    if isinstance(regions, str) and regions == "whole":
        return {"whole": np.ones((height, width), bool)}
    if isinstance(regions, str) and regions.partition(":")[0] == "superpixels":
        return _cut_superpixels(image, regions.partition(":")[2])
    if isinstance(regions, tuple | list) and len(regions) == 2 and all(isinstance(size, int) for size in regions):
        rows, columns = regions
        if not (1 <= rows <= min(MOST_LINES, height) and 1 <= columns <= min(MOST_LINES, width)):
            raise ExpoundError(
                f"a grid of an image of {width} × {height} pixels has at least a pixel per region, and at most "
                f"{MOST_LINES} rows and columns, got {rows} × {columns}"
            )
        masks = {}
        tops, lefts = np.linspace(0, height, rows + 1).astype(int), np.linspace(0, width, columns + 1).astype(int)
        for row, column in product(range(rows), range(columns)):
            mask = np.zeros((height, width), bool)
            mask[tops[row] : tops[row + 1], lefts[column] : lefts[column + 1]] = True
            masks[f"r{row + 1}c{column + 1}"] = mask
        return masks
    if isinstance(regions, str) or not isinstance(regions, Sequence) or not len(regions):
        raise ExpoundError(
            "image_regions: a grid (rows, columns), 'whole', 'superpixels', 'superpixels:N', or boxes or masks, not "
            f"{regions!r:.60}"
        )
    return {f"region{number}": _read_mask(region, width, height) for number, region in enumerate(regions, 1)}


def _cut_superpixels(image: Image.Image, number: str) -> dict[str, Mask]:
    count = int(number) if number.isdecimal() and len(number) < MOST_DIGITS else 0 if number else SUPERPIXELS
    if not 1 <= count <= MOST_SUPERPIXELS:
        raise ExpoundError(
            f"image_regions: superpixels are 1 to {MOST_SUPERPIXELS}, as 'superpixels:30', not {number!r:.20}"
        )
    try:
        slic = import_module("skimage.segmentation").slic
    except ImportError as error:
        raise ExpoundError("superpixels need the extra superpixels: pip install 'expound[superpixels]'") from error
    labels = slic(np.asarray(image), n_segments=count, start_label=0, channel_axis=-1)
    return {f"region{label + 1}": labels == label for label in range(int(labels.max()) + 1)}


def _read_mask(region: Any, width: int, height: int) -> Mask:
    values = np.asarray(region)
    if values.shape == (4,):
        left, top, right, bottom = values.tolist()
        mask = np.zeros((height, width), bool)
        mask[max(0, int(top)) : int(bottom), max(0, int(left)) : int(right)] = True
    else:
        mask = values.astype(bool)
    if mask.shape != (height, width) or not mask.any():
        raise ExpoundError(f"a region is a box with pixels of the image, or a mask of shape [{height}, {width}]")
    return mask


def fill_regions(image: Image.Image, number: int, regions: Sequence[Region]) -> Image.Image:
    """Return image number `number` of a prompt with these of its regions filled."""
    pixels = np.array(image)
    for region in regions:
        if region.image == number:
            pixels[region.mask] = FILLS[region.fill](image)[region.mask]
    return Image.fromarray(pixels)


def _fill_evenly(image: Image.Image, color: Any) -> NDArray[np.uint8]:
    return np.broadcast_to(np.asarray(color, np.uint8), np.asarray(image).shape)


FILLS: dict[str, Callable[[Image.Image], NDArray[np.uint8]]] = {
    "grey": lambda image: _fill_evenly(image, (128, 128, 128)),
    "mean": lambda image: _fill_evenly(image, np.asarray(image).reshape(-1, 3).mean(0).round()),
    "blur": lambda image: np.asarray(image.filter(ImageFilter.GaussianBlur(BLUR * max(image.size)))),
}
"""What replaces the pixels of a region: a grey, the image's mean color, or the blurred image."""
