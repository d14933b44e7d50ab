"""A causal language model as a classifier, from the command line."""

from __future__ import annotations

import json

import pytest
import transformers as hf

import expound
from expound.cli import main
from families import TEXT, processor

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
