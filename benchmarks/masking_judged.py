"""AML at a scale that one core can do: MiniLM explains MiniLM, and is compared with other methods.

Stages write JSON as soon as they are done, and a second run goes on after them. The weights of the terms are searched
on a grid; every setting is trained once, and for each metric the best state of any setting on dev explains the test
sentences, in one pass (pAML) and refined (fAML). Controls choose among as many random or noisy maps as fAML does.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

import exegete
from exegete.data.provenance import versions, write_json
from exegete.explainers.attributive_masking import AttributiveMasking
from exegete.explainers.attributive_masking.losses import Weights
from exegete.explainers.attributive_masking.modes import Mode
from exegete.metrics import PRESETS, Metric, metric, preset
from exegete.models import ExplainedModel
from exegete.models.passes.preserve import weights_fixed
from exegete.recipes import RECIPES
from exegete.recipes.aml import judged_by
from exegete.training import RunOptions
from exegete.training.masking.data import only_texts, stratified, without
from exegete.training.masking.run import masking_arguments, new_masking
from exegete.training.masking.search import WeightSearch
from exegete.training.masking.trainer import MaskingTrainer
from masking_refined import CONTROLS, FORMS, REFINING, STEPS, refined, tried

SHARED = Path(__file__).parents[2] / "shared"


@dataclass(frozen=True)
class Setting:
    """How one masking model is trained; unless it says otherwise, on 400 sentences three times, each judged twice."""

    weights: Weights
    rows: int = 400
    epochs: float = 3
    mode: Mode = "mask"
    evaluations: int = 2


ALL = Weights(0.5, 0.1, 0.5)
GRID = {
    "all terms": Setting(ALL),
    "no inverse": Setting(Weights(0.5, 0.1, 0.0)),
    "no preservation": Setting(Weights(0.0, 0.1, 0.5)),
    "all terms longer": Setting(ALL, 800, 5),
}
PAIRS = {
    "all terms": Setting(ALL, 600, 3, evaluations=1),
    "all terms longer": Setting(ALL, 800, 4, evaluations=1),
}
OTHERWISE = {
    f"200 {name}": Setting(weights, 200, mode=mode, evaluations=1)
    for name, weights, mode in (
        ("log bce mask", ALL, "mask"),
        ("probability", replace(ALL, inverse_form="probability"), "mask"),
        ("random", ALL, "random"),
        ("negative entropy", replace(ALL, inverse_form="negative_entropy"), "mask"),
        ("omit", ALL, "omit"),
        ("l1", replace(ALL, sparsity_form="l1"), "mask"),
        ("learned", ALL, "learned"),
    )
}
SEARCHED = "searched"
PART = 25
NAMES = ("aopc_comprehensiveness", "aopc_sufficiency", "comprehensiveness", "sufficiency", "log_odds")
OTHERS = (
    "random",
    "attention_last",
    "input_x_gradient",
    "alti",
    "decompx_classifier",
    "decompx_linear",
    "integrated_gradients?n_steps=20",
    "sequential_integrated_gradients?n_steps=3",
    "solvex?beam=1&objective=comprehensiveness",
    "solvex?beam=1&objective=sufficiency",
)


class KeepBest(TrainerCallback):
    """For every metric the state of the masking model that it likes best on dev; strictly better ones replace it."""

    def __init__(self, masking: AttributiveMasking, metrics: list[Metric]) -> None:
        self.masking, self.metrics = masking, metrics
        self.best: dict[str, tuple[float, dict[str, torch.Tensor]]] = {}
        self.history: list[dict[str, float]] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """Compares."""
        self.history.append(
            {"epoch": state.epoch or 0.0} | {each.name: metrics[f"eval_{each.name}"] for each in self.metrics}
        )
        trained = [(name, value) for name, value in self.masking.named_parameters() if value.requires_grad]
        for each in self.metrics:
            value = metrics[f"eval_{each.name}"]
            worth = value if each.card.higher_is_better else -value
            if each.name not in self.best or worth > self.best[each.name][0]:
                self.best[each.name] = (worth, {n: v.detach().clone() for n, v in trained})


class Experiment:
    """One corpus and one model."""

    def __init__(
        self,
        name: str,
        model: ExplainedModel,
        data: dict[str, Any],
        options: argparse.Namespace,
        settings: dict[str, Setting] | None = None,
    ) -> None:
        self.name, self.model, self.data, self.options, self.settings = name, model, data, options, settings or GRID
        self.results, self.scratch = options.results / name, options.scratch / name
        self.metrics = sorted((m for m in preset("aml") if m.name in NAMES), key=lambda m: NAMES.index(m.name))

    def late(self) -> bool:
        """Whether what is next should wait for another run."""
        return time.monotonic() - self.options.begun > self.options.minutes * 60

    def trained(self, settings: Iterable[str]) -> bool:
        """Whether all of them are."""
        return all((self.results / f"train-{each.replace(' ', '-')}.json").exists() for each in settings)

    def train(self, name: str, setting: Setting) -> None:
        """One setting; every metric's best state stays in the scratch folder."""
        done = self.results / f"train-{name.replace(' ', '-')}.json"
        if done.exists() or self.late():
            return
        begun, spent = time.monotonic(), time.process_time()
        arguments = {
            "num_train_epochs": setting.epochs, "learning_rate": self.options.rate, "use_cpu": True,
            "per_device_train_batch_size": 20, "disable_tqdm": True, "save_strategy": "no",
            "load_best_model_at_end": False,
        }  # fmt: skip
        rows = 40 if self.options.tiny else setting.rows
        train, dev = only_texts(stratified(self.data["train"], rows, 42)), only_texts(self.data["dev"])
        options = RunOptions(arguments=arguments, seed=42)
        args = masking_arguments(options, self.metrics, len(train), self.scratch / "loop")
        args.eval_steps = max(1, len(train) // 20 // setting.evaluations)
        metric = judged_by(self.metrics[0].name)
        settings = {"learning_rate": self.options.rate, "metric": metric}
        settings |= {"weights": setting.weights, "mode": setting.mode}
        masking = new_masking(self.model, None, None, settings, 42)
        keep = KeepBest(masking, self.metrics)
        with weights_fixed(self.model):
            data = {"train_dataset": train, "eval_dataset": dev}
            loop = MaskingTrainer(self.model, args, masking, self.metrics, callbacks=[keep], **data)
            loop.evaluate()
            loop.train()
        kept = {}
        for each in self.metrics:
            worth, state = keep.best[each.name]
            masking.load_state_dict(state, strict=False)
            masking.settings = replace(masking.settings, metric=judged_by(each.name))
            masking.eval().save_pretrained(self.scratch / name.replace(" ", "-") / each.name)
            kept[each.name] = worth if each.card.higher_is_better else -worth
        content = {"setting": name, "as": str(setting), "dev": kept, "history": keep.history}
        content |= {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - spent}
        write_json(done, content)
        print(self.name, "trained", name, {n: round(v, 3) for n, v in kept.items()}, flush=True)

    def chosen(self) -> dict[str, tuple[str, Path]]:
        """For every metric the setting that is best on dev, and where its masking model lies."""
        runs = [json.loads(path.read_text()) for path in sorted(self.results.glob("train-*.json"))]
        runs = [run for run in runs if run["setting"] in self.settings]
        found = {}
        for each in self.metrics:
            sign = 1 if each.card.higher_is_better else -1
            best = max(runs, key=lambda run, name=each.name, sign=sign: sign * run["dev"][name])["setting"]
            found[each.name] = (best, self.scratch / best.replace(" ", "-") / each.name)
        return found

    def judge(self, label: str, explainer: Any, which: list[str] | None = None, **extra: Any) -> None:
        """A method on the test sentences by the metrics; its values an example are kept."""
        done = self.results / f"judged-{label.replace(' ', '-')}.json"
        if done.exists() or self.late():
            return
        rows, values, seconds = list(self.data["test"]), {}, 0.0
        judges = [each for each in self.metrics if which is None or each.name in which]
        plausible = [metric("token_f1", **PRESETS["aml"]["token_f1"])] if "rationale" in rows[0] else []
        with torch.no_grad():
            for start in range(0, len(rows), 20):
                batch = self.model.encode(rows[start : start + 20])
                target = self.model.predict(batch)
                begun = time.process_time()
                scores = explainer.attribute(self.model, batch, target)
                seconds += time.process_time() - begun
                with self.model.remember():
                    for each in judges + plausible:
                        judged = each.judge(self.model, batch, scores, target)[each.name]
                        values.setdefault(each.name, []).extend(judged.tolist())
                if plausible:
                    for name, micro in micro_counts(batch, scores).items():
                        values.setdefault(name, []).extend(micro)
        means = {name: float(np.nanmean(value)) for name, value in values.items()}
        content = {"method": label, "means": means, "seconds_an_example": seconds / len(rows), "values": values}
        write_json(done, content | extra)
        print(self.name, label, {n: round(v, 3) for n, v in means.items()}, f"{seconds / len(rows):.3f} s", flush=True)

    def explained(self) -> None:
        """PAML, by the masking model chosen for each metric."""
        for name, (setting, folder) in self.chosen().items():
            self.judge(f"pAML {name}", AttributiveMasking.from_pretrained(folder), [name], setting=setting)


def micro_counts(batch: Any, scores: torch.Tensor, k: int = 25) -> dict[str, list[float]]:
    """Hits, chosen and marked tokens of each example: what micro F1 is made of."""
    found: dict[str, list[float]] = {"hits": [], "chosen": [], "marked": []}
    for row, content, gold in zip(scores, batch.content, batch.rationale & batch.content, strict=True):
        size = min(k, int(content.sum()))
        top = row.masked_fill(~content, -torch.inf).argsort(descending=True, stable=True)[:size]
        found["hits"].append(float(gold[top].sum()))
        found["chosen"].append(float(size))
        found["marked"].append(float(gold.sum()))
    return found


def sentiment(options: argparse.Namespace) -> Experiment:
    """SST sentences and the fixed fine-tuned MiniLM."""
    spec = f"sst:{options.data / 'sst'}"
    test = stratified(exegete.load_data(spec, "test"), options.test, 42)
    dev = stratified(exegete.load_data(spec, "dev"), options.dev, 42)
    train = without(exegete.load_data(spec, "train"), test, dev)
    test = only_texts(test)
    model = exegete.load(options.models / "minilm-sst2", device="cpu", max_length=64)
    return Experiment("sst", model, {"train": train, "dev": dev, "test": test}, options)


def movies(options: argparse.Namespace, source: Experiment) -> Experiment:
    """Movie reviews with rationales, explained for the sentiment model, by masking models trained on sentences."""
    test = exegete.load_data(f"eraser:{options.data / 'movies'}", "test")
    rows = stratified(test, options.movies, 42)
    model = exegete.load(options.models / "minilm-sst2", device="cpu", max_length=192)
    there = Experiment("movies", model, {"train": rows, "dev": rows, "test": rows}, options)
    there.chosen = source.chosen  # type: ignore[method-assign]
    return there


def inference(options: argparse.Namespace) -> Experiment:
    """SNLI pairs and a MiniLM fine-tuned on a part of the pairs that are here."""
    spec = f"snli:{options.data / 'snli'}"
    pairs, test = exegete.load_data(spec, "dev"), exegete.load_data(spec, "test")
    dev = stratified(pairs, options.dev, 1)
    train = stratified(without(pairs, dev), options.snli, 2)
    folder = options.scratch / "snli" / "model"
    arguments = {"num_train_epochs": 2, "learning_rate": 1.5e-4, "disable_tqdm": True, "use_cpu": True}
    if options.tiny:
        arguments["learning_rate"] = 1e-3
    source = "tiny" if options.tiny else os.environ["EXEGETE_BACKBONE"]
    RECIPES["baseline"]().train(source, train, dev, folder, arguments=arguments, max_length=64)
    model = exegete.load(folder, device="cpu", max_length=64)
    few = {"train": train, "dev": dev, "test": only_texts(stratified(test, 2 * options.test // 5, 4))}
    return Experiment("snli", model, few, options, PAIRS)


def main() -> None:
    """Runs what is not done yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=22.0)
    parser.add_argument("--dev", type=int, default=80)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--movies", type=int, default=24)
    parser.add_argument("--snli", type=int, default=2500)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--tiny", action="store_true", help="A few examples, to see that it runs.")
    options = parser.parse_args()
    options.begun = time.monotonic()
    if options.tiny:
        options.dev, options.test, options.movies, options.snli = 10, 10, 4, 60
    torch.set_num_threads(1)
    options.models, options.data = (
        Path(os.environ.get(f"EXEGETE_{n}", SHARED / n.lower())) for n in ("MODELS", "DATA")
    )
    options.results.mkdir(parents=True, exist_ok=True)
    write_json(
        options.results / "about.json",
        {"versions": versions(), "options": {k: str(v) for k, v in vars(options).items()}},
    )
    run(options)


def run(options: argparse.Namespace) -> None:
    """The stages, the most important ones first."""
    sst = sentiment(options)
    for name, setting in GRID.items():
        sst.train(name, setting)
    if not sst.trained(GRID):
        return
    sst.explained()
    tried(sst, options.dev // 4)
    for spec in OTHERS:
        sst.judge(spec, exegete.explainer(spec))
    half = options.test // 2
    in_parts(sst, REFINING, 0, half)
    in_parts(sst, ("upper",), half, options.test)
    human_agreement(options, sst)
    in_parts(sst, CONTROLS, 0, half // 2)
    if not sst.late():
        other_task(options)
    otherwise(sst)
    in_parts(sst, ("whole",), half, options.test)
    in_parts(sst, CONTROLS, half // 2, options.test)
    for name in list(GRID)[:3]:
        for metric_name in NAMES[:2]:
            made = AttributiveMasking.from_pretrained(sst.scratch / name.replace(" ", "-") / metric_name)
            sst.judge(f"ablation {name} {metric_name}", made, setting=name)
    searched(sst)


def in_parts(there: Experiment, forms: tuple[str, ...], first: int, last: int) -> None:
    """Refined test examples, a few at a time."""
    for start in range(first, last, PART):
        refined(there, forms, start, min(start + PART, last))


def otherwise(sst: Experiment) -> None:
    """Other forms of the terms and other masks, all trained on half of the sentences."""
    for name, setting in OTHERWISE.items():
        sst.train(name, setting)
        if sst.trained([name]):
            made = AttributiveMasking.from_pretrained(sst.scratch / name.replace(" ", "-") / NAMES[0])
            sst.judge(f"otherwise {name}", made)


def searched(sst: Experiment, trials: int = 10) -> None:
    """Weights that a search on dev finds, in the setting that the grid's were tried in."""
    if sst.late():
        return
    arguments = {"learning_rate": sst.options.rate, "use_cpu": True, "num_train_epochs": 3, "disable_tqdm": True}
    search = WeightSearch(trials=trials, epochs=2, train_rows=200, dev_rows=sst.options.dev)
    data, judge = (only_texts(sst.data["train"]), only_texts(sst.data["dev"])), judged_by(NAMES[0])
    weights = search.run(sst.model, *data, sst.scratch / "search", judge, options=RunOptions(arguments=arguments))
    sst.train(SEARCHED, Setting(weights))
    if sst.trained([SEARCHED]):
        for metric_name in NAMES[:2]:
            made = AttributiveMasking.from_pretrained(sst.scratch / SEARCHED / metric_name)
            sst.judge(f"{SEARCHED} {metric_name}", made, weights=str(weights))


def human_agreement(options: argparse.Namespace, sst: Experiment) -> None:
    """Movie reviews by the masking model that is best by A-C on sentences."""
    reviews, best = movies(options, sst), sst.chosen()[NAMES[0]][1]
    reviews.judge("pAML", AttributiveMasking.from_pretrained(best), [NAMES[0]])
    for spec in ("random", "attention_last", "input_x_gradient", "decompx_linear", "alti", OTHERS[6]):
        reviews.judge(spec, exegete.explainer(spec), [NAMES[0]])
    refining = AttributiveMasking.from_pretrained(best).configured(refine_steps=STEPS, **FORMS["upper"])
    reviews.judge("fAML", refining, [NAMES[0]])


def other_task(options: argparse.Namespace) -> None:
    """SNLI, in one pass and refined."""
    snli = inference(options)
    for name, setting in PAIRS.items():
        snli.train(name, setting)
    if not snli.trained(PAIRS):
        return
    snli.explained()
    for spec in (*OTHERS[:4], *OTHERS[5:7]):
        snli.judge(spec, exegete.explainer(spec))
    in_parts(snli, ("upper",), 0, 2 * PART)


if __name__ == "__main__":
    main()
