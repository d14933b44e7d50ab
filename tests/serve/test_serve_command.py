"""`expound serve` opens the rooms for which it has content, and creates the study that its options describe."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient

import families
from chats import chatting
from expound import explainer
from expound.errors import ExpoundError
from expound.explainers.learned.trained_citation import TrainedCitation
from expound.models.loading.digest import digest_weights
from expound_people.protocol.file import digest_protocol
from participants import protocol, step
from sites import HERE, METHODS, TEXTS, csrf, model

STUDIES = Path(__file__).parents[2] / "papers" / "studies"
RANKS = ["rank-A", "rank-B", "rank-C"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model, whose labels are those of the generated corpus."""
    where = tmp_path_factory.mktemp("models") / "tiny"
    model().model.save_pretrained(where)
    facts = json.loads((where / "config.json").read_text())
    labels = {"id2label": {"0": "negative", "1": "positive", "2": "other"}}
    labels |= {"label2id": {name: int(number) for number, name in labels["id2label"].items()}}
    (where / "config.json").write_text(json.dumps(facts | labels))
    model().tokenizer.save_pretrained(where)
    return str(where)


def sign_in(start):
    """A client in which the admin is signed in at a server that `start_server` made."""
    client = TestClient(start["config"].app, base_url=HERE, headers={"accept": "text/html"})
    client.get("/sign-in", params={"token": start["printed"].rpartition("token=")[2].strip()})
    return client


def test_a_study_is_made_of_a_result_once_and_gone_on_with(start_server, comparison):
    options = ("--result", str(comparison), "--study", "films", "--limit", "2")
    made = sign_in(start_server(*options)).get("/studies/films").text
    assert f"2 examples, explained by {', '.join(sorted(METHODS))}" in made
    again = start_server(*options)
    assert "continuing the study films" in again["printed"]
    assert "0 of 0 answers, 2 examples" in sign_in(again).get("/studies/films").text
    with pytest.raises(ExpoundError, match="of kind rank"):
        start_server(*options, "--kind", "highlight")


def test_a_study_is_made_of_a_model_and_data(start_server, folder):
    start = start_server(
        *("--model", folder, "--data", "generated?size=12", "--limit", "3"),
        *("--study", "said", "--kind", "simulate", "--methods", "saliency,attention_all"),
    )
    client = sign_in(start)
    assert "3 examples, explained by attention_all, saliency" in client.get("/studies/said").text
    assert client.post("/explore/example", data={"csrf": csrf(client.get("/explore"))}).status_code == 200


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
    study = (*options, *rows, "--study", "answers", "--methods", "input_x_gradient,random")
    page = unescape(sign_in(start_server(*study)).get("/studies/answers").text)
    assert "3 examples, explained by input_x_gradient, random" in page
    assert f"{tmp_path}/tiny, weights {digest_weights(chat.model)}" in page
    assert "generated?task=retrieval" in page


def test_a_study_of_changed_examples_needs_the_model_that_answers_them(start_server, folder, comparison):
    options = ("--study", "changed", "--kind", "counterfactual")
    made = ("--model", folder, "--data", "generated?size=12", "--limit", "3", "--methods", "saliency")
    assert "3 examples, explained by saliency" in sign_in(start_server(*made, *options)).get("/studies/changed").text
    with pytest.raises(ExpoundError, match="needs the --model whose answers"):
        start_server("--result", str(comparison), "--study", "others", "--kind", "counterfactual")


def test_the_admin_lands_on_the_study_for_which_the_server_was_started(start_server, folder, comparison):
    options = ("--model", folder, "--result", str(comparison), "--study", "two words")
    start = start_server(*options)
    signed_in = TestClient(start["config"].app, base_url=HERE, headers={"accept": "text/html"})
    token = re.search(r"sign-in\?token=(\S+)", start["printed"])[1]
    by_address = signed_in.get("/sign-in", params={"token": token})
    by_form = signed_in.post("/sign-in", data={"token": token})
    for page in (by_address, by_form):
        assert (page.status_code, page.url.path) == (200, "/studies/two words")
    assert sign_in(start_server(*options[:4])).get("/").url.path == "/explore"


def test_an_address_of_ipv6_has_brackets(start_server):
    start = start_server("--name", "fd00::5", "--name", "[fd00::6]")
    assert "open: http://[fd00::5]:" in start["printed"]
    for host in ("fd00::5", "fd00::6"):
        assert sign_in(start).get("/sign-in", headers={"host": f"[{host}]:8000"}).status_code == 200


def test_other_machines_need_a_name(start_server):
    start = start_server("--host", "0.0.0.0")
    assert "other machines are refused" in start["printed"]
    reply = sign_in(start).get("/sign-in", headers={"host": "192.168.1.5:8000"})
    assert (reply.status_code, "--name" in reply.text) == (421, True)
    named = start_server("--host", "0.0.0.0", "--name", "192.168.1.5")
    assert "other machines are refused" not in named["printed"]
    assert sign_in(named).get("/sign-in", headers={"host": "192.168.1.5:8000"}).status_code == 200


def test_a_room_without_anything_in_it_stays_shut(start_server, comparison, folder):
    client = sign_in(start_server("--result", str(comparison)))
    assert client.get("/browse/reviews").status_code == 200
    assert client.get("/explore").status_code == 404
    client = sign_in(start_server("--model", folder, "--methods", "all"))
    assert client.get("/explore", params={"text": TEXTS[1]}).status_code == 200
    assert client.get("/browse").status_code == 404


def test_a_study_of_a_protocol_is_made_once_and_its_link_and_digest_are_told(start_server, comparison, tmp_path):
    path = tmp_path / "films.yaml"
    path.write_text(protocol())
    options = ("--result", str(comparison), "--protocol", str(path))
    start = start_server(*options)
    link = "/take/films?PROLIFIC_PID={{%PROLIFIC_PID%}}&STUDY_ID={{%STUDY_ID%}}&SESSION_ID={{%SESSION_ID%}}"
    assert link in start["printed"]
    assert digest_protocol(protocol()) in start["printed"]
    assert "/take/films" in sign_in(start).get("/studies/films").text
    assert "continuing the study films" in start_server(*options)["printed"]
    path.write_text(protocol(language="de"))
    with pytest.raises(ExpoundError, match="started with another protocol"):
        start_server(*options)
    with pytest.raises(ExpoundError, match="describes a study of kind rank, but --kind is highlight"):
        start_server(*options, "--kind", "highlight")


def test_smats_table_4_is_collected_from_its_file(start_server, tmp_path):
    families.tiny("vit", dtype=torch.float32, num_labels=10).save_pretrained(tmp_path / "teacher")
    families.processor("vit").save_pretrained(tmp_path / "teacher")
    kept = ("--model", str(tmp_path / "teacher"), "--data", "digits", "--limit", "2", "--methods", "saliency,random")
    client = sign_in(start_server("--protocol", str(STUDIES / "people" / "smat-table-4.yaml"), *kept))
    page = client.get("/take/smat-table-4")
    client.post("/take/smat-table-4", data={"csrf": csrf(page)})
    step(client, "consent", agree=["0", "1"])
    step(client, "screening", sight="0")
    assert client.get("/annotate/step/picture").content.startswith(b"\x89PNG")
    page = step(client, "instructions")
    assert len(re.findall("explanation-[A-C]", page.text)) == 2 * 3
    assert client.get("/annotate/training/1/picture").content.startswith(b"\x89PNG")
    client.post("/annotate/training/1", data={"csrf": csrf(page), "phase": ""} | dict.fromkeys(RANKS, "1"))
    page = step(client, "comprehension", q0="0", q1="0")
    assert "Example 1 of 4" in page.text
    assert {client.get(f"/annotate/{place}/picture").status_code for place in range(1, 5)} == {200}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--study", "new"), "the study new does not exist"),
        (("--data", "generated", "--study", "new"), "needs a --model"),
        (("--study", "new", "--kind", "sing"), "Valid choices: counterfactual, highlight, rank, simulate"),
        (("--study", "a/b"), "expected a name"),
        (("--study", ""), "expected a name"),
    ],
)
def test_what_is_missing_is_said(start_server, options, told):
    with pytest.raises(ExpoundError, match=told):
        start_server(*options)
