"""A check that the name in a request is one of the valid ones."""

from __future__ import annotations

from collections.abc import Sequence

from exegete.errors import unknown


def validate_choice(what: str, given: str, valid: Sequence[str]) -> str:
    """The given name, or the first of the valid ones where none is given. Raises ExegeteError for another name."""
    if not given:
        return valid[0]
    if given not in valid:
        raise unknown(what, given, valid)
    return given
