"""The demo: a comparison on generated data, in which the planted evidence is found."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd

import chats
import families
from expound.cli import main
from expound.cli.demo import chat
from expound.data.cards import MethodCard
from expound.explainers import EXPLAINERS
from expound.metrics import cards
from expound.reports.explanations import Explanation
from expound.reports.records import Target, Unit


def test_methods_find_the_planted_evidence(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EXPOUND_SCALE", "0.05")
    methods = "random,saliency,integrated_gradients,occlusion,alti,decompx_linear"
    assert main(["demo", "--output-dir", str(tmp_path), "--methods", methods, "--quiet"]) == 0
    captured = capsys.readouterr()
    shown = captured.out
    assert re.fullmatch(r"the demo took \d+ (s|min)", captured.err.splitlines()[-1])
    table = pd.read_csv(tmp_path / "comparison" / "table.csv").set_index("method")
    auc = table["rationale_auc_mean"]
    assert auc["integrated_gradients"] >= 0.85
    assert auc["occlusion"] >= 0.85
    assert abs(auc["random"] - 0.5) < 0.05
    page = (tmp_path / "comparison" / "report.html").read_text(encoding="utf-8")
    titles = [card.title for name, card in EXPLAINERS.cards(MethodCard).items() if name in methods.split(",")]
    assert len(titles) == 6
    assert all(title in shown and title in page for title in [*titles, cards()["rationale_auc"].heading])


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
