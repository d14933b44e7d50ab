"""The figures of the guide are those of the results pages that they link to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
LINK = re.compile(r"\[([^\]]*\d[^\]]*)\]\((results/[a-z]+\.md)(?:#[^)]*)?\)")


@pytest.mark.parametrize("name", ["choose.md", "limits.md"])
def test_each_figure_is_on_the_page_that_it_links_to(name):
    cited = LINK.findall((DOCS / name).read_text(encoding="utf-8"))
    assert cited
    for figure, page in cited:
        text = (DOCS / page).read_text(encoding="utf-8")
        # a figure is a whole number there, not the digits of a longer one
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", text), f"{page} has no {figure}"


def test_choose_has_no_figure_without_its_page():
    prose = LINK.sub("", (DOCS / "choose.md").read_text(encoding="utf-8"))
    assert not re.search(r"[ (|][−+-]? ?\.\d{2,3}\b", prose)
    assert "†" not in prose
