"""Thoughts, tool calls and results of a conversation, and their characters in what a chat template makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os.path import commonprefix
from typing import Any, NamedTuple

from jinja2 import TemplateError

from expound.data.alignment import trim_span
from expound.errors import ExpoundError
from expound.reports.records import Extent, Part

Render = Callable[[Sequence[Mapping[str, Any]]], str]
"""Returns the text that a chat template makes of messages."""
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message with what the assistant thought before it answered."""
RESULT_ROLES = ("tool", "ipython", "function")
ALTERED = "\ue002"
"""A private-use character, which no text contains, in place of a part whose characters are looked for."""
OPEN, CLOSE = "<think>", "</think>"
BEFORE_KEY, BEFORE_VALUE = re.compile(r'[\s{,]*(?=")'), re.compile(r"\s*:\s*")


class Call(NamedTuple):
    """The characters of a tool call: of its `name`, its `arguments`, and of the `whole`, from the first to the last."""

    name: Extent
    arguments: Extent
    whole: Extent


def name_message(messages: Sequence[Mapping[str, Any]], place: int) -> tuple[str, str]:
    """Return what a message is, its role or `tool_result`, and its name; a result is named by the tool."""
    message = messages[place]
    role = str(message["role"])
    if role not in RESULT_ROLES:
        return role, role
    name = message.get("name")
    before = [call for other in messages[:place] for call in list_calls(other)]
    for call in before:
        if name is None and call.get("id") is not None and call["id"] == message.get("tool_call_id"):
            name = get_function(call).get("name")
    if name is None and before and "tool_call_id" not in message:
        # Without ids, results have the order of the calls.
        is_result = [other["role"] in RESULT_ROLES for other in messages[:place]]
        name = get_function(before[min(sum(is_result), len(before) - 1)]).get("name")
    return "tool_result", f"tool result: {name}" if name else "tool result"


def list_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tool calls of a message. Raises ExpoundError for another form of them."""
    calls = message.get("tool_calls") or []
    for call in calls if isinstance(calls, Sequence) else [calls]:
        function = get_function(call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ExpoundError(
                f"expected tool_calls as a list of {{'function': {{'name': …, 'arguments': …}}}}, got {call!r:.80}"
            )
    return list(calls)


def get_function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the name and the arguments of a tool call."""
    function: Mapping[str, Any] = call.get("function") or call
    return function


class Thought(NamedTuple):
    """The characters [start, end) of a thought at the beginning of a text, and where the `answer` after it begins."""

    start: int
    end: int
    answer: int


def find_thought(text: str) -> Thought | None:
    """Return the thought that `</think>` ends, None without it; it may be empty.

    The opening mark is missing where the chat template itself writes it, at the end of the prompt.
    """
    close = text.find(CLOSE)
    if close < 0:
        return None
    start, _ = trim_span(text, 0, close)
    if text.startswith(OPEN, start):
        start += len(OPEN)
    after = close + len(CLOSE)
    return Thought(*trim_span(text, start, close), after + len(text[after:]) - len(text[after:].lstrip()))


def find_thought_field(message: Mapping[str, Any]) -> str | None:
    """Return the field of a message that holds its thought, None without one."""
    for name in THOUGHT_FIELDS:
        if isinstance(message.get(name), str) and message[name].strip():
            return name
    return None


def find_difference(text: str, other: str) -> Extent:
    """Return the characters of `text` between what both texts begin and end with."""
    start = len(commonprefix([text, other]))  # noqa: RUF071
    longest = min(len(text), len(other)) - start
    end = len(commonprefix([text[::-1][:longest], other[::-1][:longest]]))  # noqa: RUF071
    return start, len(text) - end


def find_call(render: Render, messages: Sequence[Mapping[str, Any]], place: int, number: int) -> Call | None:
    """Return the characters of a message's tool call in the rendered conversation; None if the template leaves it out.

    They are what changes if another name, or other arguments, are rendered.

    Raises:
        ExpoundError: the template writes the name otherwise.
    """
    text, function = render(messages), get_function(list_calls(messages[place])[number])
    start, _ = find_difference(text, render(_alter_call(messages, place, number, "name", ALTERED)))
    if start == len(text):
        return None
    name = (start, start + len(function["name"]))
    if text[slice(*name)] != function["name"]:
        raise ExpoundError(f"the chat template changes the name of the tool {function['name']!r}")
    given = function.get("arguments")
    altered = ALTERED if isinstance(given, str) else {ALTERED: ALTERED}
    arguments = find_difference(text, render(_alter_call(messages, place, number, "arguments", altered)))
    if arguments[0] == len(text):
        arguments = name
    else:
        # With JSON the braces and quotes around what changes belong to the arguments, and those around all to the call.
        arguments = _find_json(text, arguments[0], lambda value: value == given) or arguments
    whole = (min(name[0], arguments[0]), max(name[1], arguments[1]))
    around = _find_json(text, name[0], lambda value: isinstance(value, dict) and value.get("name") == function["name"])
    if around is not None and around[1] >= whole[1]:
        whole = around
    return Call(name, arguments, whole)


def _find_json(text: str, place: int, accept: Callable[[Any], bool]) -> Extent | None:
    """Return the characters of the JSON object that the last brace up to `place` opens, if the object is accepted."""
    start = text.rfind("{", 0, place + 1)
    if start < 0:
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    # Values may be nested too deeply.
    except (ValueError, RecursionError):
        return None
    return (start, end) if accept(value) else None


def _alter_call(
    messages: Sequence[Mapping[str, Any]], place: int, number: int, field: str, value: Any
) -> list[Mapping[str, Any]]:
    """Return the messages with another name, or other arguments, of a tool call."""
    calls = list_calls(messages[place])
    function = dict(get_function(calls[number])) | {field: value}
    calls[number] = dict(calls[number]) | {"function": function} if "function" in calls[number] else function
    return _replace_message(messages, place, {"tool_calls": calls})


def _replace_message(
    messages: Sequence[Mapping[str, Any]], place: int, change: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    return [*messages[:place], {**messages[place], **change}, *messages[place + 1 :]]


def render_answer(
    render: Render, messages: Sequence[Mapping[str, Any]], prompt: str, end: str | None
) -> tuple[str, tuple[Part, ...]]:
    """Return the last message as the response to the `prompt`, as the chat template writes it, and its parts.

    Args:
        render: without the beginning of another answer.
        messages: the conversation, ending with the assistant's message.
        prompt: the conversation before that message, with the beginning of the answer.
        end: the end-of-text token, which is left out.

    Raises:
        ExpoundError: the template writes the message otherwise than it begins an answer.
    """
    whole, place = render(messages), len(messages) - 1
    if not whole.startswith(prompt):
        raise ExpoundError(
            "the chat template writes the last message otherwise than it begins an answer: give the answer's text as "
            "'response'"
        )
    text = whole[len(prompt) :].rstrip()
    if end:
        text = text.removesuffix(end)
    message, parts = messages[-1], list[Part]()
    thought = find_thought_field(message)
    for kind, field in (("thought", thought), ("answer", "content")):
        if field is not None and message.get(field):
            parts.append(
                Part(kind, *find_difference(whole, render(_replace_message(messages, place, {field: ALTERED}))))
            )
    parts = [part for part in parts if part.start < part.end]
    for number in range(len(list_calls(message))):
        call = find_call(render, messages, place, number)
        if call is None:
            raise ExpoundError("the chat template leaves out tool calls: give the answer's text as 'response'")
        kinds = (("tool_call", call.whole), ("tool_name", call.name), ("tool_arguments", call.arguments))
        parts += [Part(kind, *extent) for kind, extent in kinds]
    parts = [Part(kind, first - len(prompt), last - len(prompt)) for kind, first, last in parts]
    # Thoughts that the content, or the template, marks in the text.
    marked = [part for part in find_parts(text) if part.kind in ("thought", "answer")]
    if marked or thought is None:
        return text, (*marked, *[part for part in parts if part.kind.startswith("tool_")])
    others = [part for part in parts if part.kind != "answer"]
    first = min((part.start for part in parts if part.kind != "thought"), default=len(text))
    return text, (*others, Part("answer", first, len(text)))


def find_parts(text: str) -> tuple[Part, ...]:
    """Return the thoughts of a response (`<think>…</think>`), the answer after them, and its tool calls as JSON."""
    parts, start = list[Part](), 0
    thought = find_thought(text)
    if thought is not None:
        start = thought.answer
        if thought.start < thought.end:
            parts.append(Part("thought", thought.start, thought.end))
        parts.append(Part("answer", start, len(text)))
    place = text.find("{", start)
    while place >= 0:
        extent = _find_json(text, place, _is_call)
        if extent is None:
            place = text.find("{", place + 1)
            continue
        members = _find_members(text, place)
        start, end = members["name"]
        parts.append(Part("tool_call", *extent))
        parts.append(Part("tool_name", start + 1, end - 1))
        parts.append(Part("tool_arguments", *members.get("arguments", members.get("parameters", extent))))
        place = text.find("{", extent[1])
    return tuple(parts)


def _find_members(text: str, start: int) -> dict[str, Extent]:
    """Return the characters of the values of the JSON object that begins here, by their keys."""
    members, decoder = dict[str, Extent](), json.JSONDecoder()
    while (before := BEFORE_KEY.match(text, start)) is not None:
        key, place = decoder.raw_decode(text, before.end())
        colon = BEFORE_VALUE.match(text, place)
        assert colon is not None
        _, start = decoder.raw_decode(text, colon.end())
        members[key] = (colon.end(), start)
    return members


def _is_call(value: Any) -> bool:
    """Return whether a JSON value is a tool call: an object with a name, and arguments or parameters."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return False
    return "arguments" in value or "parameters" in value


def read_template_arguments(example: Mapping[str, Any], tokenizer: Any, *, is_chat: bool) -> dict[str, Any]:
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


def render_chat(
    tokenizer: Any, arguments: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], *, is_prompt: bool = True
) -> str:
    """Return the messages as the chat template renders them; a prompt up to the beginning of an answer."""
    if not getattr(tokenizer, "chat_template", None):
        raise ExpoundError("the tokenizer has no chat template: give a 'prompt' instead of 'messages'")
    try:
        fixed = {"tokenize": False, "add_generation_prompt": is_prompt}
        return str(tokenizer.apply_chat_template(list(messages), **{**arguments, **fixed}))
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise ExpoundError(f"the chat template does not take these messages: {error}") from error
