"""Citations of an answer by any author: the sources of its sentences, spans or JSON fields, as characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from expound.errors import ExpoundError
from expound.explainers.attribute_examples import attribute
from expound.explainers.base import Explainer, resolve_unit
from expound.explainers.check_model import default_method
from expound.models import ExplainedModel
from expound.models.generation.conversation import RESULT_ROLES
from expound.models.generation.examples import prompt_to_row
from expound.models.generation.model import GeneratingModel
from expound.models.generation.prompt import name_sources
from expound.reports.explanations import Explanation
from expound.reports.records import Citation, Exchange, Extent, Unit

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
"""A string, a sign, or a number or word, in JSON that was parsed before."""


class JsonField(NamedTuple):
    """A value at a JSON pointer (RFC 6901), as `/items/0/price`: characters [start, end), of a text without quotes."""

    pointer: str
    start: int
    end: int


def find_json_fields(text: str) -> list[JsonField]:
    """Return the numbers, texts and words of the JSON object or list in a text, which may have other text around it.

    Raises:
        ExpoundError: the text holds no JSON object or list with a value.
    """
    begin = min((place for sign in "{[" if (place := text.find(sign)) >= 0), default=len(text))
    end = 1 + max(text.rfind("}"), text.rfind("]"))
    try:
        json.loads(text[begin:end])
    except (ValueError, RecursionError) as error:
        raise ExpoundError(f"expected a JSON object or list in the answer, got {text!r:.80} ({error})") from error
    fields = list(_find_values(text, begin, end))
    if not fields:
        raise ExpoundError(f"the JSON in the answer has no value: {text!r:.80}")
    return fields


def _find_values(text: str, begin: int, end: int) -> Iterator[JsonField]:
    """Yield the values of the valid JSON in these characters."""
    # The key or the number of the value that is read, at each level; the key of an object is None until it is read.
    path: list[str | int | None] = []
    for match in TOKEN.finditer(text, begin, end):
        sign = match[0]
        if sign in "{[":
            path.append(None if sign == "{" else 0)
        elif sign in "}]":
            path.pop()
        elif sign == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
        elif path[-1] is None:
            path[-1] = json.loads(sign)
        elif sign != ":":
            is_text = sign[0] == '"' and len(sign) > 2
            keys = [str(key).replace("~", "~0").replace("/", "~1") for key in path]
            yield JsonField("".join(f"/{key}" for key in keys), match.start() + is_text, match.end() - is_text)


CitedUnit = Literal["source", "paragraph", "sentence"]
CitedSpans = Literal["sentences", "fields"] | Sequence[Sequence[int]]


def cite(
    model: ExplainedModel,
    example: Any,
    method: str | Explainer | None = None,
    *,
    spans: CitedSpans = "sentences",
    unit: CitedUnit = "source",
    k: int = 2,
    **params: Any,
) -> list[Citation]:
    """Return the sources of each part of an answer, the model's own or another's: the model reads it after the prompt.

    Each citation has the part's text, its best sources with their scores, the `span` of the part in the answer, and
    in `places` the characters of each cited unit in the source as it was given (its `segment` is the source's number).
    Without sources, the results of tools are cited, whose `segment` is the message's number.

    Args:
        model: a language model from `expound.load(…, task="generation")`.
        example: a row with a prompt or messages, `sources` or results of tools, and a `response`; without one the model
            answers.
        method: an id or an explainer; default: `default_method`. With the default, scores are drops of the part's
            log-probability without the unit, at the cost of one pass per unit and one for the whole prompt.
        spans: the parts of the answer: its sentences, the values of the `fields` of a JSON answer (the citation's
            `field` is the value's JSON pointer), or characters [start, end) of the answer.
        unit: what is cited: whole sources, or paragraphs or sentences of them.
        k: units per part.
        params: parameters of the method.

    Raises:
        ExpoundError: another model, spans outside of the answer or without a token, an answer without JSON, or a prompt
            that is too long for the model.
    """
    if not isinstance(model, GeneratingModel):
        raise ExpoundError(f"only answers are cited: load {type(model).__name__} with task='generation'")
    (row,) = model.expand_examples([prompt_to_row(example)])
    batch = model.encode([row])
    (exchange,), (alignment,) = batch.exchanges or (), batch.alignments or ()
    if alignment.truncated:
        raise ExpoundError(f"prompt and answer are longer than the {model.max_length} tokens that the model reads")
    target: Any = spans
    fields: list[JsonField] = []
    if spans == "fields":
        fields = find_json_fields(exchange.response)
        target = [find_tokens(exchange, (field.start, field.end)) for field in fields]
    elif not isinstance(spans, str):
        target = [find_tokens(exchange, span) for span in spans]
    explainer, own_unit = resolve_unit(model, method or default_method(model), None, params)
    # Learned methods score units of the size that they were trained with, which are summed.
    explained_unit = own_unit if explainer.card.learned and "unit" in explainer.params else unit
    (item,) = attribute(model, [row], explainer, target, unit=explained_unit, show_progress=False)
    citations = item.citations(k, unit=unit, target="sentences" if target == "sentences" else None)
    given: list[Extent] = [] if isinstance(spans, str) else [(start, end) for start, end in spans]
    for number, citation in enumerate(citations):
        citation.places = tuple(place_in_source(item, row, place) for place in citation.places)
        if fields:
            citation.field = fields[number].pointer
            given.append((fields[number].start, fields[number].end))
        if given:
            citation.span = given[number]
    return citations


def find_tokens(exchange: Exchange, span: Sequence[int]) -> Extent:
    """Return the tokens of a response that share characters with a span [start, end) of it.

    Raises:
        ExpoundError: a span that is empty, outside of the response, or without a token.
    """
    start, end = span
    if not 0 <= start < end <= len(exchange.response):
        raise ExpoundError(
            f"the span ({start}, {end}) is empty or outside: the answer has {len(exchange.response)} characters"
        )
    inside = [number for number, place in enumerate(exchange.token_spans) if place[0] < end and start < place[1]]
    if not inside:
        raise ExpoundError(f"the span ({start}, {end}), {exchange.response[start:end]!r:.40}, has no token")
    return inside[0], inside[-1] + 1


def place_in_source(item: Explanation, row: Mapping[str, Any], place: Unit) -> Unit:
    """Return a unit of a visible text as the number of the source, from 0, and characters of the source as given.

    A result of a tool has the number of its message.
    """
    assert item.exchange is not None
    name, visible = item.exchange.names[place.segment], item.texts[place.segment]
    kind = item.exchange.kinds[place.segment]
    if kind == "tool_result":
        given = [(number, message["content"]) for number, message in enumerate(row["messages"])
                 if message["role"] in RESULT_ROLES and (message["content"] or "").strip() == visible]  # fmt: skip
        # Results of earlier turns are not visible, so equal ones are counted from the end.
        number, text = given[-1 - list(item.texts[place.segment + 1 :]).count(visible)]
    elif kind == "source":
        sources = list(name_sources(row["sources"]).items())
        same = [number for number, (_, text) in enumerate(sources) if text.strip() == visible]
        number = next((each for each in same if sources[each][0] == name), same[0])
        text = sources[number][1]
    else:
        return place
    # Visible texts have no white space at their ends.
    lead = len(text) - len(text.lstrip())
    return place._replace(segment=number, start=place.start + lead, end=place.end + lead)
