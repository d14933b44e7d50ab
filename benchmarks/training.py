"""Measure the cost of a training step relative to plain fine-tuning: real sentences, one thread, CPU seconds.

`guided`: with a loss on an explanation, batches of 32. `regex`: all of its terms on a share of each batch, and each
alone on all of it, batches of 16 sentences of at most 15 words. `ivra`: its criteria, batches of 64 rows of 32 tokens,
and its explanations over a forward pass. `cited`: citations of the demo's language model, batches of 16, `RUNS` epochs,
so that ablations that are kept for as many epochs are made in every fourth step of an example; there the ratio is of
all steps together. `loops`: a guided step of the user's own loop (`ExplanationTerms`) and of an own Trainer class
(`with_objectives`) over a step of the recipes' trainer, batches of 32.

The kinds of step take turns over the same batches, so that other work of the machine slows all of them. For `ivra`,
freed memory stays with the process (glibc): otherwise some passes, also plain ones, have to ask the system for all of
it again, which takes up to a tenth of their time.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import Trainer, TrainingArguments

import expound
from expound.data.generated.retrieval import get_vocabulary
from expound.data.generated.tokenizer import generated_tokenizer
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.models import Batch, ExplainedModel
from expound.models.generation.model import GeneratingModel
from expound.objectives import (
    AblationFidelity,
    ComprehensivenessLoss,
    ConsistencyLoss,
    CrossEntropy,
    KlToOriginal,
    Objective,
    RationaleAlignment,
    StepContext,
    SufficiencyLoss,
)
from expound.recipes import RECIPES
from expound.training import ObjectiveTrainer, Simulatability
from expound.training.loop.training_module import FIRST_STEPS, TrainingModule
from expound_papers.answering_model import make_llama
from timing import DATA, load_minilm, measure_ratios, parse_options, write_results

RUNS = 4
BARS = {"attention_last": 1.15, "attention_rollout": 1.3, "input_x_gradient": 3.0, "alti": None, "decompx_linear": None}
CITED: dict[str, Any] = {"explainer": expound.explainer("decompx_linear"), "unit": "source"}
CITING = {"cite": {}, "cite, kept": {"lifetime": RUNS}, "cite, every 4": {"interval": 4}}
IVRA_BARS = {"rationale_alignment": 1.10, "comprehensiveness": 2.3, "sufficiency": 2.3, "consistency": 1.3}
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of mallopt(3)
REGEX_BAR = 2.5
LOOP_BAR = 1.03
NO_TERMS = dict.fromkeys(("gradient_weight", "adversarial_weight", "guidance_weight"), 0.0)
LINEAR = "decompx_linear"
GUIDANCE = {f"IG of {points}": {"n_steps": points} for points in (1, 2, 4, 8)} | {LINEAR: {"explainer": LINEAR}}
REGEX: dict[str, dict[str, Any]] = {
    f"{name}, share {share}": settings | {"batch_fraction": share}
    for share in (0.25, 0.125)
    for name, settings in GUIDANCE.items()
} | {
    "gradient penalty alone": NO_TERMS | {"gradient_weight": 0.01},
    "virtual adversarial alone": NO_TERMS | {"adversarial_weight": 0.5},
    "guidance alone": NO_TERMS | {"guidance_weight": 0.01} | GUIDANCE[LINEAR],
    "all, IG of 4": GUIDANCE["IG of 4"],
    f"all, {LINEAR}": GUIDANCE[LINEAR],
}


def main() -> None:
    """Measure, print the figures, and write them as JSON."""
    options = parse_options(__doc__, parts=["guided", "regex", "cited", "ivra", "loops"], steps=12)
    parts = {
        "guided": measure_guided,
        "regex": measure_regex,
        "cited": measure_cited,
        "ivra": measure_ivra,
        "loops": measure_loops,
    }
    write_results({part: parts[part](options.steps) for part in options.parts}, options.output)


def measure_guided(steps: int) -> dict[str, dict[str, float | None]]:
    """Measure a step with a loss on an explanation."""
    kinds = {method: [CrossEntropy(), RationaleAlignment(expound.explainer(method))] for method in BARS}
    model = load_minilm()
    results = measure_costs(model, load_sentences(model, 32, steps), {"plain": [CrossEntropy()]} | kinds)
    return {name: cost | {"bar": BARS.get(name)} for name, cost in results.items()}


def measure_regex(steps: int) -> dict[str, dict[str, float]]:
    """Measure a step with the terms of each entry of `REGEX`."""
    kinds = {name: RECIPES["regex"](**{"form": "smart"} | settings).objectives for name, settings in REGEX.items()}
    model = load_minilm()
    results = measure_costs(model, load_sentences(model, 16, steps // 4, words=15), {"plain": [CrossEntropy()]} | kinds)
    return {name: cost | {"bar": REGEX_BAR} for name, cost in results.items()}


def load_sentences(model: ExplainedModel, size: int, steps: int, words: int = 100) -> list[Batch]:
    """Return batches of real sentences of at most this many words: one to warm up, and one per step."""
    rows = expound.load_data(f"sst:{DATA / 'sst'}", "train").filter(lambda row: len(row["text"].split()) <= words)
    return [model.encode(rows.select(range(i * size, (i + 1) * size))) for i in range(steps + 1)]


def measure_ivra(steps: int) -> dict[str, dict[str, Any]]:
    """Measure a step with each criterion, and an explanation from a pass relative to the pass alone."""
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(MMAP_THRESHOLD, 1 << 30) and libc.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)):
        raise SystemExit("the C library cannot be told to keep memory")
    model, results = load_minilm(), dict[str, dict[str, Any]]()
    for length in (32, 128):
        batch, target = load_rows(length, 16), torch.zeros(16, dtype=torch.long)

        def explain(attention: InterpretableAttention, batch: Batch = batch, target: Tensor = target) -> None:
            attention.compute(model, batch, [target], model(batch, capture=attention.capture))

        attentions = {
            normalizer: InterpretableAttention.for_model(model, normalizer=normalizer)
            for normalizer in ("sparsemax", "softmax")
        }
        with torch.no_grad():
            kinds = {name: partial(explain, each) for name, each in attentions.items()}
            ratios = measure_ratios(partial(model, batch), kinds, 2 * steps)
        results[f"explanation of 16 texts of {length} tokens"] = ratios | {"bar": IVRA_BARS["rationale_alignment"]}
    attention = InterpretableAttention.for_model(model, normalizer="softmax")
    criteria: dict[str, Objective] = {
        "comprehensiveness": ComprehensivenessLoss(attention),
        "sufficiency": SufficiencyLoss(attention),
        "consistency": ConsistencyLoss(attention),
        "simulatability": Simulatability(attention).with_student(load_minilm()),
    }
    step_kinds = {"plain": [CrossEntropy()]} | {name: [CrossEntropy(), each] for name, each in criteria.items()}
    costs = measure_costs(model, [load_rows(32, 64)] * (1 + steps // 2), step_kinds)
    return results | {name: cost | {"bar": IVRA_BARS.get(name)} for name, cost in costs.items()}


def load_rows(length: int, count: int) -> Batch:
    """Return rows of this many tokens each, from consecutive sentences."""
    words = " ".join(row["text"] for row in expound.load_data(f"sst:{DATA / 'sst'}", "dev", limit=800)).split()
    rows = [{"text": " ".join(words[i * length : (i + 1) * length]), "label": i % 2} for i in range(count)]
    return load_minilm(length).encode(rows)


def measure_cited(steps: int) -> dict[str, dict[str, float | None]]:
    """Measure a step that trains citations: new ablations in every step, or kept for four epochs, or every 4 steps."""
    model = GeneratingModel(make_llama(tokenizer := generated_tokenizer(get_vocabulary())), tokenizer)
    rows = list(expound.load_data("generated", "train", task="retrieval", limit=16 * (1 + steps // 2)))
    batches = [model.encode(rows[start : start + 16]) for start in range(0, len(rows), 16)]
    kinds = {
        name: [CrossEntropy(), AblationFidelity(**CITED, **settings), KlToOriginal()]
        for name, settings in CITING.items()
    }
    results = measure_costs(model, batches, {"plain": [CrossEntropy()]} | kinds, runs=RUNS)
    return {name: results[name] | {"bar": 3.0 if "every" in name else None} for name in kinds}


def measure_loops(steps: int) -> dict[str, dict[str, float]]:
    """Measure a step in the user's own loop and in the user's own Trainer class, relative to the recipes' trainer."""
    model = load_minilm()
    batches = load_sentences(model, 32, 2 * steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    results = {}
    for name in ("attention_last", "input_x_gradient"):
        seconds: dict[str, list[float]] = {}
        loop_steps = make_loop_steps(model, RationaleAlignment(expound.explainer(name)))
        for batch in batches:
            for kind, run in loop_steps.items():
                begin = time.process_time()
                optimizer.zero_grad()
                run(batch)
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                seconds.setdefault(kind, []).append(time.process_time() - begin)
        for kind, values in seconds.items():
            pairs = zip(values[1:], seconds["recipe"][1:], strict=True)
            ratio = median(one / other for one, other in pairs)
            results[f"{name}, {kind}"] = {"seconds": median(values[1:]), "ratio": ratio, "bar": LOOP_BAR}
    return results


def make_loop_steps(model: ExplainedModel, objective: Objective) -> dict[str, Callable[[Batch], object]]:
    """Return functions that take a batch forward and backward in each kind of loop."""
    arguments = TrainingArguments("unused", use_cpu=True, report_to="none")
    recipe_trainer = ObjectiveTrainer(TrainingModule(model, (CrossEntropy(), objective)), arguments)
    user_trainer = expound.with_objectives(Trainer, [objective])(
        model.model, arguments, processing_class=model.processing_class
    )
    for trainer in (recipe_trainer, user_trainer):
        trainer.current_gradient_accumulation_steps = 1
        # Some steps of a run, the first ones among them, take the gradient of each term by itself: none of these.
        trainer.module.n_steps = 1_000_000
        trainer.module.context = StepContext(number=FIRST_STEPS)
    terms = expound.ExplanationTerms(model, [objective])
    return {
        "recipe": lambda batch: recipe_trainer.training_step(recipe_trainer.model, {"batch": batch}),
        "own loop": lambda batch: terms(make_inputs(batch)).loss.backward(),
        "own Trainer class": lambda batch: user_trainer.training_step(user_trainer.model, make_inputs(batch)),
    }


def make_inputs(batch: Batch) -> dict[str, Any]:
    """Return the inputs that a data loader of the user's would give."""
    return {**batch.inputs, "labels": batch.labels, "rationale_mask": batch.rationale_mask}


def measure_costs(
    model: ExplainedModel, batches: Sequence[Batch], kinds: Mapping[str, Sequence[Objective]], runs: int = 1
) -> dict[str, dict[str, float]]:
    """Return the median CPU seconds of a step of each kind, and the median over batches of its ratio to a `plain` one.

    With several `runs` over the batches, the ratio is that of all steps together. The first batch warms up: its steps
    are not counted.
    """
    modules = {name: TrainingModule(model, objectives).train() for name, objectives in kinds.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for number, batch in enumerate([*batches[:1], *batches[1:] * runs]):
        for name, module in modules.items():
            begin = time.process_time()
            optimizer.zero_grad()
            epoch = (number - 1) // (len(batches) - 1)
            module(batch, StepContext(number=number, epoch=epoch))["loss"].backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seconds[name].append(time.process_time() - begin)
    counted = {name: values[1:] for name, values in seconds.items()}

    def compute_ratio(own: list[float], plain: list[float]) -> float:
        batch_ratio = median(one / other for one, other in zip(own, plain, strict=True))
        return batch_ratio if runs == 1 else sum(own) / sum(plain)

    return {
        name: {"seconds": median(each), "ratio": compute_ratio(each, counted["plain"])}
        for name, each in counted.items()
    }


if __name__ == "__main__":
    main()
