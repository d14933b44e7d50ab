"""Barkan et al. 2024, LLM Explainability via Attributive Masking Learning (AML).

F is trained for each dataset; for each metric a masking model G is trained on it. At small scale there is one G, for
A-C: it chooses fAML's maps, and the other metrics say how good these are unchosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from expound_papers.studies.corpora import MINILM, SST
from expound_papers.study import Data, Explainer, Model, Noisy, Runs, Study, Training

METRICS = {
    "Suff": "sufficiency?rounding=floor",
    "LO": "log_odds?rounding=floor",
    "Comp": "comprehensiveness?rounding=floor",
    "A-S": "aopc_sufficiency?rounding=floor&divisor=fractions_plus_one",
    "A-C": "aopc_comprehensiveness?rounding=floor&divisor=fractions_plus_one",
}
IDS = {"Suff": "sufficiency", "LO": "log_odds", "Comp": "comprehensiveness", "A-S": "aopc_sufficiency"}
IDS["A-C"] = "aopc_comprehensiveness"
MASKS: dict[str, Any] = {"fAML": "attributive_masking:{run}?refine_steps=10", "pAML": "attributive_masking:{run}"}
REFINED = "attributive_masking:{run}?refine_steps=10&refine_layers=3&lora_rank=8&refine_rate=5e-3"
NOISY_DCMP, NOISY_DXL = "best of 11 noisy DCMP", "best of 11 noisy DXL"
EXPLAINERS: dict[str, Any] = {
    "SIG": "sequential_integrated_gradients",
    "ALTI": "alti",
    "DCMP": "decompx_classifier",
    "SLVX": "solvex?criterion=comprehensiveness",
    "LIFT": "deep_lift",
    "GLOB": "globenc",
    "SHAP": "gradient_shap",
    "GXI": "input_x_gradient",
    "IG": "integrated_gradients",
    "LIME": "lime",
    "random": "random",
    "attention": "attention_last",
}
SMALL = {
    "SLVX": "solvex?beam=1&criterion=comprehensiveness",
    "LIME": "lime?n_samples=50",
    "IG": "integrated_gradients?n_steps=20",
    "DXL": "decompx_linear",
    NOISY_DCMP: Explainer("decompx_classifier", noisy=Noisy(METRICS["A-C"])),
    NOISY_DXL: Explainer("decompx_linear", noisy=Noisy(METRICS["A-C"])),
}
# A grid of a few weights found these (aml-weights), no search.
WEIGHTS: dict[str, Any] = {"preservation_weight": 0.5, "sparsity_weight": 0.1, "inverse_weight": 0.5}
# As many steps as in the paper, 480: in the first 200 the loss hardly falls.
LONG = {
    "num_train_epochs": 16, "learning_rate": 2e-4, "warmup_steps": 0.1, "per_device_train_batch_size": 10,
    "eval_steps": 48,
}  # fmt: skip
SHORT = {"num_train_epochs": 4, "learning_rate": 2e-4, "warmup_steps": 0.1, "per_device_train_batch_size": 16}
FEW_ROWS: dict[str, Any] = {"train_rows": 300, "dev_rows": 40}
MANY_ROWS: dict[str, Any] = {"train_rows": 1000, "dev_rows": 200}


class Setup:
    """The data, models and explainers that studies share; `f` are classifiers, `masks` masking models by metric."""

    def __init__(
        self,
        study: Study,
        train: int = 600,
        dev: int = 100,
        test: int | None = 40,
        length: int = 64,
        words: int | None = 12,
    ) -> None:
        self.study, self.small = study, study.is_small
        study.preset, study.seeds = "paper", [42, 43, 44] if self.small else [42]
        self.explainers, self.masks = EXPLAINERS | (SMALL if self.small else {}), dict[str, Runs]()
        self.refined = MASKS | ({"fAML": REFINED} if self.small else {})
        if self.small:
            study.arguments = {"bf16": True}
            short: dict[str, Any] = {"longest": {"words": words} if words else {}}
            self.models = [Model("encoder", MINILM, max_length=length)]
            rows = Data("sst-train", SST, split="train", limit=train, **short)
            self.test = Data("SST2", SST, limit=test, **short)
            self.trainings = [Training("SST2", rows, rows.but("sst-dev", split="dev", limit=dev))]
        else:
            self.models = [Model("BERT", "google-bert/bert-base-uncased", max_length=512)]
            rows, self.test = Data("sst-train", SST, split="train"), Data("SST2", SST)
            self.trainings = [Training("SST2", rows, rows.but("sst-dev", split="dev"))]

    def train_classifiers(self, **how: Any) -> Runs:
        """Train F."""
        # At 5e-5 it is at chance after so few steps, and there is nothing to explain.
        usual = {"num_train_epochs": 3, "learning_rate": 2e-4, "per_device_train_batch_size": 16}
        if not self.small:
            usual = {"num_train_epochs": 3, "learning_rate": 2e-5, "per_device_train_batch_size": 32}
        arguments = usual | how.pop("arguments", {})
        self.f = self.study.train("F", "baseline", self.trainings, self.models, arguments=arguments, **how)
        return self.f

    def train_masks(self, *metrics: str, name: str = "AML {}", **how: Any) -> list[Runs]:
        """Train masking models of F, one for each metric."""
        given: dict[str, Any] = {"data": self.trainings, "model": self.models, "start": self.f, "trials": 30} | how
        usual = {"num_train_epochs": 10, "learning_rate": 4e-5, "per_device_train_batch_size": 20}
        given = {"arguments": LONG if self.small else usual} | given
        if given["trials"] is None:
            del given["trials"]
        data, model = given.pop("data"), given.pop("model")
        for metric in metrics:
            self.masks[metric] = self.study.train(name.format(metric), "aml", data, model, metric=IDS[metric], **given)
        return [self.masks[metric] for metric in metrics]

    def judge_masks(
        self, name: str, runs: Runs, on: Data, metrics: Mapping[str, str], ending: str = "", **how: Any
    ) -> None:
        """Judge the masks of F that runs learned, refined and as they are."""
        explainers = {f"{key}{ending}": spec for key, spec in self.refined.items()}
        self.study.judge(name, runs, on, explainers, metrics, **{"model": self.f} | how)

    def add_table(
        self, name: str, caption: str, *, columns: Any = "metric", metrics: Sequence[str] = tuple(METRICS), **how: Any
    ) -> None:
        """Add a table of explainers, masks first."""
        known = self.study.explainers
        order = [each for each in known if "AML" in each]
        order += [each for each in [*EXPLAINERS, *known] if each in known and each not in order]
        where = {"explainer": list(dict.fromkeys(order))} | how.pop("where", {})
        self.study.table(
            name, caption, rows="explainer", columns=columns, metrics=list(metrics), decimals=3, where=where, **how
        )


def make_corpora() -> list[tuple[Training, Data]]:
    """Return the training and test data of the paper beside SST-2."""
    rtn = Data("rtn-train", "hub:cornell-movie-review-data/rotten_tomatoes", split="train")
    emr = Data("emr-train", "hub:dair-ai/emotion", split="train")
    found = [make_imdb()]
    for name, data in (("RTN", rtn), ("EMR", emr)):
        dev = data.but(f"{name.lower()}-dev", split="validation")
        found.append((Training(name, data, dev), data.but(name, split="test")))
    return [found[1], found[0], found[2]]


def make_imdb(limit: int = 2000) -> tuple[Training, Data]:
    """Return the training and test data of IMDB."""
    imdb = Data("imdb-train", "hub:stanfordnlp/imdb", split="train", rows=(0, 20000), seed=42)
    test = Data("IMDB", "hub:stanfordnlp/imdb", limit=limit, seed=42)
    return Training("IMDB", imdb, imdb.but("imdb-dev", rows=(20000, 25000))), test
