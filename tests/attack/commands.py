"""The commands that are attacked, at a size of seconds."""

from __future__ import annotations

from pathlib import Path

import families

STUDY = Path(__file__).with_name("attacked_study.py")
TRAIN = ["--data", "generated?size=32", "--epochs", "2", "--batch-size", "8", "--device", "cpu", "--quiet"]
COMPARE = ["--data", "generated?size=40", "--split", "dev", "--methods", "saliency,occlusion,random", "--quiet"]
COMPARE += ["--metrics", "rationale_auc,aopc_comprehensiveness", "--batch-size", "4"]
WEIGHTS = ["--preservation-weight", "1", "--sparsity-weight", "1", "--inverse-weight", "1", "--max-length", "24"]
SEARCH = "aml, with a search"
OVER_VALUES = "er_joint, over values"


def save_model(folder):
    """Saves a tiny classifier in the folder, and returns the folder."""
    families.tiny("bert", num_labels=2, id2label={0: "negative", 1: "positive"}).save_pretrained(folder)
    families.tokenizer("bert").save_pretrained(folder)
    return folder


def build_arguments(name, model, folder):
    """The arguments of a command: compare, study, a recipe, or a search over the weights of aml or er_joint."""
    out = ["--output-dir", folder]
    if name == "compare":
        return ["compare", "--model", model, *COMPARE, *out]
    if name == "study":
        return ["study", "run", STUDY, "--workers", "1", "--threads", "1", "--quiet", *out]
    if name == "at2":
        return [
            "train",
            "at2",
            "--model",
            model,
            "--n-samples",
            "4",
            "--set",
            "max_steps=20",
            *TRAIN[:2],
            *TRAIN[6:],
            *out,
        ]
    if name == "corpus":
        data = ["--data", "generated?size=40", "--split", "dev", "--rows-per-part", "8", "--methods", "saliency"]
        return ["explain", "--model", model, *data, "--device", "cpu", *out]
    if name == "custom":
        terms = "cross_entropy,attribution_entropy?weight=0.1"
        return ["train", "custom", "--objectives", terms, "--config", "tiny", *TRAIN, *out]
    if name in ("aml", SEARCH):
        options = ["--trials", "2", "--max-length", "24"] if name == SEARCH else WEIGHTS
        return ["train", "aml", "--model", model, *options, *TRAIN, *out]
    if name == OVER_VALUES:
        return ["train", "er_joint", "--search", "weight=0,1,30", "--config", "tiny", *TRAIN, *out]
    start = ["--model", model] if name == "lora" else ["--config", "tiny"]
    return ["train", name, *start, *TRAIN, *out]
