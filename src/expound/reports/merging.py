"""Sums of an explanation's scores over larger units and targets, and the best sources of a response's parts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from expound.data.alignment import find_paragraph_ends, find_sentence_ends, split_words
from expound.errors import ExpoundError, unknown
from expound.reports.records import Citation, Target, Unit

if TYPE_CHECKING:
    from expound.reports.explanations import Explanation

SIZES = ("token", "word", "sentence", "paragraph", "message", "source")


def find_groups(item: Explanation, unit: str) -> tuple[tuple[Unit, ...], list[int], dict[int, int]]:
    """Return larger units of an explanation, the index of the larger unit for each of its units, and for white space.

    A unit belongs to the word, sentence or paragraph that it starts in. The index is −1 for white space, which is in
    no word, and for texts of a prompt outside its sources. The last value maps the positions of tokens of white
    space, which are in no word, to the index of the larger unit around them.

    Raises:
        ExpoundError: the units are larger than that already, or have no text.
    """
    if item.unit not in SIZES or unit not in SIZES or SIZES.index(unit) < SIZES.index(item.unit):
        advice = f"choose a larger unit of {SIZES}" if item.unit in SIZES else f"explain with unit={unit!r}"
        raise ExpoundError(f"scores of each {item.unit} cannot be summed by {unit}: {advice}")
    if any(each.segment < 0 for each in item.units):
        raise ExpoundError(f"the units have no text, so they belong to no {unit}")
    ends = [_find_ends(text, unit) for text in item.texts]
    segments = list(range(len(item.texts))) if item.exchange is None else item.exchange.select_texts(unit)
    numbers: dict[tuple[int, int], int] = {}
    groups, merged = list[int](), list[Unit]()
    for each in item.units:
        if each.segment not in segments or (unit == "word" and each.start == each.end):
            groups.append(-1)
            continue
        group = numbers.setdefault(_find_part(each, ends), len(numbers))
        groups.append(group)
        if group == len(merged):
            merged.append(each)
        else:
            merged[group] = each._replace(
                start=min(merged[group].start, each.start), end=max(merged[group].end, each.end)
            )
    named = []
    for each in merged:
        name = item.texts[each.segment][each.start : each.end]
        if unit in ("source", "message") and item.exchange is not None:
            name = item.exchange.names[each.segment]
        named.append(each._replace(text=name or each.text))
    of_space = {}
    if item.unit == "word" and item.token_scores is not None:
        of_space = {place: numbers[part] for place, part in _find_space(item, ends) if part in numbers}
    return tuple(named), groups, of_space


def _find_space(item: Explanation, ends: list[list[int]]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the position and the part of each token of white space."""
    for place, (token, special) in enumerate(zip(item.tokens, item.special, strict=True)):
        if not special and token.segment >= 0 and token.start == token.end:
            yield place, _find_part(token, ends)


def _find_part(unit: Unit, ends: list[list[int]]) -> tuple[int, int]:
    """Return the text of a unit, and the number of the part of that text that it starts in."""
    own = ends[unit.segment]
    return unit.segment, min(bisect_right(own, unit.start), max(len(own) - 1, 0))


def _find_ends(text: str, unit: str) -> list[int]:
    if unit == "word":
        return [word.end for word in split_words(text)]
    if unit == "sentence":
        return find_sentence_ends(text)
    return find_paragraph_ends(text) if unit == "paragraph" else [len(text)]


def group_targets(item: Explanation, kind: str) -> tuple[tuple[Target, ...], list[list[int]]]:
    """Return the sentences of a response (or all of it) that contain targets, and the numbers of their targets.

    A target that lies in no single sentence is its own group.
    """
    assert item.exchange is not None
    parts = item.exchange.spans(cast(Literal["response", "sentences"], kind))
    groups: dict[tuple[int, int], list[int]] = {}
    for row, target in enumerate(item.targets):
        start, end = cast(tuple[int, int], target.value)
        key = (start, end)
        for part in parts:
            if part[0] <= start and end <= part[1]:
                key = part
                break
        groups.setdefault(key, []).append(row)
    targets = []
    for span, rows in groups.items():
        first = item.targets[rows[0]]
        if len(rows) > 1:
            log_prob = sum(item.targets[row].log_prob or 0.0 for row in rows)
            first = make_response_target(item.exchange.cut(span), span, log_prob)
        targets.append(first._replace(text=item.exchange.cut(span)))
    return tuple(targets), list(groups.values())


def make_response_target(text: str, span: tuple[int, int], log_prob: float) -> Target:
    """Return the target of a span of a response."""
    # A contrast of two responses has a ratio here, whose exponential may be too large for a float.
    return Target(text, span, math.exp(min(700.0, log_prob)), log_prob)


def sum_targets(item: Explanation, target: str) -> Explanation:
    """Return an explanation with its targets summed over the "response" or over each of its "sentences".

    Raises:
        ExpoundError: another value, or an explanation of no generated text.
    """
    if item.exchange is None or target not in ("response", "sentences"):
        raise unknown("aggregation of targets", target, ("response", "sentences") if item.exchange else ())
    targets, rows = group_targets(item, target)
    changes: dict[str, Any] = {"targets": targets, "scores": [item.scores[row].sum(0) for row in rows]}
    if item.bounds is not None:
        # Bounds hold for single spans: they cannot be added up.
        missing = np.full(len(item.units), np.nan)
        bounds = []
        for row in rows:
            bounds.append(item.bounds[row[0]] if len(row) == 1 else missing)
        changes["bounds"] = bounds
    if item.rest is not None:
        changes["rest"] = [item.rest[row].sum() for row in rows]
    if item.response_scores is not None:
        changes["response_scores"] = [item.response_scores[row].sum(0) for row in rows]
    return replace(item, **changes)


def list_citations(item: Explanation, k: int, unit: str, target: str | None) -> list[Citation]:
    """Return the k best units of each part of the response, see `Explanation.citations`."""
    exchange = item.exchange
    if exchange is None:
        raise ExpoundError("only a response has citations: explain a model loaded with task='generation'")
    table = item.aggregate(unit, target)
    kinds = next(({kind} for kind in ("source", "tool_result") if kind in exchange.kinds), set(exchange.kinds))
    cited = [number for number, each in enumerate(table.units) if exchange.kinds[each.segment] in kinds]
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


UNTRUSTED = ("tool_result", "source")


def find_margins(item: Explanation, row: int) -> dict[str, float]:
    """Return the margin of each result of a tool and each source: its effect minus that of the user's last message.

    Effects are scores per token of the target. A positive margin of an action means that a text which the user did not
    write decides more than the request does, the mark of a prompt injection (CausalArmor, Kim et al. 2026).

    Raises:
        ExpoundError: the units are not the messages of a conversation with a request.
    """
    kinds = item.exchange.kinds if item.exchange is not None and item.unit == "message" else ()
    effects = [
        (kinds[unit.segment], unit.text, float(item.scores[row, n])) for n, unit in enumerate(item.units) if kinds
    ]
    requests = [effect for kind, _, effect in effects if kind == "user"]
    if not requests:
        raise ExpoundError("margins compare messages with the user's request: explain a chat with unit='message'")
    span = item.targets[row].value
    assert isinstance(span, tuple)
    count = span[1] - span[0]
    return {name: (effect - requests[-1]) / count for kind, name, effect in effects if kind in UNTRUSTED}


def describe_margins(item: Explanation, row: int) -> str:
    """Return the margins of a target in words; empty if no text of a tool or a source is a unit beside a request."""
    kinds = item.exchange.kinds if item.exchange is not None and item.unit == "message" else ()
    if "user" not in kinds or not set(UNTRUSTED) & set(kinds):
        return ""
    parts = []
    for name, margin in find_margins(item, row).items():
        parts.append(f"{name} {margin:+.3g} ({'exceeds' if margin > 0 else 'below'} the user's request)")
    return f"margin per token: {', '.join(parts)}"
