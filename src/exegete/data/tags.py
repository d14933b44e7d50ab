"""Tags of words: a kind, and before it how a stretch begins or goes on (IOB1, IOB2, BIOES, BILOU)."""

from __future__ import annotations

OUTSIDE, PREFIXES = "O", "BIESLUM"


def split_tag(tag: str) -> tuple[str, str]:
    """The prefix, empty if there is none, and the kind."""
    prefix, dash, kind = tag.partition("-")
    return (prefix, kind) if dash and kind and prefix in tuple(PREFIXES) else ("", tag)
