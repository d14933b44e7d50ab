"""Training runs for citations of a language model's sources and a classifier's words, with stops and adapters."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import T5Config, T5ForConditionalGeneration

import expound
from expound import ExpoundError, explainer
from expound.cli import main
from expound.data.generated.retrieval import get_vocabulary
from expound.data.generated.tokenizer import generated_tokenizer
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.explainers.learned.conformal import ConformalLowerBound
from expound.explainers.learned.trained_citation import TrainedCitation, sparsify
from expound.recipes import RECIPES
from expound.reports.explanations import Explanations
from expound.training import citations
from expound.training.loop.data import tokenize_responses
from expound.training.loop.training_module import LEARNED_FILE
from expound_papers.answering_model import make_llama
from runs import ARGUMENTS, difference, load_generated
from test_resume import Interrupt

STEPS = ARGUMENTS | {"num_train_epochs": 2, "per_device_train_batch_size": 4, "eval_steps": 2, "learning_rate": 1e-2}


def rows(split, size):
    return expound.load_data("generated", split, task="retrieval", limit=size)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The folder of an untrained language model with the demo's vocabulary."""
    folder, tokenizer = tmp_path_factory.mktemp("start"), generated_tokenizer(get_vocabulary())
    torch.manual_seed(0)
    make_llama(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train(start, folder, recipe=None, callbacks=(), **given):
    recipe = recipe or RECIPES["cite"](**{"n_samples": 4} | given)
    return recipe.train(start, rows("train", 12), rows("dev", 6), folder, arguments=STEPS, callbacks=callbacks)


def assert_coefficients_are_trained(folder):
    """Check that the coefficients have changed, are saved beside the model, and are those of the saved citation."""
    found = explainer(f"citation:{folder}")
    assert isinstance(found.method, AttentionToSource)
    coefficients = AttentionToSource.from_pretrained(folder).coefficients.detach()
    assert not torch.allclose(coefficients, torch.full_like(coefficients, float(coefficients.mean())))
    assert torch.equal(found.method.coefficients, coefficients)


def test_stopped_and_resumed_is_unbroken_with_adapters_coefficients_and_kept_answers(start, tmp_path):
    recipe = RECIPES["cite"](n_samples=4, lifetime=2, explainer="attention_to_source", lora_rank=2)
    whole = train(start, tmp_path / "whole", recipe)
    assert whole.steps == 6
    assert not train(start, tmp_path / "run", recipe, [Interrupt(signal.SIGTERM, 4)]).finished
    assert not (tmp_path / "run" / "citation").exists()
    resumed = train(start, tmp_path / "run", recipe)
    assert resumed.finished
    for file in ("adapter_model.safetensors", LEARNED_FILE):
        assert difference(*(load_file(tmp_path / name / file) for name in ("whole", "run"))) == 0.0
    assert resumed.metrics == whole.metrics
    assert {"cross_entropy", "ablation_fidelity", "kl_to_original", "log_prob"} <= {*whole.metrics}
    one, other = ((tmp_path / name / "citation" / "config.json").read_text() for name in ("whole", "run"))
    assert one == other
    assert_coefficients_are_trained(tmp_path / "whole")


def test_the_attention_of_a_language_model_is_trained_on_what_its_answers_need(start, tmp_path):
    """With adapters, whole sources are taken away, and the coefficients are saved beside the adapter."""
    folder = str(tmp_path / "run")
    training = ["--model", str(start), "--data", "generated?task=retrieval&size=8", "--device", "cpu", "--quiet"]
    training += ["--criteria", "comprehensiveness?unit=source,consistency", "--epochs", "1", "--lora-rank", "2"]
    assert main(["train", "ivra", *training, "--batch-size", "4", "--output-dir", folder]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics.keys() >= {"log_prob", "criterion_comprehensiveness", "criterion_consistency", "criterion"}
    assert metrics["coefficient_change"] > 1e-4
    model, method = expound.load(folder, task="generation"), explainer(f"interpretable_attention:{folder}")
    assert method.attribute(model, model.encode(list(rows("dev", 1)))).any()


def test_the_command_trains_and_explain_shows_what_is_promised(start, tmp_path, capsys, monkeypatch):
    folder = str(tmp_path / "cite")
    data = ["--data", "generated?task=retrieval&size=12", "--device", "cpu", "--quiet"]
    training = [*data, "--model", str(start), "--n-samples", "4", "--epochs", "1", "--batch-size", "4"]
    assert (
        main(["train", "cite", *training, "--log-gradient-norms", "--set", "logging_steps=1", "--output-dir", folder])
        == 0
    )
    assert "log_prob: " in capsys.readouterr().out
    history = json.loads((tmp_path / "cite" / "history.json").read_text())["history"]
    assert any(entry.get("ablation_fidelity_gradient_norm", 0) > 0 for entry in history)
    facts = json.loads((tmp_path / "cite" / "citation" / "config.json").read_text())
    assert facts["coverage"].keys() == {"all", "one hop", "redundant", "two hops"}
    monkeypatch.setattr(TrainedCitation, "lower_bounds", lambda self, scores, unit: np.full_like(scores, 2.5))
    (tmp_path / "a.txt").write_text("Ada painted old doors.")
    (tmp_path / "b.txt").write_text("Leo sold green maps.")
    (tmp_path / "p.txt").write_text("{sources}\n\nWhat did Ada do?")
    files = [word for name in "ab" for word in ("--source", str(tmp_path / f"{name}.txt"))]
    asked = ["explain", "--prompt", str(tmp_path / "p.txt"), *files, "--response", " Ada painted old doors."]
    asked += ["--model", folder, "--task", "generation", "--device", "cpu", "--methods", f"citation:{folder}"]
    assert main([*asked, "--html", str(tmp_path / "page.html")]) == 0
    shown = capsys.readouterr().out
    assert "[≥ 2.5]" in shown
    assert "at least x in 90% of cases" in " ".join(shown.split())
    assert "[≥ 2.5]" in (tmp_path / "page.html").read_text().encode().decode("unicode_escape", "ignore") or (
        "2.5" in (tmp_path / "page.html").read_text()
    )


def test_a_citation_is_its_method_without_small_scores_and_its_bounds_are_kept(start, tmp_path):
    model = expound.load(start, task="generation", device="cpu")
    method = explainer("decompx_linear")
    made = TrainedCitation(method, "source", 0.5, ConformalLowerBound(0.1, (float("nan"), 1.5)))
    made.save_pretrained(tmp_path, "decompx_linear")
    loaded = explainer(f"citation:{tmp_path}")
    row = {name: value for name, value in rows("test", 1)[0].items() if name != "kind"}
    plain = expound.attribute(model, [row], method, "sentences", unit="source")[0]
    found = expound.attribute(model, [row], loaded, "sentences")[0]
    assert found.unit == "source"
    expected = sparsify(torch.tensor(plain.scores), 0.5).numpy()
    np.testing.assert_allclose(found.scores, expected, rtol=1e-5, atol=1e-6)
    assert (expected == 0).any()
    np.testing.assert_array_equal(found.bounds, made.lower_bound.lower_bounds(found.scores.astype(np.float64)))
    promised = found.citations(1)[0].lower_bounds
    assert promised == dict.fromkeys(promised, 1.5)
    assert expound.attribute(model, [row], loaded, "words")[0].citations(1)[0].lower_bounds == {}
    assert expound.attribute(model, [row], loaded, "sentences", unit="word")[0].bounds is None
    assert plain.bounds is None
    Explanations([found]).save(tmp_path / "kept")
    assert Explanations.load(tmp_path / "kept")[0] == found
    with pytest.raises(ExpoundError, match="expected a folder with a saved citation"):
        explainer(f"citation:{start}")


def test_a_threshold_is_chosen_by_the_lds_on_training_examples(start):
    model = expound.load(start, task="generation", device="cpu")
    few = list(rows("train", 4))
    assert citations.choose_threshold(model, explainer("random"), few, "source", "remove") in (
        None,
        *citations.THRESHOLDS,
    )
    scores = torch.tensor([[4.0, 1.0, -3.0, 0.5]])
    assert sparsify(scores, 0.2).tolist() == [[4.0, 1.0, 0.0, 0.0]]
    assert sparsify(-scores.abs(), 0.2).tolist() == [[0.0] * 4]


def test_falls_equal_those_of_removing_each_source_alone(start):
    model = expound.load(start, task="generation", device="cpu")
    row = rows("dev", 3)[2]
    found = citations.measure_citations(model, TrainedCitation(explainer("input_x_gradient")), row, "remove")
    bare = {name: value for name, value in row.items() if name not in ("kind", "evidence")}
    spans = [tuple(span) for span in citations.find_sentences(model.encode([bare]))[:, 0].tolist()]
    assert found.kind == row["kind"]
    whole = expound.attribute(model, [bare], "occlusion?output=log_prob&unit=source", spans, unit="source")[0]
    np.testing.assert_allclose(found.falls, whole.scores, rtol=1e-4, atol=1e-4)


def test_responses_end_where_the_model_ends_a_text(start):
    model, data = expound.load(start, task="generation", device="cpu"), rows("dev", 2)
    end = model.config.eos_token_id
    found = tokenize_responses(model, data)
    assert all(row["response"][-1] == end and end not in row["response"][:-1] for row in found)
    assert tokenize_responses(model, found)["response"] == found["response"]
    said = model.tokenizer.decode(found[0]["response"], skip_special_tokens=True)
    assert said.split() == model.tokenizer.decode(model.tokenizer(data[0]["response"])["input_ids"][1:-1]).split()


def test_words_of_a_classifier_are_cited_too(tmp_path):
    recipe = RECIPES["cite"](n_samples=3, kl_weight=1.0)
    arguments = ARGUMENTS | {"num_train_epochs": 1}
    result = recipe.train(
        "tiny", load_generated(size=16), load_generated(split="dev", size=8), tmp_path, arguments=arguments
    )
    assert "accuracy" in result.metrics
    found = expound.attribute(result.model, ["a dull film"], f"citation:{tmp_path}")[0]
    assert len(found.units) == 3
    assert explainer(f"citation:{tmp_path}").unit == "word"


def test_plain_training_of_answers_and_what_is_refused(start, tmp_path):
    data = rows("train", 4)
    result = RECIPES["baseline"]().train(start, data, data, tmp_path / "plain", arguments=STEPS)
    assert result.metrics["log_prob"] < 0
    assert RECIPES["baseline"]().train(start, data, data, tmp_path / "plain", arguments=STEPS).reused
    with pytest.raises(ExpoundError, match="er_joint trains no language model"):
        RECIPES["er_joint"]().train(start, data, data, tmp_path / "no")
    with pytest.raises(ExpoundError, match="not trained from scratch"):
        RECIPES["cite"]().train("tiny", data, data, tmp_path / "no")
    two_sided = T5ForConditionalGeneration(
        T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    with pytest.raises(ExpoundError, match="explained, not trained"):
        RECIPES["baseline"]().train(two_sided, data, data, tmp_path / "no")
    missing = type(data).from_list([data[0], data[1] | {"response": None}])
    with pytest.raises(ExpoundError, match="row 1 has no response"):
        RECIPES["baseline"]().train(start, missing, data, tmp_path / "no")
