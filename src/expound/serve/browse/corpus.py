"""The page of an explained corpus: a summary of its explanations, and its rows in pages."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from fastapi import Request
from fastapi.responses import Response

from expound.errors import unknown
from expound.evaluation.corpus.parts import CorpusParts
from expound.evaluation.corpus.summary import CorpusSummary, summarise
from expound.evaluation.corpus.tables import (
    make_change_table,
    make_cluster_table,
    make_disagreement_table,
    make_word_tables,
)
from expound.reports.explanations import Explanation
from expound.serve.browse.listing import parse_page
from expound.serve.browse.stored import Result
from expound.serve.pages import render_page
from expound.serve.site import get_site

PER_PAGE, N_TOP = 20, 10


def render_corpus(request: Request, result: Result) -> Response:
    """Return the page of a corpus, compared with another corpus if the request names one with `against`.

    Raises:
        ExpoundError: the corpus is not explained completely, or there is no corpus of the name `against`.
    """
    results = get_site(request).results
    others = {name: other for name, other in results.items() if other.is_corpus and name != result.name}
    chosen = request.query_params.get("against", "")
    if chosen and chosen not in others:
        raise unknown("corpus", chosen, others)
    summary = get_summary(result.folder, others[chosen].folder if chosen else None)
    pages = max(1, math.ceil(summary.rows / PER_PAGE))
    number = min(pages, parse_page(request.query_params.get("page", "")))
    rows = CorpusParts(result.folder).read_slice((number - 1) * PER_PAGE, PER_PAGE)
    return render_page(
        request,
        "browse_corpus",
        result=result,
        summary=summary,
        words=make_word_tables(summary, N_TOP),
        clusters=make_cluster_table(summary),
        disagreeing=make_disagreement_table(summary, N_TOP),
        changes=None if summary.drift is None else make_change_table(summary, N_TOP),
        lines=[(Explanation.from_row(row), row["label"]) for row in rows],
        others=others,
        chosen=chosen,
        number=number,
        pages=pages,
    )


def get_summary(folder: Path, against: Path | None) -> CorpusSummary:
    """Return the summary of a corpus, cached until one of the folders changes."""
    folders = [folder] if against is None else [folder, against]
    # A corpus can be explained further while the server runs; its head file is written last.
    times = tuple((corpus / "corpus.json").stat().st_mtime_ns for corpus in folders)
    return _summarise(folder, against, times)


@lru_cache(maxsize=16)
def _summarise(folder: Path, against: Path | None, times: tuple[int, ...]) -> CorpusSummary:
    # The times are only part of the cache's key.
    del times
    return summarise(folder, against, top=N_TOP)
