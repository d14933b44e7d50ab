"""Runs that fit attention to ablations: by the command, stopped and resumed, for classifiers and for chats."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset

import expound
from chats import CHAT, chatting
from expound import ExpoundError, explainer
from expound.cli import main
from expound.data.provenance import RECORD
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.explainers.learned.hidden_state_probe import HiddenStateProbe
from expound.models.loading.checkpoint import digest_weights
from expound.recipes import RECIPES
from expound.training import source_attention
from expound.training.citations import choose_threshold
from expound.training.loop.run import METRICS
from small import small, uneven

QUICK = {"max_steps": 40, "learning_rate": 1e-2, "disable_tqdm": True}


def texts(family, count):
    return Dataset.from_list([{"text": text} for text in uneven(family, count)])


def train_explainer(model, folder, rows=None, **given):
    made = RECIPES["at2"](n_samples=8, **given)
    rows = rows or texts("bert", 4)
    return made.train(model, rows, rows, folder, arguments=QUICK)


def test_the_command_makes_an_explainer_that_the_other_commands_take(tmp_path, capsys):
    model, folder, data = str(tmp_path / "model"), str(tmp_path / "at2"), ["--data", "generated?size=24", "--quiet"]
    training = [*data, "--device", "cpu", "--epochs", "1", "--config", "tiny", "--max-length", "32"]
    assert main(["train", "baseline", *training, "--output-dir", model]) == 0
    fit = [*data, "--device", "cpu", "--model", model, "--n-samples", "8", "--set", "max_steps=20", "--lr", "0.01"]
    assert main(["train", "at2", *fit, "--output-dir", folder]) == 0
    assert "correlation: " in capsys.readouterr().out
    method = f"attention_to_source:{folder}"
    assert main(["explain", "a dull film", "--model", model, "--methods", method, "--device", "cpu"]) == 0
    assert "film" in capsys.readouterr().out
    assert json.loads((tmp_path / "at2" / RECORD).read_text())["recipe"] == "at2"


def test_a_stopped_run_goes_on_to_the_same_coefficients(tmp_path, monkeypatch):
    model, rows = small("bert"), texts("bert", 4)
    monkeypatch.setattr(source_attention, "make_batches", lambda model, rows: ([row] for row in range(len(rows))))
    before = digest_weights(model.model)
    whole = train_explainer(model, tmp_path / "whole", rows)
    measure_effects, asked = source_attention.measure_effects, []

    def stopping(*given):
        asked.append(1)
        if len(asked) == 3:
            signal.raise_signal(signal.SIGTERM)
        return measure_effects(*given)

    monkeypatch.setattr(source_attention, "measure_effects", stopping)
    stopped = train_explainer(model, tmp_path / "stopped", rows)
    assert not stopped.finished
    assert stopped.signal == signal.SIGTERM
    again = train_explainer(model, tmp_path / "stopped", rows)
    assert len(asked) == 2 * len(rows)  # those on dev too, and nothing twice
    assert again.metrics == whole.metrics
    one, other = (AttentionToSource.from_pretrained(tmp_path / name).coefficients for name in ("whole", "stopped"))
    assert torch.equal(one, other)
    assert train_explainer(model, tmp_path / "stopped", rows).reused
    assert not [*(tmp_path / "stopped").glob(".effects-*")]
    assert digest_weights(model.model) == before
    assert again.metrics["correlation"] > again.metrics["correlation_of_mean"]
    assert json.loads((tmp_path / "stopped" / METRICS).read_text()) == again.metrics


def test_sentences_of_responses_are_answers_of_their_own(tmp_path):
    model = chatting()
    rows = Dataset.from_list([CHAT | {"sources": [{"name": n, "text": t} for n, t in CHAT["sources"].items()]}])
    result = train_explainer(model, tmp_path / "chat", rows, unit="source", task="generation")
    assert result.finished
    found = expound.attribute(model, [CHAT], method=f"attention_to_source:{tmp_path / 'chat'}", unit="source")
    assert found[0].scores.shape == (1, 2)
    made = explainer(f"attention_to_source:{tmp_path / 'chat'}")
    assert abs(float(made.coefficients.detach().abs().sum()) - 1) < 1e-6
    citation = explainer(f"citation:{tmp_path / 'chat'}")
    assert (citation.unit, citation.threshold) == (
        "source",
        choose_threshold(model, made, list(rows), "source", "remove"),
    )
    # one of two sources is far smaller at any share near 1
    sparse = expound.attribute(model, [CHAT], method=replace(citation, threshold=0.999), unit="source")[0].scores
    np.testing.assert_allclose(sparse, np.where(found[0].scores < found[0].scores.max(), 0, found[0].scores))


def test_a_probe_of_hidden_states_is_fitted_to_the_same_ablations(tmp_path):
    model, rows = small("bert"), texts("bert", 4)
    attention, probe = (
        train_explainer(model, tmp_path / name, rows, explainer=name)
        for name in ("attention_to_source", "hidden_state_probe")
    )
    assert probe.metrics["correlation"] > probe.metrics["correlation_of_mean"]
    made = explainer(f"hidden_state_probe:{tmp_path / 'hidden_state_probe'}")
    assert isinstance(made, HiddenStateProbe)
    assert abs(float(made.coefficients.detach().abs().sum()) - 1) < 1e-6
    assert made.attribute(model, model.encode(uneven("bert", 2))).abs().max() > 0
    records = [json.loads((result.output_dir / RECORD).read_text()) for result in (attention, probe)]
    assert [record["config"]["trainer"] for record in records] == ["attention_to_source", "hidden_state_probe"]
    assert "Products of hidden states take the place of attention." in records[1]["departures"]
    with pytest.raises(ExpoundError, match="holds a run of at2 with another configuration"):
        train_explainer(model, tmp_path / "attention_to_source", rows, explainer="hidden_state_probe")
    with pytest.raises(ExpoundError, match=r"unknown explainer 'probe'.*hidden_state_probe"):
        RECIPES["at2"](explainer="probe")


def test_what_would_change_the_model_is_refused(tmp_path):
    rows = texts("bert", 2)
    with pytest.raises(ExpoundError, match="at2 explains a model that is fine-tuned already"):
        RECIPES["at2"]().train("tiny", rows, rows, tmp_path)
    with pytest.raises(ExpoundError, match="masked_share"):
        RECIPES["at2"]().train(small("bert"), rows, rows, tmp_path, masked_share=0.5)
    with pytest.raises(ExpoundError, match="head_dropout"):
        RECIPES["at2"]().train(small("bert"), rows, rows, tmp_path, head_dropout=0.1)
    with pytest.raises(ExpoundError, match="max_steps"):
        RECIPES["at2"]().train(small("bert"), rows, rows, tmp_path, arguments={"num_train_epochs": 2})
