"""Prompts and chats, with sources in them, as one text with known places of the visible texts."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError

from expound.errors import ExpoundError, unknown
from expound.models.encoding.template import Template

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
        is_source: whether each text is a source.
        special: whether the tokenizer adds special tokens (chat templates write them themselves).
        is_raw: whether the prompt has no chat template, and may write special tokens itself.
    """

    template: Template
    texts: tuple[str, ...]
    names: tuple[str, ...]
    is_source: tuple[bool, ...]
    special: bool
    is_raw: bool = False

    @property
    def literal(self) -> list[int]:
        """Return the numbers of the texts in which special tokens are plain characters.

        Those are all texts in a chat; a prompt without a template may write special tokens itself, its sources not.
        """
        return [number for number, is_source in enumerate(self.is_source) if is_source or not self.is_raw]


@dataclass(frozen=True, slots=True)
class _Block:
    """The prompt or one message; only `visible` text carries attribution."""

    name: str
    text: str
    visible: bool


class _Placeholders:
    """Placeholders of visible texts, by which these are found again in the output of a chat template.

    Searching for the texts themselves would be ambiguous: a text may occur twice, or in a system message.
    """

    def __init__(self) -> None:
        self.texts: list[tuple[str, str, bool]] = []

    def names(self) -> set[str]:
        """Return the names of the sources that have a placeholder."""
        return {name for name, _, is_source in self.texts if is_source}

    def insert(self, name: str, text: str, is_source: bool) -> str:
        """Return the text's placeholder, with the white space at the ends of the text around it."""
        # Chat templates strip messages, so white space at the ends is not part of the visible text.
        bare = text.strip()
        if not bare:
            return text
        self.texts.append((name, bare, is_source))
        start = text.index(bare)
        return f"{text[:start]}\ue000{len(self.texts) - 1}\ue001{text[start + len(bare) :]}"

    def insert_rest(self, block: _Block, text: str) -> str:
        """Return a block's text between sources: its placeholder if the block is visible, else the text."""
        return self.insert(block.name, text, False) if block.visible else text

    def fill(self, text: str) -> str:
        """Return the text with the visible texts in place of their placeholders."""
        return PLACEHOLDER.sub(lambda match: self.texts[int(match[1])][1], text)

    def parse(self, text: str, *, special: bool) -> Prompt:
        """Return the prompt of a text that contains every placeholder once.

        Raises:
            ExpoundError: a placeholder is missing or repeated.
        """
        parts = PLACEHOLDER.split(text)
        order = [int(number) for number in parts[1::2]]
        for number, (missing, _, _) in enumerate(self.texts):
            if order.count(number) != 1:
                raise ExpoundError(
                    f"the chat template leaves out or repeats {missing!r}: give the prompt as text instead "
                    "(--raw-prompt)"
                )
        template = Template(tuple(parts[::2]), tuple(range(len(order))))
        visible = [self.texts[number] for number in order]
        return Prompt(
            template,
            texts=tuple(text for _, text, _ in visible),
            names=_number_duplicates([name for name, _, _ in visible]),
            is_source=tuple(is_source for _, _, is_source in visible),
            special=special,
        )


def _number_duplicates(names: Sequence[str]) -> tuple[str, ...]:
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
    they have `"explain": True`. If the example has `"literal": True`, braces in its text are plain text: sources
    without a place in the chat template are put before the user's last message. A chat template is given the example's
    `tools` and `chat_template_kwargs`.

    Raises:
        ExpoundError: neither or both of prompt and messages, an empty or unknown source, or one without a place;
            tools or arguments that the chat template does not read.
    """
    sources, is_chat = name_sources(example.get("sources")), example.get("messages") is not None
    if is_chat == (example.get("prompt") is not None):
        raise ExpoundError(f"an example has either a 'prompt' or 'messages'; this one has: {', '.join(example)}")
    if is_chat:
        blocks = _parse_messages(example["messages"])
    else:
        blocks = [_Block("prompt", _require_text("prompt", example["prompt"]), True)]
    placeholders = _Placeholders()
    takes_documents = is_chat and "documents" in str(tokenizer.chat_template)
    if example.get("literal"):
        contents = _put_sources_first(blocks, {} if takes_documents else sources, placeholders)
    else:
        contents = _put_sources_in_places(blocks, sources, placeholders, takes_documents=takes_documents)
    placed = placeholders.names()
    missing = [name for name in sources if name not in placed]
    arguments = _read_template_arguments(example, tokenizer, is_chat=is_chat)
    if not is_chat:
        prompt = placeholders.parse(contents[0], special=True)
        return replace(prompt, special=not _begins_with_added_token(prompt, tokenizer), is_raw=True)
    documents = [{"title": name, "text": placeholders.insert(name, sources[name], True)} for name in missing]
    arguments["documents"] = documents or None
    rendered = _render_chat(tokenizer, example["messages"], contents, arguments)
    prompt = placeholders.parse(rendered, special=False)
    # A template may change contents (trim, escape, cut), which placeholders would hide. So the filled prompt is
    # compared with what the template makes of the real texts.
    real_documents = [document | {"text": placeholders.fill(document["text"])} for document in documents]
    real_contents = [placeholders.fill(text) for text in contents]
    arguments["documents"] = real_documents or None
    if prompt.template.fill(prompt.texts)[0] != _render_chat(tokenizer, example["messages"], real_contents, arguments):
        raise ExpoundError("the chat template changes the messages: give the prompt as text instead (--raw-prompt)")
    return prompt


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


def _parse_messages(messages: Any) -> list[_Block]:
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
        is_current = number >= last_question and role in ("user", "tool")
        blocks.append(_Block(role, text, bool(row.get("explain", is_current))))
    return blocks


def _put_sources_first(blocks: Sequence[_Block], sources: Mapping[str, str], placeholders: _Placeholders) -> list[str]:
    """Return the contents of the blocks, with all sources before the user's last message, or before the prompt."""
    question = max((number for number, block in enumerate(blocks) if block.name in ("user", "prompt")), default=0)
    contents = [placeholders.insert_rest(block, block.text) for block in blocks[:question]]
    documents = [placeholders.insert(name, text, True) for name, text in sources.items()]
    contents.append("\n\n".join([*documents, placeholders.insert_rest(blocks[question], blocks[question].text)]))
    return contents + [placeholders.insert_rest(block, block.text) for block in blocks[question + 1 :]]


def _put_sources_in_places(
    blocks: Sequence[_Block], sources: Mapping[str, str], placeholders: _Placeholders, *, takes_documents: bool
) -> list[str]:
    """Return the contents of the blocks, with sources where the texts name or quote them.

    Raises:
        ExpoundError: a source without a place, unless the chat template takes documents; a place without a source.
    """
    if not sources and any(ALL_SOURCES in block.text for block in blocks):
        raise ExpoundError(f"the prompt has a place for {ALL_SOURCES}, but the example has none")
    contents = [_insert_placeholders(block, blocks, sources, placeholders) for block in blocks]
    placed = placeholders.names()
    missing = [name for name in sources if name not in placed]
    _check_places(sources, () if takes_documents else missing, blocks)
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
        return _insert_placeholders(_Block(block.name, text, block.visible), [], sources, placeholders)
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
        pieces += placeholders.insert_rest(block, text[end:start]) + placeholders.insert(name, source, True)
        end = stop
    return pieces + placeholders.insert_rest(block, text[end:])


def _check_places(sources: Mapping[str, str], missing: Sequence[str], blocks: Sequence[_Block]) -> None:
    """Raise ExpoundError for sources without a place, and for a name in braces that is no source if others are."""
    named = re.findall(r"\{([\w .-]{1,60})\}", "".join(block.text for block in blocks))
    strange = [name for name in named if name not in sources and name != ALL_SOURCES[1:-1]]
    # Braces may be part of an ordinary text, unless other braces name sources or a source has no place.
    if strange and (missing or len(strange) < len(named)):
        raise unknown("source", strange[0], sources)
    if missing:
        raise ExpoundError(
            f"the prompt has no place for the source {missing[0]!r}: write {{{missing[0]}}} or {ALL_SOURCES} where it "
            "belongs"
        )


def _read_template_arguments(example: Mapping[str, Any], tokenizer: Any, *, is_chat: bool) -> dict[str, Any]:
    """Return an example's `tools` and `chat_template_kwargs` as arguments of the chat template."""
    arguments: dict[str, Any] = {}
    for name, kind in (("tools", list), ("chat_template_kwargs", dict)):
        value = example.get(name)
        if isinstance(value, str):
            with suppress(ValueError):
                value = json.loads(value)
        if not isinstance(value, kind | None):
            raise ExpoundError(f"expected {name} as a {kind.__name__}, got {value!r:.80}")
        if value:
            arguments |= value if kind is dict else {name: value}
    for name in arguments:
        if not is_chat:
            raise ExpoundError(f"{name} is read by a chat template: give 'messages' instead of a 'prompt'")
        # Templates ignore arguments that they do not know.
        if name not in str(tokenizer.chat_template):
            raise ExpoundError(f"the chat template does not read {name!r}: leave it out")
    return arguments


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


def _render_chat(tokenizer: Any, messages: Any, texts: Sequence[str], arguments: Mapping[str, Any]) -> str:
    """Return the messages with these contents as the chat template renders them, up to the beginning of an answer."""
    if not getattr(tokenizer, "chat_template", None):
        raise ExpoundError("the tokenizer has no chat template: give a 'prompt' instead of 'messages'")
    filled = [message | {"content": text} for message, text in zip(map(dict, messages), texts, strict=True)]
    for message in filled:
        message.pop("explain", None)
    try:
        fixed = {"tokenize": False, "add_generation_prompt": True}
        return str(tokenizer.apply_chat_template(filled, **{**arguments, **fixed}))
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise ExpoundError(f"the chat template does not take these messages: {error}") from error
