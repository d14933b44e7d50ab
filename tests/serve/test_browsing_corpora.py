"""The page of an explained corpus shows its summary, and its rows over several pages."""

from __future__ import annotations

import json
import re
from html import unescape

import numpy as np
import pytest

from expound import summarise
from expound.evaluation.corpus.parts import CorpusParts, make_explained_row
from expound.reports.explanations import Explanation
from expound.reports.records import Target, Unit
from expound.serve.browse.corpus import PER_PAGE
from expound.serve.browse.stored import open_results
from sites import MARKUP, SCRIPT, admin, site, stranger

COUNT = 50
CONFIG = {"data": "d", "split": "s", "model": "m", "method": {"method": "saliency"}}


def write_parts(folder, seed, shift=0.0):
    """Writes the parts, of 20 rows each, of a corpus of 50 rows, some with rationales; words and labels hold markup."""
    generator, parts = np.random.default_rng(seed), CorpusParts(folder, CONFIG)
    words, rows = ("dull", SCRIPT, "film"), []
    for index in range(COUNT):
        text = " ".join(words)
        units = tuple(Unit(word, 0, text.index(word), text.index(word) + len(word)) for word in words)
        scores = [generator.normal((0.5 + shift, 0.3, 0.1), 0.05)]
        target = Target(("good", MARKUP)[index % 2], index % 2, 0.75)
        item = Explanation(
            targets=(target,), units=units, scores=scores, unit="word", texts=(text,), tokens=units,
            token_scores=scores, prediction=Target(MARKUP, 1, 0.75), method="saliency", index=index,
        )  # fmt: skip
        rows.append(make_explained_row(item, {"rationale": [[0, 4]] if index % 3 else None}, "good"))
    for number, first in enumerate(range(0, COUNT, 20)):
        parts.write(number, rows[first : first + 20], rows[first : first + 20])
    return parts


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    for name, shift in (("march", 0.0), ("april", 0.6)):
        write_parts(folder / name, len(name), shift).finish()
    return [folder / "march", folder / "april"]


def read_text(answer):
    assert answer.status_code == 200
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


def test_the_page_of_a_corpus_shows_its_summary(corpora, tmp_path):
    client = admin(site(tmp_path, results=corpora))
    text, found = read_text(client.get("/browse/march")), summarise(corpora[0])
    assert "50 rows" in text
    assert "An explained corpus" in read_text(client.get("/browse"))
    for one in found.words.groupby("label").head(10).to_dict("records"):
        assert f"{one['word']} {one['share']:+.3f} {one['low']:+.3f} to {one['high']:+.3f} {one['examples']}" in text
    assert f"over {found.judged} examples" in text
    assert all(f"{one.size} " in text for one in found.clusters)
    assert "What changed" in text
    assert "Distance" not in text


def test_changes_are_relative_to_the_chosen_corpus(corpora, tmp_path):
    client = admin(site(tmp_path, results=corpora))
    text, found = read_text(client.get("/browse/april?against=march")), summarise(corpora[1], corpora[0])
    assert f"Distance {found.distance:.3f} of at most 1" in text
    for one in found.drift.head(10).to_dict("records"):
        assert f"{one['word']} {one['before']:+.3f} {one['after']:+.3f} {one['low']:+.3f} to {one['high']:+.3f}" in text
    assert client.get("/browse/april?against=june").status_code == 422


def test_rows_are_paged_and_markup_is_escaped(corpora, tmp_path):
    client = admin(site(tmp_path, results=corpora))
    seen = []
    for page in (1, 2, 3):
        answer = client.get(f"/browse/march?page={page}")
        assert SCRIPT not in answer.text
        assert MARKUP not in answer.text
        rows = answer.text.split('id="rows"')[1]
        seen += [int(number) for number in re.findall(r'<tr><td class="number">(\d+)</td>', rows)]
        assert f"Page {page} of 3" in read_text(answer)
    assert seen == list(range(COUNT))
    assert PER_PAGE == 20
    for page in ("0", "99", "x", "-1"):
        assert client.get(f"/browse/march?page={page}").status_code == 200
    assert [row["index"] for row in CorpusParts(corpora[0]).read_slice(15, 12)] == list(range(15, 27))
    assert CorpusParts(corpora[0]).read_slice(COUNT, 5) == []


def test_unfinished_corpora_and_missing_pages_are_refused(corpora, tmp_path):
    write_parts(tmp_path / "half", 1)
    client = admin(site(tmp_path, results=[tmp_path / "half", corpora[0]]))
    answer = client.get("/browse/half")
    assert answer.status_code == 422
    assert "not explained completely" in answer.text
    for path in ("examples/0", "examples/0/picture", "heads", "report"):
        assert client.get(f"/browse/march/{path}").status_code == 404
    assert "Words that matter" not in stranger(site(tmp_path, results=corpora)).get("/browse/march").text
    assert json.loads((corpora[0] / "corpus.json").read_text())["rows"] == COUNT
    assert list(open_results([corpora[0].parent])) == ["april", "march"]
