"""Texts of the pages for people, in the language of their study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

LANGUAGES = ("en", "de")


@cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Every text by key and language: a string with {places}, or a list of paragraphs."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(
        (files("exegete.web.human_study") / "texts.yaml").read_text(encoding="utf-8")
    )
    return found


def texts(language: str = "en") -> Callable[..., Any]:
    """A function from a key, and values for its places, to the text in a language."""

    def text(key: str, **values: object) -> Any:
        found = catalogue()[key][language]
        return found.format(**values) if values else found

    return text
