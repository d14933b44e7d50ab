"""The pages of methods and metrics say what is computed, and describe every parameter."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass

import pytest

from expound.data.cards import MethodCard
from expound.explainers import EXPLAINERS
from expound.metrics.registry import METRICS, cards
from families import FAMILIES
from readme_blocks import ROOT
from two_sided import SMALL

SCRIPTS = ROOT / "docs" / "scripts"


@pytest.fixture(scope="module")
def parameters():
    """The script that makes tables of parameters."""
    found = importlib.util.spec_from_file_location("part_parameters", SCRIPTS / "parameters.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_parameter_has_a_text(parameters):
    for registry in (EXPLAINERS, METRICS):
        for name in registry.native:
            for parameter, _, text in parameters.parameter_rows(registry[name]):
                assert text, (name, parameter)
                assert not text.startswith("see"), (name, parameter)


def test_texts_are_found_in_arguments_and_sentences(parameters):
    @dataclass(frozen=True)
    class Base:
        """Does it.

        `level`: word or token. `k`: of the
        base.
        """

        level: str = "word"

    @dataclass(frozen=True)
    class Part(Base):
        """Does it, too.

        Args:
            k: how many,
                in words.
            level: see `Base`.

        Raises:
            ValueError: never.
        """

        k: tuple[int, ...] = (1, 2)

    rows = list(parameters.parameter_rows(Part))
    assert rows == [("level", "word", "word or token."), ("k", "1,2", "how many, in words.")]

    @dataclass(frozen=True)
    class Silent(Base):
        """Does not describe `more`."""

        more: int = 0

    with pytest.raises(ValueError, match=r"no docstring of .*Silent describes its parameter more"):
        parameters.table(Silent)


def test_every_method_says_how_it_is_computed_when_to_use_it_and_when_not():
    for name, card in EXPLAINERS.cards(MethodCard).items():
        if name in EXPLAINERS.native:
            assert card.equation, name
            assert card.use, name
            assert card.avoid.startswith("Do not "), name


def test_every_metric_card_says_how_to_compute_read_and_use_it():
    for name in (*METRICS.native, "seconds", "peak_memory"):
        card = cards()[name]
        assert card.equation, name
        assert card.use, name
        assert card.avoid.startswith("Do not "), name
        for field in ("computed", "read", "use", "avoid"):
            text = card.text(field)
            assert text.endswith((".", "?")), (name, field)
            assert not re.search(r"\{\w+\}", text), f"{name}, {field}: a shared sentence without a text"


def test_supported_architectures_are_listed():
    text = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
    section = text.partition("## Supported architectures")[2].partition("\n## ")[0]
    assert {*FAMILIES, *SMALL} <= set(re.findall(r"`([\w-]+)`", section))


def test_texts_of_pages_are_of_existing_parts_and_a_part_without_texts_has_a_page(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    parts = importlib.import_module("parts")
    for kind in parts.KINDS:
        if kind.folder not in parts.IDEAS:
            continue
        texts, facts = parts.IDEAS[kind.folder]["parts"], parts.facts_of(kind)
        assert texts.keys() <= facts.keys()
        assert parts.symbols.SYMBOLS[kind.folder]["parts"].keys() <= facts.keys()
        assert parts.group_by_family(kind, facts).keys() <= parts.IDEAS[kind.folder]["families"].keys() | {"other"}
        newest = [name for name in facts if name in kind.registry.native][-1]
        monkeypatch.delitem(texts, newest)
        assert f"`{newest}`" in parts.index_page(kind, facts)
        assert parts.intuition(kind, newest)


def test_every_objective_and_recipe_has_an_equation_and_says_when_to_use_it(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    parts = importlib.import_module("parts")
    for kind in parts.KINDS:
        if kind.folder in ("objectives", "recipes"):
            notes = parts.notes(kind)
            assert notes.keys() == set(kind.registry.native)
            assert all(note["equation"] and note["use"] for note in notes.values())
