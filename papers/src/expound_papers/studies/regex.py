"""Li et al. 2023, Towards Faithful Explanations for Text Classification with Robustness Improvement and Explanation
Guided Training (REGEX).

The baseline is the same training without the three terms, so that nothing but the loss differs.
"""

from __future__ import annotations

from typing import Any

from expound_papers.studies.corpora import MINILM, SST
from expound_papers.study import Data, Model, Runs, Study, Training, choose

OFF = {"gradient_weight": 0.0, "adversarial_weight": 0.0, "guidance_weight": 0.0}
SIX = ["RAND", "α∇α", "α", "DeepLift", "x∇x", "IG"]
EIGHT = ["RAND", "α∇α", "α", "DeepLift", "x∇x", "x∇x (sum)", "IG", "DX"]
METRICS = {name: f"normalized_{name.lower()}?perturbation=pad" for name in ("Sufficiency", "Comprehensiveness")}
LIFT, TOP = "deep_lift?baselines=zero&rule=captum", "jaccard?share=0.25"
ATTACK = [
    "attack_successes", "attack_original_accuracy", "attack_accuracy_under_attack", "attack_success_rate",
    "attack_perturbed_words", "attack_words_per_input", "attack_queries",
]  # fmt: skip
ONCE = {
    "learning_rate": 5e-5, "num_train_epochs": 1, "eval_strategy": "no", "save_strategy": "no",
    "load_best_model_at_end": False,
}  # fmt: skip


class Setup:
    """The data, model and explainers that the studies share."""

    def __init__(self, study: Study, model: Model | None = None, longest: int | None = 12) -> None:
        self.study, small = study, study.is_small
        study.preset, study.seeds = "paper", 3 if small else 5
        # As many points of IG as it takes to come within 1 % of the sum that they should add up to.
        points = "&tolerance=0.05&max_steps=40" if small else ""
        self.explainers = {
            "RAND": "random",
            "α∇α": "scaled_attention",
            "α": "attention_last",
            # As in the code that the paper builds on, the ℓ2 norm over the dimensions of each position.
            "DeepLift": f"{LIFT}&aggregate=l2",
            "x∇x": "input_x_gradient?aggregate=l2",
            "IG": f"integrated_gradients?baselines=zero&n_steps=auto{points}",
        }
        self.model, self.given = (
            model or Model("encoder", "bert-base-uncased", max_length=256),
            dict[str, Any](n_steps=50),
        )
        limits: dict[str, Any] = {"train": {}, "dev": {}, "test": {}}
        if small:
            # MiniLM in place of BERT, short sentences; small batches, on all of which the terms are computed. Inside
            # the paper's radius of 1e-5 a perturbation of these embeddings moves no answer: here it is as large as a
            # step.
            self.model = Model("encoder", MINILM, max_length=96)
            self.explainers |= {"DX": "decompx_linear", "x∇x (sum)": "input_x_gradient"}
            self.given |= {"n_steps": 3, "radius": 1e-3}
            # Seeds differ in the initialization, not in the order of the data: Table 3 asks for that, and shares the
            # runs.
            study.arguments = {
                "num_train_epochs": 2, "learning_rate": 1e-4, "per_device_train_batch_size": 8, "bf16": True,
                "data_seed": 0,
            }  # fmt: skip
            short = {"longest": {"words": longest}} if longest else {}
            limits = {"train": {"limit": 400} | short, "dev": {"limit": 100} | short, "test": {"limit": 100} | short}
        train, dev = (Data(f"sst-{split}", SST, split=split, **limits[split]) for split in ("train", "dev"))
        self.test, self.training = Data("SST", SST, **limits["test"]), Training("SST", train, dev)

    def train(self, name: str, **parameters: Any) -> Runs:
        """Train with REGEX's terms."""
        how = {"seeds": None, "options": None, "data": self.training, "model": self.model} | parameters
        data, model = how.pop("data"), how.pop("model")
        given = self.given | how
        if name == "Baseline":
            del given["n_steps"]
            given.pop("radius", None)
        return self.study.train(name, "regex", data, model, **given)

    def train_both(self) -> list[Runs]:
        """Train the baseline and REGEX."""
        return [self.train("Baseline", **OFF), self.train("REGEX")]

    def judge(self, runs: list[Runs], explainers: list[str], *, few: bool = True, **how: Any) -> None:
        """Judge the faithfulness of explanations on SST; of integrated gradients, at small scale, on 30 sentences."""
        limits = {"IG": 30} if self.study.is_small and few else {}
        self.study.judge(
            "faithfulness", runs, self.test, choose(self.explainers, *explainers), METRICS, limits=limits, **how
        )

    def add_table(
        self, name: str, caption: str, rows: Any = "recipe", columns: Any = ("metric", "explainer"), **how: Any
    ) -> None:
        """Add a table of faithfulness."""
        fields = {"metrics": [*METRICS], "decimals": 2} | how
        self.study.table(name, caption, rows=rows, columns=columns, **fields)


def make_families(setup: Setup) -> dict[str, tuple[Training, Data]]:
    """Return every training set of the paper with its test set.

    The three Amazon sets (reviews of digital music, pantry and instruments in three classes) are files of columns text
    and label that are yours to make.
    """
    imdb = Data("imdb-train", "hub:stanfordnlp/imdb", split="train", rows=(0, 20000), seed=42)
    yelp = Data("yelp-train", "hub:fancyzhx/yelp_polarity", split="train", rows=(0, 476000), seed=42)
    found = {
        "SST": (setup.training, setup.test),
        "IMDB": (
            Training("IMDB", imdb, imdb.but("imdb-dev", rows=(20000, 22500))),
            Data("IMDB", "hub:stanfordnlp/imdb", limit=2500, seed=42),
        ),
        "Yelp": (
            Training("Yelp", yelp, yelp.but("yelp-dev", rows=(476000, 560000))),
            Data("Yelp", "hub:fancyzhx/yelp_polarity"),
        ),
    }
    names = {"AmazDigiMu": "digital-music", "AmazPantry": "pantry", "AmazInstr": "instruments"}
    for name, folder in names.items():
        spec, short = f"jsonl:${{EXPOUND_DATA:-data}}/amazon-{folder}", folder.replace("digital-music", "digimu")
        train, dev = (Data(f"{short}-{split}", spec, split=split) for split in ("train", "dev"))
        found[name] = Training(name, train, dev), Data(name, spec)
    return found
