"""`expound serve` opens the pages of the models that it is given."""

from __future__ import annotations

import pytest
import torch
from starlette.testclient import TestClient

from chats import chatting
from expound import explainer
from expound.errors import ExpoundError
from expound.explainers.learned.trained_citation import TrainedCitation
from sites import HERE, TEXTS, csrf, model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model."""
    where = tmp_path_factory.mktemp("models") / "tiny"
    model().model.config.label2id = {label: number for number, label in model().model.config.id2label.items()}
    model().model.save_pretrained(where)
    model().tokenizer.save_pretrained(where)
    return str(where)


def sign_in(start):
    """A client in which the admin is signed in at a server that `start_server` made."""
    client = TestClient(start["config"].app, base_url=HERE, headers={"accept": "text/html"})
    client.get("/sign-in", params={"token": start["printed"].rpartition("token=")[2].strip()})
    return client


def test_a_language_model_is_asked_on_documents_and_begins_with_its_own_citation(start_server, tmp_path):
    chat = chatting(dtype=torch.float32)
    chat.model.save_pretrained(tmp_path / "tiny")
    chat.tokenizer.save_pretrained(tmp_path / "tiny")
    options = ("--model", str(tmp_path / "tiny"), "--task", "generation")
    rows = ("--data", "generated?task=retrieval", "--limit", "3")
    client = sign_in(start_server(*options, *rows))
    assert 'value="occlusion" checked>' in client.get("/").text
    assert 'value="note 1"' in client.post("/explore/example", data={"csrf": csrf(client.get("/explore"))}).text
    TrainedCitation(explainer("input_x_gradient")).save_pretrained(tmp_path / "tiny", "input_x_gradient")
    assert 'value="citation:tiny" checked>' in sign_in(start_server(*options)).get("/explore").text


def test_all_methods_are_offered_and_there_are_no_studies(start_server, folder):
    client = sign_in(start_server("--model", folder, "--methods", "all"))
    assert client.get("/explore", params={"text": TEXTS[1]}).status_code == 200
    assert client.get("/studies").status_code == 404


def test_nothing_to_serve_is_refused(start_server):
    with pytest.raises(ExpoundError, match="nothing to serve"):
        start_server()
