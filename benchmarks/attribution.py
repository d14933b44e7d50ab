"""Compare every method that Captum has, too, with Captum at its best batch size: CPU seconds and model evaluations.

One run, one thread, the same sentences of mixed length, the same settings, the same classes given to both. Captum gets
one unpadded, encoded sentence at a time, and for each method the batch size that is fastest on a few of them; expound
gets all texts at once. `calls` are of one sentence of 26 tokens, beside passes of the model alone. Methods that Captum
lacks are compared with passes: `rules` with one forward and one backward pass (at most 1.5 of them), `ablations` with
64 passes of ablated inputs one at a time (at most 0.6 of them).
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import captum.attr as captum
import numpy as np
import torch
from torch import Tensor

import expound
from expound.explainers.perturbation.context_cite import ContextCite, default_unit
from expound.explainers.units import number_units
from expound.models import Batch, ExplainedModel
from expound.models.encoding.encode import make_batches
from expound.models.layers.architecture import get_layers
from generation import PROMPT, make_model_and_prompt
from timing import DATA, load_minilm, measure_ratios, measure_seconds, parse_options, write_results

RULES = ("input_x_gradient", "attn_lrp", "cp_lrp", "gim", "generic_attention")
PILOT = 2
LONG = (
    "an honest film about a father who never learned to say what he really meant , played with great restraint , "
    "such a joy"
)
CALLS = dict.fromkeys(("saliency", "input_x_gradient", "decompx_linear"), ("F + B",))
CALLS |= {"attention_rollout": ("F",), "attention_all": ("F",), "occlusion": ("captum", "captum, here")}
"""Methods whose single calls are timed, and what each is compared with."""
ROUNDS = 12


class ClassLogit(torch.nn.Module):
    """Pass embeddings [m, L, d] of an unpadded sentence through the Hugging Face model, to the class's logit [m]."""

    def __init__(self, model: ExplainedModel, target: Tensor) -> None:
        super().__init__()
        self.hugging_face, self.target = model.model, int(target)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the logit."""
        return self.hugging_face(inputs_embeds=embeddings).logits[:, self.target]


class Case(NamedTuple):
    """A sentence as Captum gets it: one unpadded example and the class to explain."""

    batch: Batch
    target: Tensor
    embeddings: Tensor
    reference: Tensor
    unit: Tensor
    score: ClassLogit


def main() -> None:
    """Measure, print the numbers, and write them as JSON."""
    options = parse_options(__doc__, sentences=40, sig_sentences=4, parts=[])
    warnings.filterwarnings("ignore", module="captum")
    model = load_minilm()
    texts = load_sentences(options.sentences)
    cases = [make_case(model, text) for text in texts]
    with model.evaluation_mode():
        for example in cases[:PILOT]:
            example.score(example.embeddings)
        kinds = (calls, integrated_gradients, coalitions, rules, ablations, sequential)
        parts: dict[str, Callable[..., Any]] = {each.__name__: each for each in kinds}
        results: dict[str, Any] = {"sentences": len(cases), "tokens": [example.batch.length for example in cases]}
        for name in options.parts or parts:
            count = options.sig_sentences if name == "sequential" else len(cases)
            results[name] = parts[name](model, texts[:count], cases[:count])
            print(name, json.dumps(results[name], indent=2), file=sys.stderr, flush=True)
    write_results(results, options.output)


def load_sentences(count: int) -> list[str]:
    """Return sentences of mixed length from a real corpus."""
    rows = expound.load_data(f"sst:{DATA / 'sst'}", "dev")["text"]
    return [rows[number] for number in np.linspace(0, len(rows) - 1, count).astype(int)]


def make_case(model: ExplainedModel, text: str) -> Case:
    """Return a sentence with everything that is computed before attribution, which is not timed."""
    batch = model.encode([text])
    with torch.no_grad():
        target, embeddings, reference = model.predict(batch), model.embed(batch), model.embed_reference(batch)
    return Case(batch, target, embeddings, reference, number_units(batch, "word"), ClassLogit(model, target))


def calls(model: ExplainedModel, *_: Any) -> dict[str, Any]:
    """Time one call of `attribute` on one sentence, against passes of the model alone and Captum's feature ablation.

    All calls take turns in every round; the figures are medians, and the ratios are of medians. Captum runs in a
    process of its own, because it would also use the memory that expound keeps between passes; `captum, here` runs
    in the same process.
    """
    example = make_case(model, LONG)
    our_calls: dict[str, Callable[[], Any]] = {
        "forward": torch.no_grad()(lambda: model.model(**example.batch.inputs)),
        "forward + backward": lambda: torch.autograd.grad(
            example.score(embeddings := example.embeddings.detach().requires_grad_()).sum(), embeddings
        ),
        **{name: partial(expound.attribute, model, LONG, name) for name in CALLS},
    }
    timers: dict[str, Callable[[], float]] = {
        name: partial(measure_seconds, call, 4) for name, call in our_calls.items()
    }
    with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (1,)) as captum_process:
        for size in (8, 16, 32):
            timers[f"captum, here, {size} a pass"] = partial(time_feature_ablation, size)
            timers[f"captum, {size} a pass"] = lambda size=size: captum_process.submit(
                time_feature_ablation, size
            ).result()
        rounds = [{name: timer() for name, timer in timers.items()} for _ in range(ROUNDS)]
    medians = {name: float(np.median([each[name] for each in rounds[1:]])) for name in timers}
    floors = {"F": medians["forward"], "F + B": medians["forward + backward"]}
    for floor in ("captum, here", "captum"):
        floors[floor] = min(medians[f"{floor}, {size} a pass"] for size in (8, 16, 32))
    ratios = {name: {floor: medians[name] / floors[floor] for floor in by} for name, by in CALLS.items()}
    return {"tokens": example.batch.length, "cpu_s": medians, "ratios": ratios}


@cache
def load_long_case() -> tuple[ExplainedModel, Case]:
    """Return the model and one sentence, loaded once per process."""
    model = load_minilm()
    return model, make_case(model, LONG)


def time_feature_ablation(size: int) -> float:
    """Return the CPU seconds of Captum's feature ablation of one sentence's words."""
    model, example = load_long_case()
    with model.evaluation_mode():
        return measure_seconds(
            partial(attribute_masked_words, captum.FeatureAblation, model, example, size, special_tokens_apart=True), 4
        )


def integrated_gradients(model: ExplainedModel, texts: list[str], cases: list[Case]) -> dict[str, Any]:
    """Compare integrated gradients of 50 points, with the convergence delta on both sides."""

    def explain_by_captum(example: Case, size: int | None) -> Tensor:
        scores, _ = captum.IntegratedGradients(example.score).attribute(
            example.embeddings, example.reference, n_steps=50, internal_batch_size=size, return_convergence_delta=True
        )
        return scores

    our_calls = {"integrated_gradients": make_our_call(model, texts, cases, "integrated_gradients")}
    return compare_with_captum(model, cases, explain_by_captum, (None, 10, 25), our_calls)


def rules(model: ExplainedModel, texts: list[str], _: Any) -> dict[str, float]:
    """Return each rule's time on batches, relative to a forward and a backward pass of the same batches."""
    encoded = [model.encode([texts[index] for index in indices]) for indices in make_batches(model, texts)]
    batches = [(batch, model.predict(batch)) for batch in encoded]

    def run_passes() -> None:
        for batch, target in batches:
            embeddings = model.embed(batch).detach().requires_grad_()
            torch.autograd.grad(model.task.score(model(batch, embeddings).logits, target).sum(), embeddings)

    def explain(name: str) -> None:
        with torch.no_grad():
            for batch, target in batches:
                expound.explainer(name).attribute(model, batch, target)

    return measure_ratios(run_passes, {name: partial(explain, name) for name in RULES}, 5)


def ablations(model: ExplainedModel, texts: list[str], _: Any) -> dict[str, Any]:
    """Compare ContextCite's 64 ablations with single passes: all sentences' words, and a prompt's eight sources."""
    cite = ContextCite()
    prompt_model, prompt = make_model_and_prompt(PROMPT)
    results = {}
    for name, explained_model, batch in (
        ("words of sentences", model, model.encode(texts)),
        ("sources", prompt_model, prompt),
    ):
        unit = number_units(batch, default_unit(batch))
        present, target = (
            torch.nn.functional.pad(cite.present(unit), (1, 0), value=True),
            explained_model.predict(batch),
        )
        keep = present.gather(2, (unit + 1).expand(len(present), -1, -1)) & batch.attended

        def run_one_at_a_time(
            explained_model: ExplainedModel = explained_model, batch: Batch = batch, keep: Tensor = keep
        ) -> None:
            for row, masks in enumerate(keep.transpose(0, 1)):
                ids = batch.inputs["input_ids"][row]
                for mask in masks:
                    explained_model.model(ids[mask][None])

        single_cost = measure_call(explained_model, torch.no_grad()(run_one_at_a_time))
        our_cost = measure_call(explained_model, partial(cite.attribute, explained_model, batch, target))
        ratio = {key: round(our_cost[key] / single_cost[key], 3) for key in ("cpu_s", "tokens")}
        results[name] = {"one at a time": single_cost, "context_cite": our_cost, "ours/one at a time": ratio}
    return results


def coalitions(model: ExplainedModel, texts: list[str], cases: list[Case]) -> dict[str, Any]:
    """Compare LIME and KernelSHAP with 500 samples; Captum masks words, expound masks or removes them."""
    results = {}
    for name, kind in (("lime", captum.Lime), ("kernel_shap", captum.KernelShap)):
        explain_by_captum = partial(attribute_masked_words, kind, model, n_samples=500)
        spec = f"{name}?n_samples=500&unit=word&perturbation="
        our_calls = {
            perturbation: make_our_call(model, texts, cases, f"{spec}{perturbation}")
            for perturbation in ("remove", "mask")
        }
        results[name] = compare_with_captum(model, cases, explain_by_captum, (16, 50, 125), our_calls)
    return results


def attribute_masked_words(
    kind: Any, model: ExplainedModel, example: Case, size: int, *, special_tokens_apart: bool = False, **settings: Any
) -> Tensor:
    """Return Captum's scores with words masked; special tokens stay, with the first word or as a group apart."""

    def probability(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return model.model(input_ids=ids).logits.softmax(-1)[:, example.target[0]]

    ids, unit = example.batch.inputs["input_ids"], example.unit
    group = torch.where(unit >= 0, unit, unit.max() + 1 if special_tokens_apart else 0)
    masked = torch.where(unit >= 0, model.mask_id, ids)
    return kind(probability).attribute(ids, masked, feature_mask=group, perturbations_per_eval=size, **settings)


def sequential(model: ExplainedModel, texts: list[str], cases: list[Case]) -> dict[str, Any]:
    """Compare with a loop over positions of Captum's integrated gradients, 50 points each."""

    def explain_by_captum(example: Case, size: int | None) -> Tensor:
        scores = torch.zeros(example.batch.length)
        for position in example.batch.content[0].nonzero().flatten().tolist():
            start = example.embeddings.detach().clone()
            start[0, position] = example.reference[0, position]
            attribution = captum.IntegratedGradients(example.score).attribute(
                example.embeddings, start, n_steps=50, internal_batch_size=size
            )
            scores[position] = attribution.sum()
        return scores

    spec = "sequential_integrated_gradients?n_steps="
    our_calls = {f"n_steps={steps}": make_our_call(model, texts, cases, f"{spec}{steps}") for steps in (50, "auto")}
    return compare_with_captum(model, cases, explain_by_captum, (None,), our_calls)


def make_our_call(model: ExplainedModel, texts: list[str], cases: list[Case], spec: str) -> Callable[[], Any]:
    """Return a call of expound on all sentences at once, with encoding and packing, which are timed, too."""

    def call() -> None:
        for indices in make_batches(model, texts):
            batch = model.encode([texts[index] for index in indices])
            with torch.no_grad():
                target = torch.cat([cases[index].target for index in indices])
                expound.explainer(spec).explain(model, batch, target)

    return call


def compare_with_captum(
    model: ExplainedModel, cases: list[Case], explain_by_captum: Callable[[Case, Any], Tensor],
    sizes: tuple[int | None, ...], our_calls: dict[str, Callable[[], Any]],
) -> dict[str, Any]:  # fmt: skip
    """Measure Captum on all cases at the batch size that is best for a few of them, and our calls relative to it."""

    def measure_captum(size: int | None, chosen: list[Case]) -> dict[str, float]:
        return measure_call(model, lambda: [explain_by_captum(example, size) for example in chosen])

    size = sizes[0] if len(sizes) == 1 else min(sizes, key=lambda size: measure_captum(size, cases[:PILOT])["cpu_s"])
    captum_cost = measure_captum(size, cases)
    result: dict[str, Any] = {"captum": captum_cost | {"batch": size}}
    for name, call in our_calls.items():
        cost = measure_call(model, call)
        result[name] = cost | {"ours/captum": cost["cpu_s"] / captum_cost["cpu_s"]}
    return result


def measure_call(model: ExplainedModel, call: Callable[[], Any]) -> dict[str, float]:
    """Return the CPU seconds of a call, and the inputs and tokens that go through the encoder."""
    inputs = tokens = 0

    def count(module: Any, arguments: Any, output: Any) -> None:
        nonlocal inputs, tokens
        hidden = output if isinstance(output, Tensor) else output[0]
        inputs, tokens = inputs + hidden.shape[0], tokens + hidden.shape[0] * hidden.shape[1]

    with get_layers(model.model)[0].register_forward_hook(count):
        cpu_seconds = measure_seconds(call)
    return {"cpu_s": cpu_seconds, "evaluations": inputs, "tokens": tokens}


if __name__ == "__main__":
    main()
