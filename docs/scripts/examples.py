"""The commands on the pages of parts, and the model that they name; `pictures.py` draws what they print."""

from __future__ import annotations

TRAINING = (
    'exegete train baseline --config tiny --data "generated?size=4000" --epochs 4 --learning-rate 2e-3 '
    "--masked-share 0.1 --output-dir baseline"
)
"""Makes the model of all examples: a BERT of two layers that has read generated reviews."""
TEXT = "Most of it was shot by the sea. The editing was tedious."
JUDGED = ("occlusion", "attention_rollout", "random")
LIMIT = 20
COPY = (
    'exegete train baseline --model baseline --data "generated?size=4000" --epochs 1 --masked-share 1 '
    "--output-dir baseline-copy"
)
PARAMETERS = {
    "context_cite": "n_samples=48",
    "reagent": "steps=40",
    "solvex": "beam=5",
    "smooth_grad": "n_samples=20",
    "f_fidelity": "copy=baseline-copy",
}
"""What an example sets, by the part's id: methods so that they take a second, metrics what they need."""
METRIC_NOTES = {
    "f_fidelity": "The first command trains the copy, once for each model.",
    "side_auc": "The reviews are single texts, for which it is the same as `auc`. On pairs, `side_auc?side=2` judges "
    "the second text.",
    "seconds": "Costs are measured beside every metric.",
    "peak_memory": "Costs are measured beside every metric.",
}
"""A sentence about the example of a metric, by its id."""
FOLDERS = {
    "attention_to_source": "fitted",
    "attributive_masking": "masks",
    "citation": "cited",
    "hidden_state_probe": "fitted",
    "interpretable_attention": "guided/interpretable_attention",
    "parameterised_attention": "scaffolded/teacher_explainer",
}
"""Where the training of a learned method leaves it; here it is a folder's name of our choice."""
UNTRAINED = ("attention_to_source", "hidden_state_probe", "interpretable_attention", "parameterised_attention")
"""Learned methods that also explain before they have learned anything: this is what is drawn."""
NOT_SHOWN = {
    "llm_ranking": "No result is shown here, because the method needs a chat model.",
    "citation": (
        "No result is shown here: `cited` is a folder that `exegete train cite` wrote, see "
        "[citations that hold](../tutorials/11_citations_that_hold.md)."
    ),
    "attributive_masking": (
        "No result is shown here: `masks` is a folder that `exegete train aml` wrote, see "
        "[masks for any model](../tutorials/05_masks_for_any_model.md)."
    ),
}
"""Methods whose pages show no result, and why."""


def spec(name: str) -> str:
    """The method or metric as an example asks for it."""
    if name in UNTRAINED:
        return f"{name}?untrained"
    if name in FOLDERS:
        return f"{name}:{FOLDERS[name]}"
    return f"{name}?{PARAMETERS[name]}" if name in PARAMETERS else name


def explaining(name: str) -> str:
    """The command of a method's page."""
    if name == "llm_ranking":
        return f'exegete explain "{TEXT}" --model baseline --methods "llm_ranking?ranker=CHAT-MODEL"'
    if name == "citation":
        return (
            "exegete explain --task generation --prompt prompt.txt --source letter.txt --source memo.txt "
            "--model cited --methods citation:cited"
        )
    return f'exegete explain "{TEXT}" --model baseline --methods "{spec(name)}"'


def judging(name: str) -> str:
    """The command of a metric's page; costs are measured beside any metric."""
    asked = "aopc_comprehensiveness" if name in ("seconds", "peak_memory") else spec(name)
    command = (
        f"exegete compare --model baseline --data generated --split test --limit {LIMIT} "
        f"--methods {','.join(JUDGED)} --metrics {asked}"
    )
    return f"{COPY}\n{command}" if name == "f_fidelity" else command
