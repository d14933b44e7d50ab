"""A corpus explained in parts has the explanations of one pass over it, with any number of workers and after kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats

import expound
import families
from expound import CorpusJob, Explanation, ExpoundError, explain_corpus, summarize
from expound.cli import main
from expound.cli.summary import _list_tables
from expound.data.load import Stream
from expound.evaluation.corpus.parts import COLUMNS, CORPUS_SCHEMA, EXAMPLE_COLUMNS, CorpusParts, make_explained_row
from expound.evaluation.corpus.summary import (
    CorpusSummary,
    WordStatistics,
    compute_distance,
    compute_drift,
    compute_word_shares,
    rationale_auc,
)
from forks import command, forge

WORDS = ["a", "moving", "film", "about", "town", "river", "the", "plot", "is", "dull", "but", "laughs"]
COUNT = 53
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(expound.__file__).parents[1])}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    names = {0: "negative", 1: "positive"}
    import torch

    families.tiny("bert", dtype=torch.float64, num_labels=2, id2label=names).save_pretrained(folder)
    families.tokenizer("bert").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A file of 53 texts of 2 to 9 words, each with a label and some with a rationale."""
    path, generator = tmp_path_factory.mktemp("data") / "corpus.jsonl", np.random.default_rng(0)
    with path.open("w") as file:
        for number in range(COUNT):
            text = " ".join(generator.choice(WORDS, 2 + number % 8))
            marked = [[0, text.index(" ")]] if number % 3 else None
            file.write(json.dumps({"text": text, "label": ["neg", "pos"][number % 2], "rationale": marked}) + "\n")
    return path


def job(model, corpus, folder, **changes):
    given = {"method": "decompx_linear", "rows_per_part": 10, "loading": {"device": "cpu"}} | changes
    return CorpusJob(model=model, data=f"jsonl:{corpus}", folder=folder, **given)


def command_of(model, corpus, folder, *more):
    """The command that does the same job."""
    given = ["--model", model, "--data", f"jsonl:{corpus}", "--methods", "decompx_linear", "-o", str(folder)]
    return ["explain", *given, "--device", "cpu", *more]


def read_rows(folder):
    return [row for path in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.fixture(scope="module")
def output_folder(model, corpus, tmp_path_factory):
    """The folder of the corpus explained by one process without a stop."""
    folder = tmp_path_factory.mktemp("out") / "whole"
    assert explain_corpus(job(model, corpus, folder)) == COUNT
    return folder


def test_it_is_what_explaining_everything_at_once_gives(model, corpus, output_folder):
    data = expound.load_data(f"jsonl:{corpus}", "all")
    loaded = expound.load(model, device="cpu")
    rows = read_rows(output_folder)
    assert [row["index"] for row in rows] == list(range(COUNT))
    for row, item, example in zip(rows, expound.attribute(loaded, data, "decompx_linear"), data, strict=True):
        np.testing.assert_allclose(row["scores"], item.scores, rtol=1e-5, atol=1e-7)
        assert [unit["text"] for unit in row["units"]] == list(item.unit_texts)
        assert row["prediction"]["text"] == item.prediction.text
        assert row["label"] == ("negative", "positive")[example["label"]]
        assert row["rationale"] == (example["rationale"] and [[0, *span] for span in example["rationale"]])


def test_datasets_reads_the_folder_and_its_card_tells_every_column(output_folder, tmp_path):
    from datasets import load_dataset

    table = load_dataset(str(output_folder), split="train", cache_dir=str(tmp_path))
    assert (len(table), table.column_names, set(COLUMNS)) == (
        COUNT,
        CORPUS_SCHEMA.names,
        set(CORPUS_SCHEMA.names) - set(EXAMPLE_COLUMNS),
    )
    assert all(f"| `{name}` |" in (output_folder / "README.md").read_text() for name in COLUMNS)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_ids_and_kept_columns_come_through(model, tmp_path, suffix, capsys):
    frame = pd.DataFrame({"text": ["a moving film", "dull"], "id": [70, 71], "stars": [5, 1], "shop": ["x", "y"]})
    data = tmp_path / f"reviews.{suffix}"
    data.write_text(frame.to_csv(index=False) if suffix == "csv" else frame.to_json(orient="records", lines=True))
    command = ["explain", "--model", str(model), "--data", f"{suffix}:{data}", "--methods", "random", "-o"]
    assert main([*command, str(tmp_path / "out"), "--keep-columns", "stars", "--device", "cpu"]) == 0
    assert "columns: text, id, stars; no label, no rationale (unused: shop" in capsys.readouterr().err
    rows = read_rows(tmp_path / "out")
    assert [row["id"] for row in rows] == ["70", "71"]
    whole = [{"id": 70, "stars": 5}, {"id": 71, "stars": 1}]
    text = [{name: str(value) for name, value in each.items()} for each in whole]
    assert [json.loads(row["metadata"]) for row in rows] == (text if suffix == "csv" else whole)
    assert Explanation.from_row(rows[0]).metadata["id"] in (70, "70")
    found = expound.attribute(expound.load(model, device="cpu"), expound.load_data(f"{suffix}:{data}", "all"), "random")
    assert [str(item.metadata["id"]) for item in found] == ["70", "71"]
    assert main([*command, str(tmp_path / "other"), "--keep-columns", "star"]) == 2


def test_every_stored_column_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for name, (_, what) in {**COLUMNS, **EXAMPLE_COLUMNS}.items():
        assert f"| `{name}` | {what} |" in page


def test_a_corpus_of_another_version_is_refused(output_folder, tmp_path):
    head = json.loads((output_folder / "corpus.json").read_text())
    (tmp_path / "corpus.json").write_text(json.dumps(head | {"format_version": 1}))
    with pytest.raises(ExpoundError, match="has version 1, expected 3: explain the corpus again"):
        CorpusParts(tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_stream_gives_what_load_data_gives(corpus, tmp_path, suffix):
    import pandas as pd

    frame = pd.read_json(corpus, lines=True)[["text", "label"]].assign(part=["train", "test", "val"][0])
    frame.loc[::5, "part"] = "val"
    path = tmp_path / f"rows.{suffix}"
    write = {"csv": "to_csv", "jsonl": "to_json", "parquet": "to_parquet"}[suffix]
    getattr(frame, write)(path, **({"orient": "records", "lines": True} if suffix == "jsonl" else {"index": False}))
    for options in ({}, {"split_column": "part"}):
        for split in ("dev", "train", "all"):
            stream, data = Stream(str(path), split, **options), expound.load_data(str(path), split, **options)
            assert list(stream) == list(stream) == data.to_list()
            assert stream.features == data.features


def test_killed_twice_it_goes_on_without_a_lost_or_doubled_row(model, corpus, output_folder, tmp_path):
    folder = tmp_path / "out"
    words = command_of(model, corpus, folder, "--rows-per-part", "1")
    with forge() as process:
        for parts in (1, 4):
            process.start(command, words, tmp_path / "said")
            while len(list(folder.glob("part-*"))) < parts:
                assert process.running(0.002), (tmp_path / "said").read_text()
            process.kill()
            assert process.wait() == -signal.SIGKILL
    before = {path: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    with pytest.raises(ExpoundError, match="not explained completely"):
        list(CorpusParts(folder).rows(["index"]))
    assert explain_corpus(job(model, corpus, folder, rows_per_part=1)) == COUNT
    assert [path for path in before if path.stat().st_mtime_ns != before[path]] == []
    again, once = read_rows(folder), read_rows(output_folder)
    assert [row["index"] for row in again] == list(range(COUNT))
    for one, other in zip(again, once, strict=True):
        np.testing.assert_allclose(one.pop("scores"), other.pop("scores"), rtol=1e-5, atol=1e-7)
        assert one["texts"] == other["texts"]


def test_two_processes_give_the_same_rows(model, corpus, output_folder, tmp_path):
    assert explain_corpus(job(model, corpus, tmp_path / "out"), workers=2, threads=1) == COUNT
    assert read_rows(tmp_path / "out") == read_rows(output_folder)


@pytest.mark.cluster
def test_ray_data_gives_the_same_rows(cluster, model, corpus, output_folder, tmp_path):
    assert explain_corpus(job(model, corpus, tmp_path / "out"), workers=2, ray=cluster) == COUNT
    assert read_rows(tmp_path / "out") == read_rows(output_folder)


@pytest.mark.cluster
def test_a_killed_node_loses_no_row(ray_nodes, model, corpus, output_folder, tmp_path):
    import psutil

    folder, told = tmp_path / "out", tmp_path / "told"
    with ray_nodes() as (address, nodes), told.open("w") as said:
        given = ["--rows-per-part", "1", "--workers", "2", "--ray", address]
        words = [sys.executable, "-m", "expound", *command_of(model, corpus, folder, *given)]
        with subprocess.Popen(words, stderr=said, env=ENVIRONMENT) as process:
            while len(list(folder.glob("part-*"))) < 4:
                assert process.poll() is None, told.read_text()
                time.sleep(0.02)
            for one in psutil.Process(nodes[1].pid).children(recursive=True):
                one.kill()
            assert nodes[1].wait(60) != 0
            assert process.wait(240) == 0, told.read_text()
    again, once = read_rows(folder), read_rows(output_folder)
    assert [row["index"] for row in again] == list(range(COUNT))
    for one, other in zip(again, once, strict=True):
        np.testing.assert_allclose(one.pop("scores"), other.pop("scores"), rtol=1e-5, atol=1e-7)
        assert one["texts"] == other["texts"]


def test_another_corpus_or_changed_data_is_refused(model, corpus, tmp_path):
    mine, folder = tmp_path / "corpus.jsonl", tmp_path / "out"
    mine.write_text("".join(corpus.read_text().splitlines(keepends=True)[:25]))
    explain_corpus(job(model, mine, folder))
    with pytest.raises(ExpoundError, match="explained otherwise"):
        explain_corpus(job(model, mine, folder, method="saliency"))
    lines = mine.read_text().splitlines(keepends=True)
    mine.write_text("".join(lines[:20]))
    with pytest.raises(ExpoundError, match="has parts beyond the last row"):
        explain_corpus(job(model, mine, folder))
    mine.write_text("".join(lines[::-1]))
    with pytest.raises(ExpoundError, match="explains other rows"):
        explain_corpus(job(model, mine, folder))


def test_a_bad_row_is_named_and_what_was_finished_is_kept(model, corpus, tmp_path):
    lines = corpus.read_text().splitlines(keepends=True)
    bad = tmp_path / "bad.jsonl"
    bad.write_text("".join([*lines[:25], json.dumps({"text": " ", "label": "neg"}) + "\n"]))
    with pytest.raises(ExpoundError, match="line 26: the text in 'text' is empty"):
        explain_corpus(job(model, bad, tmp_path / "out"))
    assert len(read_rows(tmp_path / "out")) == 20


def test_the_command_and_its_refusals(model, corpus, output_folder, tmp_path, capsys):
    given = ["explain", "--model", model, "--data", f"jsonl:{corpus}"]
    assert main(given) == 2
    assert "--data needs --output-dir" in capsys.readouterr().err
    assert main([*given, "-o", str(tmp_path / "x"), "--methods", "saliency,occlusion"]) == 2
    assert "one method" in capsys.readouterr().err
    assert (
        main(
            [
                *given,
                "-o",
                str(output_folder),
                "--methods",
                "decompx_linear",
                "--rows-per-part",
                "10",
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    assert f"{COUNT} rows are explained" in capsys.readouterr().err
    assert main(["summary", str(output_folder), "--top", "3", "--min-count", "2"]) == 0
    # All of its 12 words occur everywhere, and the model is random.
    assert "No word is surely above an average word for negative" in capsys.readouterr().out
    assert main(["summary", str(output_folder), "--json", "--against", str(output_folder)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["distance"], sum(one["size"] for one in told["clusters"])) == (COUNT, 0, COUNT)
    assert main(["summary", str(output_folder), "--against", str(output_folder), "--min-count", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"No word's share changed \(\d+ tested\)\. Distance between the important words: 0\.000", shown)
    assert "Changes (" not in shown
    assert "unsigned" not in shown
    assert main(["summary", str(tmp_path)]) == 2


def test_only_what_changed_is_listed_the_surest_first_and_an_unsigned_method_is_called_so():
    words = ["gone", "same", "grown"]
    generator = np.random.default_rng(0)

    def several(shift):
        return WordStatistics(
            row(words, [max(0.1, 3 + noise + shift), 3.0, 3 - noise - shift / 2]) for noise in generator.normal(size=30)
        )

    drifted = compute_drift(several(0), several(-2))
    empty = pd.DataFrame(
        {"label": ["yes"], "word": ["same"], "share": [0.3], "low": [0.2], "high": [0.4], "examples": [9]}
    )
    found = CorpusSummary(30, {"yes": 30}, empty, [], float("nan"), 0, [], drifted, 0.2, {"yes": 30}, signed=False)
    (head, _), _, (_, changes) = _list_tables(found, 10)
    assert "unsigned: important words, not words that support the class" in head
    assert "whose 95 % interval is above the share of an average word" in head
    shown = [row[1].text for row in changes.cells]
    assert shown == drifted[drifted["p"] < 0.05]["word"].tolist()
    assert len(shown) > 0
    assert drifted["p"].is_monotonic_increasing


def row(words, scores, label="yes", **more):
    ends = np.cumsum([len(word) + 1 for word in words])
    units = []
    for word, end in zip(words, ends.tolist(), strict=True):
        units.append({"text": word, "segment": 0, "start": end - len(word) - 1, "end": end - 1})
    shown = {"units": units, "scores": [scores], "targets": [{"text": label}], "rationale": None}
    return shown | more


def test_shares_and_intervals_are_those_of_a_t_test():
    rows = [row(["Good", "film", "good", *"abcdef"], [one, 1.0, 1.0, *[0] * 6]) for one in (1.0, 2.0, 1.5, 6.0)]
    expected = [2 / 3, 3 / 4, 5 / 7, 7 / 8]
    assert [compute_word_shares(each)["good"] for each in rows] == pytest.approx(expected)
    table = WordStatistics(rows).table(min_count=2).set_index("word")
    low, high = stats.t.interval(0.95, 3, np.mean(expected), stats.sem(expected))
    assert table.loc["good", ["share", "low", "high"]].tolist() == pytest.approx([np.mean(expected), low, high])


def test_a_summary_lists_words_above_the_average_word_without_their_punctuation():
    noise, rows = np.random.default_rng(0), []
    for number in range(60):
        words, scores = ["the", *(f"w{number}{each}" for each in range(8)), "—"], [1.0] * 10
        if number % 10 == 0:
            words[1], scores[1] = ("superb.", "(Superb", "superb")[number % 3], 9.0
        if number % 12 == 1:
            words[2], scores[2] = "for", float(noise.uniform(0, 4))
        rows.append(row(words, scores))
    found = WordStatistics(rows)
    assert found.sums["yes", "for"][0] == 5
    assert found.sums["yes", "—"][0] == 60
    assert found.table()["word"].tolist() == ["superb"]


def test_drift_is_welchs_test_adjusted_for_many_words():
    generator = np.random.default_rng(1)

    def several(middle, count):
        values = np.clip(generator.normal(middle, 0.1, count), 0.01, 0.99)
        return values, WordStatistics(row(["moved", "stayed"], [one, 1 - one]) for one in values)

    (first, before), (second, after) = several(0.2, 12), several(0.6, 9)
    table = compute_drift(before, after).set_index("word")
    test = stats.ttest_ind(second, first, equal_var=False)
    assert table.loc["moved", "p"] == pytest.approx(test.pvalue)
    interval = test.confidence_interval()
    assert table.loc["moved", ["low", "high"]].tolist() == pytest.approx([interval.low, interval.high])
    assert compute_distance(before, before) == pytest.approx(0)
    assert compute_distance(before, WordStatistics([row(["other"], [1.0])])) == pytest.approx(1)


def test_agreement_is_the_area_under_the_curve():
    from sklearn.metrics import roc_auc_score

    words, scores = ["a", "b", "c", "d"], [0.3, 0.3, -1.0, 0.9]
    example = row(words, scores, rationale=[[0, 2, 5]])
    assert rationale_auc(example) == pytest.approx(roc_auc_score([0, 1, 1, 0], scores))
    assert rationale_auc(row(words, scores)) is rationale_auc(row(words, scores, rationale=[])) is None


def test_clusters_find_planted_groups_and_the_worst_come_first(tmp_path):
    from expound.reports.records import Target

    parts, stored_rows, rows = (
        CorpusParts(tmp_path, {"data": "d", "split": "s", "model": "m", "method": {"method": "x"}}),
        [],
        [],
    )
    for number in range(40):
        words = (("sun", "sky"), ("rain", "mud"))[number % 2]
        scores = [0.9, 0.1 + number / 1000]
        item = Explanation(
            targets=(Target("yes", 0, 0.5),), units=((words[0], 0, 0, 3), (words[1], 0, 4, 7)), scores=[scores],
            unit="word", texts=(" ".join(words),), method="x", index=number,
        )  # fmt: skip
        rows.append({"text": number})
        stored_rows.append(make_explained_row(item, {"rationale": [[4, 7]] if number == 7 else [[0, 3]]}, None))
    parts.write(0, rows, stored_rows)
    parts.finish()
    found = summarize(tmp_path, clusters=2, top=4)
    assert [(one.size, {word for word, _ in one.words[:2]}) for one in found.clusters] in (
        [(20, {"sun", "rain"}), (20, {"sun", "rain"})],
        [(20, {one.words[0][0], one.words[1][0]}) for one in found.clusters],
    )
    assert {text for one in found.clusters for _, _, text in one.nearest} == {"sun sky", "rain mud"}
    assert all(len({text for _, _, text in one.nearest}) == 1 for one in found.clusters)
    assert found.disagreeing[0] == (0.0, 7, "rain mud")
    assert found.agreement == pytest.approx(39 / 40)
