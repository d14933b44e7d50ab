"""Repositories of the hub are read from its cache like folders, and written with a card, without a network."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path
from unittest.mock import create_autospec

import huggingface_hub as hf
import numpy as np
import pytest

import expound
import families
from expound import ExpoundError
from expound.cli import main
from expound.data import hub
from expound.explainers import EXPLAINERS
from expound.recipes import RECIPES
from expound.reports.hub_card import format_hub_card
from expound.reports.tables.leaderboard import wilson_interval
from small import small

QUICK = {"num_train_epochs": 1, "disable_tqdm": True, "use_cpu": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The result of a finished training run."""
    train, dev = (expound.load_data("generated?size=24", split) for split in ("train", "dev"))
    return RECIPES["er_joint"]("attention").train(
        "tiny", train, dev, tmp_path_factory.mktemp("run") / "guided", arguments=QUICK, max_length=32
    )


def test_the_card_says_task_data_figures_use_and_paper(run):
    card = hf.ModelCard(format_hub_card(run.output_dir, "user/guided"))
    dev = json.loads((run.output_dir / "expound_run.json").read_text())["config"]["data"]["dev"]
    rows = dev["rows"]
    low, high = wilson_interval(run.metrics["accuracy"], rows)
    assert card.data.pipeline_tag == "text-classification"
    assert {"expound", "er_joint"} <= set(card.data.tags)
    for part in (
        "A model for text classification (negative, positive), trained by `er_joint` (",
        'expound.load("user/guided")',
        f"- dev: {dev['source']} ({rows} rows)",
        f"| accuracy | {run.metrics['accuracy']:.4f} | {low:.4f} … {high:.4f} |",
        "- num_train_epochs = 1",
        "- Departure from",
    ):
        assert part in card.content, part


@pytest.mark.parametrize(("share", "count", "low", "high"), [(0.5, 10, 0.2366, 0.7634), (1.0, 10, 0.7225, 1.0)])
def test_intervals_of_shares_are_wilsons(share, count, low, high):
    assert all(
        isclose(one, other, abs_tol=5e-5) for one, other in zip(wilson_interval(share, count), (low, high), strict=True)
    )


def test_checkpoints_and_hidden_files_stay_here(tmp_path):
    for name in ("model.safetensors", "checkpoint-3/model.safetensors", ".lock", "README.md", "explainer/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    added = hub.make_operations(tmp_path, "the card")
    assert [each.path_in_repo for each in added] == ["README.md", "explainer/config.json", "model.safetensors"]
    assert added[0].upload_info.size == len("the card")
    with pytest.raises(ExpoundError, match="has no files to push"):
        hub.make_operations(tmp_path / "nowhere", "")


def test_pushed_files_are_accepted_by_the_hub(run, monkeypatch):
    made, sent = create_autospec(hf.HfApi.create_repo), create_autospec(hf.HfApi.create_commit)
    made.return_value = hf.RepoUrl("https://huggingface.co/user/guided")
    monkeypatch.setattr(hf.HfApi, "create_repo", made)
    monkeypatch.setattr(hf.HfApi, "create_commit", sent)
    assert run.push_to_hub("user/guided", private=True, token="secret") == "https://huggingface.co/user/guided"
    assert made.call_args.args[0].token == "secret"
    assert made.call_args.args[1:] == ("user/guided",)
    assert made.call_args.kwargs == {"private": True, "exist_ok": True}
    _, repository, added = sent.call_args.args
    assert repository == "user/guided"
    assert all(isinstance(each, hf.CommitOperationAdd) for each in added)
    names = {each.path_in_repo for each in added}
    assert {"README.md", "model.safetensors", "config.json", "tokenizer.json", "metrics.json"} <= names
    assert not any(name.startswith(("checkpoint-", ".")) for name in names)


def test_a_hub_that_refuses_is_an_error(run, monkeypatch):
    def refuse(*_, **__):
        raise hf.errors.HFValidationError("Repo id must be in the form 'user/name'")

    monkeypatch.setattr(hf.HfApi, "create_repo", refuse)
    with pytest.raises(ExpoundError, match=r"a/b/c cannot be pushed: Repo id"):
        run.push_to_hub("a/b/c")


def test_a_dry_run_of_push_lists_the_files(run, capsys):
    assert main(["push", str(run.output_dir), "user/guided", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "# guided" in shown
    assert shown.splitlines()[-2:] == ["tokenizer.json", "tokenizer_config.json"]


def add_to_cache(home, name, fill):
    """Write a repository into the hub's cache, in the cache's layout."""
    root = Path(home) / "hub" / f"models--{name.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("0" * 40)
    fill(root / "snapshots" / ("0" * 40))


def test_models_and_explainers_are_read_by_their_names(tmp_path, monkeypatch):
    """From a cache that is the only hub."""
    model, learned = small("bert"), EXPLAINERS["parameterized_attention"].for_model(small("bert"))

    def save(folder):
        model.model.save_pretrained(folder)
        families.tokenizer("bert").save_pretrained(folder)

    add_to_cache(tmp_path, "user/model", save)
    add_to_cache(tmp_path, "user/learned", learned.save_pretrained)
    monkeypatch.setattr(hf.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hf.constants, "HF_HUB_OFFLINE", True)
    loaded = expound.load("user/model", device="cpu")
    for name, method in (("parameterized_attention:user/learned", learned), ("saliency", "saliency")):
        found = expound.attribute(loaded, "a film", name)[0]
        expected = expound.attribute(model, "a film", method)[0]
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    with pytest.raises(ExpoundError, match="found no folder user/nothing, and the repository cannot be read"):
        expound.explainer("parameterized_attention:user/nothing")
