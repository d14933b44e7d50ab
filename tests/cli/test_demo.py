"""The demo's settings, and a chat model that answers on documents."""

from __future__ import annotations

import math

import numpy as np

import chats
import families
from expound.cli import main
from expound.cli.demo import chat
from expound.reports.explanations import Explanation
from expound.reports.records import Target, Unit


def test_a_scale_that_is_no_number_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EXPOUND_SCALE", "small")
    assert main(["demo", "--output-dir", str(tmp_path / "demo"), "--quiet"]) == 2
    assert "EXPOUND_SCALE is 'small'" in capsys.readouterr().err


def test_a_chat_model_answers_on_documents_with_its_sources(tmp_path, capsys):
    model = families.tiny("llama", "CausalLM", seed=1, max_position_embeddings=1200)
    model.save_pretrained(tmp_path / "model")
    chats.tokenizer().save_pretrained(tmp_path / "model")
    assert main(["demo", "--model", str(tmp_path / "model"), "--output-dir", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr().err
    assert all(question in shown for question in chat.QUESTIONS)
    assert shown.count("source: ") >= len(chat.QUESTIONS)
    written = {file.stem: file.read_text().strip() for file in (tmp_path / "demo" / "documents").iterdir()}
    assert written == chat.DOCUMENTS
    page = (tmp_path / "demo" / "answers.html").read_text(encoding="utf-8")
    assert all(name in page for name in chat.DOCUMENTS)


def test_a_source_is_told_by_how_much_less_likely_the_sentence_is_without_it():
    targets = [Target("yes no", (0, 2), 0.25**2, math.log(0.25**2)), Target("yes", (0, 1), 0.5, math.log(0.5))]
    targets.append(Target("no", (1, 2), 0.1, math.log(0.1)))
    result = Explanation(
        targets=tuple(targets),
        units=(Unit("a"), Unit("b")),
        scores=np.log([[0.5, 4.0], [0.5, 0.25], [1e9, 1.0]]),
        unit="source",
        method="occlusion",
    )
    described = [chat._describe_source(result, row) for row in range(3)]
    assert described == [
        "source: b (without it 4 times less likely); mean probability of a token: 0.25",
        "no source: no document makes it likelier; mean probability of a token: 0.50",
        "source: a (without it more than 1,000,000 times less likely); mean probability of a token: 0.10",
    ]
