"""A small site whose model chats, for the tests of the chat's pages."""

from __future__ import annotations

import functools

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
