"""Commands on the pages of parts, and the model they use; `pictures.py` draws their output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TRAINING = (
    'expound train baseline --config tiny --data "generated?size=4000" --epochs 4 --learning-rate 2e-3 '
    "--masked-share 0.1 --output-dir baseline"
)
"""Trains the model of all examples: a BERT of two layers, on generated reviews."""
TEXT = "Most of it was shot by the sea. The editing was tedious."
JUDGED = ("occlusion", "attention_rollout", "random")
LIMIT = 20
COPY = (
    'expound train baseline --model baseline --data "generated?size=4000" --epochs 1 --masked-share 1 '
    "--output-dir baseline-copy"
)
PARAMETERS = {
    "context_cite": "n_samples=48",
    "reagent": "n_steps=40",
    "solvex": "beam=5",
    "smooth_grad": "n_samples=20",
    "f_fidelity": "copy=baseline-copy",
}
"""Parameters in examples, by the part's id: methods should take about a second, and some metrics need one."""
METRIC_NOTES = {
    "f_fidelity": "The first command trains the copy, once for each model.",
    "segment_auc": "The reviews are single texts, for which it is the same as `rationale_auc`. On pairs, "
    "`segment_auc?segment=2` judges the second text.",
    "seconds": "Costs are measured beside every metric.",
    "peak_memory": "Costs are measured beside every metric.",
}
"""Notes on the examples of metrics, by id."""
RECIPE_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "er_joint": {"explainer": "attention"},
    "er_constrained": {"explainer": "attention"},
    "er_bound": {"explainer": "attention"},
    "fresh": {"explainer": "occlusion"},
    "roar": {"explainer": "occlusion"},
    "smat": {"teacher": "baseline", "student_size": 80},
    "ivra": {"criteria": "comprehensiveness"},
    "aml": {"preservation_weight": 0.5, "sparsity_weight": 0.1, "inverse_weight": 0.5, "train_rows": 80},
    "custom": {"objectives": "cross_entropy,attribution_entropy"},
}
"""Parameters that recipes require, or that make their run short."""
FOLDERS = {
    "attention_to_source": "fitted",
    "attributive_masking": "masks",
    "citation": "cited",
    "hidden_state_probe": "fitted",
    "interpretable_attention": "guided/interpretable_attention",
    "parameterized_attention": "scaffolded/teacher_explainer",
    "rationale_extractor": "extracted",
}
"""Folders in which training saves learned methods; the names are examples."""
UNTRAINED = (
    "attention_to_source",
    "hidden_state_probe",
    "interpretable_attention",
    "parameterized_attention",
    "rationale_extractor",
)
"""Learned methods that can explain before training; the pictures show this state."""
NOT_SHOWN = {
    "llm_ranking": "No result is shown here, because the method needs a chat model.",
    "citation": (
        "No result is shown here: `cited` is a folder that `expound train cite` wrote, see "
        "[citations that hold](../tutorials/11_citations_that_hold.md)."
    ),
    "attributive_masking": (
        "No result is shown here: `masks` is a folder that `expound train aml` wrote, see "
        "[masks for any model](../tutorials/05_masks_for_any_model.md)."
    ),
}
"""Methods whose pages have no picture, with the reason."""


def spec(name: str) -> str:
    """Return the spec of the method or metric in its example."""
    if name in UNTRAINED:
        return f"{name}?untrained"
    if name in FOLDERS:
        return f"{name}:{FOLDERS[name]}"
    return f"{name}?{PARAMETERS[name]}" if name in PARAMETERS else name


def explain_command(name: str) -> str:
    """Return the command on a method's page."""
    if name == "llm_ranking":
        return f'expound explain "{TEXT}" --model baseline --methods "llm_ranking?ranker=CHAT-MODEL"'
    if name == "citation":
        return (
            "expound explain --task generation --prompt prompt.txt --source letter.txt --source memo.txt "
            "--model cited --methods citation:cited"
        )
    return f'expound explain "{TEXT}" --model baseline --methods "{spec(name)}"'


def python_code(folder: str, name: str) -> str:
    """Return the example of a method, a metric or a recipe in Python; empty if it is a command only."""
    if name == "citation" or folder not in ("methods", "metrics", "recipes"):
        return ""
    lines = ["import expound", ""]
    if folder == "recipes":
        lines += [
            'train = expound.load_data("generated", "train", limit=80)',
            'dev = expound.load_data("generated", "dev", limit=24)',
            recipe_call(name),
            "print(result.metrics)",
        ]
        return "\n".join(lines)
    lines.append('model = expound.load("baseline", device="cpu")')
    if folder == "methods":
        method = "llm_ranking?ranker=CHAT-MODEL" if name == "llm_ranking" else spec(name)
        lines += [f'result = expound.attribute(model, ["{TEXT}"], method="{method}")', "print(result[0].top(3))"]
        return "\n".join(lines)
    metric = "aopc_comprehensiveness" if name in ("seconds", "peak_memory") else spec(name)
    lines += [
        f'reviews = expound.load_data("generated", "test", limit={LIMIT})',
        f"methods = {list(JUDGED)}".replace("'", '"'),
        f'print(expound.compare(model, reviews, methods, ["{metric}"]))',
    ]
    return "\n".join(lines)


def recipe_call(name: str) -> str:
    """Return the call that trains by a recipe, with the parameters of its picture."""
    params = "".join(f", {key}={json.dumps(value)}" for key, value in RECIPE_PARAMETERS.get(name, {}).items())
    start = "tiny" if name == "smat" else "baseline"
    return f'result = expound.train("{start}", (train, dev), "{name}"{params}, output_dir="{name}")'


def compare_command(name: str) -> str:
    """Return the command on a metric's page. Costs are measured with any metric."""
    metric = "aopc_comprehensiveness" if name in ("seconds", "peak_memory") else spec(name)
    command = (
        f"expound compare --model baseline --data generated --split test --limit {LIMIT} "
        f"--methods {','.join(JUDGED)} --metrics {metric}"
    )
    return f"{COPY}\n{command}" if name == "f_fidelity" else command
