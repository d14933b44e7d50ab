"""The best sources of the parts of a response, from an explanation's table of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from expound.errors import ExpoundError
from expound.reports.records import Citation

if TYPE_CHECKING:
    from expound.reports.explanations import Explanation


def list_citations(item: Explanation, k: int, unit: str, target: str | None) -> list[Citation]:
    """Return the k best units of each part of the response, see `Explanation.citations`."""
    exchange = item.exchange
    if exchange is None:
        raise ExpoundError("only a response has citations: explain a model loaded with task='generation'")
    table, has_sources = item.aggregate(unit, target), any(exchange.is_source)
    # Without sources all visible texts are cited.
    cited = [number for number, each in enumerate(table.units) if exchange.is_source[each.segment] or not has_sources]
    citations = []
    for row, part in enumerate(table.targets):
        best = [cited[place] for place in np.argsort(-table.scores[row, cited], kind="stable")[:k]]
        places = tuple(table.units[number] for number in best)
        names = [exchange.names[place.segment] for place in places]
        citation = Citation(part.text, list(zip(names, table.scores[row, best].tolist(), strict=True)))
        if unit == "source":
            bounds = table.lower_bounds(row)
            citation.lower_bounds = {name: bounds[name] for name in names if name in bounds}
        citation.span, citation.places = exchange.extent(cast(tuple[int, int], part.value)), places
        citations.append(citation)
    return citations
