"""Colours of scores, safe for the colour-blind: blue for the target, orange against it, violet without sign."""

from __future__ import annotations

import math
from typing import NamedTuple

LEVELS = 8
"""Shades on each side of zero; a score is drawn in the nearest one."""


class Theme(NamedTuple):
    """The colours of one theme as #rrggbb; `positive`, `negative` and `unsigned` run from weak to strong, [LEVELS]."""

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
    """The colour that lies `share` of the way from one to the other, as #rrggbb."""
    pairs = zip(_parse_channels(start), _parse_channels(end), strict=True)
    return "#" + "".join(f"{round(one + (other - one) * share):02x}" for one, other in pairs)


def score_to_level(score: float, scale: float) -> int:
    """The shade of a score, -LEVELS to LEVELS, when `scale` is the strongest; 0 where either is not a finite number."""
    if not (math.isfinite(score) and math.isfinite(scale)) or scale <= 0:
        return 0
    return round(max(-1.0, min(1.0, score / scale)) * LEVELS)


def level_to_color(theme: Theme, step: int, *, signed: bool) -> str | None:
    """The ground of a level; None for level 0, and without sign for what is below it, which stay as they are."""
    if step == 0 or (step < 0 and not signed):
        return None
    side = theme.negative if step < 0 else theme.positive if signed else theme.unsigned
    return side[abs(step) - 1]


def level_to_css_class(step: int, *, signed: bool) -> str:
    """The CSS class of a level: p1.. for, n1.. against, u1.. unsigned; empty where there is no ground."""
    if step == 0 or (step < 0 and not signed):
        return ""
    return f"{'n' if step < 0 else 'p' if signed else 'u'}{abs(step)}"


def _parse_channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _make_ramp(start: str, end: str) -> tuple[str, ...]:
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
