"""A score that is no finite number is an error that names method, type and example, or on request is counted."""

import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import expound
from expound import ExpoundError
from expound.cli import main
from expound.data.cards import MethodCard
from expound.explainers import EXPLAINERS
from expound.explainers.base import Explainer
from small import make_explainer, small

TEXTS = ["a film", "a moving film about a small town and its river", "the plot is dull"]
METRICS = ["aopc_comprehensiveness", "important_tokens", "rationale_auc"]


@dataclass(frozen=True)
class Breaking(Explainer):
    """NaN (or infinite) for texts longer than six positions."""

    value: str = "nan"
    card: ClassVar = MethodCard(name="breaking", family="control", cost="0")

    def scores(self, model, batch, target):
        long = batch.content.sum(1, keepdim=True) > 6
        scores = torch.arange(batch.length, dtype=torch.float64).expand(len(batch), -1) / 7
        return torch.where(long & (scores > 0.5), float(self.value), scores)


@pytest.fixture
def model():
    return small("bert")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_error_names_method_type_and_example(model, value):
    for call in (
        lambda: Breaking(value).attribute(model, model.encode(TEXTS)),
        lambda: expound.attribute(model, TEXTS, Breaking(value)),
        lambda: expound.compare(model, TEXTS, [Breaking(value), "random"], METRICS[:1]),
        lambda: expound.compare(model, TEXTS, [Breaking(value)], METRICS[:1], special_tokens=True),
    ):
        with pytest.raises(
            ExpoundError, match=r"breaking gives .*no finite numbers for example 1, in float64.*allow_nan"
        ):
            call()


def test_numbers_at_padding_and_special_tokens_may_be_anything(model):
    class Outside(Breaking):
        def scores(self, model, batch, target):
            return torch.where(batch.content, 1.0, torch.nan)

    assert Outside().attribute(model, model.encode(TEXTS)).isfinite().all()


def test_allow_nan_counts_nonfinite_examples(model, caplog):
    found = expound.attribute(model, TEXTS, Breaking(), allow_nan=True)
    assert [np.isfinite(item.scores).all() for item in found] == [True, False, True]
    assert "breaking: 1 of 3 examples have scores that are not finite" in caplog.text


def test_a_comparison_that_goes_on_has_no_figures_where_there_are_no_scores(model, tmp_path, caplog):
    rationales = [{"text": text, "rationale": [[0, 1]]} for text in TEXTS]
    table = expound.compare(model, rationales, [Breaking(), "random"], METRICS, allow_nan=True, output_dir=tmp_path)
    broken = table.results[table.results["method"] == "breaking"].set_index("example")
    for metric in METRICS:
        assert broken[metric].isna().tolist() == [False, True, False]
    others = table.results[table.results["method"] == "random"]
    assert not others[METRICS].isna().any().any()
    assert "breaking: 1 of 3" in caplog.text
    curves = pd.read_parquet(tmp_path / "curves.parquet")
    gone = curves[(curves["method"] == "breaking") & (curves["example"] == 1)]
    assert len(gone)
    assert gone["value"].isna().all()


def test_finite_examples_are_judged_as_usual(model):
    both = expound.compare(model, TEXTS, [Breaking(), "random"], METRICS[:2], allow_nan=True).results
    one = expound.compare(model, TEXTS, [Breaking("0.5"), "random"], METRICS[:2]).results
    fine = ~((both["method"] == "breaking") & (both["example"] == 1))
    columns = ["method", "example", *METRICS[:2]]
    pd.testing.assert_frame_equal(both.loc[fine, columns], one.loc[fine, columns])


def test_the_command_line_refuses_scores_that_are_not_finite_unless_allowed(model, tmp_path, monkeypatch, capsys):
    point = EntryPoint("breaking", f"{__name__}:Breaking", EXPLAINERS.group)
    # as a part of an installed package: cards of native parts are read from the library's own files
    monkeypatch.setattr(
        "expound.data.registry.find_installed", lambda group: {"breaking": point} if group == EXPLAINERS.group else {}
    )
    model.model.save_pretrained(tmp_path / "model")
    model.processing_class.save_pretrained(tmp_path / "model")
    command = ["explain", TEXTS[1], "--model", str(tmp_path / "model"), "--methods", "breaking"]
    assert main(command) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("expound: breaking gives scores that are no finite numbers for example 0")
    assert main([*command, "--allow-nan"]) == 0


def test_scores_that_overflow_in_half_precision_are_an_error_that_names_the_type(minilm_path):
    model = expound.load(minilm_path, device="cpu", dtype="float16")
    # Whether this overflows depends on the processor: some accumulate products of float16 in float32.
    message = ""
    try:
        results = expound.attribute(model, ["dull", "great !"], "deep_lift", baselines="zero")
    except ExpoundError as error:
        message = str(error)
    if message:
        assert re.search(r"deep_lift .*example 1, in float16.*--dtype float32", message)
    else:
        assert all(np.isfinite(result.scores).all() for result in results)


def test_infinite_logits_are_no_answer(model):
    with torch.no_grad():
        model.model.classifier.bias[0] = torch.inf
    with pytest.raises(ExpoundError, match="predicts NaN"):
        make_explainer("occlusion").attribute(model, model.encode(TEXTS))


def test_the_runner_knows_both_options():
    from expound.cli import app

    for command in ("explain", "compare"):
        help_text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        assert "--allow-nan" in help_text
        assert "--allow-incomplete" in help_text
