"""Attributions keep what they are given, through every form and through files."""

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

from exegete.errors import ExegeteError
from exegete.reports.attributions import Attribution, Attributions


def sample(index=0, **changes):
    values = {
        "tokens": ("[CLS]", "a", "warm", "##ly", "film", "[SEP]"),
        "scores": np.array([0, 0.1, 1 / 3, -2.5e-9, -0.7, 0], dtype=np.float32),
        "words": ("a", "warmly", "film"),
        "word_scores": np.array([0.1, 1 / 3, -0.7], dtype=np.float32),
        "word_spans": ((0, 0, 1), (0, 2, 8), (0, 9, 13)),
        "texts": ("a warmly film",),
        "target": 1,
        "target_label": "positive",
        "prediction": 0,
        "prediction_label": "negative",
        "probability": 0.1,
        "method": "integrated_gradients",
        "params": {"steps": 50, "baseline": "mask"},
        "delta": -1e-7,
        "special": (True, False, False, False, False, True),
        "index": index,
    }
    return Attribution(**{**values, **changes})


VARIANTS = {
    "class": {},
    "regression": {"target": 2.75, "prediction": np.float32(0.1), "probability": float("nan"), "delta": None},
    "span": {"target": (3, 5), "prediction": (2, 2)},
    "pair": {"texts": ("a", "warmly film"), "word_spans": ((0, 0, 1), (1, 0, 6), (1, 7, 11))},
    "layers": {"layers": np.linspace(-1, 1, 18).reshape(3, 6)},
    "unsigned and cut": {"signed": False, "truncated": True},
    "image": {"texts": (), "words": (), "word_scores": (), "word_spans": (), "image_shape": (2, 2)},
    "no positions": {
        **dict.fromkeys(("tokens", "scores", "special", "words", "word_scores", "word_spans"), ()),
        "texts": ("",),
    },
    "not finite": {"scores": [np.nan, np.inf, -np.inf, 0, 1, 2], "word_scores": [np.nan, 0, np.inf]},
    "other scripts": {"words": ("好", "naïve", "🙂"), "target_label": "<b>\"'&", "texts": ("\x00\n好 naïve 🙂 ]]>",)},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_saved_attributions_come_back_exactly(tmp_path, changes):
    before = Attributions([sample(), sample(7, **changes)], {"model": "tiny", "seed": 3})
    before.save(tmp_path / "new" / "folder")
    after = Attributions.load(tmp_path / "new" / "folder")
    assert after == before
    for one, other in zip(before, after, strict=True):
        assert one.scores.dtype == other.scores.dtype == np.float32
        assert one.scores.tobytes() == other.scores.tobytes()
        assert type(one.target) is type(other.target)
    assert after.config == {"model": "tiny", "seed": 3}


def test_no_attributions_come_back_as_none(tmp_path):
    Attributions().save(tmp_path)
    assert len(Attributions.load(tmp_path)) == 0


def test_every_field_takes_part_in_equality():
    changes = {
        "tokens": ("x",) * 6, "scores": np.ones(6), "words": ("x",) * 3, "word_scores": np.ones(3),
        "word_spans": ((0, 0, 1),) * 3, "texts": ("other",), "target": 0, "target_label": "x", "prediction": 1,
        "prediction_label": "x", "probability": 0.2, "method": "x", "params": {}, "delta": None, "truncated": True,
        "layers": np.ones((1, 6)), "index": 4, "special": (False,) * 6, "image_shape": (2, 2), "signed": False,
        "pairs": ((0, 1, 0.5),), "about": (0, 0, 3),
    }  # fmt: skip
    assert set(changes) == {each.name for each in dataclasses.fields(Attribution)}
    for name, value in changes.items():
        assert sample(**{name: value}) != sample(), name
    assert sample() == sample()
    assert sample(target=1) != sample(target=1.0)


def test_the_files_are_plain(tmp_path):
    Attributions([sample()], {"seed": 3}).save(tmp_path)
    row = pq.read_table(tmp_path / "attributions.parquet").to_pylist()[0]
    assert row["words"] == ["a", "warmly", "film"]
    assert row["word_spans"] == [[0, 0, 1], [0, 2, 8], [0, 9, 13]]
    assert json.loads(row["params"]) == {"steps": 50, "baseline": "mask"}
    assert json.loads(row["target"]) == 1
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["config"] == {"seed": 3}
    assert config["versions"]["numpy"] == np.__version__
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attributions.parquet", "config.json"]


def test_saving_again_replaces_and_leaves_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    Attributions([sample()]).save(tmp_path)
    Attributions([sample(1), sample(2)]).save(tmp_path, {"seed": 4})
    assert [item.index for item in Attributions.load(tmp_path)] == [1, 2]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_save_that_fails_leaves_the_old_one(tmp_path):
    folder = tmp_path / "kept"
    Attributions([sample()]).save(folder)
    with pytest.raises(ExegeteError, match="stored"):
        Attributions([sample(texts=("a \ud800 half pair",))]).save(folder)
    assert Attributions.load(folder) == Attributions([sample()])
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_saving_onto_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExegeteError, match="cannot write"):
        Attributions([sample()]).save(tmp_path / "file")


def _truncate(folder):
    path = folder / "attributions.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def _flip(folder):
    path = folder / "attributions.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def _config(**changes):
    def damage(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


DAMAGE = {
    "no parquet": lambda folder: (folder / "attributions.parquet").unlink(),
    "no config": lambda folder: (folder / "config.json").unlink(),
    "cut parquet": _truncate,
    "flipped byte": _flip,
    "config not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "config not text": lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"),
    "config is a list": lambda folder: (folder / "config.json").write_text("[]"),
    "foreign config": lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'),
    "future format": _config(format_version=99),
    "config of another kind": _config(config=[1]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_refused(tmp_path, damage):
    Attributions([sample()]).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ExegeteError) as caught:
        Attributions.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def _rewrite(folder, table):
    import hashlib

    pq.write_table(table, folder / "attributions.parquet")
    _config(sha256=hashlib.sha256((folder / "attributions.parquet").read_bytes()).hexdigest())(folder)


def _with(table, name, values, kind=None):
    column = pa.array(values, kind or table.schema.field(name).type)
    return table.set_column(table.column_names.index(name), name, column)


FOREIGN = {
    "missing column": lambda table: table.drop_columns(["scores"]),
    "other type": lambda table: _with(table, "scores", ["x"], pa.string()),
    "null": lambda table: _with(table, "method", [None]),
    "lengths disagree": lambda table: _with(table, "scores", [[1.0]]),
    "null inside a list": lambda table: _with(table, "words", [["a", None, "b"]]),
    "params not JSON": lambda table: _with(table, "params", ["__import__('os')"]),
    "params not an object": lambda table: _with(table, "params", ["3"]),
    "target of another kind": lambda table: _with(table, "target", ['"x"']),
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_foreign_tables_are_refused(tmp_path, change):
    Attributions([sample()]).save(tmp_path)
    _rewrite(tmp_path, change(pq.read_table(tmp_path / "attributions.parquet")))
    with pytest.raises(ExegeteError):
        Attributions.load(tmp_path)


def test_a_missing_directory_is_an_error(tmp_path):
    with pytest.raises(ExegeteError, match="missing"):
        Attributions.load(tmp_path / "nowhere")


BAD = {
    "scores too short": {"scores": [0.0]},
    "scores not numbers": {"scores": ["x"] * 6},
    "scores in two dimensions": {"scores": np.zeros((1, 6))},
    "word scores too long": {"word_scores": np.zeros(4)},
    "spans too few": {"word_spans": ((0, 0, 1),)},
    "spans of two": {"word_spans": ((0, 1),) * 3},
    "side that is not there": {"word_spans": ((1, 0, 1),) * 3},
    "special too short": {"special": (True,)},
    "layers of other length": {"layers": np.zeros((2, 5))},
    "no layers": {"layers": np.zeros((0, 6))},
    "grid too small": {"image_shape": (1, 3)},
    "grid with one side": {"image_shape": (4,)},
    "target a word": {"target": "positive"},
    "params not JSON": {"params": {"model": object()}},
    "params not a number": {"params": {"rate": float("nan")}},
}


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
def test_values_that_disagree_are_refused(changes):
    with pytest.raises(ExegeteError):
        sample(**changes)


def test_arrays_are_copies_and_cannot_be_written():
    scores = np.zeros(6, dtype=np.float32)
    item = sample(scores=scores)
    scores[0] = 5
    assert item.scores[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        item.scores[0] = 1
    with pytest.raises(AttributeError):
        item.method = "other"


def test_params_are_json_values():
    assert sample(params={"sizes": (1, 2)}).params == {"sizes": [1, 2]}


def test_it_is_a_sequence():
    both = Attributions([sample(0), sample(1)], {"seed": 1, "a": 2}) + Attributions([sample(2)], {"seed": 1, "a": 3})
    assert [item.index for item in both] == [0, 1, 2]
    assert both.config == {"seed": 1}
    assert isinstance(both[1:], Attributions)
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
    items = Attributions([sample()], {"seed": 1})
    items.config["seed"] = 2
    assert items.config == {"seed": 1}


def test_repr_says_what_it_holds():
    items = Attributions([sample(index) for index in range(5)])
    assert repr(items) == "Attributions(5 examples, integrated_gradients)"
    one = "Attribution(integrated_gradients, 0: positive (0.10): warmly +0.333, a +0.1, film -0.7)"
    assert repr(items[0]) == one


def test_an_example_shows_itself_in_a_notebook():
    items = Attributions([sample(index) for index in range(2)])
    assert items[0]._repr_html_().count('<section class="card">') == 1
    assert items._repr_html_().count('<section class="card">') == 2


def test_nothing_has_a_name():
    assert repr(Attributions()) == "Attributions(0 examples)"


def test_top_is_in_order_and_ties_stay_in_place():
    assert [word for word, _ in sample(word_scores=[1, 2, 1]).top(3)] == ["warmly", "a", "film"]


def test_dataset_frame_and_json_hold_the_same():
    items = Attributions([sample(), sample(1, target=(1, 2), image_shape=None, delta=None)])
    dataset = items.to_dataset()
    assert isinstance(dataset, datasets.Dataset)
    assert dataset[0]["words"] == list(items[0].words)
    assert np.float32(dataset[1]["word_scores"]).tobytes() == items[1].word_scores.tobytes()
    frame = items.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["scores"][0].tolist() == items[0].scores.tolist()
    parsed = json.loads(items.to_json())
    assert parsed[1]["target"] == [1, 2]
    assert parsed[0]["params"] == items[0].params
    assert np.float32(parsed[0]["scores"]).tobytes() == items[0].scores.tobytes()


def test_json_has_no_number_that_json_lacks():
    parsed = json.loads(Attributions([sample(**VARIANTS["not finite"])]).to_json(), parse_constant=pytest.fail)
    assert parsed[0]["word_scores"] == [None, 0, None]
