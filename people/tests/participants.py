"""A study by a protocol, with planted explanations, and people who take part in it without a browser."""

from __future__ import annotations

import re
from html import unescape

import numpy as np

from expound_people.items import StudyItem
from expound_people.projects import create_project
from expound_people.protocol.file import KnownPart
from expound_people.protocol.known_answers import _make_explanation, _make_item
from sites import csrf, stranger

METHODS = {"lime_like": 3, "grad_like": 2, "noise_like": 1}
PROTOCOL = """
title: Which explanation is better?
kind: {kind}
language: {language}
consent: {{text: [We study explanations.], agree: [I am 18 or older., I take part of my own will.]}}
screening:
  - {{name: english, question: "How good is your English?", choices: [fluent, basic, none], accept: [fluent, basic]}}
instructions:
  example: {{text: a truly moving film, evidence: [truly moving], prediction: good, feedback: [Marked words say why.]}}
training:
  - {{text: the plot is dull and long, evidence: [dull], prediction: bad, feedback: [The word dull says why.]}}
comprehension:
  attempts: 2
  questions:
    - {{question: "What is rank 1?", choices: [the worst, the best], answer: the best}}
attention:
  items:
    - {{text: great acting in a wonderful story, evidence: [great, wonderful], prediction: good}}
main: {{items: 4, overlap: 3, screen: 3, confidence: true}}
questionnaire:
  - name: trust
    question: About the explanations
    kind: scale
    statements: [I can rely on them., I am wary of them.]
    ends: [disagree, agree]
    reverse: [2]
  - {{name: comment, question: "Anything else?", kind: text, optional: true}}
thanks: Thank you for taking part.
recruiting:
  platform: prolific
  people: 6
  minutes: 60
  quotas: {{english: {{basic: 1}}}}
  complete: {{code: C123, redirect: "https://app.prolific.com/submissions/complete?cc=C123"}}
  screened_out: {{code: S456}}
"""


def protocol(kind="rank", language="en", **replaced):
    """The protocol's text, with some of its parts replaced or added."""
    text = PROTOCOL.format(kind=kind, language=language)
    for old, new in replaced.items():
        text = re.sub(rf"^{old}:.*\n(?: .*\n)*", "", text, flags=re.MULTILINE) + f"{old}: {new}\n"
    return text


def create_planted_study(made, text, name="films", examples=6):
    """Creates a study of examples that three methods explain; better methods show more of the planted evidence."""
    found = []
    for number in range(examples):
        words = f"example {number} is one two three four five six"
        part = KnownPart(text=words, evidence=["one two three"], prediction="good" if number % 2 else "bad")
        case = _make_item(part)
        scored = {}
        for method, size in METHODS.items():
            scores = np.isin(np.arange(9), np.arange(3, 3 + size)).astype(np.float32)
            scored[method] = _make_explanation(part, method, scores)
        found.append(StudyItem(case.texts, scored, part.prediction, part.prediction))
    with made.application.storage.write_session() as session:
        create_project(session, name, found, labels=["bad", "good"], protocol=text)


def link(number, study="films", session="s"):
    return f"/take/{study}?PROLIFIC_PID=p{number}&STUDY_ID=study&SESSION_ID={session}{number}"


def follow_link(made, number, **options):
    """Follows the link of a study and presses its button; returns the person's client and the next page."""
    client = stranger(made)
    page = client.get(link(number, **options))
    return client, client.post(link(number, **options), data={"csrf": csrf(page)})


def step(client, name, **fields):
    """Sends the form of a step, and returns the next page."""
    page = client.get("/annotate")
    return client.post(f"/annotate/step/{name}", data={"csrf": csrf(page), "seconds": "3"} | fields)


def go_to_main_part(client, english="0"):
    """Answers all that comes before the main part, and returns its first page."""
    step(client, "consent", agree=["0", "1"])
    step(client, "screening", english=english)
    step(client, "instructions")
    page = client.get("/annotate")
    answer(client, page, lambda colored: colored)
    return step(client, "comprehension", q0="1")


def read_colored_words(page):
    """The words that each explanation of a page colors, by its letter."""
    sections = re.findall(r'<section class="card explanation.*?</section>', page.text, re.DOTALL)
    return {
        re.search(r"explanation-(\w+)", each).group(1): re.findall(r'<span class="p\d">([^<]*)<', each)
        for each in sections
    }


def by_evidence(colored):
    """Ranks by letter: planted evidence first, then by the number of colored words."""
    known = {"great", "wonderful", "dull"}
    value = {letter: (len(known & set(words)), len(words)) for letter, words in colored.items()}
    return {letter: 1 + sum(other > mine for other in value.values()) for letter, mine in value.items()}


def answer(client, page, ranks=by_evidence, seconds="20"):
    """Answers a ranking page, and returns the next page."""
    if ranks is not by_evidence and not callable(ranks):
        given = dict.fromkeys(read_colored_words(page), ranks)
    else:
        given = (
            by_evidence(read_colored_words(page))
            if ranks is by_evidence
            else by_evidence(ranks(read_colored_words(page)))
        )
    address = unescape(re.search(r'<form method="post" action="([^"]*)"', page.text).group(1))
    fields = {f"rank-{letter}": str(rank) for letter, rank in given.items()}
    return client.post(address, data={"csrf": csrf(page), "phase": "", "seconds": seconds, "confidence": "4"} | fields)


def answer_everything(client, ranks=by_evidence, seconds="20"):
    """Answers the whole main part and the questionnaire, and returns the last page."""
    page = client.get("/annotate")
    while "explanation-A" in page.text:
        page = answer(client, page, ranks, seconds)
    return step(client, "questionnaire", **{"trust-1": "5", "trust-2": "1"})
