"""Studies are recorded; what is wrong is refused at once, with the line of the call."""

from __future__ import annotations

import json
import re

import pytest

from expound.data.provenance import digest_data, read_record
from expound.errors import ExpoundError
from expound_papers.runs import sources
from expound_papers.runs.run_cell import run_cell
from expound_papers.runs.store import Store
from expound_papers.study import Data, Model, Spec, Study, Training
from expound_papers.study.loading import load_study
from families import processor, tiny

GOOD = """\
from expound_papers.study import Data, Explainer, Model, Noisy, Study, Training, register

@register
def good(study: Study) -> None:
    \"\"\"A good study.

    It has notes.
    \"\"\"
    study.seeds = 2
    train = Data("train", "generated?size=40", split="train")
    dev = Data("dev", "generated?size=40", split="dev")
    films = Training("films", train, dev)
    tiny = Model("tiny", "tiny")
    arguments = {"learning_rate": 1e-3, "optim": "no", "max_steps": 3}
    runs = study.train("plain", "baseline", films, tiny, arguments=arguments)
    study.judge("all", runs, dev, {"ATT": "attention_last"}, {"rationale_auc": "rationale_auc"})
    study.table("t", "", rows="recipe", columns=["dataset", "explainer"], metrics="rationale_auc")
"""


def write_file(path, text):
    path.write_text(text)
    return path


def test_calls_are_recorded_and_nothing_is_executed(tmp_path):
    study = load_study(write_file(tmp_path / "good.py", GOOD))
    assert (study.name, study.title, study.notes) == ("good-small", "A good study", "It has notes.")
    assert study.seeds == [0, 1]
    assert study.metrics == {"rationale_auc": "rationale_auc"}
    assert study.recipes["plain"].arguments == {"learning_rate": 0.001, "optim": "no", "max_steps": 3}
    assert [run.title for run in study.runs] == [
        "films / tiny / plain / seed 0", "films / tiny / plain / seed 0 / all / dev",
        "films / tiny / plain / seed 1", "films / tiny / plain / seed 1 / all / dev",
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["good.py"]


def test_a_model_in_a_spec_is_addressed_by_its_content_and_loaded_from_its_source(tmp_path):
    tiny("bert", num_labels=2).save_pretrained(tmp_path / "start")
    processor("bert").save_pretrained(tmp_path / "start")
    study, start = Study("students"), Model("start", str(tmp_path / "start"))
    train = Data("train", "generated?size=16", split="train")
    criteria = Spec("simulatability?student={model}&student_weight=2,sufficiency", start)
    films = Training("films", train, train.but("dev", split="dev", limit=8), {"max_steps": 1})
    (cell,) = study.train("SIM", "ivra", films, start, criteria=criteria).cells.values()
    assert cell.config["parameters"]["criteria"] == {"spec": criteria.text, "model": cell.config["model"]}
    assert str(tmp_path) not in json.dumps(cell.config)
    assert run_cell(cell, tmp_path / "runs")
    record = read_record(Store(tmp_path / "runs").cell_folder(cell.key) / "expound_run.json")
    term = record["config"]["objectives"]["simulatability"]
    assert (term["student"]["model"], term["student_weight"]) == ("bert", 2.0)


RECIPE, JUDGED = (
    'runs = study.train("plain", "baseline", films, tiny, arguments=arguments)',
    '{"rationale_auc": "rationale_auc"})',
)
BAD = [
    ('"baseline"', '"baselin"', 15, "unknown recipe 'baselin'. Did you mean 'baseline'"),
    ("arguments=arguments)", 'options={"seed": 1})', 15, "unknown option of a run 'seed'"),
    ('"baseline", films, tiny', '"custom", films, tiny, objectives="cross_entropi"', 15, "mean 'cross_entropy'"),
    ('"baseline", films, tiny', '"er_joint", films, tiny, wait=1', 15, "unknown parameter of er_joint 'wait'"),
    ('"baseline", films', '"baseline", None', 15, "no data to train on"),
    ('"baseline", films, tiny', "None, films, tiny, weight=1", 15, "trains nothing, and has no parameters, got weight"),
    (RECIPE, RECIPE + "; " + RECIPE, 15, "plain is trained twice"),
    ("attention_last", "attention_lost", 16, "Did you mean 'attention_last'"),
    ('"rationale_auc": "rationale_auc"', '"rationale_auc": "auk"', 16, "unknown metric 'auk'"),
    ('"dev", "generated?size=40"', '"dev", "generatd"', 15, "unknown kind of data 'generatd'"),
    ('["dataset", "explainer"]', '["data", "explainer"]', 17, "unknown field 'data'"),
    ('metrics="rationale_auc")', 'metrics="rationale_auc", show="average")', 17, "unknown form 'average'"),
    (
        'metrics="rationale_auc")',
        'metrics="rationale_auc", where={"recipe": "plane"})',
        17,
        "unknown recipe 'plane'. Did you mean 'plain'",
    ),
    ("study.seeds = 2", 'Model("m", "${NOT_SET_ANYWHERE}").source_for_seed(0)', 9, "NOT_SET_ANYWHERE is not set"),
    (JUDGED, JUDGED[:-1] + ', limits={"rnd": 3})', 16, "unknown explainer 'rnd'"),
    (JUDGED, JUDGED[:-1] + ", pool=dev)", 16, "pool: options are for a protocol"),
    (', {"rationale_auc": "rationale_auc"})', ', protocol="students")', 16, "students needs the option 'pool'"),
    ('"attention_last"', '"none"', 16, "the explainer none is for protocols with students"),
    ('"attention_last"', 'Explainer("attention_last", runs)', 16, "takes nothing from the run 'plain'"),
    ('"attention_last"', 'Explainer("random", noisy=Noisy("auk"))', 16, "unknown metric 'auk'"),
    ("runs, dev", 'runs, Data("train", "generated?size=41")', 16, "two parts are called 'train'"),
    ("runs, dev", "runs.at(seed=7), dev", 16, "unknown seed of plain '7'"),
    (JUDGED, JUDGED + '; study.compare("τ", "al")', 16, "unknown judgement 'al'. Did you mean 'all'"),
    (JUDGED, JUDGED + '; study.compare("τ", "all", "kendal")', 16, "unknown measure 'kendal'"),
    (JUDGED, JUDGED + '; study.figure("f", "line")', 16, "unknown kind 'line'"),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), BAD, ids=[message for *_, message in BAD])
def test_what_is_wrong_is_said_at_once_with_the_line_of_the_call(tmp_path, old, new, line, message):
    assert old in GOOD
    path = write_file(tmp_path / "bad.py", GOOD.replace(old, new, 1))
    with pytest.raises(ExpoundError, match=message) as raised:
        load_study(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")


def test_a_wrong_name_of_an_argument_is_pythons_error(tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'shown'"):
        load_study(
            write_file(
                tmp_path / "bad.py", GOOD.replace('metrics="rationale_auc")', 'metrics="rationale_auc", shown="mean")')
            )
        )


@pytest.mark.parametrize("content", ["", "x = 1", "def good(: pass"])
def test_what_is_no_study_is_said_to_be_none(tmp_path, content):
    with pytest.raises(ExpoundError, match=re.escape(str(tmp_path / "none.py"))):
        load_study(write_file(tmp_path / "none.py", content))
    with pytest.raises(ExpoundError, match=r"there is no file .*absent\.py"):
        load_study(tmp_path / "absent.py")
    with pytest.raises(ExpoundError, match=r"unknown study 'er-table-22'\. Did you mean 'er-table-2'"):
        load_study("er-table-22")


def test_one_of_several_studies_of_a_file_is_named(tmp_path):
    path = write_file(tmp_path / "two.py", GOOD + GOOD.replace("def good", "def as_good"))
    assert load_study(f"{path}:as-good").name == "as-good-small"
    with pytest.raises(ExpoundError, match=r"two\.py:NAME with one of its studies: good, as-good"):
        load_study(path)


def test_a_function_may_differ_by_scale(tmp_path):
    more = GOOD.replace("study.seeds = 2", "study.seeds = 1 if study.is_small else 4")
    path = write_file(tmp_path / "good.py", more)
    assert (load_study(path).seeds, load_study(path, "paper").seeds) == ([0], [0, 1, 2, 3])
    with pytest.raises(ExpoundError, match="unknown scale 'larg'"):
        load_study(path, "larg")


def test_arguments_of_a_training_are_between_the_studys_and_the_runs(tmp_path):
    text = GOOD.replace("train, dev)", 'train, dev, {"max_steps": 9, "weight_decay": 0.5, "adam_beta2": 0.9})')
    text = text.replace("study.seeds = 2", 'study.arguments = {"weight_decay": 0.1, "adam_beta1": 0.7}')
    arguments = load_study(write_file(tmp_path / "good.py", text)).cells[0].config["arguments"]
    assert [arguments[name] for name in ("max_steps", "weight_decay", "adam_beta1")] == [3, 0.5, 0.7]


def test_none_leaves_an_argument_of_the_whole_study_to_the_recipe(tmp_path):
    text = GOOD.replace("study.seeds = 2", 'study.arguments = {"weight_decay": 0.1}')
    known = load_study(write_file(tmp_path / "good.py", text)).cells[0].config["arguments"]
    text = text.replace('"max_steps": 3', '"weight_decay": None, "max_steps": 3')
    left = load_study(write_file(tmp_path / "good.py", text)).cells[0].config["arguments"]
    assert known["weight_decay"] == 0.1
    assert left == {name: value for name, value in known.items() if name != "weight_decay"}


def test_a_trial_is_the_small_scale_judged_on_rows_that_it_leaves(tmp_path):
    text = GOOD.replace('split="dev"', 'split="dev", longest={"words": 99}, limit=3')
    text = text.replace('split="train"', 'split="train", limit=5 if study.scale == "trial" else 7')
    path = write_file(tmp_path / "more.py", text)
    study, small = load_study(path, "trial"), load_study(path)
    assert (study.name, study.seeds, study.datasets["train"].limit) == ("good-trial", [7], 5)
    (run,) = [run for run in study.runs if run.dataset]
    judged = sources.load_dataset(run.cell.sources["dataset"])["text"][:]
    kept = {name: set(sources.load_dataset(small.datasets[name].resolve())["text"][:]) for name in ("train", "dev")}
    assert (len(judged), len(kept["dev"])) == (3, 3)
    assert not set(judged) & (kept["dev"] | kept["train"])
    assert study.datasets["dev"] == small.datasets["dev"]
    (missing,) = load_study(write_file(tmp_path / "good.py", GOOD), "trial").missing
    assert re.search("dev: generated.* has no row left", missing)


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


def address(tmp_path, old="seeds = 2", new="seeds = 2"):
    assert old in GOOD
    runs = load_study(write_file(tmp_path / "x.py", GOOD.replace(old, new))).runs
    return {run.title: run.cell.key for run in runs}


CHANGES = [
    ("1e-3", "2e-3", "all"),
    ('"max_steps": 3', '"max_steps": 3, "report_to": "none"', "none"),
    ('"dev", "generated?size=40"', '"dev", "generated?size=44"', "all"),
    ('"tiny", "tiny"', '"tiny", "small"', "all"),
    ('"tiny", "tiny"', '"tiny", "tiny", max_length=32', "all"),
    ("1e-3", "0.001", "none"),
    ("attention_last", "attention_last?query=mean", "judgements"),
    ('{"rationale_auc": "rationale_auc"})', '{"rationale_auc": "rationale_auc"}, target="label")', "judgements"),
    ("arguments=arguments", "arguments=arguments, patience=2", "all"),
    ("arguments=arguments", 'arguments=arguments, options={"head_lr_multiplier": 2.0}', "all"),
    ('"baseline", films, tiny', '"custom", films, tiny, objectives="cross_entropy,attribution_entropy"', "all"),
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
    study = GOOD.replace('"tiny", "tiny"', f'"tiny", "{tmp_path}/m"')

    def keys(data):
        text = study.replace('"train", "generated?size=40", split="train"', f'"train", "jsonl:{data}", split="all"')
        return [run.cell.key for run in load_study(write_file(tmp_path / "s.py", text)).runs]

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
    more = 'study.train("er", "er_joint", films, tiny, weight=runs.figure("cross_entropy", times=2))\n    study.judge'
    runs = load_study(write_file(tmp_path / "x.py", GOOD.replace("study.judge", more))).runs
    titles = [run.title for run in runs if not run.dataset]
    assert [title.split(" / ")[2] for title in titles] == ["plain", "plain", "er", "er"]
    plain, er = ([run.cell for run in runs if run.recipe == name and not run.dataset] for name in ("plain", "er"))
    assert er[0].needs == tuple(cell.key for cell in plain)
