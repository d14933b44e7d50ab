"""Every block of the pages on a start runs in an empty folder; `make docs` runs those of README and the first page."""

from __future__ import annotations

import csv
import json
import re
import shutil
from importlib.util import find_spec

import pandas as pd
import pytest
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification, BertModel

import expound
import families
import pictures
from corpora import study
from expound.data.cards import MethodCard
from expound.data.readers import generated
from expound.explainers import EXPLAINERS
from expound.metrics import cards
from readme_blocks import ROOT, blocks, commands, run, run_command, small_chat_model

LARGEST = 400
SMALL = 96
"""Generated corpora are cut to this size: pages train on 2,000 rows. The demo's is small by EXPOUND_SCALE."""


@pytest.fixture(scope="module", autouse=True)
def small_data():
    """Make demos and generated corpora small."""

    def generate_few(*given, size, **options):
        return generated_examples(*given, size=size if size <= LARGEST else SMALL, **options)

    generated_examples = generated.generate_examples
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("EXPOUND_SCALE", "0.05")
        patched.setattr(generated, "generate_examples", generate_few)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_data):
    """A folder in which the blocks for assistants were run, a demo first."""
    folder = tmp_path_factory.mktemp("skill")
    run(ROOT / "SKILL.md", folder)
    return folder


def test_the_skill_for_assistants_runs_as_it_stands(folder):
    assert (folder / "comparison" / "report.html").is_file()


def test_methods_find_the_evidence_that_is_planted_in_the_demo(folder):
    auc = pd.read_csv(folder / "demo" / "comparison" / "table.csv").set_index("method")["rationale_auc_mean"]
    assert auc["integrated_gradients"] >= 0.85
    assert auc["occlusion"] >= 0.85
    assert abs(auc["random"] - 0.5) < 0.1
    page = (folder / "demo" / "comparison" / "report.html").read_text(encoding="utf-8")
    titles = [card.title for name, card in EXPLAINERS.cards(MethodCard).items() if name in auc.index]
    assert len(titles) == len(auc)
    assert all(title in page for title in [*titles, cards()["rationale_auc"].heading])


def test_the_page_on_other_tasks_runs_as_it_stands(tmp_path):
    tags = {"num_labels": 3, "id2label": {0: "O", 1: "B-PER", 2: "B-LOC"}}
    heads = {
        "my-tagger": (BertForTokenClassification, tags),
        "my-topics": (BertForSequenceClassification, {"num_labels": 3, "problem_type": "multi_label_classification"}),
        "my-encoder": (BertModel, {}),
    }
    for name, (head, settings) in heads.items():
        config = BertConfig(**{**families.tiny("bert").config.to_diff_dict(), **settings})
        head(config).save_pretrained(tmp_path / name)
        families.tokenizer("bert").save_pretrained(tmp_path / name)
    run(ROOT / "docs" / "tasks.md", tmp_path)
    assert "loaf" in (tmp_path / "similar.html").read_text(encoding="utf-8")


def test_the_page_on_images_runs_as_it_stands(tmp_path):
    for part in pictures.make_model("llava"):
        part.save_pretrained(tmp_path / "my-vision-model")
    pictures.make_picture().save(tmp_path / "square.png")
    run(ROOT / "docs" / "images.md", tmp_path)
    assert "r1c2" in (tmp_path / "image.html").read_text(encoding="utf-8")


def test_the_page_on_functions_runs_as_it_stands(tmp_path):
    (tmp_path / "my_classifier.py").write_text("def predict(texts):\n    return [[0.3, 0.7] for _ in texts]\n")
    (tmp_path / "reviews.csv").write_text("text,label\nbad jokes,bad\na moving film,good\n")
    run(ROOT / "docs" / "functions.md", tmp_path)
    assert (tmp_path / "judged-function" / "report.html").is_file()


def test_the_page_on_own_data_runs_as_it_stands(folder, tmp_path):
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (table,), (chat,) = (
        re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for kind in ("csv", "json")
    )
    data = expound.load_data("generated", "train", limit=40, seed=1)
    names = data.features["label"].names
    with (tmp_path / "tickets.csv").open("w", newline="") as file:
        file.write(table)
        csv.writer(file).writerows([row["text"], names[row["label"]], json.dumps(row["rationale"])] for row in data)
    (tmp_path / "chats.jsonl").write_text(chat * 3)
    shutil.copytree(folder / "demo" / "model", tmp_path / "my-model")
    small_chat_model(tmp_path / "my-chat-model")
    study(tmp_path).rename(tmp_path / "expound-studies.db")
    run(ROOT / "docs" / "data.md", tmp_path)
    assert (tmp_path / "judged" / "report.html").is_file()
    assert (tmp_path / "cited" / "report.html").is_file()


def test_the_guide_to_terms_in_a_training_of_ones_own_runs_as_it_stands(tmp_path):
    small_chat_model(tmp_path / "my-chat-model")
    families.tiny("bert", num_labels=2).save_pretrained(tmp_path / "my-model")
    families.tokenizer("bert").save_pretrained(tmp_path / "my-model")
    data = expound.load_data("generated", "train", limit=40, seed=1)
    lines = [json.dumps({name: row[name] for name in ("text", "label", "rationale")}) for row in data]
    (tmp_path / "reviews.jsonl").write_text("\n".join(lines))
    run(ROOT / "docs" / "your_training.md", tmp_path, without=None if find_spec("lightning") else "lightning")
    assert expound.load(tmp_path / "guided-run", device="cpu").task.name == "classification"


def test_commands_for_contributors_are_there():
    page = ROOT / "CONTRIBUTING.md"
    found = [words for block in blocks(page) if block.language == "sh" for words in commands(block.text)]
    assert found
    for words in found:
        run_command(words, page.name)


def test_a_block_that_fails_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("a\n```python\nx = 1\n```\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError):
        run(tmp_path / "page.md", tmp_path)
    (tmp_path / "page.md").write_text("```sh\nexpound methods --limit no\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:2: expound methods --limit no"):
        run(tmp_path / "page.md", tmp_path)
