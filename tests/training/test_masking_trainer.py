"""Masking models are trained on a model that stays as it is, chosen by a metric, and resume after a kill."""

from __future__ import annotations

import functools
import platform
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import optuna
import pytest
import torch
import transformers as hf
from datasets import ClassLabel, Dataset, Features, Value
from optuna.trial import TrialState
from safetensors.torch import load_file

import expound
import families
from expound import ExpoundError
from expound.data import generated_tokenizer
from expound.data.readers.exchanges import exclude_examples
from expound.explainers.attributive_masking.losses import MaskWeights
from expound.models import ExplainedModel
from expound.objectives import CrossEntropy, StepContext
from expound.recipes import RECIPES
from expound.recipes.aml import WeightSearch, suggest_weights
from expound.recipes.search import open_study
from expound.testing.no_side_effects import find_changes, simulate_use, snapshot
from expound.training import ObjectiveTrainer, RunOptions
from expound.training.bilevel.students import Teaching
from expound.training.loop.training_module import Collator, TrainingModule
from expound.training.masking import (
    MaskingModule,
    MaskingStep,
    default_arguments,
    make_masking_arguments,
    masking_objectives,
    sample_stratified,
    train_masking,
)
from forks import forge
from test_resume import Interrupt

QUICK = {"disable_tqdm": True, "use_cpu": True, "per_device_train_batch_size": 4, "logging_steps": 1}
METRIC = "aopc_comprehensiveness?fractions=0.2,0.5&perturbation=mask"
WEIGHTS = MaskWeights(0.5, 0.2, 0.4)


@functools.cache
def reviews():
    return expound.load_data("generated?size=120", "train")


def texts(count, start=0):
    """Texts that are all different."""
    return reviews().select(range(start, start + count))


def bert(**changes):
    """A tiny model whose tokenizer is the same in every process; without dropout unless asked for."""
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 2}
    tokenizer = generated_tokenizer()
    return ExplainedModel(families.tiny("bert", **(quiet | {"vocab_size": len(tokenizer)} | changes)), tokenizer)


def train(folder, model=None, **options):
    chosen = {"num_train_epochs": 2, "learning_rate": 5e-3, "eval_steps": 2, "save_total_limit": None} | QUICK
    arguments = chosen | options.pop("arguments", {})
    given = {"selection": METRIC, "weights": WEIGHTS, "arguments": arguments} | options
    return train_masking(model or bert(), texts(20), texts(6, start=20), folder, **given)


@pytest.fixture(scope="module")
def unbroken_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    model = simulate_use(bert(hidden_dropout_prob=0.2))
    before = snapshot(model)
    bits = {name: value.clone() for name, value in model.state_dict().items()}
    result = train(folder, model)
    return folder, model, before, bits, result


def test_the_explained_model_is_bit_identical_and_as_it_was(unbroken_run):
    _, model, before, bits, result = unbroken_run
    assert result.model is model
    assert all(torch.equal(value, bits[name]) for name, value in model.state_dict().items())
    assert not {*find_changes(before, model)} - {"torch", "numpy", "python"}, "training draws"


def test_all_of_the_masking_model_moved_but_its_input_embeddings(unbroken_run):
    folder, model, _, _, _ = unbroken_run
    torch.manual_seed(0)
    found = load_file(folder / "model.safetensors")
    there = {f"reader.model.{name}": value for name, value in model.model.base_model.state_dict().items()}
    for name, value in there.items():
        if "pooler" not in name:
            assert torch.equal(found[name], value) == ("embeddings" in name), name
    assert not any("pooler" in name for name in found)


def test_what_is_kept_is_the_best_evaluation_and_explains_as_it_was_judged(unbroken_run):
    folder, model, _, _, result = unbroken_run
    evaluations = [entry["eval_aopc_comprehensiveness"] for entry in result.history if "eval_loss" in entry]
    assert len(set(evaluations)) > 2
    assert result.metrics["aopc_comprehensiveness"] == max(evaluations)
    kept = expound.explainer(f"attributive_masking:{folder}")
    batch = model.encode(texts(6, start=20)["text"])
    judged = expound.metric(METRIC).evaluate(model, batch, kept.attribute(model, batch))["aopc_comprehensiveness"]
    assert float(judged.mean()) == pytest.approx(max(evaluations), abs=1e-6)
    names = {"preservation": "prediction_preservation", "sparsity": "mask_sparsity", "inverse": "inverse_masking"}
    entry = next(entry for entry in result.history if "loss" in entry)
    total = sum(getattr(WEIGHTS, weight) * entry[term] for weight, term in names.items())
    assert entry["loss"] == pytest.approx(total, rel=1e-4)
    assert kept.settings.metric == METRIC
    assert kept.settings.weights == WEIGHTS


def test_a_metric_that_is_better_when_lower_keeps_the_lowest(tmp_path):
    result = train(tmp_path, selection="log_odds", logged_metrics=("sufficiency",))
    values = [entry["eval_log_odds"] for entry in result.history if "eval_loss" in entry]
    assert result.metrics["log_odds"] == min(values)
    assert "sufficiency" in result.metrics
    assert train(tmp_path, selection="log_odds", logged_metrics=("sufficiency",)).reused


def have_equal_weights(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items()) and one.keys() == other.keys()


def test_stopped_by_a_signal_it_says_so_and_resumes_to_the_weights_of_an_unbroken_run(tmp_path):
    train(tmp_path / "whole")
    stopped = train(tmp_path / "run", callbacks=[Interrupt(signal.SIGTERM, 5)])
    assert (stopped.finished, stopped.steps, stopped.signal) == (False, 5, signal.SIGTERM)
    assert train(tmp_path / "run").finished
    assert have_equal_weights(*(load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run")))


SEARCH = {"epochs": 1, "train_rows": 8, "dev_rows": 4}


def run_search(folder, trials=3, **options):
    """Run a search on very little data; return the best weights and the trials."""
    search = WeightSearch(trials=trials, **SEARCH, **options)
    arguments = QUICK | {"learning_rate": 5e-3, "eval_steps": 1}
    found = search.run(bert(), texts(12), texts(6, start=12), folder, METRIC, options=RunOptions(arguments=arguments))
    return found, study_of(folder).trials if search.storage is None else None


def study_of(folder):
    url = f"sqlite:///{folder / 'search.db'}"
    (summary,) = optuna.get_all_study_summaries(url)
    return open_study(url, summary.study_name, higher_is_better=True)


def die_in(trial):
    """Let the process die in the first step of a trial."""
    steps, step = [], ObjectiveTrainer.training_step

    def count_steps(self, *args, **kwargs):
        steps.append(None)
        if len(steps) == 2 * trial + 1:
            signal.raise_signal(signal.SIGKILL)
        return step(self, *args, **kwargs)

    ObjectiveTrainer.training_step = count_steps


def run_dying_search(folder):
    die_in(1)
    run_search(folder)


def test_a_killed_search_loses_only_the_running_trial_and_resumes_to_the_result_of_an_unbroken_one(tmp_path):
    best, trials = run_search(tmp_path / "whole")
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 3
    values = [trial.value for trial in trials]
    assert len(set(values)) > 1
    winner = trials[int(np.argmax(values))]
    assert (best.preservation, best.sparsity, best.inverse) == tuple(winner.params.values())
    assert all(0 <= value <= 1 for trial in trials for value in trial.params.values())
    with forge() as process:
        process.start(run_dying_search, tmp_path / "run")
        assert process.wait() == -signal.SIGKILL
    assert [trial.state for trial in study_of(tmp_path / "run").trials] == [TrialState.COMPLETE, TrialState.RUNNING]
    again, resumed = run_search(tmp_path / "run")
    finished = [trial for trial in resumed if trial.state == TrialState.COMPLETE]
    assert [(t.params, t.value) for t in finished] == [(t.params, t.value) for t in trials]
    assert again == best
    assert run_search(tmp_path / "run")[1] == resumed, "nothing is left to do"


def test_trials_that_run_at_a_time_have_other_weights_and_a_dead_one_leaves_its_own():
    study = optuna.create_study()
    trials = [study.ask() for _ in range(3)]
    found = [suggest_weights(trial, 42) for trial in trials]
    assert len({tuple(weights.values()) for weights in found}) == 3
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    trials[2].set_user_attr("process", [platform.node(), gone.pid])
    assert suggest_weights(study.ask(), 42) == found[2]


def test_a_weight_that_is_given_stays_while_the_others_are_searched(tmp_path):
    best, (trial,) = run_search(tmp_path / "without", trials=1, fixed={"inverse": 0.0})
    assert set(trial.params) == {"preservation", "sparsity"}
    assert best.inverse == 0.0
    assert 0 < best.preservation < 1
    run_search(tmp_path / "all", trials=1)
    run_search(tmp_path / "warm", trials=1, weights=MaskWeights(sparsity_warmup=5))
    names = {
        optuna.get_all_study_summaries(f"sqlite:///{tmp_path / name / 'search.db'}")[0].study_name
        for name in ("without", "all", "warm")
    }
    assert len(names) == 3, "other searches"
    recipe = RECIPES["aml"](preservation_weight=0.5, sparsity_weight=0.2, trials=30)
    assert (recipe.weights, recipe.search.fixed) == (None, {"preservation": 0.5, "sparsity": 0.2})
    assert RECIPES["aml"](preservation_weight=0.5, sparsity_weight=0.2, inverse_weight=0).weights.inverse == 0
    with pytest.raises(ExpoundError, match="storage is for the search"):
        RECIPES["aml"](storage="sqlite:///search.db")


def test_a_trial_far_behind_the_others_is_pruned(tmp_path):
    run_search(tmp_path, trials=1)
    study = study_of(tmp_path)
    spread = optuna.distributions.FloatDistribution(0.0, 1.0)
    names = ("preservation", "sparsity", "inverse")
    for _ in range(5):
        study.add_trial(
            optuna.trial.create_trial(
                params=dict.fromkeys(names, 0.25),
                distributions=dict.fromkeys(names, spread),
                value=9.0,
                intermediate_values={1: 9.0, 2: 9.0},
            )
        )
    best, trials = run_search(tmp_path, trials=7)
    assert trials[-1].state == TrialState.PRUNED
    assert list(trials[-1].intermediate_values) == [1]
    assert (best.preservation, best.sparsity, best.inverse) == (0.25, 0.25, 0.25)


def test_a_storage_that_cannot_be_opened_is_an_error(tmp_path):
    with pytest.raises(ExpoundError, match="cannot be opened"):
        run_search(tmp_path, storage=f"sqlite:///{tmp_path}/no/such/folder/x.db")
    with pytest.raises(ExpoundError, match="at least one trial"):
        WeightSearch(trials=0)


def test_draws_are_spread_over_classes_and_no_text_is_on_both_sides():
    features = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b"])})
    labels = [0] * 80 + [1] * 20
    data = Dataset.from_dict({"text": [f"t{i}" for i in range(100)], "label": labels}, features=features)
    for count in (10, 50, 99):
        drawn = sample_stratified(data, count, 3)
        assert len(set(drawn["text"])) == count
        assert abs(sum(drawn["label"]) - 0.2 * count) <= 1
    assert sample_stratified(data, 50, 3)["text"][:] == sample_stratified(data, 50, 3)["text"][:]
    assert sample_stratified(data, 50, 3)["text"][:] != sample_stratified(data, 50, 4)["text"][:]
    assert len(sample_stratified(data, 1000, 0)) == 100
    rest = exclude_examples(data, sample_stratified(data, 30, 1))
    assert len(rest) == 70
    assert not set(rest["text"]) & set(sample_stratified(data, 30, 1)["text"])
    with pytest.raises(ExpoundError, match="at least one row"):
        sample_stratified(data, 0, 1)


def test_evaluations_come_every_third_of_an_epoch():
    for rows, steps in ((1000, 16), (20, 1), (450, 7)):
        options = RunOptions(arguments=QUICK | {"per_device_train_batch_size": 20})
        args = make_masking_arguments(options, [expound.metric("log_odds")], rows, Path("x"))
        assert args.eval_steps == steps
        assert (args.learning_rate, args.num_train_epochs, args.max_grad_norm) == (4e-5, 10, 0.0)
        assert (args.metric_for_best_model, args.greater_is_better) == ("log_odds", False)


def test_decoders_are_explained_at_twice_the_rate():
    decoder = ExplainedModel(families.tiny("gpt2"), families.tokenizer("gpt2"))
    assert [default_arguments(model)["learning_rate"] for model in (bert(), decoder)] == [4e-5, 8e-5]
    assert expound.recipe("aml", preset="paper").arguments == {}


def test_best_model_metric_sets_greater_is_better():
    judges = [expound.metric("aopc_comprehensiveness"), expound.metric("sufficiency")]
    for best, higher in (("aopc_comprehensiveness", True), ("sufficiency", False), ("mask_sparsity", False)):
        options = RunOptions(arguments=QUICK | {"metric_for_best_model": best})
        args = make_masking_arguments(options, judges, 20, Path("x"))
        assert (args.metric_for_best_model, args.greater_is_better) == (best, higher)
    with pytest.raises(ExpoundError, match="unknown figure to choose the best model by 'accuracy'"):
        make_masking_arguments(
            RunOptions(arguments=QUICK | {"metric_for_best_model": "accuracy"}), judges, 20, Path("x")
        )


def test_bad_input(tmp_path):
    with pytest.raises(ExpoundError, match="not among the"):
        train_masking(bert(), texts(4), texts(4), tmp_path)
    with pytest.raises(ExpoundError, match="fine-tuned already"):
        RECIPES["aml"]().train("tiny", texts(4), texts(4), tmp_path)
    with pytest.raises(ExpoundError, match="head_dropout, scalar_mix and the options of LoRA do not apply"):
        RECIPES["aml"]().train(bert(), texts(4), texts(4, start=8), tmp_path, head_dropout=0.5)
    with pytest.raises(ExpoundError, match="unknown metric"):
        RECIPES["aml"]("aopc")
    model = bert()
    module, batch = (
        TrainingModule(model, [CrossEntropy(), masking_objectives(MaskWeights())[0]]),
        model.encode(list(texts(2))),
    )
    with pytest.raises(ExpoundError, match="train it by the recipe aml"):
        module(batch, StepContext())


def make_prompted_model():
    """Return a prompted decoder with a byte-level tokenizer."""
    torch.manual_seed(1)
    causal = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model("llama", **families.TEXT["llama"]))
    with torch.no_grad():
        for weight in causal.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    template = "Is it good ?\n\nText:{text}\nLabel:"
    return expound.load(
        causal.eval(), families.tokenizer("gpt2"), task="prompt", template=template, labels={"no": "N", "yes": "P"}
    )


def test_batches_of_a_prompted_model_have_its_prompt_also_where_texts_are_cut_shorter():
    model, rows = make_prompted_model(), list(texts(4))
    for one in (model, Teaching(model).with_max_length(60).teacher):
        expected, found = one.encode(rows), Collator(one)(rows)["batch"]
        assert torch.equal(found.inputs["input_ids"], expected.inputs["input_ids"])
        assert "Is it good" in one.tokenizer.decode(found.inputs["input_ids"][0])
        assert torch.equal(found.content, expected.content)
    assert found.length == 60
    assert model.encode(rows).length > 60


def test_a_model_that_is_handed_over_reads_as_many_tokens_as_asked_for_with_its_own_tokenizer(tmp_path):
    model, recipe = bert(), RECIPES["aml"](preservation_weight=0.5, sparsity_weight=0.2, inverse_weight=0.5)
    arguments = QUICK | {"max_steps": 1}
    result = recipe.train(model, texts(8), texts(4, start=8), tmp_path, max_length=12, arguments=arguments)
    with pytest.raises(ExpoundError, match="configuration"):
        recipe.train(model, texts(8), texts(4, start=8), tmp_path, max_length=14, arguments=arguments)
    assert result.model.model is model.model
    assert (result.model.max_length, model.requested_max_length) == (12, None)
    with pytest.raises(ExpoundError, match="has its tokenizer already"):
        recipe.train(model, texts(8), texts(4, start=8), tmp_path, processing_class=families.tokenizer("bert"))


def test_a_prompted_causal_model_is_explained_from_training_to_comparison(tmp_path):
    """Explained by an encoder with WordPiece; by the recipe, search included."""
    model = make_prompted_model()
    families.tiny("bert").base_model.save_pretrained(tmp_path / "encoder")
    families.tokenizer("bert").save_pretrained(tmp_path / "encoder")
    recipe = RECIPES["aml"]("comprehensiveness", backbone=str(tmp_path / "encoder"), trials=1, train_rows=8, dev_rows=4)
    bits = {name: value.clone() for name, value in model.model.state_dict().items()}
    arguments = QUICK | {"num_train_epochs": 1, "learning_rate": 5e-3, "eval_steps": 2}
    result = recipe.train(model, texts(12), texts(4, start=16), tmp_path / "masking", arguments=arguments)
    assert result.finished
    assert all(torch.equal(value, bits[name]) for name, value in model.model.state_dict().items())
    methods = [
        f"attributive_masking:{tmp_path / 'masking'}",
        f"attributive_masking:{tmp_path / 'masking'}?refine_steps=3&refine_rate=0.05",
    ]
    metric = "comprehensiveness?rounding=floor"
    found = expound.compare(model, texts(4, start=30)["text"][:], ["random", *methods], [metric]).results
    means = found.groupby("method")["comprehensiveness"].mean()
    assert means[methods[1]] >= means[methods[0]]
    assert expound.explainer(methods[0]).settings.metric == metric


# A run has 10 steps and is evaluated after every second one.
@pytest.mark.parametrize(
    ("bias", "kept", "step"),
    # In the first half masks may keep everything; sparsity then brings them down.
    [(-12.0, "nothing", 2), (12.0, "everything", 6), (-1.0, None, None)],
)
def test_masks_that_keep_nothing_or_everything_stop_the_run(bias, kept, step, tmp_path, monkeypatch):
    create = MaskingModule.__init__

    def create_biased(self, model, masking, metrics):
        with torch.no_grad():
            masking.head[-1].bias.fill_(bias)
        create(self, model, masking, metrics)

    monkeypatch.setattr(MaskingModule, "__init__", create_biased)
    if kept is None:
        assert 0.1 < train(tmp_path, arguments={"learning_rate": 1e-6}).metrics["mean_mask"] < 0.5
        return
    with pytest.raises(ExpoundError, match=f"collapsed at step {step}: they keep {kept}"):
        train(tmp_path, arguments={"learning_rate": 1e-6})


def test_the_weight_of_sparsity_grows_over_the_first_steps_of_training_only():
    scores, content = torch.tensor([[0.5, 0.9]]), torch.tensor([[True, True]])
    full = -(0.5 * (np.log(0.5) + np.log(0.1)))
    values = []
    for number, training in ((0, True), (15, True), (60, True), (0, False)):
        step = object.__new__(MaskingStep)
        step.__dict__.update(scores=scores, own_content=content, context=StepContext(number=number, training=training))
        values.append(masking_objectives(MaskWeights(sparsity_warmup=60))[1](step).item())
    assert values == pytest.approx([0, full / 4, full, full], rel=1e-5)
