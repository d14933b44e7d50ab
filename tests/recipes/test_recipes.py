"""Every recipe by its registry, its command, and the paper's values."""

from __future__ import annotations

import inspect
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.cli import main
from expound.data import split_words
from expound.models.loading.checkpoint import digest_weights
from expound.objectives import (
    Constraint,
    CrossEntropy,
    ExplanationGuidedLoss,
    GradientPenalty,
    RationaleAlignment,
    VirtualAdversarialLoss,
)
from expound.recipes import RECIPES, Recipe, extract_rationales
from expound.recipes.fresh import select_words
from expound.recipes.registry import paper_parameters
from expound.training import RunOptions, TrainingModule

QUICK = {"num_train_epochs": 1, "per_device_train_batch_size": 16, "disable_tqdm": True, "use_cpu": True}


def data(size=48):
    return expound.load_data(f"generated?size={size}", "train"), expound.load_data(f"generated?size={size}", "dev")


# The contract of every recipe trains all of them from Python.
@pytest.mark.parametrize(
    "name",
    families.sweep_others((name for name in RECIPES if name not in ("aml", "at2", "lora")), ["smat", "regex"]),
)  # the others need a model
def test_every_recipe_is_a_command_that_trains_a_model(name, tmp_path, capsys):
    settings = ["--data", "generated?size=24", "--config", "tiny", "--device", "cpu", "--epochs", "1", "--batch-size"]
    assert main(["train", name, *settings, "16", "--quiet", "--output-dir", str(tmp_path / "run")]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert f"accuracy: {metrics['accuracy']:.4f}" in capsys.readouterr().out
    # dev data has no explanations of a teacher, so this term is not measured on it
    assert "scaffolding" not in metrics
    assert len(expound.load(tmp_path / "run", device="cpu").labels) == 2
    assert main(["train", name, "--help"]) == 0
    assert f"expound train {name} " in " ".join(capsys.readouterr().out.split())


def test_adapters_learn_beside_held_weights_and_are_found_with_their_model(tmp_path):
    start = families.tiny("gpt2", num_labels=2)
    start.save_pretrained(tmp_path / "start")
    families.tokenizer("gpt2").save_pretrained(tmp_path / "start")
    arguments = QUICK | {"learning_rate": 1e-2}
    RECIPES["lora"](lora_rank=2).train(tmp_path / "start", *data(), tmp_path / "run", arguments=arguments)
    assert (tmp_path / "run" / "adapter_config.json").is_file()
    loaded = expound.load(tmp_path / "run", device="cpu")
    layers = {name.replace("base_layer.", ""): value for name, value in loaded.model.state_dict().items()}
    held = [name for name in start.state_dict() if "score" not in name]
    found = {name: next(value for key, value in layers.items() if key.endswith(name)) for name in held}
    assert all(torch.equal(found[name], start.state_dict()[name]) for name in held)
    assert any("lora_B" in name and value.any() for name, value in layers.items())
    with pytest.raises(ExpoundError, match="give a model, not a size"):
        RECIPES["lora"]().train("tiny", *data(), tmp_path / "new", arguments=arguments)


ADAPTED = {"lora": "gpt2", "er_joint": "distilbert", "ivra": "roberta", "cite": "bert"}


@pytest.mark.parametrize("recipe", families.sweep_others(ADAPTED, ["lora", "cite"]))
def test_adapters_of_a_handed_over_model_are_in_the_result_and_not_in_the_model(recipe, tmp_path):
    kind = ADAPTED[recipe]
    start, untouched = (families.tiny(kind, num_labels=2) for _ in range(2))
    options = {"processing_class": families.tokenizer(kind), "arguments": QUICK | {"learning_rate": 1e-2}}
    result = RECIPES[recipe]().train(start, *data(), tmp_path / "run", lora_rank=2, **options)
    start.save_pretrained(tmp_path / "start")
    assert {name: type(part) for name, part in start.named_modules()} == {
        name: type(part) for name, part in untouched.named_modules()
    }
    assert all(torch.equal(weight, start.state_dict()[name]) for name, weight in untouched.state_dict().items())
    assert all(weight.requires_grad for weight in start.parameters())
    batch = result.model.encode(["a moving film"])
    as_before = untouched.eval()(**{name: batch.inputs[name] for name in ("input_ids", "attention_mask")}).logits
    assert not torch.allclose(result.model(batch).logits, as_before, atol=1e-3)
    config = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(tmp_path / "start")
    (tmp_path / "run" / "adapter_config.json").write_text(json.dumps(config))
    torch.testing.assert_close(expound.load(tmp_path / "run", device="cpu")(batch).logits, result.model(batch).logits)


def test_an_adapters_folder_knows_its_labels_and_loads_from_elsewhere(tmp_path, monkeypatch):
    start = families.tiny("bert", num_labels=2)
    start.save_pretrained(tmp_path / "start")
    families.tokenizer("bert").save_pretrained(tmp_path / "start")
    rows = [{"text": f"{'good' if n % 2 else 'bad'} film", "label": ["no", "yes", "maybe"][n % 3]} for n in range(12)]
    scores = [{"text": row["text"], "label": n / 10} for n, row in enumerate(rows)]
    arguments = QUICK | {"num_train_epochs": 1, "learning_rate": 1e-2}
    monkeypatch.chdir(tmp_path)
    for name, examples in (("classes", rows), ("regression", scores)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in examples))
        both = [expound.load_data(str(path), "all")] * 2
        result = RECIPES["lora"](lora_rank=2).train("start", *both, tmp_path / name, arguments=arguments)
        monkeypatch.chdir("/")
        loaded = expound.load(tmp_path / name, device="cpu")
        assert (loaded.task.name, loaded.labels) == (result.model.task.name, result.model.labels)
        batch = result.model.encode(["good film"])
        torch.testing.assert_close(loaded(batch).logits, result.model(batch).logits)
        monkeypatch.chdir(tmp_path)


def test_a_masking_run_prints_how_many_rows_it_was_judged_on(tmp_path, capsys):
    start = families.tiny("bert", num_labels=2)
    start.save_pretrained(tmp_path / "start")
    families.tokenizer("bert").save_pretrained(tmp_path / "start")
    settings = ["--data", "generated?size=48", "--device", "cpu", "--set", "max_steps=1", "--train-rows", "8"]
    paths = ["--model", str(tmp_path / "start"), "--output-dir", str(tmp_path / "run")]
    assert main(["train", "aml", *settings, *paths, "--dev-rows", "5", "--quiet"]) == 0
    assert "dev (5 rows)" in capsys.readouterr().out


def test_a_student_does_not_start_from_its_teacher(tmp_path):
    start = families.tiny("bert", num_labels=2)
    start.save_pretrained(tmp_path / "teacher")
    families.tokenizer("bert").save_pretrained(tmp_path / "teacher")
    recipe = expound.recipe("smat", teacher=str(tmp_path / "teacher"))
    for student in (tmp_path / "teacher", recipe.teacher.model):
        with pytest.raises(ExpoundError, match="the student starts from the teacher itself"):
            recipe.train(student, *data(), tmp_path / "run")


def test_tagged_words_are_refused_in_a_sentence(tmp_path, capsys):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.txt").write_text("Anna B-PER\nlives O\nin O\nBonn B-LOC\n\n")
    options = ["--config", "tiny", "--data", f"conll:{tmp_path}", "--output-dir", str(tmp_path / "run")]
    assert main(["train", "baseline", *options]) != 0
    assert "taggers are explained here but not trained" in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="bf16 needs no choice of a device on a GPU")
def test_bf16_on_a_cpu_names_the_remedy(tmp_path):
    with pytest.raises(ExpoundError, match="--device cpu"):
        RECIPES["baseline"]().train("tiny", *data(), tmp_path, arguments={"bf16": True})


def test_the_group_lists_the_registry(capsys):
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in RECIPES)


def test_joint_guidance_has_the_papers_values():
    cases = [
        ("attention", 2e-5, 25, "softmax", True),
        ("rollout", 3e-5, 15, "none", True),
        ("input_x_gradient", 2e-5, 25, "l2", False),
        ("alti", 3e-5, 25, "sum", True),
        ("decompx_linear", 3e-5, 25, "l2", False),
    ]
    for guide, rate, epochs, how, shared in cases:
        recipe = expound.recipe("er_joint", preset="paper", explainer=guide)
        cross_entropy, guided = recipe.objectives
        assert isinstance(cross_entropy, CrossEntropy)
        assert isinstance(guided, RationaleAlignment)
        assert (guided.normalization_in_use, guided.compares_distributions, guided.distance, guided.weight) == (
            how,
            shared,
            "mae",
            1.0,
        )
        arguments = recipe.arguments
        assert (arguments["learning_rate"], arguments["num_train_epochs"]) == (rate, epochs)
        assert (arguments["adam_beta2"], arguments["warmup_steps"], arguments["max_grad_norm"]) == (0.98, 0.1, 0.0)
        assert arguments["metric_for_best_model"] == "loss"
        assert (recipe.patience, recipe.threshold, recipe.max_length) == (5, 1e-5, 1024)


@pytest.mark.parametrize(
    ("guide", "rate", "climb", "bound", "dev_bound"),
    [("attention", 2e-5, 0.05, 0.035, 0.031), ("rollout", 3e-5, 0.1, 0.03, 0.031), ("ixg", 2e-5, 0.1, 0.35, 0.35)],
)
def test_constrained_guidance_has_the_papers_values(guide, rate, climb, bound, dev_bound):
    recipe = expound.recipe("er_constrained", preset="paper", explainer=guide)
    constrained = recipe.objectives[1]
    assert isinstance(constrained, Constraint)
    assert (constrained.bound, constrained.dev_bound, constrained.multiplier_learning_rate) == (bound, dev_bound, climb)
    assert constrained.weight == 1.0
    assert constrained.is_feasible(1.0999 * dev_bound)
    assert not constrained.is_feasible(1.1001 * dev_bound)
    assert recipe.module is TrainingModule
    assert (recipe.arguments["learning_rate"], recipe.patience) == (rate, 10)


def test_a_guide_without_a_bound_in_the_paper_needs_one():
    with pytest.raises(ExpoundError, match="no bound for alti"):
        expound.recipe("er_constrained", preset="paper", explainer="alti")
    assert RECIPES["er_constrained"]("alti", bound=0.05).objectives[1].bound == 0.05


def test_a_bound_or_rate_of_zero_is_none_and_no_wish_for_the_papers():
    for given in (
        {"bound": 0.0},
        {"dev_bound": 0.0},
        {"multiplier_learning_rate": 0.0},
        {"multiplier_learning_rate": -1.0},
    ):
        with pytest.raises(ExpoundError, match="above 0, got"):
            RECIPES["er_constrained"](**given)
    with pytest.raises(ExpoundError, match="weight of rationale_alignment is at least 0, got -1"):
        RECIPES["er_joint"](weight=-1.0)
    assert RECIPES["er_constrained"](bound=0.5).objectives[1].dev_bound is None


def test_runs_of_one_recipe_do_not_share_a_multiplier(tmp_path):
    recipe = RECIPES["er_constrained"]("rollout", bound=1e-4, multiplier_learning_rate=3.0)
    recipe.train("tiny", *data(), tmp_path, arguments=QUICK)
    assert recipe.objectives[1].weight == 1.0


@pytest.mark.parametrize(
    ("train", "runs"),
    [
        (RECIPES["fresh"]("attention_last").train, ("", "-support")),
        (RECIPES["smat"](retrain_student=True).train, ("", "-teacher", "-learned")),
    ],
    ids=["fresh", "smat"],
)
def test_runs_that_start_from_one_model_object_start_from_the_same_weights(train, runs, tmp_path):
    start = families.tiny("bert", num_labels=2)
    train(start, *data(), tmp_path / "run", processing_class=families.tokenizer("bert"), arguments=QUICK)
    folders = [tmp_path / f"run{run}" for run in runs]
    configs = [json.loads((folder / "expound_run.json").read_text())["config"] for folder in folders]
    assert {config["model"]["weights"] for config in configs} == {digest_weights(families.tiny("bert", num_labels=2))}


def test_robust_and_guided_training_has_the_papers_values():
    recipe = expound.recipe("regex", preset="paper")
    kinds = [CrossEntropy, GradientPenalty, VirtualAdversarialLoss, ExplanationGuidedLoss]
    assert [type(objective) for objective in recipe.objectives] == kinds
    assert [objective.weight for objective in recipe.objectives] == [1.0, 0.01, 0.5, 0.01]
    _, _, adversarial, guided = recipe.objectives
    assert (adversarial.ascent_steps, adversarial.step_size, adversarial.radius, adversarial.stdevs) == (
        2,
        1e-3,
        1e-5,
        1e-5,
    )
    assert (guided.mask_fraction, guided.aggregate_in_use, guided.direction) == (0.15, "l2", "attention")
    assert (guided.explainer.baselines, guided.explainer.n_steps) == ("zero", 8)
    arguments = recipe.arguments
    assert (arguments["learning_rate"], arguments["num_train_epochs"], arguments["max_grad_norm"]) == (1e-5, 10, 1.0)
    assert (arguments["weight_decay"], arguments["metric_for_best_model"]) == (0.01, "f1_macro")
    assert recipe.max_length == 256


def test_the_papers_values_are_other_values_of_existing_parameters():
    for name in RECIPES:
        defaults = {key: each.default for key, each in inspect.signature(RECIPES[name]).parameters.items()}
        values = paper_parameters(name)
        assert set(values) <= set(defaults)
        assert all(value != defaults[key] for key, value in values.items())
        with pytest.raises(ExpoundError, match="Valid choices: paper"):
            expound.recipe(name, preset="none")


def test_an_option_that_is_given_is_stronger_than_the_preset(tmp_path):
    settings = ["--data", "generated?size=48", "--config", "tiny", "--device", "cpu", "--epochs", "1", "--quiet"]
    for given, weight in (([], 1.0), (["--weight", "10"], 10.0)):
        folder = tmp_path / str(weight)
        assert main(["train", "er_joint", *settings, "--preset", "paper", *given, "--output-dir", str(folder)]) == 0
        config = json.loads((folder / "expound_run.json").read_text())["config"]
        assert config["objectives"]["rationale_alignment"]["weight"] == weight
        assert config["arguments"]["per_device_train_batch_size"] == 32


def test_a_control_trains_without_the_terms_and_the_difference_has_an_interval(tmp_path, capsys):
    settings = ["--data", "generated?size=160", "--config", "tiny", "--device", "cpu", "--epochs", "2", "--quiet"]
    assert main(["train", "er_joint", *settings, "--control", "--output-dir", str(tmp_path / "run")]) == 0
    # as wide as the terminal
    shown = " ".join(capsys.readouterr().out.split())
    number = r"([+-]\d\.\d+)"
    found = re.search(
        rf"rationale_auc on \d+ dev rows: .* of the control: {number} \(95 % {number} to {number}, p = ", shown
    )
    difference, low, high = map(float, found.groups())
    assert low <= difference <= high
    # short training on the rationales of generated texts moves attention far
    assert low > 0
    assert "better" in shown
    configs = [
        json.loads((tmp_path / name / "expound_run.json").read_text())["config"] for name in ("run", "run-control")
    ]
    assert [list(config["objectives"]) for config in configs] == [
        ["cross_entropy", "rationale_alignment"],
        ["cross_entropy"],
    ]
    assert configs[0]["arguments"] == configs[1]["arguments"]
    assert main(["train", "smat", *settings, "--control", "--output-dir", str(tmp_path / "no")]) == 2
    assert "smat has no control run" in capsys.readouterr().err


def test_a_control_is_chosen_by_a_figure_that_exists_without_the_terms():
    changed = 0
    for name in RECIPES:
        recipe = expound.recipe(name)
        if recipe.effect is None or recipe.keeps_model:
            continue
        own, figure = (each.arguments.get("metric_for_best_model", "loss") for each in (recipe, recipe.make_control()))
        assert figure in {"loss", "cross_entropy", "accuracy", "f1_macro"}, name
        changed += own != figure
    assert changed == 3


def test_several_seeds_train_one_model_each_and_the_difference_is_over_seeds(tmp_path, capsys):
    settings = ["--data", "generated?size=96", "--config", "tiny", "--device", "cpu", "--epochs", "1", "--quiet"]
    command = ["train", "er_joint", *settings, "--control", "--output-dir", str(tmp_path / "run")]
    assert main([*command, "--seeds", "0,3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    accuracies, configs = [], []
    for seed in (0, 3):
        folder = tmp_path / "run" / f"seed-{seed}"
        accuracies.append(json.loads((folder / "metrics.json").read_text())["cross_entropy"])
        configs.append(json.loads((folder / "expound_run.json").read_text())["config"])
        assert (tmp_path / "run" / f"seed-{seed}-control" / "metrics.json").exists()
    assert [config["seed"] for config in configs] == [0, 3]
    assert configs[0]["data"] == configs[1]["data"]
    assert f"cross_entropy: {np.mean(accuracies):.4f} ± {np.std(accuracies, ddof=1):.4f}" in shown
    number = r"([+-]\d+\.\d+)"
    single = [float(found) for found in re.findall(rf"of the control: {number} \(", shown)]
    found = re.search(rf"rows: {number} \(95 % over seeds and rows {number} to {number}\), (?:not )?told apart", shown)
    center, low, high = map(float, found.groups())
    assert center == pytest.approx(np.mean(single), abs=2e-4)
    # at least Student's interval over two seeds
    assert high - low >= 2 * 12.7062 * np.std(single, ddof=1) / 2**0.5 - 0.01
    assert main([*command, "--seeds", "0"]) == 2
    assert "expected at least two --seeds separated by commas" in capsys.readouterr().err


def test_a_run_on_the_explanation_loss_alone_says_which_bounds_follow(tmp_path, capsys):
    settings = ["--data", "generated?size=48", "--config", "tiny", "--device", "cpu", "--epochs", "2", "--quiet"]
    assert main(["train", "er_bound", *settings, "--output-dir", str(tmp_path / "run")]) == 0
    history = json.loads((tmp_path / "run" / "history.json").read_text())["history"]
    lowest = [
        min(entry[name] for entry in history if name in entry)
        for name in ("rationale_alignment", "eval_rationale_alignment")
    ]
    assert f"--bound {1.5 * lowest[0]:.3g} --dev-bound {lowest[1]:.3g}" in capsys.readouterr().err


def test_terms_of_weight_zero_are_left_out_and_an_id_s_own_points_count():
    left = RECIPES["regex"](gradient_weight=0, adversarial_weight=0).objectives
    assert [objective.name for objective in left] == ["cross_entropy", "explanation_guided"]
    assert [objective.name for objective in RECIPES["regex"](guidance_weight=0).objectives][1:] == [
        "gradient_penalty",
        "virtual_adversarial",
    ]
    assert RECIPES["regex"]("integrated_gradients?n_steps=5").objectives[3].explainer.n_steps == 5
    with pytest.raises(ExpoundError, match="virtual_adversarial is at least 0"):
        RECIPES["regex"](adversarial_weight=-1)


@pytest.mark.parametrize("teacher", ["integrated_gradients", "decompx_linear"])
def test_two_robust_and_guided_steps_log_every_term_and_are_repeatable(teacher, tmp_path):
    found = []
    for name in ("one", "other"):
        recipe = RECIPES["regex"](teacher, n_steps=2, form="smart")
        arguments = QUICK | {"max_steps": 2, "logging_steps": 1}
        result = recipe.train("tiny", *data(32), tmp_path / name, arguments=arguments)
        logged = [entry for entry in result.history if "loss" in entry]
        found.append([[entry[objective.name] for objective in recipe.objectives] for entry in logged])
        for entry, terms in zip(logged, found[-1], strict=True):
            assert all(term > 0 for term in terms)
            weights = [objective.weight for objective in recipe.objectives]
            assert entry["loss"] == pytest.approx(np.dot(weights, terms), rel=1e-3)
    assert len(found[0]) == 2
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "best", "higher"),
    [
        ("baseline", None, True),
        ("baseline", "cross_entropy", False),
        ("er_joint", None, False),
        ("er_joint", "eval_accuracy", True),
        ("er_constrained", "feasible", True),
        ("ivra", None, True),
        ("ivra", "loss", False),
        ("ivra", "criterion_comprehensiveness", True),
        ("smat", None, True),
        ("smat", "cross_entropy", False),
    ],
)
def test_the_figure_that_chooses_is_better_in_its_own_direction(name, best, higher, tmp_path):
    arguments = QUICK | {"max_steps": 1} | ({} if best is None else {"metric_for_best_model": best})
    RECIPES[name]().train("tiny", *data(8), tmp_path / "run", arguments=arguments)
    record = json.loads((tmp_path / "run" / "expound_run.json").read_text())
    assert record["config"]["arguments"]["greater_is_better"] is higher


def test_a_figure_that_there_is_none_of_is_an_error_before_training(tmp_path):
    arguments = QUICK | {"metric_for_best_model": "pearson"}
    with pytest.raises(ExpoundError, match=r"best model by 'pearson'.* choices: accuracy, comprehensiveness, crit"):
        RECIPES["ivra"]().train("tiny", *data(32), tmp_path / "run", arguments=arguments)
    assert not (tmp_path / "run").exists()


def test_data_without_any_rationale_is_refused(tmp_path):
    train, dev = data()
    with pytest.raises(ExpoundError, match="no row of the dev data has a rationale"):
        RECIPES["er_joint"]().train("tiny", train, dev.remove_columns("rationale"), tmp_path)


def test_which_words_are_kept_by_hand():
    cases = [
        ([0.1, 0.9, 0.5, -3.0, 0.5], 0.2, False, [1]),
        ([0.1, 0.9, 0.5, -3.0, 0.5], 0.5, False, [1, 2, 4]),
        ([0.5, 0.5, 0.5, 0.5], 0.5, False, [0, 1]),
        ([0.1, 0.9, 0.5, -3.0, 5.0], 0.4, True, [3, 4]),
        ([3.0, 0.0, 2.0, 2.0, 0.0], 0.4, True, [2, 3]),
        ([1.0, 1.0, 1.0], 0.5, True, [0, 1]),
        ([1.0] * 10, 0.2, False, [0, 1]),
        ([1.0] * 11, 0.2, False, [0, 1, 2]),
        ([-2.0], 0.01, True, [0]),
    ]
    for scores, ratio, contiguous, expected in cases:
        assert list(select_words(scores, ratio, contiguous)) == expected


def test_a_stretch_has_the_highest_sum_of_all_by_enumeration():
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores = generator.normal(size=generator.integers(1, 20))
        chosen = list(select_words(scores, 0.3, True))
        size = math.ceil(0.3 * len(scores))
        assert chosen == list(range(chosen[0], chosen[0] + size))
        assert scores[chosen].sum() == pytest.approx(
            max(scores[i : i + size].sum() for i in range(len(scores) - size + 1))
        )


@pytest.fixture(scope="module")
def support(tmp_path_factory):
    folder = tmp_path_factory.mktemp("support")
    return RECIPES["baseline"]().train("tiny", *data(), folder, arguments=QUICK).model


@pytest.mark.parametrize("contiguous", [False, True])
def test_rationales_are_words_of_the_text_in_its_order(support, contiguous):
    _, dev = data()
    cut = extract_rationales(support, dev, "random?seed=3", 0.2, contiguous)
    assert cut.column_names == ["label", "text"] or set(cut.column_names) == {"text", "label"}
    assert cut["label"][:] == dev["label"][:]
    assert cut.features["label"] == dev.features["label"]
    attributed = expound.attribute(support, list(dev), "random?seed=3")
    for short, row, item in zip(cut["text"][:], dev, attributed, strict=True):
        words = [word.text for word in split_words(row["text"])]
        best = np.argsort(-item.scores[0], kind="stable")[: math.ceil(len(words) / 5)]
        if contiguous:
            assert f" {short} " in f" {' '.join(words)} "
            assert len(short.split()) == len(best)
        else:
            assert short.split() == [words[index] for index in sorted(best)]


def test_the_whole_text_is_kept_at_a_ratio_of_one(support):
    _, dev = data()
    assert extract_rationales(support, dev, "random", 1.0)["text"][:] == [
        " ".join(text.split()) for text in dev["text"][:]
    ]


def test_the_predictor_sees_rationales_only_and_a_given_support_is_used(support, tmp_path):
    recipe = RECIPES["fresh"]("occlusion", 0.2)
    recipe = type(recipe)(**{**vars(recipe), "explained_model": support})
    train, dev = data()
    result = recipe.train("tiny", train, dev, tmp_path / "run", arguments=QUICK)
    assert not (tmp_path / "run-support").exists()
    short = extract_rationales(support, dev, "occlusion", 0.2)
    right = [result.model.predict(result.model.encode([row])).item() == row["label"] for row in short]
    assert np.mean(right) == pytest.approx(result.metrics["accuracy"])


@pytest.mark.parametrize("ratio", [0.0, 1.5, -0.1])
def test_a_ratio_out_of_range_is_refused(support, ratio):
    with pytest.raises(ExpoundError, match="fraction above 0 and up to 1"):
        extract_rationales(support, data()[1], "random", ratio)


def test_what_is_left_of_a_text_is_all_that_its_rationale_is_not(support):
    _, dev = data()
    kept, left = (extract_rationales(support, dev, "saliency", 0.3, rest=rest)["text"][:] for rest in (False, True))
    for one, other, text in zip(kept, left, dev["text"][:], strict=True):
        assert sorted(one.split() + other.split()) == sorted(text.split())
    item = expound.attribute(support, dev[0]["text"], "random")[0]
    (lowest,) = extract_rationales(support, dev.select([0]), "random", 1.0, rest=True)["text"][:]
    assert lowest == item.units[int(np.abs(item.scores[0]).argmin())].text


def test_words_against_the_prediction_do_not_stay_and_tell_it(support):
    """With signs, what is left of a text would hold all words against its prediction."""
    _, dev = data()
    left = extract_rationales(support, dev, "input_x_gradient", 0.5, rest=True)["text"][:]
    negative = 0
    for text, item in zip(left, expound.attribute(support, dev["text"][:], "input_x_gradient"), strict=True):
        size = np.ceil(round(0.5 * len(item.units), 9))
        removed = np.argsort(-np.abs(item.scores[0]), kind="stable")[: int(size)].tolist()
        negative += sum(item.scores[0][index] < 0 for index in removed)
        stay = [word for index, word in enumerate(item.unit_texts) if index not in removed]
        assert text.split() == (stay or text.split())
    assert negative > 0


def test_a_model_is_retrained_without_what_was_chosen(support, tmp_path):
    recipe = replace(RECIPES["roar"]("occlusion", 0.4), explained_model=support)
    train, dev = data()
    result = recipe.train("tiny", train, dev, tmp_path / "run", arguments=QUICK)
    short = extract_rationales(support, dev, "occlusion", 0.4, rest=True)
    right = [result.model.predict(result.model.encode([row])).item() == row["label"] for row in short]
    assert np.mean(right) == pytest.approx(result.metrics["accuracy"])


def test_shuffled_labels_are_the_same_ones_in_another_order(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Recipe, "run", lambda self, model, train, dev, folder, options: seen.append((train, dev)))
    train, dev = data()
    for seed in (0, 0, 1):
        RECIPES["random_labels"]().run("tiny", train, dev, tmp_path, RunOptions(seed=seed))
    (one, kept), (again, _), (other, _) = seen
    assert one["text"][:] == train["text"][:]
    assert one.features == train.features
    assert sorted(one["label"][:]) == sorted(train["label"][:])
    assert one["label"][:] != train["label"][:]
    assert one["label"][:] == again["label"][:] != other["label"][:]
    assert kept["label"][:] == dev["label"][:]
