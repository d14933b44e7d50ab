"""A causal language model as a classifier, from the command line."""

from __future__ import annotations

import json
import shlex

import pytest
import transformers as hf

import expound
from expound.cli import main
from families import TEXT, processor, tiny

LABELS = "bad=N,good=P"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "decoder"
    hf.set_seed(0)
    hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model("llama", **TEXT["llama"])).save_pretrained(folder)
    processor("gpt2").save_pretrained(folder)
    return folder


def test_the_prompt_is_typed_or_read_from_a_file(decoder, tmp_path, capsys):
    file = tmp_path / "prompt.txt"
    file.write_text("Review:{text}\nAnswer:\n", encoding="utf-8")
    found = []
    for template in ("Review:{text}\nAnswer:", str(file)):
        words = ["--template", template, "--labels", LABELS, "--methods", "occlusion", "--json", "--device", "cpu"]
        assert main(["explain", "a moving film", "--model", str(decoder), *words]) == 0
        found.append(json.loads(capsys.readouterr().out))
    model = expound.load(decoder, task="prompt", template="Review:{text}\nAnswer:", labels={"bad": "N", "good": "P"})
    expected = expound.attribute(model, ["a moving film"], "occlusion")[0]
    for [item] in found:
        assert [unit["text"] for unit in item["units"]] == ["a", "moving", "film"]
        assert item["scores"][0] == pytest.approx(list(expected.scores[0]), abs=1e-6)


def test_another_prompt_is_another_comparison(decoder, tmp_path, capsys):
    data = tmp_path / "data.csv"
    data.write_text("text,label\na moving film,good\nthe plot is dull,bad\n", encoding="utf-8")
    words = ["--data", f"csv:{data}", "--split", "all", "--methods", "random,saliency", "--metrics", "log_odds"]
    means = []
    for template in ("Review:{text}\nAnswer:", "Is this any good? {text} I say:"):
        command = ["compare", "--model", str(decoder), *words, "--template", template, "--labels", LABELS]
        code = main([*command, "--quiet", "--device", "cpu", "--output-dir", str(tmp_path / "out")])
        means.append((code, capsys.readouterr().err))
    assert means[0][0] == 0
    assert means[1][0] == 2
    assert "holds a comparison of something else" in means[1][1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--template", "Review:{text}"], "--template and --labels must be given together"),
        (["--labels", LABELS], "--template and --labels must be given together"),
        (["--template", "absent.txt", "--labels", LABELS], "expected a prompt with {text}"),
        (["--template", "{text}", "--labels", "good=P"], "at least two different labels"),
    ],
)
def test_half_a_prompt_is_an_error(decoder, words, message, capsys):
    assert main(["explain", "a film", "--model", str(decoder), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_masking_model_is_trained_for_a_prompted_model_and_judged_by_the_commands_that_it_names(
    decoder, tmp_path, capsys
):
    encoder = tmp_path / "encoder"
    tiny("bert").base_model.save_pretrained(encoder)
    processor("bert").save_pretrained(encoder)
    out = tmp_path / "masking"
    data = ["--data", "generated?size=40", "--device", "cpu", "--quiet"]
    prompt = ["--template", "Review:{text}\nAnswer:", "--labels", "negative=N,positive=P"]
    command = ["train", "aml", "--model", str(decoder), *data, *prompt, "--max-length", "64", "--output-dir", str(out)]
    assert main(command) == 2
    assert "explained by an encoder: give its folder or hub name as backbone (--backbone)" in capsys.readouterr().err
    assert main([*command, "--backbone", str(encoder), "--epochs", "1", "--train-rows", "8", "--dev-rows", "4"]) == 0
    shown = capsys.readouterr()
    assert "of decompx_linear of the same model" in shown.out
    assert json.loads((out / "config.json").read_text())["mode"] == "omit"
    # The commands that the run names are complete.
    named = shlex.split(shown.err.split("expound explain TEXT ")[1].split("  expound compare")[0])
    assert main(["explain", "a moving film", *named, "--device", "cpu"]) == 0
    assert main(["train", "er_joint", "--model", str(decoder), *data, *prompt, "--output-dir", str(out)]) == 2
    assert "No such option: --template" in capsys.readouterr().err
