"""Prompts and chats, with sources in them, as one text with known places of the visible texts."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from expound.data.spans import CONVERSATION_UNITS
from expound.errors import ExpoundError, unknown
from expound.models.encoding.template import Template
from expound.models.generation.conversation import (
    find_call,
    find_thought,
    find_thought_field,
    get_function,
    list_calls,
    name_message,
    read_template_arguments,
    render_answer,
    render_chat,
)
from expound.reports.records import Part

logger = logging.getLogger(__name__)
# Private-use characters, which no text contains and no chat template changes.
PLACEHOLDER = re.compile("\ue000([0-9]+)\ue001")
ALL_SOURCES = "{sources}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a template with S visible `texts`.

    Args:
        template: the prompt, with places for the texts.
        texts: the visible texts, which carry attribution.
        names: a name per text.
        kinds: what each text is: `source`, `prompt`, the role of a message, `thought`, `tool_call` or `tool_result`.
        special: whether the tokenizer adds special tokens (chat templates write them themselves).
        is_raw: whether the prompt has no chat template, and may write special tokens itself.
        answer: the response that the example gives as a message, as the chat template writes it, with its parts.
    """

    template: Template
    texts: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    special: bool
    is_raw: bool = False
    answer: tuple[str, tuple[Part, ...]] | None = None

    @property
    def literal(self) -> list[int]:
        """Return the numbers of the texts in which special tokens are plain characters.

        Those are all texts in a chat; a prompt without a template may write special tokens itself, its sources not.
        Between a tool call's name and its arguments the chat template may write some.
        """
        chosen = list[int]()
        for number, kind in enumerate(self.kinds):
            if kind == "source" or not (self.is_raw or kind in ("tool_call", "image")):
                chosen.append(number)
        return chosen


@dataclass(frozen=True, slots=True)
class _Block:
    """The prompt or one message; only `visible` text carries attribution."""

    name: str
    text: str
    visible: bool
    kind: str = "prompt"


class _Placeholders:
    """Placeholders of visible texts, by which these are found again in the output of a chat template.

    Searching for the texts themselves would be ambiguous: a text may occur twice, or in a system message.
    """

    def __init__(self) -> None:
        self.texts: list[tuple[str, str, str]] = []

    def find_missing(self, sources: Mapping[str, str]) -> list[str]:
        """Return the names of the sources that have no placeholder."""
        placed = {name for name, _, kind in self.texts if kind == "source"}
        return [name for name in sources if name not in placed]

    def insert(self, name: str, text: str, kind: str) -> str:
        """Return the text's placeholder, with the white space at the ends of the text around it."""
        # Chat templates strip messages, so white space at the ends is not part of the visible text.
        bare = text.strip()
        if not bare:
            return text
        self.texts.append((name, bare, kind))
        start = text.index(bare)
        return f"{text[:start]}\ue000{len(self.texts) - 1}\ue001{text[start + len(bare) :]}"

    def insert_rest(self, block: _Block, text: str) -> str:
        """Return a block's text between sources: its placeholder if the block is visible, else the text."""
        if not block.visible:
            return text
        thought = find_thought(text) if block.kind == "assistant" else None
        if thought is None:
            return self.insert(block.name, text, block.kind)
        inserted = self.insert("thought", text[thought.start : thought.end], "thought")
        answer = self.insert(block.name, text[thought.answer :], block.kind)
        return text[: thought.start] + inserted + text[thought.end : thought.answer] + answer

    def fill(self, text: str) -> str:
        """Return the text with the visible texts in place of their placeholders."""
        return PLACEHOLDER.sub(lambda match: self.texts[int(match[1])][1], text)

    def parse(self, text: str, *, special: bool) -> Prompt:
        """Return the prompt of a text that contains every placeholder once.

        Raises:
            ExpoundError: a placeholder is repeated, or missing if it is no thought: templates leave out earlier ones.
        """
        parts = PLACEHOLDER.split(text)
        order = [int(number) for number in parts[1::2]]
        for number, (missing, _, kind) in enumerate(self.texts):
            if order.count(number) != 1 and (kind != "thought" or number in order):
                raise ExpoundError(
                    f"the chat template leaves out or repeats {missing!r}: give the prompt as text instead "
                    "(--raw-prompt)"
                )
        template = Template(tuple(parts[::2]), tuple(range(len(order))))
        visible = [self.texts[number] for number in order]
        return Prompt(
            template,
            texts=tuple(text for _, text, _ in visible),
            names=number_duplicates([name for name, _, _ in visible]),
            kinds=tuple(kind for _, _, kind in visible),
            special=special,
        )


def number_duplicates(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, the second and later occurrences of a name with a number."""
    unique: list[str] = []
    for place, name in enumerate(names):
        count = names[: place + 1].count(name)
        unique.append(name if count == 1 else f"{name} {count}")
    return tuple(unique)


def parse_prompt(example: Mapping[str, Any], tokenizer: Any) -> Prompt:
    """Return the prompt of an example: its `prompt`, or its `messages` through the tokenizer's chat template.

    `sources` (texts by name) go where the text says `{sources}` (all of them, with blank lines between) or `{name}`,
    or where they occur word for word, or where the chat template has a place for documents. Scores are given to
    sources, to the prompt, and in a chat to the user's last message and the tools' answers to it; to other messages if
    they have `"explain": True`, and to all messages, thoughts and tool calls if the example's `unit` is one of a
    conversation. If the example has `"literal": True`, braces in its text are plain text: sources
    without a place in the chat template are put before the user's last message. A chat template is given the example's
    `tools` and `chat_template_kwargs`; it also writes a `response` that is a message.

    Raises:
        ExpoundError: neither or both of prompt and messages, an empty or unknown source, or one without a place;
            tools or arguments that the chat template does not read.
    """
    sources, is_chat = name_sources(example.get("sources")), example.get("messages") is not None
    if is_chat == (example.get("prompt") is not None):
        raise ExpoundError(f"an example has either a 'prompt' or 'messages'; this one has: {', '.join(example)}")
    if is_chat:
        blocks = _parse_messages(example["messages"], show_all=example.get("unit") in CONVERSATION_UNITS)
    else:
        blocks = [_Block("prompt", _require_text("prompt", example["prompt"]), True)]
    placeholders = _Placeholders()
    takes_documents = is_chat and "documents" in str(tokenizer.chat_template)
    if example.get("literal"):
        contents = _put_sources_first(blocks, {} if takes_documents else sources, placeholders)
    else:
        contents = _put_sources_in_places(blocks, sources, placeholders, takes_documents=takes_documents)
    missing = placeholders.find_missing(sources)
    arguments = read_template_arguments(example, tokenizer, is_chat=is_chat)
    if not is_chat:
        prompt = placeholders.parse(contents[0], special=True)
        return replace(prompt, special=not _begins_with_added_token(prompt, tokenizer), is_raw=True)
    documents = [{"title": name, "text": placeholders.insert(name, sources[name], "source")} for name in missing]
    arguments["documents"] = documents or None
    messages = _fill_messages(example["messages"], blocks, contents, placeholders)
    rendered = _insert_calls(messages, blocks, placeholders, partial(render_chat, tokenizer, arguments))
    prompt = placeholders.parse(rendered, special=False)
    # A template may change contents (trim, escape, cut), which placeholders would hide. So the filled prompt is
    # compared with what the template makes of the real texts.
    real_documents = [document | {"text": placeholders.fill(document["text"])} for document in documents]
    arguments["documents"] = real_documents or None
    for message in messages:
        message |= {key: placeholders.fill(text) for key, text in message.items() if isinstance(text, str)}
    whole = prompt.template.fill(prompt.texts)[0]
    if whole != render_chat(tokenizer, arguments, messages):
        raise ExpoundError("the chat template changes the messages: give the prompt as text instead (--raw-prompt)")
    if not isinstance(example.get("response"), Mapping):
        return prompt
    render = partial(render_chat, tokenizer, arguments, is_prompt=False)
    answer = render_answer(render, [*messages, example["response"]], whole, getattr(tokenizer, "eos_token", None))
    return replace(prompt, answer=answer)


def name_sources(sources: Any) -> dict[str, str]:
    """Return sources by name, from a mapping, a list of texts ("source 1", …), or rows with name (or title) and text.

    Raises:
        ExpoundError: anything else, an empty source, or two sources with one name.
    """
    pairs: list[tuple[str, Any]] = []
    if isinstance(sources, Mapping):
        pairs += [(name, text) for name, text in sources.items() if text is not None]
    elif isinstance(sources, Sequence | None) and not isinstance(sources, str):
        for number, source in enumerate(sources or (), 1):
            name, text = f"source {number}", source
            if isinstance(source, Mapping):
                name, text = str(source.get("name") or source.get("title") or name), source.get("text")
            pairs.append((name, text))
    else:
        raise ExpoundError(f"expected sources as texts by name, got {sources!r:.80}")
    by_name: dict[str, str] = {}
    for name, text in pairs:
        if not _require_text(f"source {_require_text('the name of a source', name)!r}", text).strip():
            raise ExpoundError(f"the source {name!r} is empty")
        if by_name.setdefault(name, text) is not text:
            raise ExpoundError(f"two sources are called {name!r}")
    return by_name


def _require_text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ExpoundError(f"expected {what} to be a text, got {value!r:.80}")
    if PLACEHOLDER.search(value):
        raise ExpoundError(f"{what} has a number between the characters U+E000 and U+E001: they mark places in prompts")
    return value


def _parse_messages(messages: Any, *, show_all: bool) -> list[_Block]:
    """Return every message as a block, explained or not as `parse_prompt` describes."""
    rows = messages if isinstance(messages, Sequence) else ()
    roles = [row["role"] for row in rows if isinstance(row, Mapping) and isinstance(row.get("role"), str)]
    if not roles or len(roles) < len(rows):
        raise ExpoundError("expected messages as a list of {'role': …, 'content': …}")
    last_question = max((number for number, role in enumerate(roles) if role == "user"), default=0)
    blocks: list[_Block] = []
    for number, (role, row) in enumerate(zip(roles, rows, strict=True)):
        # An assistant's message that only calls tools has the content None.
        text = _require_text(f"the content of message {number + 1} ({role})", row.get("content") or "")
        kind, name = name_message(rows, number)
        is_current = show_all or (number >= last_question and kind in ("user", "tool_result"))
        blocks.append(_Block(name, text, bool(row.get("explain", is_current)), kind))
    return blocks


def _put_sources_first(blocks: Sequence[_Block], sources: Mapping[str, str], placeholders: _Placeholders) -> list[str]:
    """Return the contents of the blocks, with all sources before the user's last message, or before the prompt."""
    question = max((number for number, block in enumerate(blocks) if block.kind in ("user", "prompt")), default=0)
    contents = [placeholders.insert_rest(block, block.text) for block in blocks[:question]]
    documents = [placeholders.insert(name, text, "source") for name, text in sources.items()]
    contents.append("\n\n".join([*documents, placeholders.insert_rest(blocks[question], blocks[question].text)]))
    return contents + [placeholders.insert_rest(block, block.text) for block in blocks[question + 1 :]]


def _put_sources_in_places(
    blocks: Sequence[_Block], sources: Mapping[str, str], placeholders: _Placeholders, *, takes_documents: bool
) -> list[str]:
    """Return the contents of the blocks, with sources where the texts name or quote them.

    Raises:
        ExpoundError: a source without a place, unless the chat template takes documents; a place without a source; a
            name in braces that is no source if others are.
    """
    if not sources and any(ALL_SOURCES in block.text for block in blocks):
        raise ExpoundError(f"the prompt has a place for {ALL_SOURCES}, but the example has none")
    contents = [_insert_placeholders(block, blocks, sources, placeholders) for block in blocks]
    missing = [] if takes_documents else placeholders.find_missing(sources)
    named = re.findall(r"\{([\w .-]{1,60})\}", "".join(block.text for block in blocks))
    strange = [name for name in named if name not in sources and name != ALL_SOURCES[1:-1]]
    # Braces may be part of an ordinary text, unless other braces name sources or a source has no place.
    if strange and (missing or len(strange) < len(named)):
        raise unknown("source", strange[0], sources)
    if missing:
        place = f"{{{missing[0]}}} or {ALL_SOURCES}"
        raise ExpoundError(f"the prompt has no place for the source {missing[0]!r}: write {place} where it belongs")
    return contents


def _insert_placeholders(
    block: _Block, blocks: Sequence[_Block], sources: Mapping[str, str], placeholders: _Placeholders
) -> str:
    """Return a block's text with placeholders for the sources in it and for the visible texts between them."""
    text = block.text
    whole = "".join(other.text for other in blocks)
    if sources and ALL_SOURCES in text:
        rest = [name for name in sources if "{" + name + "}" not in whole]
        text = text.replace(ALL_SOURCES, "\n\n".join("{" + name + "}" for name in rest))
        # Only named places are left, so no other block has to be looked at.
        return _insert_placeholders(replace(block, text=text), [], sources, placeholders)
    spans: list[tuple[int, int, str, str]] = []
    for name, source in sources.items():
        place = "{" + name + "}"
        # A source that occurs twice is not looked for: either occurrence could be meant.
        count = sum(other.text.count(source.strip()) for other in blocks)
        if place not in text and ALL_SOURCES not in whole and count == 1:
            place = source.strip()
        start = text.find(place)
        if start >= 0:
            spans.append((start, start + len(place), name, source))
    pieces, end = "", 0
    for start, stop, name, source in sorted(spans):
        # One source may occur inside another one.
        if start < end:
            continue
        pieces += placeholders.insert_rest(block, text[end:start]) + placeholders.insert(name, source, "source")
        end = stop
    return pieces + placeholders.insert_rest(block, text[end:])


def _begins_with_added_token(prompt: Prompt, tokenizer: Any) -> bool:
    """Return whether a prompt begins with the token that the tokenizer would add before it, and say so."""
    text, start = prompt.template.fill(prompt.texts)[0], getattr(tokenizer, "bos_token", None)
    if not start or not text.startswith(start):
        return False
    plain = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if list(tokenizer(text)["input_ids"]) != [tokenizer.bos_token_id, *plain]:
        return False
    logger.warning("the prompt begins with %s, which the tokenizer adds: it is read once", start)
    return True


def _fill_messages(
    messages: Any, blocks: Sequence[_Block], contents: Sequence[str], placeholders: _Placeholders
) -> list[dict[str, Any]]:
    """Return the messages with these contents, and with placeholders of visible thoughts."""
    filled = list[dict[str, Any]]()
    for message, block, text in zip(map(dict, messages), blocks, contents, strict=True):
        message.pop("explain", None)
        # A message that only calls tools keeps its content None, or has none: templates differ in what they test.
        if text or message.get("content"):
            message["content"] = text
        field = find_thought_field(message)
        if block.visible and field is not None:
            message[field] = placeholders.insert("thought", message[field], "thought")
        filled.append(message)
    return filled


def _insert_calls(
    messages: Sequence[Mapping[str, Any]], blocks: Sequence[_Block], placeholders: _Placeholders,
    render: Callable[[Sequence[Mapping[str, Any]]], str],
) -> str:  # fmt: skip
    """Return the rendered messages, with placeholders of visible tool calls too."""
    rendered, found = render(messages), list[tuple[int, int, str]]()
    for place, (message, block) in enumerate(zip(messages, blocks, strict=True)):
        for number, call in enumerate(list_calls(message) if block.visible else ()):
            extents, name = find_call(render, messages, place, number), str(get_function(call)["name"])
            if extents is None:
                logger.warning("the chat template leaves out the call of the tool %r: it has no unit", name)
            else:
                found.append((*extents.whole, f"tool call: {name}"))
    # From the last one on, so that the places of the others stay.
    for start, end, name in sorted(found, reverse=True):
        rendered = rendered[:start] + placeholders.insert(name, rendered[start:end], "tool_call") + rendered[end:]
    return rendered
