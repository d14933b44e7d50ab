"""IvRA's values and choices."""

from __future__ import annotations

import pytest
import torch

import expound
from expound import ExpoundError
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.models import ExplainedModel
from expound.objectives import ComprehensivenessLoss, ConsistencyLoss, CrossEntropy, SufficiencyLoss
from expound.recipes import RECIPES
from expound.training import CriterionModule, Simulatability
from expound_papers.tables.coefficients import COEFFICIENTS
from families import processor, tiny, tokenizer


def load_generated():
    return expound.load_data("generated?size=32", "train")


def make_model():
    return ExplainedModel(tiny("bert"), processor("bert"))


@pytest.mark.parametrize(
    ("criterion", "rate", "gamma"),
    [
        ("simulatability?student=a-model", 3e-5, 0.75),
        ("comprehensiveness", 3e-4, 0.5),
        ("sufficiency", 3e-4, 0.5),
        ("consistency", 1e-4, 0.25),
    ],
)
def test_each_criterion_has_the_papers_best_values(criterion, rate, gamma):
    recipe = expound.recipe("ivra", preset="paper", criteria=criterion)
    arguments = recipe.arguments
    assert (arguments["learning_rate"], arguments["lr_scheduler_kwargs"]) == (rate, {"gamma": gamma, "epochs": 2})
    assert (arguments["num_train_epochs"], arguments["per_device_train_batch_size"]) == (20, 64)
    assert arguments["metric_for_best_model"] == "criterion"
    assert recipe.module is CriterionModule


def test_terms_are_the_cross_entropy_and_the_criteria_on_one_explainer():
    recipe = expound.recipe(
        "ivra",
        preset="paper",
        criteria="consistency, sufficiency,comprehensiveness",
        normalizer="softmax",
        learn_heads=False,
        lr_multiplier=5.0,
    )
    assert recipe.arguments["learning_rate"] == 1e-4
    terms = recipe.build_objectives(make_model(), load_generated(), seed=0)
    assert [type(term) for term in terms] == [CrossEntropy, ComprehensivenessLoss, SufficiencyLoss, ConsistencyLoss]
    assert len({id(term.explainer) for term in terms[1:]}) == 1
    single = terms[1].explainer
    assert (single.normalizer, single.mix, single.learn_heads, single.learn_features) == (
        "softmax",
        "coefs",
        False,
        True,
    )
    assert [term.lr_multiplier for term in terms[1:]] == [5.0] * 3
    assert (terms[1].margin, terms[2].margin, terms[2].form) == (1.0, 0.1, "margin")
    assert all(term.weight == 1 for term in terms)
    assert terms[1].explainer is not recipe.build_objectives(make_model(), load_generated(), seed=0)[1].explainer


@pytest.mark.parametrize("special_tokens", [True, False])
def test_the_student_looks_where_its_model_explains_and_weighs_explanations_as_it_is_told(special_tokens, tmp_path):
    tiny("bert").save_pretrained(tmp_path)
    tokenizer("bert").save_pretrained(tmp_path)
    own = f"student={tmp_path}&student_weight=7&student_optimizer=adamw&student_learning_rate=1e-4"
    recipe = RECIPES["ivra"](f"sufficiency?unit=word,simulatability?{own}", special_tokens=special_tokens)
    _, term, removal = recipe.build_objectives(make_model(), load_generated(), seed=0)
    assert (removal.unit, removal.perturbation) == ("word", "attend")
    student = term.student.network
    assert (student.weight, term.student.kind, term.student_learning_rate) == (7.0, "adamw", 1e-4)
    assert term.explainer.special_tokens == student.explainer.special_tokens == special_tokens
    assert term.params["student"].items() > {"model": "bert", "special_tokens": special_tokens}.items()
    assert (term.params["student_weight"], term.params["student_optimizer"]) == (7.0, "adamw")
    tiny("bert", seed=7).save_pretrained(tmp_path)
    assert (
        recipe.build_objectives(make_model(), load_generated(), seed=0)[1].params["student"] != term.params["student"]
    )


def test_words_are_hardly_attended_to_where_the_models_attention_takes_weights(caplog):
    def choose(family, criteria="sufficiency", preset=None, head="SequenceClassification", **params):
        model = ExplainedModel(tiny(family, head), processor(family))
        made = expound.recipe("ivra", preset=preset, criteria=criteria, **params)
        rows = expound.load_data("generated?task=pairs&size=8", "train")
        return [term.perturbation for term in made.build_objectives(model, rows, seed=0)[1:]]

    assert choose("bert") == choose("llama") == ["attend"]
    assert choose("bert", preset="paper") == ["mask"]
    named = "comprehensiveness?perturbation=pad,sufficiency"
    assert choose("bert", named) == ["pad", "attend"]
    assert choose("bert", named, perturbation="zero") == ["pad", "zero"]
    assert choose("bert", [SufficiencyLoss()]) == ["mask"]
    assert not caplog.text
    assert choose("modernbert") == ["mask"]
    assert "words are replaced by [MASK] in training, for a model whose attention" in caplog.text
    assert choose("bert", head="QuestionAnswering") == ["mask"]


def test_softmax_as_printed_is_calibrated_on_training_data():
    recipe = RECIPES["ivra"]("sufficiency", normalizer="softmax", mix="literal")
    single = recipe.build_objectives(make_model(), load_generated(), seed=0)[1].explainer
    assert all(scale > 1 for scale in single.scales)
    printed = RECIPES["ivra"]("sufficiency", normalizer="softmax", mix="per_head", calibrate=False)
    assert printed.build_objectives(make_model(), load_generated(), seed=0)[1].explainer.scales == (1.0, 1.0)


def test_what_cannot_be_trained_says_why(tmp_path):
    for make, message in (
        (lambda: RECIPES["ivra"]("comprehensive"), "unknown criterion 'comprehensive'"),
        (lambda: RECIPES["ivra"](" , "), "expected ids between commas"),
        (lambda: RECIPES["ivra"]("simulatability"), r"simulatability\?student=MODEL"),
        (lambda: RECIPES["ivra"]([Simulatability()]), r"simulatability\?student=MODEL"),
        (lambda: RECIPES["ivra"]("sufficiency?student=m"), "unknown parameter of sufficiency 'student'"),
    ):
        with pytest.raises(ExpoundError, match=message):
            make()
    tiny("bert", vocab_size=200).save_pretrained(tmp_path)
    tokenizer("bert").save_pretrained(tmp_path)
    with pytest.raises(ExpoundError, match="the student has 200 tokens"):
        RECIPES["ivra"](f"simulatability?student={tmp_path}").build_objectives(make_model(), load_generated(), seed=0)


def test_a_student_of_the_coefficients_that_lie_beside_its_teacher(tmp_path):
    tiny("bert").save_pretrained(tmp_path)
    tokenizer("bert").save_pretrained(tmp_path)

    def smat(*arguments):
        return RECIPES["smat"](*arguments).teaching(None)

    assert smat(str(tmp_path), "interpretable_attention").explainer == f"interpretable_attention:{tmp_path}"
    assert smat(str(tmp_path), "interpretable_attention:here").explainer == "interpretable_attention:here"
    assert smat(str(tmp_path), "lime").explainer == "lime"
    assert smat().explainer == "learned"
    InterpretableAttention(2, 4, 8).save_pretrained(tmp_path / "saved")
    assert smat(str(tmp_path), str(tmp_path / "saved")).explainer == f"interpretable_attention:{tmp_path / 'saved'}"


def test_coefficients_are_drawn_with_a_row_a_layer():
    single = InterpretableAttention(2, 4, 8)
    with torch.no_grad():
        single.query_features[1, :, 3] = torch.tensor([1.0, 2.0, 3.0, 6.0])
        single.layer_coefficients[0] = 5.0
    maps = COEFFICIENTS[InterpretableAttention](single)
    shapes = {name: tuple(value.shape) for name, value in maps.items()}
    assert shapes == {"heads": (2, 4), "layers": (2, 1), "query features": (2, 8), "key features": (2, 8)}
    assert maps["query features"][1, 3] == 3.0
    assert maps["layers"].flatten().tolist() == [5.0, 1.0]
