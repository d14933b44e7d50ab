"""A small site whose model chats, for the tests of the chat's pages."""

from __future__ import annotations

import functools
from dataclasses import asdict

import torch

from chats import SOURCES
from chats import chatting as tiny
from exegete.web import Limits, Site
from exegete.web.chat.question import ChatQuestion
from exegete.web.chat.service import ChatService
from sites import TOKEN

ANSWER = " the town . Two women laugh at it ."
ASKED = ChatQuestion("tiny", "occlusion", "what is small ?", tuple(SOURCES.items()), response=ANSWER)


@functools.cache
def model():
    """A tiny model that chats; read only."""
    return tiny(dtype=torch.float64)


def chats(**options):
    """It behind the pages."""
    return ChatService({"tiny": model()}, **options)


def site(room=None, limits=Limits()):  # noqa: B008  (frozen)
    """A site where only the chat is open."""
    return Site(TOKEN, chats=room or chats(limits=limits), limits=limits)


def page_of(room, question=ASKED):
    """The address of a question that the server stores."""
    room.questions.add(question.key, question)
    return f"/chat/{question.key}"


def form_of(question=ASKED):
    """The fields of the form of a question."""
    names, texts = zip(*question.sources, strict=True) if question.sources else ((), ())
    fields = {name: value for name, value in asdict(question).items() if name != "sources"}
    return fields | {"name": list(names), "text": list(texts)}
