"""Highlighted texts as a picture, for slides and papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category

from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from expound.reports.highlighted import colors
from expound.reports.highlighted.colors import LIGHT
from expound.reports.highlighted.highlight import HighlightedExplanation, format_number, highlight_explanation
from expound.reports.highlighted.pieces import Piece

if TYPE_CHECKING:
    from expound.reports.explanations import Explanation

WIDTH, MARGIN, LINE, CELL = 1200, 40, 40, 22
SIZE, SMALL = 22, 17
HIGHEST = 16_000
"""Pixels at which a picture is cut off, since a million words would need gigabytes."""


class Box(NamedTuple):
    """A stretch of text or a patch: its place, its text, its background color."""

    x: float
    y: float
    width: float
    height: float
    text: str
    ground: str | None


def draw_picture(items: Sequence[Explanation]) -> Image.Image:
    """Draw the explanations one below the other, each under its method and target; at most HIGHEST pixels high."""
    parts, top = [], float(MARGIN)
    # The height is known only after the layout, so boxes are computed before the image is made.
    for item in items:
        boxes, bottom = _lay_out_boxes(item, top + LINE)
        parts.append((item, top, boxes))
        top = bottom + LINE
    image = Image.new("RGB", (WIDTH, min(int(top) + MARGIN // 2, HIGHEST)), LIGHT.surface)
    canvas = ImageDraw.Draw(image)
    for item, start, boxes in parts:
        title = f"{item.method} explains {item.target.text} ({format_number(item.target.mean_probability)})"
        canvas.text((MARGIN, start), _make_drawable(title), font=_load_font(SMALL), fill=LIGHT.muted)
        for box in boxes:
            if box.ground is not None:
                corner = (box.x + box.width, box.y + box.height)
                canvas.rounded_rectangle(((box.x, box.y), corner), radius=3, fill=box.ground)
            canvas.text((box.x, box.y + 2), box.text, font=_load_font(SIZE), fill=LIGHT.text)
    return image


def _lay_out_boxes(item: Explanation, top: float) -> tuple[list[Box], float]:
    """Return the boxes of an explanation that begins at `top`, and the bottom of the last line."""
    drawing = highlight_explanation(item)
    if drawing.patches:
        return _lay_out_patches(drawing, top), top + CELL * len(drawing.patches)
    boxes, x, y = [], float(MARGIN), top
    for side in drawing.sides:
        for text, piece in _split_at_breaks(side):
            shown = _make_drawable(text)
            size = _load_font(SIZE).getlength(shown)
            if text == "\n" or (x + size > WIDTH - MARGIN and x > MARGIN):
                x, y = float(MARGIN), y + LINE
            if text.strip() or x > MARGIN:
                boxes.append(Box(x, y, size, LINE - 8, shown, _background(piece, signed=item.signed)))
                if text != "\n":
                    x += size
        x, y = float(MARGIN), y + LINE
    return boxes, y


def _lay_out_patches(drawing: HighlightedExplanation, top: float) -> list[Box]:
    boxes = []
    for y, row in enumerate(drawing.patches):
        for x, piece in enumerate(row):
            ground = _background(piece, signed=drawing.item.signed)
            boxes.append(Box(MARGIN + CELL * x, top + CELL * y, CELL - 1, CELL - 1, "", ground))
    return boxes


def _make_drawable(text: str) -> str:
    """Return the text on one line: the layout of fonts fails at line ends and other control characters."""
    drawable = ""
    for character in text:
        if character.isspace():
            drawable += " "
        else:
            drawable += "\ufffd" if category(character) in ("Cc", "Cs") else character
    return drawable


def _split_at_breaks(side: Sequence[Piece]) -> Iterator[tuple[str, Piece]]:
    """Yield each word whole and text between words character by character, so that lines can break there."""
    for piece in side:
        if piece.score is not None:
            yield piece.text, piece
        else:
            yield from ((character, piece) for character in piece.text)


def _background(piece: Piece, *, signed: bool) -> str | None:
    return colors.level_to_color(LIGHT, piece.level, signed=signed)


@cache
def _load_font(size: int) -> ImageFont.FreeTypeFont:
    # matplotlib ships this font, so the picture looks alike on machines without fonts.
    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)
