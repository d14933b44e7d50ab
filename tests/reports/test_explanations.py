"""Explanations keep their values in every format and in files."""

import dataclasses
import json
import operator
import pickle

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expound.errors import ExpoundError
from expound.reports.explanations import Explanation, Explanations
from expound.reports.records import Exchange, Target, Unit

WORDS = (Unit("a", 0, 0, 1), Unit("warmly", 0, 2, 8), Unit("film", 0, 9, 13))
TOKENS = tuple(Unit(text) for text in ("[CLS]", "a", "warm", "##ly", "film", "[SEP]"))
TARGET = Target("positive", 1, 0.1, output=1.5)
RESPONSE = Exchange(
    "<u>a film<a>", ("doc", "user"), ((3, 4), (5, 9)), ("source", "user"), "So. No.", ("So.", "No."), ((0, 3), (4, 7))
)


def sample(index=0, **changes):
    values = {
        "targets": (TARGET,),
        "units": WORDS,
        "scores": np.array([[0.1, 1 / 3, -0.7]], dtype=np.float32),
        "unit": "word",
        "method": "integrated_gradients",
        "texts": ("a warmly film",),
        "params": {"steps": 50, "baseline": "mask"},
        "prediction": Target("negative", 0, 0.9),
        "convergence_delta": -1e-7,
        "tokens": TOKENS,
        "token_scores": np.array([[0, 0.1, 1 / 3, -2.5e-9, -0.7, 0]], dtype=np.float32),
        "special": (True, False, False, False, False, True),
        "index": index,
    }
    return Explanation(**{**values, **changes})


PATCHES = {"units": TOKENS[1:5], "scores": np.ones((1, 4)), "unit": "patch", "image_shape": (2, 2)}
EMPTY = {"units": (), "scores": np.zeros((1, 0)), "tokens": (), "token_scores": np.zeros((1, 0)), "special": ()}
ANSWER = {
    "targets": (Target("So.", (0, 1), 0.6, -0.5), Target("No.", (1, 2), 0.2, -1.5)),
    "units": (Unit("doc", 0, 0, 1), Unit("user", 1, 0, 4)),
    "scores": [[1, 2], [3, 4]],
    "unit": "source",
    "texts": ("a", "film"),
    "prediction": None,
    "exchange": RESPONSE,
    "bounds": [[0.5, np.nan], [np.nan, np.nan]],
    "response_scores": [[np.nan, np.nan], [2, np.nan]],
    **{name: EMPTY[name] for name in ("tokens", "special")},
    "token_scores": None,
}
VARIANTS = {
    "class": {},
    "regression": {
        "targets": (Target("value", 2.75, float("nan")),),
        "prediction": Target("value", np.float32(0.1), 0.1),
        "convergence_delta": None,
    },
    "span": {"targets": (Target("film", (3, 5), 0.5),), "prediction": Target("a", (2, 2), 0.5)},
    "tag": {"targets": (TARGET._replace(place=(0, 2, 8)),)},
    "pair": {"texts": ("a", "warmly film"), "units": (Unit("a", 0, 0, 1), *(Unit("x", 1, 0, 6) for _ in range(2)))},
    "layers": {"layers": np.linspace(-1, 1, 18).reshape(3, 6)},
    "unsigned and cut": {"signed": False, "truncated": True},
    "image": {"texts": (), **PATCHES},
    "no positions": {**EMPTY, "texts": ("",)},
    "not finite": {"scores": [[np.nan, np.inf, -np.inf]]},
    "other scripts": {
        "units": tuple(Unit(text) for text in ("好", "naïve", "🙂")),
        "targets": (TARGET._replace(text="<b>\"'&"),),
        "texts": ("\x00\n好 naïve 🙂 ]]>",),
    },
    "response": ANSWER,
    "no target": {"targets": (), "scores": np.zeros((0, 3)), "token_scores": None},
    "facts": {"metadata": {"id": 7, "names": ["a"]}},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_saved_attributions_come_back_exactly(tmp_path, changes):
    before = Explanations([sample(), sample(7, **changes)], {"model": "tiny", "seed": 3})
    before.save(tmp_path / "new" / "folder")
    after = Explanations.load(tmp_path / "new" / "folder")
    assert after == before
    for one, other in zip(before, after, strict=True):
        assert one.scores.dtype == other.scores.dtype == np.float32
        assert one.scores.tobytes() == other.scores.tobytes()
        assert [type(target.value) for target in one.targets] == [type(target.value) for target in other.targets]
    assert after.config == {"model": "tiny", "seed": 3}


def test_no_attributions_come_back_as_none(tmp_path):
    Explanations().save(tmp_path)
    assert len(Explanations.load(tmp_path)) == 0


def test_every_field_takes_part_in_equality():
    changes = {
        "targets": (TARGET._replace(value=0),), "units": WORDS[:2] + WORDS[:1], "scores": np.ones((1, 3)),
        "unit": "token", "method": "x", "texts": ("other",), "params": {}, "prediction": None, "signed": False,
        "truncated": True, "index": 4, "convergence_delta": None, "rest": [1.0], "bias": 1.0,
        "bounds": np.ones((1, 3)), "interactions": ((0, 1, 0.5),),
        "tokens": TOKENS[::-1], "token_scores": np.ones((1, 6)), "special": (False,) * 6,
        "layers": np.ones((1, 6)), "exchange": RESPONSE, "response_scores": np.ones((1, 2)), "image_shape": (1, 3),
        "metadata": {"id": 1},
    }  # fmt: skip
    assert set(changes) == {each.name for each in dataclasses.fields(Explanation)}
    for name, value in changes.items():
        assert sample(**{name: value}) != sample(), name
    assert sample() == sample()
    assert sample(prediction=Target("x", 1, 0.5)) != sample(prediction=Target("x", 1.0, 0.5))


def test_the_files_are_plain(tmp_path):
    Explanations([sample()], {"seed": 3}).save(tmp_path)
    row = pq.read_table(tmp_path / "explanations.parquet").to_pylist()[0]
    assert row["units"][1] == {"text": "warmly", "segment": 0, "start": 2, "end": 8}
    assert json.loads(row["params"]) == {"steps": 50, "baseline": "mask"}
    assert json.loads(row["targets"][0]["value"]) == 1
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["config"] == {"seed": 3}
    assert config["versions"]["numpy"] == np.__version__
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "explanations.parquet"]


def test_saving_again_replaces_and_leaves_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    Explanations([sample()]).save(tmp_path)
    Explanations([sample(1), sample(2)]).save(tmp_path, {"seed": 4})
    assert [item.index for item in Explanations.load(tmp_path)] == [1, 2]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_save_that_fails_leaves_the_old_one(tmp_path):
    folder = tmp_path / "kept"
    Explanations([sample()]).save(folder)
    with pytest.raises(ExpoundError, match="stored"):
        Explanations([sample(texts=("a \ud800 half pair",))]).save(folder)
    assert Explanations.load(folder) == Explanations([sample()])
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_saving_onto_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExpoundError, match="cannot write"):
        Explanations([sample()]).save(tmp_path / "file")


def _truncate(folder):
    path = folder / "explanations.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def _flip_byte(folder):
    path = folder / "explanations.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def _change_config(**changes):
    def damage(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


DAMAGE = {
    "no parquet": lambda folder: (folder / "explanations.parquet").unlink(),
    "no config": lambda folder: (folder / "config.json").unlink(),
    "cut parquet": _truncate,
    "flipped byte": _flip_byte,
    "config not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "config not text": lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"),
    "config is a list": lambda folder: (folder / "config.json").write_text("[]"),
    "foreign config": lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'),
    "future format": _change_config(format_version=99),
    "config of another kind": _change_config(config=[1]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_refused(tmp_path, damage):
    Explanations([sample()]).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ExpoundError) as caught:
        Explanations.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def _rewrite(folder, table):
    import hashlib

    pq.write_table(table, folder / "explanations.parquet")
    _change_config(sha256=hashlib.sha256((folder / "explanations.parquet").read_bytes()).hexdigest())(folder)


def _replace_column(table, name, values, kind=None):
    column = pa.array(values, kind or table.schema.field(name).type)
    return table.set_column(table.column_names.index(name), name, column)


FOREIGN = {
    "missing column": lambda table: table.drop_columns(["scores"]),
    "other type": lambda table: _replace_column(table, "scores", ["x"], pa.string()),
    "null": lambda table: _replace_column(table, "method", [None]),
    "lengths disagree": lambda table: _replace_column(table, "scores", [[[1.0]]]),
    "null inside a list": lambda table: _replace_column(table, "texts", [["a", None, "b"]]),
    "params not JSON": lambda table: _replace_column(table, "params", ["__import__('os')"]),
    "params not an object": lambda table: _replace_column(table, "params", ["3"]),
    "target of another kind": lambda table: _replace_column(
        table, "prediction", [table["prediction"].to_pylist()[0] | {"value": '"x"'}]
    ),
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_foreign_tables_are_refused(tmp_path, change):
    Explanations([sample()]).save(tmp_path)
    _rewrite(tmp_path, change(pq.read_table(tmp_path / "explanations.parquet")))
    with pytest.raises(ExpoundError):
        Explanations.load(tmp_path)


def test_a_missing_directory_is_an_error(tmp_path):
    with pytest.raises(ExpoundError, match="missing"):
        Explanations.load(tmp_path / "nowhere")


BAD = {
    "scores too short": {"scores": [[0.0]]},
    "scores not numbers": {"scores": [["x"] * 3]},
    "scores in one dimension": {"scores": np.zeros(3)},
    "scores of more targets": {"scores": np.zeros((2, 3))},
    "bounds too long": {"bounds": np.zeros((1, 4))},
    "units of three": {"units": (("a", 0, 1),) * 3},
    "units without text": {"units": ((0, 0, 0, 1),) * 3},
    "side that is not there": {"units": (Unit("a", 1, 0, 1),) * 3},
    "token scores too short": {"token_scores": np.zeros((1, 3))},
    "special too short": {"special": (True,)},
    "layers of other length": {"layers": np.zeros((2, 5))},
    "no layers": {"layers": np.zeros((0, 6))},
    "interaction that is not there": {"interactions": ((0, 3, 0.1),)},
    "grid too small": {"image_shape": (1, 2)},
    "grid with one side": {"image_shape": (3,)},
    "target a word": {"targets": (Target("x", "positive", 0.5),)},
    "params not JSON": {"params": {"model": object()}},
    "params not a number": {"params": {"rate": float("nan")}},
    "metadata not JSON": {"metadata": {"id": object()}},
    "response scores too short": {**ANSWER, "response_scores": np.zeros((2, 1))},
}


def test_values_that_disagree_are_refused():
    for changes in BAD.values():
        with pytest.raises(ExpoundError):
            sample(**changes)


def test_arrays_are_copies_and_cannot_be_written():
    scores = np.zeros((1, 3), dtype=np.float32)
    item = sample(scores=scores)
    scores[0, 0] = 5
    assert item.scores[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        item.scores[0, 0] = 1
    with pytest.raises(AttributeError):
        item.method = "other"


def test_params_are_json_values():
    assert sample(params={"sizes": (1, 2)}).params == {"sizes": [1, 2]}


def test_it_is_a_sequence():
    both = Explanations([sample(0), sample(1)], {"seed": 1, "a": 2}) + Explanations([sample(2)], {"seed": 1, "a": 3})
    assert [item.index for item in both] == [0, 1, 2]
    assert both.config == {"seed": 1}
    assert isinstance(both[1:], Explanations)
    assert [item.index for item in both[::-1]] == [2, 1, 0]
    assert both[-1] == sample(2)
    assert sample(1) in both
    assert both != list(both)
    assert pickle.loads(pickle.dumps(both)) == both
    with pytest.raises(IndexError):
        both[3]
    with pytest.raises(TypeError):
        operator.add(both, [sample()])


def test_the_configuration_cannot_be_changed_from_outside():
    items = Explanations([sample()], {"seed": 1})
    items.config["seed"] = 2
    assert items.config == {"seed": 1}


def test_repr_says_what_it_holds():
    items = Explanations([sample(index) for index in range(5)])
    assert repr(items) == "Explanations(5 examples, integrated_gradients)"
    one = "Explanation(integrated_gradients, 0: positive (0.10): warmly +0.333, a +0.1, film -0.7)"
    assert repr(items[0]) == one


def test_an_example_shows_itself_in_a_notebook():
    items = Explanations([sample(index) for index in range(2)])
    assert items[0]._repr_html_().count('<section class="card">') == 1
    assert items._repr_html_().count('<section class="card">') == 2


def test_nothing_has_a_name():
    assert repr(Explanations()) == "Explanations(0 examples)"


def test_top_is_in_order_and_ties_stay_in_place():
    assert [word for word, _ in sample(scores=[[1, 2, 1]]).top(3)] == ["warmly", "a", "film"]


def test_dataset_frame_and_json_hold_the_same():
    items = Explanations([sample(), sample(1, **ANSWER)])
    dataset = items.to_dataset()
    assert isinstance(dataset, datasets.Dataset)
    assert [unit["text"] for unit in dataset[0]["units"]] == list(items[0].unit_texts)
    assert np.float32(dataset[1]["scores"]).tobytes() == items[1].scores.tobytes()
    frame = items.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["index"].tolist() == [0] * 3 + [1] * 4
    assert frame["score"].tolist() == [*items[0].scores.ravel().tolist(), 1, 2, 3, 4]
    parsed = json.loads(items.to_json())
    assert parsed[1]["targets"][1]["value"] == [1, 2]
    assert parsed[0]["params"] == items[0].params
    assert [Explanation.from_row(row) for row in parsed[:1]] == list(items[:1])


def test_json_has_no_number_that_json_lacks():
    parsed = json.loads(Explanations([sample(**VARIANTS["not finite"])]).to_json(), parse_constant=pytest.fail)
    assert parsed[0]["scores"] == [[None, None, None]]


def test_files_of_another_version_say_what_to_do(tmp_path):
    (tmp_path / "config.json").write_text('{"format": "expound-attributions", "format_version": 1, "config": {}}')
    (tmp_path / "attributions.parquet").write_bytes(b"")
    with pytest.raises(ExpoundError, match="has version 1, expected 3: explain and save again"):
        Explanations.load(tmp_path)
