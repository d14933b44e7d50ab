"""Studies of causal models that are prompted and not trained."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as hf
import yaml
from expound_papers.runs import sources
from expound_papers.study.loading import load_study

import expound
import families
from expound import ExpoundError
from expound_papers.protocols.performance import evaluate_performance
from expound_papers.runs.run_cell import run_cell
from expound_papers.runs.run_files import FIGURES
from expound_papers.runs.store import Store
from expound_papers.tables.results import collect_results

PROMPT = {"template": "Is it good ?\n\nText:{text}\nLabel:", "labels": {"negative": "N", "positive": "P"}}


@pytest.fixture
def make_study(tmp_path):
    """A function that makes the grid of a study of a prompted decoder that an encoder explains, with changes."""
    torch.manual_seed(1)
    causal = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model("llama", **families.TEXT["llama"]))
    for name, model, kind in (("causal", causal, "gpt2"), ("encoder", families.tiny("bert").base_model, "bert")):
        model.save_pretrained(tmp_path / name)
        families.tokenizer(kind).save_pretrained(tmp_path / name)
    aml = {"metric": "comprehensiveness", "backbone": str(tmp_path / "encoder"), "train_rows": 8, "dev_rows": 4}
    weights = {"preservation_weight": 0.5, "sparsity_weight": 0.1, "inverse_weight": 0.5}
    content = {
        "datasets": {
            "films": {"spec": "generated?size=48", "split": "train", "limit": 16},
            "test": {"spec": "generated?size=48", "split": "test", "limit": 4},
        },
        "training": {"films": {"train": "films", "dev": "films"}},
        "models": {"causal": {"source": str(tmp_path / "causal"), "prompt": PROMPT}},
        "seeds": [0],
        "recipes": {
            "F": {"recipe": "none"},
            "AML": {"recipe": "aml", "model": {"run": "F"}, "parameters": aml | weights, "arguments": {"max_steps": 1}},
        },
        "explainers": {"random": "random", "pAML": "attributive_masking:{run}"},
        "metrics": {"Comp": "comprehensiveness"},
        "judgements": {
            "plain": {"datasets": ["test"], "recipes": ["F"], "explainers": ["random"], "metrics": ["Comp"]},
            "masking": {
                "datasets": ["test"], "recipes": ["AML"], "model": {"run": "F"}, "explainers": ["pAML"],
                "metrics": ["Comp"],
            },
        },
    }  # fmt: skip

    def make_grid(**changes):
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(content | changes))
        return load_study(path)

    return make_grid


def test_a_prompted_model_is_judged_and_explained_as_it_is(make_study, tmp_path):
    grid, root = make_study(), tmp_path / "store"
    for cell in grid.cells:
        assert run_cell(cell, root)
    results = collect_results(grid, Store(root))
    model = expound.load(tmp_path / "causal", task="prompt", device="cpu", **PROMPT)
    expected, _ = evaluate_performance(model, sources.load_dataset(grid.study.dataset("test")))
    judged = [run for run in grid.runs if run.dataset]
    assert {run.judgement for run in judged} == {"plain", "masking"}
    for run in judged:
        figures = json.loads((results.store.cell_folder(run.cell.key) / FIGURES).read_text())
        assert figures == pytest.approx(expected)
    masked = results.figures[results.figures["explainer"] == "pAML"].set_index("metric")["value"]
    assert masked[["Comp", "seconds"]].notna().all()  # of so small a pass the memory may not be seen


def test_the_prompt_is_part_of_a_runs_address_and_nobody_trains_the_model(make_study):
    keys = {run.judgement: run.cell.key for run in make_study().runs}
    other = {"source": make_study().study.file.models["causal"].source, "prompt": PROMPT | {"template": "{text} Good?"}}
    changed = {run.judgement: run.cell.key for run in make_study(models={"causal": other}).runs}
    assert not set(keys.values()) & set(changed.values())
    with pytest.raises(ExpoundError, match="a prompted model stays as it is: baseline trains it"):
        make_study(recipes={"F": {"recipe": "baseline"}}, judgements={})
