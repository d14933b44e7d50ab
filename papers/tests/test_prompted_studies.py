"""Studies of causal models that are prompted and not trained."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as hf

import expound
import families
from expound import ExpoundError
from expound_papers.protocols.performance import evaluate_performance
from expound_papers.runs import sources
from expound_papers.runs.run_cell import run_cell
from expound_papers.runs.run_files import FIGURES
from expound_papers.runs.store import Store
from expound_papers.study import Data, Model, Prompt, Training
from expound_papers.study.loading import record_study
from expound_papers.tables.results import collect_results

PROMPT = {"template": "Is it good ?\n\nText:{text}\nLabel:", "labels": {"negative": "N", "positive": "P"}}


@pytest.fixture
def make_study(tmp_path):
    """A function that makes a study of a prompted decoder that an encoder explains, with changes."""
    torch.manual_seed(1)
    causal = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model("llama", **families.TEXT["llama"]))
    for name, model, kind in (("causal", causal, "gpt2"), ("encoder", families.tiny("bert").base_model, "bert")):
        model.save_pretrained(tmp_path / name)
        families.tokenizer(kind).save_pretrained(tmp_path / name)
    aml = {"metric": "comprehensiveness", "backbone": str(tmp_path / "encoder"), "train_rows": 8, "dev_rows": 4}
    weights = {"preservation_weight": 0.5, "sparsity_weight": 0.1, "inverse_weight": 0.5}

    def make(prompt=PROMPT, recipe=None):
        def record(study):
            films = Data("films", "generated?size=48", split="train", limit=16)
            test = Data("test", "generated?size=48", limit=4)
            model = Model("causal", str(tmp_path / "causal"), prompt=Prompt(**prompt))
            data, metrics = Training("films", films, films), {"Comp": "comprehensiveness"}
            runs = study.train("F", recipe, data, model)
            how = {"start": runs, "arguments": {"max_steps": 1}}
            masks = study.train("AML", "aml", data, model, **how, **aml, **weights)
            study.judge("plain", runs, test, {"random": "random"}, metrics)
            study.judge("masking", masks, test, {"pAML": "attributive_masking:{run}"}, metrics, model=runs)

        return record_study(record, "prompted")

    return make


def test_a_prompted_model_is_judged_and_explained_as_it_is(make_study, tmp_path):
    study, root = make_study(), tmp_path / "store"
    for cell in study.cells:
        assert run_cell(cell, root)
    results = collect_results(study, Store(root))
    model = expound.load(tmp_path / "causal", task="prompt", device="cpu", **PROMPT)
    expected, _ = evaluate_performance(model, sources.load_dataset(study.datasets["test"].resolve()))
    judged = [run for run in study.runs if run.dataset]
    assert {run.judgement for run in judged} == {"plain", "masking"}
    for run in judged:
        figures = json.loads((results.store.cell_folder(run.cell.key) / FIGURES).read_text())
        assert figures == pytest.approx(expected)
    masked = results.figures[results.figures["explainer"] == "pAML"].set_index("metric")["value"]
    assert masked[["Comp", "seconds"]].notna().all()  # of so small a pass the memory may not be seen


def test_the_prompt_is_part_of_a_runs_address_and_nobody_trains_the_model(make_study):
    keys = {run.judgement: run.cell.key for run in make_study().runs}
    other = make_study(prompt=PROMPT | {"template": "{text} Good?"})
    changed = {run.judgement: run.cell.key for run in other.runs}
    assert not set(keys.values()) & set(changed.values())
    with pytest.raises(ExpoundError, match="a prompted model stays as it is: baseline trains it"):
        make_study(recipe="baseline")
