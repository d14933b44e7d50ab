"""Prompts and chats with sources in them become one text, in which it is known where each visible text stands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from exegete.errors import ExegeteError, unknown
from exegete.models.encoding.template import Template

MARK = re.compile("\ue000([0-9]+)\ue001")
ALL_SOURCES = "{sources}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a template with S visible `texts`, their `names`, and which of them are sources.

    `special`: whether the tokenizer adds special tokens (a chat's template writes them itself).
    """

    template: Template
    texts: tuple[str, ...]
    names: tuple[str, ...]
    is_source: tuple[bool, ...]
    special: bool


@dataclass(frozen=True, slots=True)
class _Block:
    """A text of the user: the prompt, or a message; only what is `visible` carries attribution."""

    name: str
    text: str
    visible: bool


class _Marks:
    """Stands marks in for visible texts, so that they are found again in what a chat template makes of them."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str, bool]] = []

    def names(self) -> set[str]:
        """The names of the sources so far."""
        return {name for name, _, source in self.texts if source}

    def put(self, name: str, text: str, source: bool) -> str:
        """The text's mark, with the white space that the text has at its ends."""
        bare = text.strip()
        if not bare:
            return text
        self.texts.append((name, bare, source))
        start = text.index(bare)
        return f"{text[:start]}\ue000{len(self.texts) - 1}\ue001{text[start + len(bare) :]}"

    def between(self, block: _Block, text: str) -> str:
        """A block's text beside sources: marked where it is visible, else as it is."""
        return self.put(block.name, text, False) if block.visible else text

    def filled(self, marked: str) -> str:
        """The text without marks."""
        return MARK.sub(lambda mark: self.texts[int(mark[1])][1], marked)

    def read(self, marked: str, *, special: bool) -> Prompt:
        """The prompt of a text with every mark in it once."""
        parts = MARK.split(marked)
        order = [int(number) for number in parts[1::2]]
        if sorted(order) != list(range(len(self.texts))):
            odd = next(number for number in range(len(self.texts)) if order.count(number) != 1)
            raise ExegeteError(
                f"the chat template leaves out or repeats {self.texts[odd][0]!r}: give the prompt as text instead"
            )
        names, texts, sources = zip(*(self.texts[number] for number in order), strict=True) if order else ((),) * 3
        return Prompt(
            Template(tuple(parts[::2]), tuple(range(len(order)))), tuple(texts), _numbered(names), sources, special
        )


def _numbered(names: Sequence[str]) -> tuple[str, ...]:
    """The names, with a number where one comes again."""
    return tuple(
        name if name not in names[:place] else f"{name} {names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    )


def parse_prompt(example: Mapping[str, Any], tokenizer: Any) -> Prompt:
    """The prompt of an example: its `prompt`, or its `messages` through the tokenizer's chat template.

    `sources` (texts by name) stand where the text says `{sources}` (all of them, a blank line between two) or `{name}`,
    else where they stand word for word, else where a chat template has a place for documents. Visible are sources, the
    prompt, and of a chat the last message of the user and what tools answered to it; other messages if they say
    `"explain": True`.

    Raises:
        ExegeteError: neither or both of prompt and messages, an empty source, an unknown one, or one without a place.
    """
    sources, chat = name_sources(example.get("sources")), example.get("messages") is not None
    if chat == (example.get("prompt") is not None):
        raise ExegeteError(f"an example has either a 'prompt' or 'messages'; this one has: {', '.join(example)}")
    blocks = _blocks(example["messages"]) if chat else [_Block("prompt", _text("prompt", example["prompt"]), True)]
    if not sources and any(ALL_SOURCES in block.text for block in blocks):
        raise ExegeteError(f"the prompt has a place for {ALL_SOURCES}, but the example has none")
    marks = _Marks()
    marked = [_marked(block, blocks, sources, marks) for block in blocks]
    missing = [name for name in sources if name not in marks.names()]
    as_documents = chat and "documents" in str(tokenizer.chat_template)
    _check_places(sources, () if as_documents else missing, blocks)
    if not chat:
        return marks.read(marked[0], special=True)
    documents = [{"title": name, "text": marks.put(name, sources[name], True)} for name in missing]
    prompt = marks.read(_rendered(tokenizer, example["messages"], marked, documents), special=False)
    real = [{"title": each["title"], "text": marks.filled(each["text"])} for each in documents]
    whole = _rendered(tokenizer, example["messages"], [marks.filled(text) for text in marked], real)
    if prompt.template.filled(prompt.texts)[0] != whole:
        raise ExegeteError("the chat template changes the messages: give the prompt as text instead")
    return prompt


def name_sources(given: Any) -> dict[str, str]:
    """Sources by name, from a mapping, a list of texts ("source 1", …), or rows with a name (or title) and a text.

    Raises:
        ExegeteError: anything else, an empty source, two of one name.
    """
    if isinstance(given, Mapping):
        pairs = [(name, text) for name, text in given.items() if text is not None]
    elif isinstance(given, Sequence | None) and not isinstance(given, str):
        pairs = [_source(number, one) for number, one in enumerate(given or (), 1)]
    else:
        raise ExegeteError(f"expected sources as texts by name, got {given!r:.80}")
    found: dict[str, str] = {}
    for name, text in pairs:
        if not _text(f"source {name!r}", text).strip():
            raise ExegeteError(f"the source {name!r} is empty")
        if found.setdefault(name, text) is not text:
            raise ExegeteError(f"two sources are called {name!r}")
    return found


def _source(number: int, given: Any) -> tuple[str, Any]:
    if not isinstance(given, Mapping):
        return f"source {number}", given
    name = next((given[key] for key in ("name", "title") if given.get(key)), f"source {number}")
    return str(name), given.get("text")


def _text(what: str, given: Any) -> str:
    if not isinstance(given, str):
        raise ExegeteError(f"expected {what} to be a text, got {given!r:.80}")
    return given


def _blocks(messages: Any) -> list[_Block]:
    """Every message as a block, visible as `parse_prompt` says."""
    rows = messages if isinstance(messages, Sequence) else ()
    roles = [one["role"] for one in rows if isinstance(one, Mapping) and isinstance(one.get("role"), str)]
    if not roles or len(roles) < len(rows):
        raise ExegeteError("expected messages as a list of {'role': …, 'content': …}")
    asked = max((number for number, role in enumerate(roles) if role == "user"), default=0)
    return [
        _Block(
            role,
            _text(f"the content of message {number + 1} ({role})", one.get("content") or ""),
            bool(one.get("explain", number >= asked and role in ("user", "tool"))),
        )
        for number, (role, one) in enumerate(zip(roles, messages, strict=True))
    ]


def _marked(block: _Block, blocks: Sequence[_Block], sources: Mapping[str, str], marks: _Marks) -> str:
    """The text of a block with a mark for every visible text in it, one for each source and what is between them."""
    text, spans = block.text, list[tuple[int, int, str, str]]()
    joined = ALL_SOURCES in "".join(each.text for each in blocks)
    for name, source in sources.items():
        place = "{" + name + "}"
        if place not in text and not joined and sum(each.text.count(source.strip()) for each in blocks) == 1:
            place = source.strip()
        if (start := text.find(place)) >= 0:
            spans.append((start, start + len(place), name, source))
    if sources and (start := text.find(ALL_SOURCES)) >= 0:
        whole = "".join(each.text for each in blocks)
        rest = [name for name in sources if "{" + name + "}" not in whole]
        text = text.replace(ALL_SOURCES, "\n\n".join("{" + name + "}" for name in rest))
        return _marked(_Block(block.name, text, block.visible), [], sources, marks)
    pieces, end = "", 0
    for start, stop, name, source in sorted(spans):
        if start < end:  # one source stands in another
            continue
        pieces += marks.between(block, text[end:start]) + marks.put(name, source, True)
        end = stop
    return pieces + marks.between(block, text[end:])


def _check_places(sources: Mapping[str, str], missing: Sequence[str], blocks: Sequence[_Block]) -> None:
    """Raises ExegeteError for sources that stand nowhere, and for a place of none where others have theirs by name."""
    named = re.findall(r"\{([\w .-]{1,60})\}", "".join(block.text for block in blocks))
    strange = [name for name in named if name not in sources and name != ALL_SOURCES[1:-1]]
    if strange and (missing or len(strange) < len(named)):
        raise unknown("source", strange[0], sources)
    if missing:
        raise ExegeteError(
            f"the prompt has no place for the source {missing[0]!r}: write {{{missing[0]}}} or {ALL_SOURCES} where it "
            "belongs"
        )


def _rendered(tokenizer: Any, messages: Any, texts: Sequence[str], documents: list[dict[str, str]]) -> str:
    """The messages with these contents through the chat template, up to where the answer begins."""
    if not getattr(tokenizer, "chat_template", None):
        raise ExegeteError("the tokenizer has no chat template: give a 'prompt' instead of 'messages'")
    filled = [
        {key: value for key, value in one.items() if key != "explain"} | {"content": text}
        for one, text in zip(messages, texts, strict=True)
    ]
    try:
        return str(
            tokenizer.apply_chat_template(
                filled, documents=documents or None, tokenize=False, add_generation_prompt=True
            )
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise ExegeteError(f"the chat template does not take these messages: {error}") from error
