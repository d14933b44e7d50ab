"""Study files: valid ones are read, others are refused with the line of the error."""

from __future__ import annotations

import json
import re

import pytest

from expound.data.provenance import digest_data
from expound.errors import ExpoundError
from expound_papers.runs.grid import build_grid
from expound_papers.spec import sources
from expound_papers.spec.study_file import load_study
from expound_papers.spec.yaml_lines import read_yaml

GOOD = """\
datasets:
  train: {spec: "generated?size=40", split: train}
  dev: {spec: "generated?size=40", split: dev}
training:
  films: {train: train, dev: dev}
models:
  tiny: {source: tiny}
recipes:
  plain: {recipe: baseline, arguments: {learning_rate: 1e-3, optim: no, max_steps: 3}}
seeds: 2
explainers: {ATT: attention_last, rnd: random}
metrics: [auc]
judgements:
  all: {datasets: dev, explainers: [ATT], metrics: [auc]}
tables:
  t:
    rows: recipe
    columns: [dataset, explainer]
    metrics: auc
"""


def write_file(path, text):
    path.write_text(text)
    return path


def test_a_good_file_is_read_as_yaml_1_2(tmp_path):
    study = load_study(write_file(tmp_path / "good.yaml", GOOD))
    assert study.name == "good-small"
    assert study.file.seeds == [0, 1]
    assert study.file.metrics == {"auc": "auc"}
    assert study.file.recipes["plain"].arguments == {"learning_rate": 0.001, "optim": "no", "max_steps": 3}
    assert [run.title for run in build_grid(study).runs] == [
        "films / tiny / plain / seed 0", "films / tiny / plain / seed 0 / all / dev",
        "films / tiny / plain / seed 1", "films / tiny / plain / seed 1 / all / dev",
    ]  # fmt: skip


BAD = [
    ("seeds: 2", "seeds: [0, x]", 10, "seeds.1: .*integer.*got 'x'"),
    ("seeds: 2", "seedz: 2", 10, "seedz: Extra inputs"),
    ("recipe: baseline", "recipe: baselin", 9, "unknown recipe 'baselin'. Did you mean 'baseline'"),
    ("recipe: baseline", "recipe: baseline, options: {seed: 1}", 9, "unknown option of a run 'seed'"),
    ("recipe: baseline", "recipe: custom, parameters: {objectives: cross_entropi}", 9, "mean 'cross_entropy'"),
    ("recipe: baseline", "recipe: er_joint, parameters: {wait: 1}", 9, "unknown parameter of er_joint 'wait'"),
    ("recipe: baseline", "recipe: er_constrained, parameters: {bound: {from: x, metric: y}}", 9, "unknown recipe 'x'"),
    ("recipe: baseline", "recipe: er_joint, parameters: {weight: {from: plain}}", 9, "expected {from: RECIPE"),
    ("ATT: attention_last", "ATT: attention_lost", 11, "Did you mean 'attention_last'"),
    ("metrics: [auc]\nj", "metrics: [auk]\nj", 12, "unknown metric 'auk'"),
    ("explainers: [ATT]", "explainers: [ATX]", 14, "unknown explainer 'ATX'. Did you mean 'ATT'"),
    ("datasets: dev", "datasets: [dev, test]", 14, "unknown dataset 'test'"),
    ("train: train,", "train: tain,", 5, "unknown dataset 'tain'"),
    ('spec: "generated?size=40", split: dev', "spec: generatd, split: dev", 3, "unknown kind of data 'generatd'"),
    ("columns: [dataset, explainer]", "columns: [data, explainer]", 18, "unknown field 'data'"),
    ("    metrics: auc", "", 16, "tables.t.metrics: Field required"),
    ("    metrics: auc", "    metrics: auc\n    show: average", 20, "mean ± sd"),
    ("models:\n  tiny: {source: tiny}", "models: {}", 6, "at least 1 item"),
    ("seeds: 2", "seeds: 2\nseeds: 3", 11, "the key 'seeds' comes twice"),
    ("seeds: 2", "seeds: [2", 11, "no YAML"),
    ("seeds: 2", "seeds: ${NOT_SET_ANYWHERE}", 10, "NOT_SET_ANYWHERE is not set"),
    ("seeds: 2", "scales: {huge: {}}", 10, "scales: expected small, paper and trial"),
    (
        "split: dev}",
        "split: dev, longest: {words: 3, characters: 9}}",
        3,
        "expected one of characters, words and tokens",
    ),
    ("split: dev}", "split: dev, longest: {tokens: 3, model: tin}}", 3, "unknown model 'tin'. Did you mean 'tiny'"),
    ("split: dev}", "split: dev, exclude: trian}", 3, "unknown dataset 'trian'"),
    ("split: dev}", "split: dev, exclude: dev}", 3, "dev excludes itself"),
    ("metrics: [auc]}", "metrics: [auc], limits: {rnd: 3}}", 14, "unknown explainer 'rnd'"),
    ("metrics: [auc]}", "protocol: students}", 14, "students needs the option 'pool'"),
    ("ATT: attention_last", "ATT: none", 14, "the explainer none is for protocols with students"),
    ("seeds: 2", "extends: nothing.yaml", 10, "there is no file .*nothing.yaml"),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), BAD, ids=[message for *_, message in BAD])
def test_what_is_wrong_is_named_with_its_line(tmp_path, old, new, line, message):
    assert old in GOOD
    path = write_file(tmp_path / "bad.yaml", GOOD.replace(old, new, 1))
    with pytest.raises(ExpoundError, match=message) as raised:
        load_study(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("content", ["", "just words", "- a list\n", "a: &a [*a]\n", "\x00", "name: 2020-13-45\n"])
def test_what_is_no_study_is_said_to_be_none(tmp_path, content):
    with pytest.raises(ExpoundError, match=re.escape(str(tmp_path / "none.yaml"))):
        load_study(write_file(tmp_path / "none.yaml", content))
    with pytest.raises(ExpoundError, match="No such file"):
        load_study(tmp_path / "absent.yaml")


def test_files_extend_files_scales_change_them_and_lines_stay_right(tmp_path, monkeypatch):
    monkeypatch.setenv("SEEDS", "4")
    (tmp_path / "base").mkdir()
    write_file(tmp_path / "base" / "good.yaml", GOOD)
    above = """\
extends: base/good.yaml
name: above
models: {tiny: {max_length: "${SEEDS:-9}0"}}
judgements: {all: {target: "${TARGET:-label}"}}
tables: null
scales:
  small: {seeds: 1}
  paper:
    recipes: {plain: null, slow: {recipe: nope}}
"""
    path = write_file(tmp_path / "above.yaml", above)
    small = load_study(path, "small")
    assert (small.name, small.file.seeds, small.file.tables) == ("above-small", [0], {})
    assert small.file.models["tiny"].model_dump(exclude_defaults=True) == {"source": "tiny", "max_length": 40}
    assert small.file.judgements["all"].target == "label"
    assert small.lines.line_of(("models", "tiny", "source")) == f"{tmp_path / 'base' / 'good.yaml'}:7"
    assert small.lines.line_of(("models", "tiny", "max_length")) == f"{path}:3"
    with pytest.raises(ExpoundError, match=re.escape(f"{path}:9: recipes.slow: unknown recipe 'nope'")):
        load_study(path, "paper")
    with pytest.raises(ExpoundError, match="unknown scale 'larg'"):
        load_study(path, "larg")
    write_file(tmp_path / "base" / "good.yaml", "extends: ../above.yaml\n")
    with pytest.raises(ExpoundError, match="extends itself"):
        load_study(path)


def test_arguments_of_a_training_are_between_the_files_and_the_recipes(tmp_path):
    text = GOOD.replace(
        "train: train, dev: dev}", "train: train, dev: dev, arguments: {max_steps: 9, weight_decay: 0.5}}"
    )
    file = write_file(tmp_path / "good.yaml", text + "arguments: {weight_decay: 0.1, adam_beta1: 0.7}\n")
    arguments = build_grid(load_study(file)).cells[0].config["arguments"]
    assert [arguments[name] for name in ("max_steps", "weight_decay", "adam_beta1")] == [3, 0.5, 0.7]


def test_a_null_of_a_scale_takes_away_what_any_file_below_put_there(tmp_path):
    write_file(tmp_path / "good.yaml", GOOD)
    more = "extends: good.yaml\nscales: {small: {recipes: {fast: {recipe: fresh}, slow: {recipe: fresh}}}}"
    path = write_file(tmp_path / "more.yaml", more)
    assert list(load_study(path).file.recipes) == ["plain", "fast", "slow"]
    less = "extends: more.yaml\nscales: {small: {recipes: {plain: null, fast: null}, tables: null}}"
    file = load_study(write_file(tmp_path / "less.yaml", less)).file
    assert (list(file.recipes), file.tables) == (["slow"], {})


def test_a_trial_is_on_top_of_the_small_scale_and_judged_on_rows_that_it_leaves(tmp_path):
    more = """\
extends: good.yaml
datasets: {dev: {longest: {words: 99}}}
scales:
  small: {datasets: {dev: {limit: 3}, train: {limit: 7}}, seeds: 3}
  trial: {datasets: {train: {limit: 5}}}
"""
    write_file(tmp_path / "good.yaml", GOOD)
    path = write_file(tmp_path / "more.yaml", more)
    study, small = load_study(path, "trial"), load_study(path)
    assert (study.name, study.file.seeds, study.file.datasets["train"].limit) == ("more-trial", [7], 5)
    judged = sources.load_dataset(study.dataset("dev", judged=True))["text"][:]
    kept = {name: set(sources.load_dataset(small.dataset(name))["text"][:]) for name in ("train", "dev")}
    assert (len(judged), len(kept["dev"])) == (3, 3)
    assert not set(judged) & (kept["dev"] | kept["train"])
    assert (
        sources.load_dataset(study.dataset("dev"))["text"][:] == sources.load_dataset(small.dataset("dev"))["text"][:]
    )
    less = write_file(tmp_path / "less.yaml", "extends: good.yaml")
    (missing,) = build_grid(load_study(less, "trial")).missing
    assert re.search("good.yaml:3: datasets.dev.spec: generated.* has no row left", missing)


LONGEST = [
    ({"characters": 90}, lambda text: len(text) <= 90),
    ({"words": 14}, lambda text: len(text.split()) <= 14),
]


@pytest.mark.parametrize(("longest", "fits"), LONGEST)
def test_rows_are_chosen_by_length_and_rationales_and_not_twice(longest, fits):
    whole = {"spec": "generated?size=60", "split": "train", "limit": None, "seed": 0, "options": {}}
    texts = sources.load_dataset(whole)["text"][:]
    short = sources.load_dataset(whole | {"longest": longest})["text"][:]
    assert short == [text for text in texts if fits(text)]
    assert 0 < len(short) < len(texts)
    few = whole | {"longest": longest, "limit": 4}
    rest = sources.load_dataset(whole | {"longest": longest, "exclude": [few], "rows": [0, 3]})["text"][:]
    assert len(rest) == 3
    assert set(rest) <= set(short) - set(sources.load_dataset(few)["text"][:])
    assert sources.dataset_address(few).address == {"rows": 4, "digest": digest_data(sources.load_dataset(few))}


def test_tokens_are_those_of_a_models_own_tokenizer_and_pairs_count_together(tmp_path):
    from families import tokenizer

    cut = tokenizer("bert")
    cut.save_pretrained(tmp_path / "m")
    rows = [{"text": "a moving film", "text_pair": " ".join(["dull"] * size)} for size in range(1, 9)]
    lines = [json.dumps(row | {"label": "yes" if i % 2 else "no"}) for i, row in enumerate(rows)]
    write_file(tmp_path / "pairs.jsonl", "\n".join(lines) + "\n")
    part = {"spec": f"jsonl:{tmp_path}/pairs.jsonl", "split": "all", "limit": None, "seed": 0, "options": {}}
    longest = len(cut(rows[4]["text"], rows[4]["text_pair"])["input_ids"])
    found = sources.load_dataset(part | {"longest": {"tokens": longest, "model": str(tmp_path / "m")}})
    assert found["text_pair"][:] == [row["text_pair"] for row in rows[:5]]
    with pytest.raises(ExpoundError, match=r"\./nowhere has no tokenizer.json"):
        sources.load_dataset(part | {"longest": {"tokens": 9, "model": "./nowhere"}})


def test_rows_with_rationales_are_those_where_somebody_marked_something(tmp_path):
    lines = [
        {"text": f"film {i}", "label": "ab"[i % 2], "rationale": r}
        for i, r in enumerate([[[0, 4]], [], None, [[0, 2]]])
    ]
    write_file(tmp_path / "r.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    part = {"spec": f"jsonl:{tmp_path}/r.jsonl", "split": "all", "limit": None, "seed": 0, "options": {}}
    assert sources.load_dataset(part | {"rationales": True})["text"][:] == ["film 0", "film 3"]


def test_anchors_and_merge_keys_keep_lines(tmp_path):
    found = read_yaml(write_file(tmp_path / "a.yaml", "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n"))
    assert found.value == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    assert found.line_of(("b", "x")).endswith("a.yaml:1")
    assert found.line_of(("b", "y", "unknown")).endswith("a.yaml:4")
    # A mapping that overrides a merged key can be used again, as a value and by a merge.
    found = read_yaml(write_file(tmp_path / "a.yaml", "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: *b\nd: {<<: *b, x: 3}\n"))
    assert found.value == {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 2}, "d": {"x": 3}}


def address(tmp_path, old="seeds: 2", new="seeds: 2"):
    return {
        run.title: run.cell.key
        for run in build_grid(load_study(write_file(tmp_path / "x.yaml", GOOD.replace(old, new)))).runs
    }


CHANGES = [
    ("learning_rate: 1e-3", "learning_rate: 2e-3", "all"),
    ("max_steps: 3", "max_steps: 3, report_to: none", "none"),
    ('size=40", split: dev', 'size=44", split: dev', "all"),
    ("source: tiny", "source: small", "all"),
    ("source: tiny", "source: tiny, max_length: 32", "all"),
    ("learning_rate: 1e-3", "learning_rate: 0.001", "none"),
    ("ATT: attention_last", 'ATT: "attention_last?query=mean"', "judgements"),
    ("ATT: attention_last", "other: random, ATT: attention_last", "none"),
    ("datasets: dev", "target: label, datasets: dev", "judgements"),
    ("recipe: baseline", "recipe: baseline, early_stopping_patience: 2", "all"),
    ("recipe: baseline", "recipe: baseline, options: {head_rate: 2.0}", "all"),
    (
        "recipe: baseline",
        "recipe: custom, parameters: {objectives: 'cross_entropy,attribution_entropy'}",
        "all",
    ),
]


@pytest.mark.parametrize(("old", "new", "which"), CHANGES, ids=[new for _, new, _ in CHANGES])
def test_an_address_changes_exactly_when_the_outcome_can(tmp_path, old, new, which):
    before, after = address(tmp_path), address(tmp_path, old, new)
    changed = {title for title in before if before[title] != after[title]}
    judged = {title for title in before if title.endswith("dev")}
    assert changed == {"all": set(before), "judgements": judged, "none": set()}[which]


def test_a_model_folder_and_a_data_file_go_by_content(tmp_path):
    from families import tiny, tokenizer

    tiny("bert").save_pretrained(tmp_path / "m")
    tokenizer("bert").save_pretrained(tmp_path / "m")
    rows = [f"{{'text': 'a text number {i}', 'label': 'l{i % 2}'}}".replace("'", '"') for i in range(8)]
    for name in ("one", "two"):
        write_file(tmp_path / f"{name}.jsonl", "\n".join(rows) + "\n")
    study = GOOD.replace("source: tiny", f"source: {tmp_path}/m")

    def keys(data):
        text = study.replace('spec: "generated?size=40", split: train', f"spec: 'jsonl:{data}', split: all")
        return [run.cell.key for run in build_grid(load_study(write_file(tmp_path / "s.yaml", text))).runs]

    first = keys(tmp_path / "one.jsonl")
    assert keys(tmp_path / "two.jsonl") == first
    write_file(tmp_path / "two.jsonl", "\n".join(rows[::-1]) + "\n")
    sources._find_dataset_address.cache_clear()
    assert keys(tmp_path / "two.jsonl") != first
    (tmp_path / "m" / "tokenizer_config.json").write_text("{}")
    sources.model_address.cache_clear()
    assert keys(tmp_path / "one.jsonl") != first


def test_a_gguf_file_goes_by_content_alone_and_in_its_folder(tmp_path):
    file, addresses = tmp_path / "model.gguf", []
    for content in (b"GGUF one", b"GGUF two"):
        file.write_bytes(content)
        sources.model_address.cache_clear()
        addresses += [sources.model_address(str(path)) for path in (file, tmp_path)]
    assert len({str(each.address) for each in addresses}) == 2
    assert addresses[0] == addresses[1] != addresses[2] == addresses[3]
    assert sources.model_address(str(tmp_path / "none.gguf")).problem.startswith("there is no file")


def test_values_from_other_runs_come_after_them_and_depend_on_them(tmp_path):
    more = "recipes:\n  er: {recipe: er_joint, parameters: {weight: {from: plain, metric: cross_entropy, times: 2}}}\n"
    runs = build_grid(load_study(write_file(tmp_path / "x.yaml", GOOD.replace("recipes:\n", more)))).runs
    titles = [run.title for run in runs if not run.dataset]
    assert [title.split(" / ")[2] for title in titles] == ["plain", "plain", "er", "er"]
    plain, er = ([run.cell for run in runs if run.recipe == name and not run.dataset] for name in ("plain", "er"))
    assert er[0].needs == tuple(cell.key for cell in plain)
