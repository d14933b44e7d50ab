"""What a step costs over plain fine-tuning: real sentences, one thread, CPU seconds.

`guided`: by an explainer, batches of 32. `regex`: all of its terms on a share of each batch, and each alone on all of
it, batches of 16 sentences of at most 15 words. `ivra`: its criteria, batches of 64 rows of 32 tokens, and its
explanations over a forward pass. `cited`: citations of the demo's language model, batches of 16, `RUNS` times each, so
that ablations that are kept for so many epochs are measured in every fourth step of an example; there the ratio is of
all steps together. `loops`: a guided step of the user's own loop (`ExplanationTerms`) and of an own Trainer class
(`with_objectives`) over a step of the recipes' trainer, batches of 32.

The kinds of step take turns over the same batches, so that what else the machine does falls on all of them. For `ivra`
freed memory stays with the process (glibc): else some passes, plain ones among them, have to ask the system for all of
it again, which here takes up to a tenth of their time.
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

import exegete
from exegete.cli.demo.answering_model import make_llama
from exegete.data.generated.retrieval import get_vocabulary
from exegete.data.generated.tokenizer import generated_tokenizer
from exegete.explainers.learned.interpretable_attention import InterpretableAttention
from exegete.models import Batch, ExplainedModel
from exegete.models.generation.model import GeneratingModel
from exegete.objectives import (
    AblationFidelity,
    ComprehensivenessLoss,
    ConsistencyLoss,
    CrossEntropy,
    ExplanationLoss,
    KlToOriginal,
    Objective,
    StepContext,
    SufficiencyLoss,
)
from exegete.recipes import RECIPES
from exegete.training import ObjectiveTrainer
from exegete.training.bilevel.simulatability import Simulatability, SimulatingStudent
from exegete.training.loop.training_module import TrainingModule
from timing import DATA, given, keep, minilm, ratios

RUNS = 4
BARS = {"attention_last": 1.15, "attention_rollout": 1.3, "input_x_gradient": 3.0, "alti": None, "decompx_linear": None}
CITED: dict[str, Any] = {"explainer": exegete.explainer("decompx_linear"), "granularity": "source"}
CITING = {"cite": {}, "cite, kept": {"lifetime": RUNS}, "cite, every 4": {"every": 4}}
IVRA_BARS = {"explanation": 1.10, "comprehensiveness": 2.3, "sufficiency": 2.3, "consistency": 1.3}
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of mallopt(3)
REGEX_BAR = 2.5
LOOP_BAR = 1.03
NOTHING = dict.fromkeys(("gradient_weight", "adversarial_weight", "guidance_weight"), 0.0)
LINEAR = "decompx_linear"
GUIDANCE = {f"IG of {points}": {"points": points} for points in (1, 2, 4, 8)} | {LINEAR: {"teacher": LINEAR}}
REGEX: dict[str, dict[str, Any]] = {
    f"{name}, share {share}": given | {"share": share} for share in (0.25, 0.125) for name, given in GUIDANCE.items()
} | {
    "gradient penalty alone": NOTHING | {"gradient_weight": 0.01},
    "virtual adversarial alone": NOTHING | {"adversarial_weight": 0.5},
    "guidance alone": NOTHING | {"guidance_weight": 0.01} | GUIDANCE[LINEAR],
    "all, IG of 4": GUIDANCE["IG of 4"],
    f"all, {LINEAR}": GUIDANCE[LINEAR],
}


def main() -> None:
    """Runs, prints, and keeps the figures as JSON."""
    options = given(__doc__, parts=["guided", "regex", "cited", "ivra", "loops"], steps=12)
    parts = {"guided": guided, "regex": regex, "cited": cited, "ivra": ivra, "loops": loops}
    keep({part: parts[part](options.steps) for part in options.parts}, options.output)


def guided(steps: int) -> dict[str, dict[str, float | None]]:
    """Of a step with a loss on an explanation."""
    kinds = {g: [CrossEntropy(), ExplanationLoss(exegete.explainer(g))] for g in BARS}
    model = minilm()
    found = costs(model, sentences(model, 32, steps), {"plain": [CrossEntropy()]} | kinds)
    return {name: cost | {"bar": BARS.get(name)} for name, cost in found.items()}


def regex(steps: int) -> dict[str, dict[str, float]]:
    """Of a step with REGEX's terms."""
    kinds = {name: RECIPES["regex"](**{"form": "smart"} | given).objectives for name, given in REGEX.items()}
    model = minilm()
    found = costs(model, sentences(model, 16, steps // 4, words=15), {"plain": [CrossEntropy()]} | kinds)
    return {name: cost | {"bar": REGEX_BAR} for name, cost in found.items()}


def sentences(model: ExplainedModel, size: int, steps: int, words: int = 100) -> list[Batch]:
    """Batches of real sentences of at most this many words, one more than are counted."""
    rows = exegete.load_data(f"sst:{DATA / 'sst'}", "train").filter(lambda row: len(row["text"].split()) <= words)
    return [model.encode(rows.select(range(i * size, (i + 1) * size))) for i in range(steps + 1)]


def ivra(steps: int) -> dict[str, dict[str, Any]]:
    """Of a step with a criterion; and of an explanation made of a pass, over the pass alone."""
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(MMAP_THRESHOLD, 1 << 30) and libc.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)):
        raise SystemExit("the C library cannot be told to keep memory")
    model, found = minilm(), dict[str, dict[str, Any]]()
    for length in (32, 128):
        batch, target = rows_of(length, 16), torch.zeros(16, dtype=torch.long)

        def explained(single: InterpretableAttention, batch: Batch = batch, target: Tensor = target) -> None:
            single.scores_from_outputs(model, batch, model(batch, capture=single.capture), target, keep_graph=False)

        singles = {n: InterpretableAttention.for_model(model, normaliser=n) for n in ("sparsemax", "softmax")}
        with torch.no_grad():
            kinds = {name: partial(explained, each) for name, each in singles.items()}
            own = ratios(partial(model, batch), kinds, 2 * steps)
        found[f"explanation of 16 texts of {length} tokens"] = own | {"bar": IVRA_BARS["explanation"]}
    single = InterpretableAttention.for_model(model, normaliser="softmax")
    criteria: dict[str, Objective] = {
        "comprehensiveness": ComprehensivenessLoss(single),
        "sufficiency": SufficiencyLoss(single),
        "consistency": ConsistencyLoss(single),
        "simulatability": Simulatability(single, student=SimulatingStudent(minilm())),
    }
    steps_of = {"plain": [CrossEntropy()]} | {name: [CrossEntropy(), each] for name, each in criteria.items()}
    spent = costs(model, [rows_of(32, 64)] * (1 + steps // 2), steps_of)
    return found | {name: cost | {"bar": IVRA_BARS.get(name)} for name, cost in spent.items()}


def rows_of(length: int, count: int) -> Batch:
    """Rows of this many tokens each, of consecutive sentences."""
    words = " ".join(row["text"] for row in exegete.load_data(f"sst:{DATA / 'sst'}", "dev", limit=800)).split()
    rows = [{"text": " ".join(words[i * length : (i + 1) * length]), "label": i % 2} for i in range(count)]
    return minilm(length).encode(rows)


def cited(steps: int) -> dict[str, dict[str, float | None]]:
    """Of a step that trains citations, with new ablations and with such as are kept for four epochs."""
    model = GeneratingModel(make_llama(tokenizer := generated_tokenizer(get_vocabulary())), tokenizer)
    rows = list(exegete.load_data("generated", "train", task="retrieval", limit=16 * (1 + steps // 2)))
    batches = [model.encode(rows[start : start + 16]) for start in range(0, len(rows), 16)]
    kinds = {n: [CrossEntropy(), AblationFidelity(**CITED, **more), KlToOriginal()] for n, more in CITING.items()}
    found = costs(model, batches, {"plain": [CrossEntropy()]} | kinds, runs=RUNS)
    return {name: found[name] | {"bar": 3.0 if "every" in name else None} for name in kinds}


def loops(steps: int) -> dict[str, dict[str, float]]:
    """Of a step in the user's own loop and in a Trainer class of the user's, over the recipes' own."""
    model = minilm()
    batches = sentences(model, 32, 2 * steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    found = {}
    for name in ("attention_last", "input_x_gradient"):
        taken: dict[str, list[float]] = {}
        steps_of = loop_steps(model, ExplanationLoss(exegete.explainer(name)))
        for batch in batches:
            for kind, run in steps_of.items():
                begin = time.process_time()
                optimizer.zero_grad()
                run(batch)
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                taken.setdefault(kind, []).append(time.process_time() - begin)
        for kind, values in taken.items():
            pairs = zip(values[1:], taken["recipe"][1:], strict=True)
            ratio = median(one / other for one, other in pairs)
            found[f"{name}, {kind}"] = {"seconds": median(values[1:]), "ratio": ratio, "bar": LOOP_BAR}
    return found


def loop_steps(model: ExplainedModel, objective: Objective) -> dict[str, Callable[[Batch], object]]:
    """Forward and backward of a batch in each kind of loop."""
    arguments = TrainingArguments("unused", use_cpu=True, report_to="none")
    recipe = ObjectiveTrainer(model, arguments, (CrossEntropy(), objective))
    added = exegete.with_objectives(Trainer, [objective])(
        model.model, arguments, processing_class=model.processing_class
    )
    for trainer in (recipe, added):
        trainer.current_gradient_accumulation_steps = 1
        # Eight steps of a run take the gradient of each term by itself: none of so long a run's first ones.
        trainer.state.max_steps = 1_000_000
    terms = exegete.ExplanationTerms(model, [objective])
    return {
        "recipe": lambda batch: recipe.training_step(recipe.model, {"batch": batch}),
        "own loop": lambda batch: terms(plain_inputs(batch)).loss.backward(),
        "own Trainer class": lambda batch: added.training_step(added.model, plain_inputs(batch)),
    }


def plain_inputs(batch: Batch) -> dict[str, Any]:
    """What a data loader of the user's gives."""
    return {**batch.inputs, "labels": batch.labels, "rationale_mask": batch.rationale_mask}


def costs(
    model: ExplainedModel, batches: Sequence[Batch], kinds: Mapping[str, Sequence[Objective]], runs: int = 1
) -> dict[str, dict[str, float]]:
    """Median CPU seconds of a step of each kind, and the median over batches of its ratio to a `plain` one; of several
    `runs` over the batches the ratio of all steps together.

    The first batch warms up: its steps are not counted.
    """
    modules = {name: TrainingModule(model, objectives).train() for name, objectives in kinds.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for number, batch in enumerate([*batches[:1], *batches[1:] * runs]):
        for name, module in modules.items():
            begin = time.process_time()
            optimizer.zero_grad()
            epoch = (number - 1) // (len(batches) - 1)
            terms = module(batch, StepContext(number=number, epoch=epoch))["terms"]
            (terms * terms.new_tensor([objective.weight for objective in kinds[name]])).sum().backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seconds[name].append(time.process_time() - begin)
    kept = {name: values[1:] for name, values in seconds.items()}

    def ratio(own: list[float], plain: list[float]) -> float:
        each = median(one / other for one, other in zip(own, plain, strict=True))
        return each if runs == 1 else sum(own) / sum(plain)

    return {name: {"seconds": median(each), "ratio": ratio(each, kept["plain"])} for name, each in kept.items()}


if __name__ == "__main__":
    main()
