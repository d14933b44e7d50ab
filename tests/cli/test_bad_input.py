"""Bad input gets one clear line on standard error and exit code 2."""

from __future__ import annotations

import importlib
import json

import pytest
import torch
import transformers as hf

import expound
import families
from expound.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny = families.tiny("bert", id2label={0: "bad", 1: "mixed", 2: "good"})
    tiny.save_pretrained(folder)
    families.tokenizer("bert").save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("text,label\na moving film,good\nthe plot is dull,bad\n", encoding="utf-8")
    return file


def run(*argv, capsys) -> tuple[int, str]:
    code = main([str(word) for word in argv])
    return code, capsys.readouterr().err


def make_compare_command(model, spec, folder, *more):
    return ("compare", "--model", model, "--data", spec, "--split", "all", "--output-dir", folder, "--quiet", *more)


def assert_one_clear_line(code: int, err: str, *words: str) -> None:
    lines = [line for line in err.strip().splitlines() if line.startswith("expound:")]
    assert code == 2
    assert len(lines) == 1
    assert "Traceback" not in err
    for word in words:
        assert word in lines[0]


CONTENTS = {
    "empty": (b"", ["empty"]),
    "not UTF-8": (b"text,label\n\xff\xfe film,good\n", ["UTF-8"]),
    "without the column": (b"body,label\na film,good\n", ["body", "text"]),
    "an unknown label": (b"text,label\na film,excellent\nanother,good\n", ["excellent", "good"]),
    "an empty text": (b"text,label\n ,good\na film,bad\n", ["text"]),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_bad_file(kind, model, tmp_path, capsys):
    content, words = CONTENTS[kind]
    file = tmp_path / "bad.csv"
    file.write_bytes(content)
    code, err = run(*make_compare_command(model, f"csv:{file}", tmp_path / "out"), capsys=capsys)
    assert_one_clear_line(code, err, *words)
    assert not list(tmp_path.glob("out/results*"))


def test_a_missing_file(model, tmp_path, capsys):
    assert_one_clear_line(
        *run(*make_compare_command(model, "csv:nowhere.csv", tmp_path / "out"), capsys=capsys), "nowhere.csv"
    )


@pytest.mark.parametrize("spec", ["nowhere/data", "./nowhere", "nowhere/data.csv"])
def test_a_path_that_is_not_there(spec, model, tmp_path, capsys):
    code, err = run(*make_compare_command(model, spec, tmp_path / "out"), capsys=capsys)
    assert_one_clear_line(code, err, spec)
    assert "hub" not in err


def test_a_folder_without_its_format_says_how_to_name_it(model, tmp_path, capsys):
    code, err = run(*make_compare_command(model, tmp_path, tmp_path / "out"), capsys=capsys)
    assert_one_clear_line(code, err, f"sst:{tmp_path}")


def test_a_model_beside_others_that_is_not_there(tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    code, err = run("explain", "a film", "--model", "runs/nothing", capsys=capsys)
    assert_one_clear_line(code, err, "there is no model at runs/nothing")


def test_a_file_needs_no_split_and_results_go_to_a_dated_folder(model, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ("--methods", "random,saliency,occlusion", "--metrics", "sufficiency", "--quiet")
    assert main(["compare", "--model", str(model), "--data", data.name, *few]) == 0
    shown = capsys.readouterr()
    (folder,) = tmp_path.glob("comparison-2*")
    assert folder.name in shown.err.splitlines()[0]
    assert shown.err.splitlines()[-1] == f"report: {folder.name}/report.html"
    assert (shown.out + shown.err).count("On 2 examples, ") == 1
    assert (folder / "report.html").read_text(encoding="utf-8").count("On 2 examples, ") == 1


def test_the_columns_that_are_read_and_the_rows_are_said(model, data, tmp_path, capsys):
    data.write_text("review,stars\na moving film,good\nthe plot is dull,bad\n", encoding="utf-8")
    code, err = run("compare", "--model", model, "--data", data, "--output-dir", tmp_path / "o", "--methods", "random",
                    "--metrics", "important_tokens", "--quiet", capsys=capsys)  # fmt: skip
    assert code == 0
    unused = "(unused: stars; give --label-column, --rationale-column)"
    assert f"columns: text ← review; no label, no rationale {unused}" in err.splitlines()
    divided = "(`expound train` divides such a file; its models have not seen --split test)"
    assert {"2 examples: all of data.csv", divided} <= {*err.splitlines()}
    code, err = run(*make_compare_command(model, data, tmp_path / "p", "--limit", "1", "--methods", "random"),
                    "--metrics", "important_tokens", "--label-column", "stars", capsys=capsys)  # fmt: skip
    assert code == 0
    assert {"columns: text ← review, label ← stars; no rationale", "1 example: sampled from all of data.csv"} <= {
        *err.splitlines()
    }


def test_a_metric_of_rationales_without_any(model, data, tmp_path, capsys):
    for more in (("--metrics", "sufficiency,rationale_auc"), ("--preset", "ivra")):
        code, err = run(*make_compare_command(model, data, tmp_path / "o", "--methods", "random", *more), capsys=capsys)
        assert_one_clear_line(code, err, "rationale_auc needs rationales, and the data has none", "--rationale-column")
    assert not list(tmp_path.glob("o/*"))


def test_an_unknown_method_or_metric_names_the_valid_ones(model, data, tmp_path, capsys):
    code, err = run(
        *make_compare_command(model, f"csv:{data}", tmp_path / "o", "--methods", "occlusoin"), capsys=capsys
    )
    assert_one_clear_line(code, err, "occlusion", "integrated_gradients", "random")
    code, err = run(*make_compare_command(model, f"csv:{data}", tmp_path / "o", "--metrics", "acu"), capsys=capsys)
    assert_one_clear_line(code, err, "rationale_auc", "aopc_comprehensiveness")


def test_explain_says_what_a_score_is_and_takes_quiet(model, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # the folder of a worker's model has a long name, and is in the line
    asked = ["explain", "a film", "--model", str(model), "--methods", "random,occlusion?output=log_prob,saliency"]
    assert main(asked) == 0
    shown = capsys.readouterr()
    assert "words without a score have less than 6% of the strongest" in shown.err
    heads = [line.rpartition(" · ")[2] for line in shown.out.splitlines() if " · explains " in line]
    told = ["drawn by chance", "drop in log-probability when removed", "slope of the logit"]
    assert heads == [f"scores: {each}" for each in told]
    assert main([*asked, "-q"]) == 0
    quiet = capsys.readouterr()
    assert "film" in quiet.out
    assert "without a score" not in quiet.err


@pytest.mark.parametrize("text", ["", "   ", "[SEP] [SEP]"])
def test_nothing_to_explain(text, model, capsys):
    assert_one_clear_line(*run("explain", text, "--model", model, capsys=capsys))


def test_a_text_that_is_too_long_is_truncated_and_said_so(model, capsys, caplog):
    code = main(["explain", "film " * 500, "--model", str(model), "--json"])
    explained = json.loads(capsys.readouterr().out)
    assert code == 0
    assert "1 of 1 texts are longer than 130 tokens: truncated" in caplog.text
    assert len(json.dumps(explained)) > 0


def test_models_that_cannot_be_explained(model, tmp_path, capsys):
    code, err = run("explain", "a film", "--model", tmp_path / "none", capsys=capsys)
    assert_one_clear_line(code, err, "no model")
    headless = tmp_path / "headless"
    hf.BertModel(hf.BertConfig(**families.SIZE)).save_pretrained(headless)
    code, err = run("explain", "a film", "--model", headless, capsys=capsys)
    assert_one_clear_line(code, err, "BertModel", "head")


def test_a_model_that_answers_nan(tmp_path, capsys):
    broken = families.tiny("bert")
    with torch.no_grad():
        broken.classifier.weight.fill_(float("nan"))
    broken.save_pretrained(tmp_path)
    families.tokenizer("bert").save_pretrained(tmp_path)
    assert_one_clear_line(*run("explain", "a film", "--model", tmp_path, capsys=capsys), "NaN")


def test_an_output_directory_of_another_comparison(model, data, tmp_path, capsys):
    few = ("--methods", "random", "--metrics", "sufficiency")
    assert main([str(w) for w in make_compare_command(model, f"csv:{data}", tmp_path / "o", *few)]) == 0
    capsys.readouterr()
    other = ("--methods", "random,saliency", "--metrics", "sufficiency")
    assert_one_clear_line(
        *run(*make_compare_command(model, f"csv:{data}", tmp_path / "o", *other), capsys=capsys), "output"
    )


@pytest.mark.parametrize("place", ["a file", "below a file", "/proc/nowhere"])
def test_where_nothing_can_be_written_nothing_is_begun(place, model, data, tmp_path, capsys):
    (tmp_path / "a file").touch()
    folder = tmp_path / {"below a file": "a file/below"}.get(place, place)
    commands = (
        make_compare_command(model, f"csv:{data}", folder),
        ("explain", "a film", "--model", model, "--output-dir", folder),
        ("demo", "--output-dir", folder),
        ("train", "baseline", "--config", "tiny", "--data", "generated", "--output-dir", folder),
    )
    for command in commands:
        assert_one_clear_line(*run(*command, capsys=capsys), "cannot write to the folder", str(folder))


def test_a_folder_whose_name_is_no_utf_8_is_refused(model, tmp_path, capsys):
    words = ("explain", "a film", "--model", model, "--methods", "random", "--output-dir", tmp_path / "caf\udce9")
    assert_one_clear_line(*run(*words, capsys=capsys), "caf\\xe9", "is not UTF-8")
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_written(model, tmp_path, capsys):
    page = tmp_path / "nowhere" / "page.html"
    code, err = run("explain", "a film", "--model", model, "--methods", "random", "--html", page, capsys=capsys)
    assert_one_clear_line(code, err, "No such file", str(page))


@pytest.mark.parametrize("option", ["--methods", "--metrics"])
def test_a_list_of_nothing(option, model, data, tmp_path, capsys):
    code, err = run(*make_compare_command(model, f"csv:{data}", tmp_path / "o", option, " ,"), capsys=capsys)
    assert_one_clear_line(code, err, "expected ids between commas")


@pytest.mark.parametrize("target", ["²", "--5", "5", "-1", "nobody"])
def test_no_such_target(target, model, capsys):
    code, err = run("explain", "a film", "--model", model, "--methods", "random", f"--target={target}", capsys=capsys)
    assert_one_clear_line(code, err, target, "0 (bad), 1 (mixed), 2 (good)")


@pytest.mark.parametrize(("target", "explained"), [("2", "2"), ("3", "3"), ("0", "1")])
def test_a_target_is_a_name_before_it_is_a_number(target, explained, tmp_path, capsys):
    families.tiny("bert", id2label={0: "1", 1: "2", 2: "3"}).save_pretrained(tmp_path)
    families.tokenizer("bert").save_pretrained(tmp_path)
    assert main(["explain", "a film", "-m", str(tmp_path), "--methods", "random", "--target", target, "--json"]) == 0
    assert f'"targets": [{{"text": "{explained}"' in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [["nonsense"], ["compare", "--nonsense"], ["compare"], ["methods", "--limit", "no"], []]
)
def test_a_command_line_that_makes_no_sense(argv, capsys):
    assert main(argv) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out[0].isdigit()


def test_what_there_is_can_be_listed_after_everything_was_used(capsys):
    assert importlib.import_module("expound.metrics.robustness")
    for command, name in (("methods", "saliency"), ("metrics", "log_odds"), ("datasets", "sst")):
        assert main([command]) == 0
        assert name in capsys.readouterr().out


def test_every_public_name_can_be_used():
    for name in expound.__all__:
        assert getattr(expound, name) is not None, name
