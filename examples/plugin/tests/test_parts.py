"""expound's contracts hold for every part of the package, and expound finds them by their ids."""

import pytest

import expound
from expound.cli import main
from expound.testing import (
    ExplainerContract,
    MetricContract,
    ObjectiveContract,
    ReaderContract,
    RecipeContract,
    make_examples,
    random_model,
)
from expound_example.confidence_penalty import ConfidencePenalty
from expound_example.keep_one import KeepOne
from expound_example.penalize_confidence import penalize_confidence
from expound_example.starred import Starred


class TestKeepOne(ExplainerContract):
    @pytest.fixture
    def explainer(self):
        return expound.explainer("keep_one")

    def test_it_is_listed(self):
        assert "keep_one" in set(expound.list_methods()["name"])

    def test_a_word_alone_by_hand(self):
        model = random_model()
        batch = model.encode(make_examples(1))
        scores = KeepOne().attribute(model, batch, 1)[0]
        keep = ~batch.content
        nothing = model.predict_perturbed(batch, keep[None], "mask")[0, 0, 1]
        first = batch.content & (batch.word_of == batch.word_of[batch.content].min())
        alone = model.predict_perturbed(batch, (keep | first)[None], "mask")[0, 0, 1]
        assert float(scores[first[0]].sum()) == pytest.approx(float(alone - nothing), abs=1e-6)


class TestTopShare(MetricContract):
    @pytest.fixture
    def metric(self):
        return expound.metric("top_share?count=2")


class TestConfidencePenalty(ObjectiveContract):
    @pytest.fixture
    def objective(self):
        return expound.objective("confidence_penalty")


class TestPenalizeConfidence(RecipeContract):
    @pytest.fixture
    def factory(self):
        return penalize_confidence

    def test_it_is_found_by_its_id(self):
        penalty = expound.recipe("penalize_confidence", weight=0.3).objectives[1]
        assert penalty == ConfidencePenalty(0.3)


class TestStarred(ReaderContract):
    @pytest.fixture
    def reader(self, tmp_path):
        lines = [f"{('bad', 'good')[n % 2]}: film {n} is *not {n}* what it *says*" for n in range(40)]
        (tmp_path / "reviews.txt").write_text("\n".join(lines))
        return Starred(path=str(tmp_path / "reviews.txt"))

    def test_stars_mark_the_evidence(self, reader):
        row = expound.load_data(f"starred:{reader.path}", "all")[1]
        assert row["text"] == "film 1 is not 1 what it says"
        assert [row["text"][start:end] for start, end in row["rationale"]] == ["not 1", "says"]

    def test_an_odd_star_is_an_error(self, reader):
        with open(reader.path, "a") as file:
            file.write("\ngood: a *film")
        with pytest.raises(expound.ExpoundError, match="line 41: expected LABEL: text"):
            expound.load_data(f"starred:{reader.path}")


def test_the_command_is_part_of_expound(tmp_path, capsys):
    (tmp_path / "reviews.txt").write_text("good: a *moving* film\nbad: a *dull* film\n")
    assert main(["count-marks", str(tmp_path / "reviews.txt")]) == 0
    assert capsys.readouterr().out == "2 reviews, 42% marked\n"
    assert main(["count-marks", str(tmp_path / "missing.txt")]) == 2
    assert main(["--help"]) == 0
    assert "count-marks" in capsys.readouterr().out
