"""Strange texts are explained with their own words, or refused in one line: by the library and the command line."""

from __future__ import annotations

import contextlib
import io
import json
import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import expound
from attacked import cases, record_outcomes
from commands import save_model
from expound import ExpoundError
from expound.cli import main
from small import shared
from strange import TEXTS

OPTIONS = ["methods", "target", "unit", "dtype", "device", "max-length", "seed", "pair", "html", "output-dir"]
OPTIONS += ["template", "labels", "task", "prompt", "messages", "source", "response", "temperature", "max-new-tokens"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


def require_explained(item, text):
    """Requires finite scores, and words that occur in the text one after the other."""
    assert item.scores.shape == (1, len(item.units))
    assert np.isfinite(item.scores).all()
    place = 0
    for word in item.unit_texts:
        place = text.index(word, place) + len(word)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_strange_texts_are_explained_with_their_own_words(family):
    model = shared(family, dtype=torch.float32)
    with record_outcomes("strange texts explained", family) as counts:

        @cases(1200)
        @given(st.lists(TEXTS, min_size=4, max_size=4))
        def attack(texts):
            texts = [text for text in texts if text.strip()] or ["a"]
            counts["cases"] += len(texts)
            try:
                found = expound.attribute(model, texts, "saliency")
            except ExpoundError as error:
                counts["refused"] += len(texts)
                require_one_line(str(error))
                return
            for item, text in zip(found, texts, strict=True):
                require_explained(item, text)
            json.loads(found.to_json())
            assert "<script>" not in found.to_html().replace("<script>", "", found.to_html().count("</script>"))

        attack()


def require_one_line(message):
    assert len(message.splitlines()) == 1


def run(*argv):
    """Runs a command in this process; returns its exit code, output and errors."""
    out, errors = io.StringIO(), io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main([str(word) for word in argv])
    finally:
        logging.disable(logging.NOTSET)
    return code, out.getvalue(), errors.getvalue()


def test_strange_words_on_the_command_line(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = st.one_of(TEXTS, TEXTS.map(lambda text: f"{text}\udcff"))
    options = st.dictionaries(st.sampled_from(OPTIONS), st.one_of(texts, st.integers(-2, 9).map(str)), max_size=1)
    with record_outcomes("strange words on the command line", "explain") as counts:

        @cases(600)
        @given(texts, options)
        def attack(text, given):
            words = [word for name, value in given.items() for word in (f"--{name}", value)]
            arguments = ["explain", "--model", folder, "--methods", "saliency", "--json", *words, "--", text]
            code, out, errors = run(*arguments)
            counts["cases"] += 1
            counts["refused" if code else "explained"] += 1
            assert code in (0, 2)
            assert "Traceback" not in errors
            if code == 0:
                json.loads(out)
            else:
                assert errors.strip()

        attack()
