"""Translations of the texts on pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from expound.errors import ExpoundError

LANGUAGES = ("en", "de")


@cache
def load_catalog(name: str = "texts") -> Mapping[str, Any]:
    """Load the texts of pages: of annotators' pages by key and language, strings with {placeholders} or paragraphs.

    "admin_de" names the German texts of the admin's pages, by their English texts.
    """
    path = files("expound_people") / f"{name}.yaml"
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def make_translator(language: str = "en") -> Callable[..., Any]:
    """Return a function that maps a key of the catalog, and values for its placeholders, to a text in a language."""

    def text(key: str, **values: object) -> Any:
        template = load_catalog()[key][language]
        return template.format(**values) if values else template

    return text


def make_admin_translator(language: str = "en") -> Callable[..., str]:
    """Return a function that translates an English text of the admin's pages, with values for its placeholders."""

    def say(text: str, **values: object) -> str:
        template = load_catalog("admin_de")[text] if language == "de" else text
        return template.format(**values) if values else template

    return say


def choose_language(accepted: str) -> str:
    """Return the supported language with the highest weight in an Accept-Language header; default: English."""
    weighted = []
    for part in accepted.split(","):
        name, _, weight = part.strip().partition(";q=")
        # The header comes from outside: a malformed entry is skipped instead of failing the page.
        with suppress(ValueError):
            weighted.append((-float(weight or 1), name.lower().partition("-")[0]))
    # The sort is stable, so equal weights keep the header's order. A weight of 0 means "not acceptable" (RFC 9110).
    for negative_weight, language in sorted(weighted, key=lambda entry: entry[0]):
        if language in LANGUAGES and negative_weight:
            return language
    return "en"


class MissingError(ExpoundError):
    """A form lacks something; the page reports it by its key in the catalog, in the annotator's language."""

    def __init__(self, key: str, **values: object) -> None:
        super().__init__(make_translator()(key, **values))
        self.key, self.values = key, values


def translate_error(error: object, language: str) -> str:
    """Return the message of an error in a language; other errors than MissingError have an English message only."""
    if isinstance(error, MissingError):
        values = dict(error.values)
        for name, value in values.items():
            if isinstance(value, MissingError):
                values[name] = translate_error(value, language)
        return str(make_translator(language)(error.key, **values))
    if language == "en":
        return str(error)
    return str(make_translator(language)("missing"))
