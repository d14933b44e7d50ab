"""A small site whose model chats, for the tests of the chat's pages."""

from __future__ import annotations

import functools
from dataclasses import asdict

import torch

from chats import SOURCES
from chats import chatting as tiny
from expound.serve import Limits, Site
from expound.serve.explore.question import Question
from expound.serve.explore.service import Explorer
from sites import TOKEN

ANSWER = " the town . Two women laugh at it ."
ASKED = Question("tiny", "what is small ?", method=("occlusion",), sources=tuple(SOURCES.items()), response=ANSWER)


@functools.cache
def model():
    """A tiny model that chats, which tests must not change."""
    return tiny(dtype=torch.float64)


def chats(**options):
    """An explorer of this model."""
    return Explorer({"tiny": model()}, **options)


def site(room=None, limits=Limits()):  # noqa: B008  (frozen)
    """A site where only the chat is open."""
    return Site(TOKEN, explorer=room or chats(limits=limits), limits=limits)


def page_of(room, question=ASKED):
    """The address of a question that the server stores."""
    return f"/explore?{room.make_query(question)}"


def form_of(question=ASKED):
    """The fields of the form of a question."""
    names, texts = zip(*question.sources, strict=True) if question.sources else ((), ())
    fields = {name: value for name, value in asdict(question).items() if name != "sources" and value}
    return fields | {"method": list(question.method), "name": list(names), "document": list(texts)}


def explain(room, question=ASKED):
    """Explains a question by its first method."""
    return room.explain(question, question.method[0])


def score_without(room, question, removed):
    """The log-probabilities of the answer and of its parts without some units."""
    return [score.value for score in room.predict(question, removed)]
