"""The demo: the main job on what the package brings itself, and the evidence it planted is found."""

from __future__ import annotations

import pandas as pd

from exegete.cli import main
from exegete.data.cards import MethodCard
from exegete.explainers import EXPLAINERS
from exegete.metrics import cards


def test_methods_find_the_planted_evidence(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EXEGETE_SCALE", "0.15")
    methods = "random,saliency,integrated_gradients,occlusion,alti,decompx_linear"
    assert main(["demo", "--output-dir", str(tmp_path), "--methods", methods, "--quiet"]) == 0
    shown = capsys.readouterr().out
    table = pd.read_csv(tmp_path / "comparison" / "table.csv").set_index("method")
    auc = table["auc_mean"]
    assert auc["integrated_gradients"] >= 0.85
    assert auc["occlusion"] >= 0.85
    assert abs(auc["random"] - 0.5) < 0.05
    page = (tmp_path / "comparison" / "report.html").read_text(encoding="utf-8")
    titles = [card.title for name, card in EXPLAINERS.cards(MethodCard).items() if name in methods.split(",")]
    assert len(titles) == 6
    assert all(title in shown and title in page for title in [*titles, cards()["auc"].heading])


def test_a_scale_that_is_no_number_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EXEGETE_SCALE", "small")
    assert main(["demo", "--output-dir", str(tmp_path / "demo"), "--quiet"]) == 2
    assert "EXEGETE_SCALE is 'small'" in capsys.readouterr().err


def test_notes_are_cited_and_what_was_needed_is_told_by_kind(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EXEGETE_SCALE", "0.003")
    words = ["demo", "--task", "generation", "--output-dir", str(tmp_path), "--limit", "6", "--quiet", "--methods"]
    assert main([*words, "occlusion,random"]) == 0
    shown = capsys.readouterr()
    assert "questions are answered exactly right" in shown.err
    assert all(kind in shown.out for kind in ("one hop", "redundant", "two hops"))
    assert "needed: note " in shown.err
    assert "train_runtime" not in shown.out
    assert "'loss'" not in shown.out
    table = pd.read_csv(tmp_path / "citations" / "table.csv").set_index("method")
    assert set(table.index) == {"occlusion", "random"}
    assert main(["demo", "--task", "regression", "--output-dir", str(tmp_path)]) == 2
    assert "generation" in capsys.readouterr().err
