"""Images of a prompt with their regions: plain values of an explanation's metadata, and their drawing."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from expound.errors import ExpoundError

if TYPE_CHECKING:
    from PIL.Image import Image

    from expound.reports.explanations import Explanation
    from expound.reports.records import Extent

SHOWN = 224
"""Pixels of an image's longer side on a page."""
FINEST = 96
"""Steps along the longer side at which the border of a region that is no rectangle is followed."""
Rectangle = tuple[int, int, int, int]


class DrawnRegion(NamedTuple):
    """A region with its name, its unit's number, score and level, and the rectangles (x, y, width, height) in it."""

    name: str
    unit: int
    score: float
    level: int
    rectangles: list[Rectangle]

    @property
    def path(self) -> str:
        """The region as the data of an SVG path."""
        return "".join(f"M{x} {y}h{width}v{height}h{-width}z" for x, y, width, height in self.rectangles)


class DrawnImage(NamedTuple):
    """An image as a data URL with its size in pixels, its name, and its regions that have scores."""

    url: str
    width: int
    height: int
    name: str
    regions: list[DrawnRegion]


def encode_data_url(image: Any) -> str:
    """Return a data URL with the image as a PNG, scaled down to SHOWN pixels."""
    shown = image.convert("RGB")
    shown.thumbnail((SHOWN, SHOWN))
    shown.save(buffer := BytesIO(), format="PNG")
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"


def decode_data_url(url: str) -> Image:
    """Return the image of a data URL."""
    from PIL import Image

    return Image.open(BytesIO(b64decode(url.partition(",")[2])))


def describe_image(image: Image, segment: int, extents: Sequence[Extent], masks: Sequence[NDArray[Any]]) -> Any:
    """Return an image as JSON values: the number of its text, and its regions' characters there and rectangles."""
    regions = [[*extent, trace_mask(mask)] for extent, mask in zip(extents, masks, strict=True)]
    size = {"width": image.width, "height": image.height}
    return {"segment": segment, "url": encode_data_url(image), **size, "regions": regions}


def trace_mask(mask: NDArray[Any]) -> list[Rectangle]:
    """Return rectangles that cover a mask [height, width]: one if it is one, else as fine as FINEST."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return []
    top, left, bottom, right = int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1
    if mask[top:bottom, left:right].all():
        return [(left, top, right - left, bottom - top)]
    step = max(1, -(-max(mask.shape) // FINEST))
    found = list[Rectangle]()
    # Runs of one row that equal those of the row before make them longer.
    open_runs = dict[tuple[int, int], int]()
    height, width = mask.shape
    for y in range(0, height + step, step):
        line = np.zeros(-(-width // step) + 2, bool)
        if y < height:
            line[1:-1] = mask[y, ::step]
        edges = (np.flatnonzero(np.diff(line)) * step).tolist()
        runs = {(start, min(end, width)) for start, end in zip(edges[::2], edges[1::2], strict=True)}
        for run in [run for run in open_runs if run not in runs]:
            first = open_runs.pop(run)
            found.append((run[0], first, run[1] - run[0], min(y, height) - first))
        for run in runs:
            open_runs.setdefault(run, y)
    return found


def place_regions(item: Explanation, levels: Sequence[int]) -> list[DrawnImage]:
    """Return the images of a prompt with the levels of their regions' units, summed over all targets.

    Raises:
        ExpoundError: a stored image that is an address: a report loads nothing.
    """
    images, scores = list[DrawnImage](), item.scores.sum(0).tolist()
    for image in item.metadata.get("images", ()):
        if not image["url"].startswith("data:image/"):
            raise ExpoundError(f"an image is a data URL, and nothing is loaded from {image['url']!r:.80}")
        regions = list[DrawnRegion]()
        for start, end, rectangles in image["regions"]:
            for number, unit in enumerate(item.units):
                if unit.segment == image["segment"] and unit.start <= start < unit.end:
                    name = item.texts[unit.segment][start:end]
                    traced = [tuple(rectangle) for rectangle in rectangles]
                    regions.append(DrawnRegion(name, number, scores[number], levels[number], traced))
                    break
        name = item.exchange.names[image["segment"]] if item.exchange else "image"
        images.append(DrawnImage(image["url"], image["width"], image["height"], name, regions))
    return images
