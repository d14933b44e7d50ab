"""Tags of words: a prefix for the position in a span (IOB1, IOB2, BIOES, BILOU) and the kind of the span."""

from __future__ import annotations

OUTSIDE, PREFIXES = "O", "BIESLUM"


def split_tag(tag: str) -> tuple[str, str]:
    """Return a tag's prefix, which can be empty, and its kind."""
    prefix, dash, kind = tag.partition("-")
    if dash and kind and prefix in tuple(PREFIXES):
        return prefix, kind
    return "", tag
