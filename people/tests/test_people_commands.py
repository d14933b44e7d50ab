"""`expound people`: studies are created of results, models and protocols, served, and exported."""

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
from expound.cli import main
from expound.errors import ExpoundError
from expound.models.loading.checkpoint import digest_weights
from expound_people.protocol.file import digest_protocol
from participants import protocol, step
from sites import HERE, METHODS, csrf, model

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


def test_a_study_is_made_of_a_result_once(create, start_server, comparison):
    options = ("films", "--result", str(comparison), "--limit", "2")
    assert "created the study films with 2 examples" in create(*options)
    made = sign_in(start_server("films")).get("/studies/films").text
    assert f"2 examples, explained by {', '.join(sorted(METHODS))}" in made
    assert "0 of 0 answers, 2 examples" in made
    with pytest.raises(ExpoundError, match="a study named 'films' already"):
        create(*options, "--kind", "highlight")


def test_a_study_is_made_of_a_model_and_data(create, start_server, folder):
    create(
        *("said", "--model", folder, "--data", "generated?size=12", "--limit", "3"),
        *("--kind", "simulate", "--methods", "saliency,attention_all"),
    )
    assert "3 examples, explained by attention_all, saliency" in sign_in(start_server()).get("/studies/said").text


def test_a_study_of_a_language_model_names_its_weights_and_its_data(create, start_server, tmp_path):
    chat = chatting(dtype=torch.float32)
    chat.model.save_pretrained(tmp_path / "tiny")
    chat.tokenizer.save_pretrained(tmp_path / "tiny")
    options = ("--model", str(tmp_path / "tiny"), "--task", "generation")
    rows = ("--data", "generated?task=retrieval", "--limit", "3")
    create("answers", *options, *rows, "--methods", "input_x_gradient,random")
    page = unescape(sign_in(start_server()).get("/studies/answers").text)
    assert "3 examples, explained by input_x_gradient, random" in page
    assert f"{tmp_path}/tiny, weights {digest_weights(chat.model)}" in page
    assert "generated?task=retrieval" in page


def test_a_study_of_changed_examples_needs_the_model_that_answers_them(create, start_server, folder, comparison):
    made = ("--model", folder, "--data", "generated?size=12", "--limit", "3", "--methods", "saliency")
    create("changed", *made, "--kind", "counterfactual")
    assert "3 examples, explained by saliency" in sign_in(start_server()).get("/studies/changed").text
    with pytest.raises(ExpoundError, match="needs the --model whose answers"):
        create("others", "--result", str(comparison), "--kind", "counterfactual")


def test_the_admin_lands_on_the_study_for_which_the_server_was_started(create, start_server, comparison):
    create("two words", "--result", str(comparison))
    start = start_server("two words")
    signed_in = TestClient(start["config"].app, base_url=HERE, headers={"accept": "text/html"})
    token = re.search(r"sign-in\?token=(\S+)", start["printed"])[1]
    by_address = signed_in.get("/sign-in", params={"token": token})
    by_form = signed_in.post("/sign-in", data={"token": token})
    for page in (by_address, by_form):
        assert (page.status_code, page.url.path) == (200, "/studies/two words")
    assert sign_in(start_server()).get("/").url.path == "/studies"


def test_an_address_of_ipv6_has_brackets(start_server):
    start = start_server("--public-host", "fd00::5", "--public-host", "[fd00::6]")
    assert "open: http://[fd00::5]:" in start["printed"]
    for host in ("fd00::5", "fd00::6"):
        assert sign_in(start).get("/sign-in", headers={"host": f"[{host}]:8000"}).status_code == 200


def test_other_machines_need_a_name(start_server):
    start = start_server("--host", "0.0.0.0")
    assert "other machines are refused" in start["printed"]
    reply = sign_in(start).get("/sign-in", headers={"host": "192.168.1.5:8000"})
    assert (reply.status_code, "--public-host" in reply.text) == (421, True)
    named = start_server("--host", "0.0.0.0", "--public-host", "192.168.1.5")
    assert "other machines are refused" not in named["printed"]
    assert sign_in(named).get("/sign-in", headers={"host": "192.168.1.5:8000"}).status_code == 200


def test_a_server_of_studies_explores_no_model(start_server):
    assert sign_in(start_server()).get("/explore").status_code == 404


def test_a_study_of_a_protocol_is_made_once_and_its_link_and_digest_are_told(
    create, start_server, comparison, tmp_path
):
    path = tmp_path / "films.yaml"
    path.write_text(protocol())
    options = ("--result", str(comparison), "--protocol", str(path))
    create(*options)
    start = start_server()
    link = "/take/films?PROLIFIC_PID={{%PROLIFIC_PID%}}&STUDY_ID={{%STUDY_ID%}}&SESSION_ID={{%SESSION_ID%}}"
    assert link in start["printed"]
    assert digest_protocol(protocol()) in start["printed"]
    assert "/take/films" in sign_in(start).get("/studies/films").text
    path.write_text(protocol(language="de"))
    with pytest.raises(ExpoundError, match="a study named 'films' already"):
        create(*options)
    with pytest.raises(ExpoundError, match="describes a study of kind rank, but --kind is highlight"):
        create(*options, "--kind", "highlight")


def test_smats_table_4_is_collected_from_its_file(create, start_server, tmp_path):
    families.tiny("vit", dtype=torch.float32, num_labels=10).save_pretrained(tmp_path / "teacher")
    families.processor("vit").save_pretrained(tmp_path / "teacher")
    kept = ("--model", str(tmp_path / "teacher"), "--data", "digits", "--limit", "2", "--methods", "saliency,random")
    create("--protocol", str(STUDIES / "people" / "smat-table-4.yaml"), *kept)
    client = sign_in(start_server())
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


def test_the_files_of_a_studys_page_are_exported(create, start_server, comparison, tmp_path, capsys):
    create("films", "--result", str(comparison), "--limit", "2")
    where = ["--storage", f"sqlite:///{tmp_path}/s.db"]
    assert main(["people", "export", "films", "--output-dir", str(tmp_path / "films"), *where]) == 0
    client = sign_in(start_server())
    for name in ("answers.csv", "results.json"):
        assert (tmp_path / "films" / name).read_bytes() == client.get(f"/studies/films/export/{name}").content
    assert main(["people", "export", "films", "nothing.csv", *where]) == 2
    assert "it has: answers.csv" in capsys.readouterr().err
    assert main(["people", "export", "other", *where]) == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("new",), "the study new needs explanations"),
        (("new", "--data", "generated"), "needs a --model"),
        (("new", "--kind", "sing"), "Valid choices: counterfactual, highlight, rank, simulate"),
        (("a/b",), "expected a name"),
        (("",), "expected a name"),
        ((), "give the study a name"),
    ],
)
def test_what_is_missing_is_said(create, options, told):
    with pytest.raises(ExpoundError, match=told):
        create(*options)
