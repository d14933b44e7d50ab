"""Colors of scores, safe for the color-blind: blue for the target, orange against it, violet for unsigned ones."""

from __future__ import annotations

import math
from typing import NamedTuple

LEVELS = 8
"""Number of shades on each side of zero."""


class Theme(NamedTuple):
    """The colors of one theme as #rrggbb; `positive`, `negative` and `unsigned` run from weak to strong, [LEVELS]."""

    background: str
    surface: str
    text: str
    muted: str
    line: str
    accent: str
    gold: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    unsigned: tuple[str, ...]
    series: tuple[str, ...]


def blend_colors(start: str, end: str, share: float) -> str:
    """Return the color at `share` (0 to 1) of the way from `start` to `end`, as #rrggbb."""
    channels = zip(bytes.fromhex(start[1:]), bytes.fromhex(end[1:]), strict=True)
    return "#" + "".join(f"{round(first + (last - first) * share):02x}" for first, last in channels)


def score_to_level(score: float, scale: float) -> int:
    """Return the level of a score, from -LEVELS to LEVELS, which ±`scale` have; 0 if either is not finite."""
    if not (math.isfinite(score) and math.isfinite(scale)) or scale <= 0:
        return 0
    return round(max(-1.0, min(1.0, score / scale)) * LEVELS)


def level_to_color(theme: Theme, step: int, *, signed: bool) -> str | None:
    """Return the background color of a level; None for level 0 and for negative levels of unsigned scores."""
    ramps = {"p": theme.positive, "n": theme.negative, "u": theme.unsigned}
    name = level_to_css_class(step, signed=signed)
    return ramps[name[0]][abs(step) - 1] if name else None


def level_to_css_class(step: int, *, signed: bool) -> str:
    """Return the CSS class of a level: p1… for, n1… against, u1… unsigned; empty without a background."""
    if step == 0 or (step < 0 and not signed):
        return ""
    if step < 0:
        return f"n{-step}"
    return f"p{step}" if signed else f"u{step}"


def _make_ramp(start: str, end: str) -> tuple[str, ...]:
    # The weakest shade has a tenth of the color: less cannot be told from the background.
    return tuple(blend_colors(start, end, 0.1 + 0.9 * (step - 1) / (LEVELS - 1)) for step in range(1, LEVELS + 1))


LIGHT = Theme(
    background="#f6f7f9",
    surface="#ffffff",
    text="#16181d",
    muted="#545b66",
    line="#d5d9e0",
    accent="#0b57b0",
    gold="#16181d",
    positive=_make_ramp("#ffffff", "#4c9bf0"),
    negative=_make_ramp("#ffffff", "#f08a24"),
    unsigned=_make_ramp("#ffffff", "#b184e8"),
    series=("#0072b2", "#d55e00", "#007a5a", "#a8447f", "#5c4ab8", "#8a6500", "#2f7f98", "#5e6470"),
)
DARK = Theme(
    background="#101216",
    surface="#191c22",
    text="#f1f3f6",
    muted="#a7afbb",
    line="#363c47",
    accent="#7ab8ff",
    gold="#f1f3f6",
    positive=_make_ramp("#191c22", "#1d62bd"),
    negative=_make_ramp("#191c22", "#a34c00"),
    unsigned=_make_ramp("#191c22", "#7440b8"),
    series=("#56b4e9", "#f08c42", "#2fc08d", "#e08cc0", "#a79bf0", "#e0b93c", "#7fc8dc", "#b5bcc8"),
)
THEMES = {"light": LIGHT, "dark": DARK}
