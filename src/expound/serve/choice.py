"""Validation of names that come with a request."""

from __future__ import annotations

from collections.abc import Sequence

from expound.errors import check_choice


def validate_choice(field: str, value: str, valid: Sequence[str]) -> str:
    """Return the value, or the first valid one if it is empty. Raises ExpoundError for any other value."""
    if not value:
        return valid[0]
    check_choice(field, value, valid)
    return value
