"""Texts of the pages for people, in the language of their study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from exegete.errors import ExegeteError

LANGUAGES = ("en", "de")


@cache
def load_catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Every text by key and language: a string with {places}, or a list of paragraphs."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(
        (files("exegete.web.human_study") / "texts.yaml").read_text(encoding="utf-8")
    )
    return found


def make_translator(language: str = "en") -> Callable[..., Any]:
    """A function from a key, and values for its places, to the text in a language."""

    def text(key: str, **values: object) -> Any:
        found = load_catalogue()[key][language]
        return found.format(**values) if values else found

    return text


@cache
def _load_german() -> Mapping[str, str]:
    """What the admin's pages say, in German by the English."""
    found: dict[str, str] = yaml.safe_load(
        (files("exegete.web.human_study") / "admin_de.yaml").read_text(encoding="utf-8")
    )
    return found


def make_admin_translator(language: str = "en") -> Callable[..., str]:
    """A function from an English text of the admin's pages, and values for its places, to the text in a language."""

    def say(text: str, **values: object) -> str:
        found = _load_german()[text] if language == "de" else text
        return found.format(**values) if values else found

    return say


def choose_language(accepted: str) -> str:
    """The first of our languages that a header Accept-Language names, in the order of its weights; default: English."""
    weighed = []
    for part in accepted.split(","):
        name, _, weight = part.strip().partition(";q=")
        with suppress(ValueError):
            weighed.append((-float(weight or 1), name.lower().partition("-")[0]))
    return next(
        (name for weight, name in sorted(weighed, key=lambda each: each[0]) if name in LANGUAGES and weight), "en"
    )


class MissingError(ExegeteError):
    """What a form lacks, by its key in the catalogue: the page says it in its own language."""

    def __init__(self, key: str, **values: object) -> None:
        super().__init__(make_translator()(key, **values))
        self.key, self.values = key, values


def translate_error(error: object, language: str) -> str:
    """What went wrong, in a language; what the catalogue does not know is told in English, else in general."""
    if isinstance(error, MissingError):
        return str(
            make_translator(language)(
                error.key, **{name: _translate_value(each, language) for name, each in error.values.items()}
            )
        )
    return str(error) if language == "en" else str(make_translator(language)("missing"))


def _translate_value(value: object, language: str) -> object:
    return translate_error(value, language) if isinstance(value, MissingError) else value
