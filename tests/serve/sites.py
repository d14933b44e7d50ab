"""A small site, its admin and its annotators, for the tests of the pages."""

from __future__ import annotations

import functools
import re
from html import unescape

import torch
from starlette.testclient import TestClient

import expound
from expound.serve import Limits, Site, create_app
from expound.serve.explore.service import Explorer
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


def site(**changes):
    """A site on which the tiny model is explored."""
    limits = changes.pop("limits", Limits())
    explorer = Explorer({"tiny": model()}, examples=[{"text": text} for text in TEXTS], limits=limits)
    return Site(TOKEN, limits=limits, **({"explorer": explorer} | changes))
