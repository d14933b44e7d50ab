"""The figures of the guide and of the front page of results are those of the pages that they link to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "papers" / "results"
LINK = re.compile(r"\[([^\]]*\d[^\]]*)\]\(\.\./papers/results/([a-z]+\.md)(?:#[^)]*)?\)")


@pytest.mark.parametrize("name", ["choose.md", "limits.md"])
def test_each_figure_is_on_the_page_that_it_links_to(name):
    cited = LINK.findall((DOCS / name).read_text(encoding="utf-8"))
    assert cited
    for figure, page in cited:
        text = (RESULTS / page).read_text(encoding="utf-8")
        # a figure is a whole number there, not the digits of a longer one
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", text), f"{page} has no {figure}"


def test_choose_has_no_figure_without_its_page():
    prose = LINK.sub("", (DOCS / "choose.md").read_text(encoding="utf-8"))
    assert not re.search(r"[ (|][−+-]? ?\.\d{2,3}\b", prose)
    assert "†" not in prose


CLAIM = re.compile(r"\| \[[A-Za-z]+ (\w+)\]\((\w+)\.md#the-papers-claims-and-our-results\) \|")
PAGES = ["aml", "er", "ivra", "regex", "smat"]


def split_row(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def read_claims(page):
    """Return the rows of a page's table of claims, by number: claim, here, n × seeds, verdict, remark."""
    text = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
    table = text[text.index("| # | claim | here | n × seeds | verdict | remark |") :].splitlines()[2:]
    return {number: rest for number, *rest in map(split_row, table)}


def read_cost(page):
    """Return the time of its runs that a page states."""
    text = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
    return re.search(r"\| finished \| .*; (.*) \|", text)[1]


def test_the_front_page_says_of_each_claim_what_its_own_page_says():
    lines = (RESULTS / "index.md").read_text(encoding="utf-8").splitlines()
    cited = [(CLAIM.match(line), line) for line in lines if CLAIM.match(line)]
    assert {found[2] for found, _ in cited} == set(PAGES)
    for found, line in cited:
        _, here, size, verdict, _ = read_claims(found[2])[found[1]]
        _, _, said, difference, numbers, cost = split_row(line)
        assert (said, numbers, cost) == (verdict, size, read_cost(found[2])), line
        assert f" {difference}" in f" {here}", line


def test_the_front_page_counts_the_verdicts_of_each_page():
    for page in PAGES:
        verdicts = [verdict for _, _, _, verdict, _ in read_claims(page).values()]
        words = ["reproduced", "contradicted", "undecided", "not tested"]
        counts = [sum(word in verdict for verdict in verdicts) for word in words]
        assert sum(counts) == len(verdicts)
        index = (RESULTS / "index.md").read_text(encoding="utf-8").splitlines()
        row = next(split_row(line) for line in index if line.startswith("| [") and f"({page}.md) |" in line)
        assert row[2:] == [str(count) for count in counts]
