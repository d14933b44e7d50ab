"""The page of an explained corpus: what its explanations come to, and its rows, some at a time."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from exegete.errors import unknown
from exegete.reports.attributions import Attribution
from exegete.studies.corpus.parts import CorpusParts
from exegete.studies.corpus.summary import CorpusSummary, summarise
from exegete.web.browse.stored import Result
from exegete.web.pages import render_page
from exegete.web.site import get_site

PER_PAGE, TOP = 20, 10


def corpus_page(request: Request, found: Result) -> Response:
    """The summary, against another corpus if one is chosen, and a page of rows.

    Raises:
        ExegeteError: a corpus that is not explained to its end; another one that there is not.
    """
    others = {name: each for name, each in get_site(request).results.items() if each.is_corpus and name != found.name}
    chosen = request.query_params.get("against", "")
    if chosen and chosen not in others:
        raise unknown("corpus", chosen, others)
    summary = summed(found.folder, others[chosen].folder if chosen else None)
    pages = max(1, math.ceil(summary.rows / PER_PAGE))
    asked = request.query_params.get("page", "1")
    number = min(pages, max(1, int(asked))) if asked.isdecimal() and len(asked) < 9 else 1
    rows = CorpusParts(found.folder).read_slice((number - 1) * PER_PAGE, PER_PAGE)
    return render_page(
        request,
        "browse_corpus",
        result=found,
        summary=summary,
        words=[(label, _records(one)) for label, one in summary.words.groupby("label", sort=False)],
        drift=None if summary.drift is None else _records(summary.drift),
        lines=[(_item(row), row["label"]) for row in rows],
        others=others,
        chosen=chosen,
        number=number,
        pages=pages,
        top=TOP,
    )


def summed(folder: Path, against: Path | None) -> CorpusSummary:
    """The summary as the folders are now; it is made once."""
    marks = tuple((each / "corpus.json").stat().st_mtime_ns for each in (folder, against) if each is not None)
    return _summed(folder, against, marks)


@lru_cache(maxsize=16)
def _summed(folder: Path, against: Path | None, marks: tuple[int, ...]) -> CorpusSummary:
    del marks
    return summarise(folder, against, top=TOP)


def _item(row: dict[str, Any]) -> Attribution:
    return Attribution.from_row({name: value for name, value in row.items() if name not in ("label", "rationale")})


def _records(frame: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.head(TOP).to_dict("records")
    return found
