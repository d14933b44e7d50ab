"""Validation of names that come with a request."""

from __future__ import annotations

from collections.abc import Sequence

from exegete.errors import unknown


def validate_choice(field: str, value: str, valid: Sequence[str]) -> str:
    """Return the value, or the first valid one if it is empty. Raises ExegeteError for any other value."""
    if not value:
        return valid[0]
    if value not in valid:
        raise unknown(field, value, valid)
    return value
