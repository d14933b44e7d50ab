"""A small site, its admin and its annotators, for the tests of the pages."""

from __future__ import annotations

import functools
import re
from html import unescape

import torch
from starlette.testclient import TestClient

import expound
from expound.serve import Limits, Site, create_app
from expound.serve.browse.stored import open_results
from expound.serve.explore.service import Explorer
from expound_people.changes import add_changed_versions
from expound_people.items import make_items
from expound_people.kinds import KINDS
from expound_people.projects import create_project, find_project, invite_annotators
from expound_people.protocol.file import ChangePart
from expound_people.storage import Storage
from small import small

TOKEN = "the-admin-token-of-the-tests-0123456789"
HERE = "http://127.0.0.1"
SCRIPT = "<script>alert('x')</script>"
MARKUP = "<b onclick=x>bold</b>"
TEXTS = [
    f"a moving film {SCRIPT} about a small town",
    "the plot is dull , but nobody laughs at the jokes",
    "two women are holding packages in the rain",
    "great acting cannot save a tired story",
]
METHODS = ["saliency", "input_x_gradient", "attention_all", "globenc"]


@functools.cache
def model():
    """A tiny model with markup as one of its labels; tests must not change it."""
    made = small("bert", dtype=torch.float32)
    made.model.config.id2label = {0: MARKUP, 1: "good", 2: "bad"}
    return made


def save_comparison(folder, texts=TEXTS):
    """Compares methods on the texts, saves the comparison in the folder, and returns the folder."""
    expound.compare(model(), texts, METHODS, ["aopc_comprehensiveness", "aopc_sufficiency"], output_dir=folder)
    return folder


def storage(folder):
    """A new SQLite storage."""
    return Storage(f"sqlite:///{folder}/studies.db")


def site(folder, *, results=(), with_model=True, **changes):
    """A site with every room; a room for results only if there are some."""
    limits = changes.pop("limits", Limits())
    explorer = Explorer({"tiny": model()}, examples=[{"text": text} for text in TEXTS], limits=limits)
    rooms = {"explorer": explorer if with_model else None, "storage": storage(folder)}
    return Site(TOKEN, results=open_results(results), limits=limits, **(rooms | changes))


def stranger(made):
    """A client without a signed-in user."""
    return TestClient(create_app(made), base_url=HERE, headers={"accept": "text/html"}, raise_server_exceptions=False)


def admin(made):
    """A client in which the admin is signed in."""
    client = stranger(made)
    assert client.get("/sign-in", params={"token": TOKEN}).status_code == 200
    return client


def csrf(page):
    """The token that a page's forms send back."""
    return unescape(re.search(r'name="csrf" content="([^"]*)"', page.text).group(1))


def project(made, name="first", kind="rank", people=("Ada", "Ben"), texts=TEXTS, methods=METHODS, **options):
    """Creates a study of these texts, and returns the tokens of its invitations by the person's name."""
    items = [(method, item) for method in methods for item in expound.attribute(model(), list(texts), method)]
    labels = [{"label_name": ("good", "bad")[index % 2]} for index in range(len(texts))]
    found = make_items(items, labels)
    if KINDS[kind].has_changes:
        found = add_changed_versions(model(), found, ChangePart())
    with made.studies.write_session() as session:
        create_project(session, name, found, kind, labels=model().labels, **options)
    with made.studies.write_session() as session:
        return invite_annotators(session, find_project(session, name), list(people))


def annotator(made, token):
    """A client of a person who has followed an invitation."""
    client = stranger(made)
    page = client.get(f"/join/{token}")
    assert page.status_code == 200, page.text
    assert client.post(f"/join/{token}", data={"csrf": csrf(page)}).status_code == 200
    return client


def letters(page):
    """The letters of the explanations on a ranking page."""
    return re.findall(r"<h2[^>]*>Explanation (\w+)</h2>", page.text)


def rank(client, place, ranks):
    """Sends a ranking by letter, and returns the next page."""
    page = client.get(f"/annotate/{place}")
    given = {f"rank-{letter}": str(value) for letter, value in ranks.items()}
    return client.post(f"/annotate/{place}", data={"csrf": csrf(page), "phase": "", "seconds": "2.5"} | given)
