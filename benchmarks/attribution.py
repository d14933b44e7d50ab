"""Every method that Captum has too, against Captum at its best batching: CPU seconds and model evaluations.

One run, one thread, the same sentences of mixed length, the same settings, the same classes given to both. Captum gets
one unpadded, encoded sentence at a time, and for each method the batch size that is fastest on a few of them; ours gets
all texts at once. `calls` are of one sentence of 26 tokens, beside passes of the model alone. Methods that Captum has
not are measured by passes: `rules` by one forward and one backward pass (1.5 of them at most), `ablations` by 64 passes
of ablated inputs one at a time (.6 of them at most).
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

import captum.attr as published
import numpy as np
import torch
from torch import Tensor

import exegete
from exegete.explainers.perturbation.context_cite import ContextCite, default_granularity
from exegete.explainers.units import number_units
from exegete.models import Batch, ExplainedModel
from exegete.models.encoding.encode import make_batches
from exegete.models.layers.architecture import get_layers
from generation import PROMPT, made
from timing import DATA, given, keep, minilm, ratios, seconds

RULES = ("input_x_gradient", "attn_lrp", "cp_lrp", "gim", "generic_attention")
PILOT = 2
LONG = (
    "an honest film about a father who never learned to say what he really meant , played with great restraint , "
    "such a joy"
)
CALLS = dict.fromkeys(("saliency", "input_x_gradient", "decompx_linear"), ("F + B",))
CALLS |= {"attention_rollout": ("F",), "attention_all": ("F",), "occlusion": ("captum", "captum, here")}
"""Methods whose single calls are timed, and what each is measured by."""
ROUNDS = 12


class Direct(torch.nn.Module):
    """Embeddings [m, L, d] of an unpadded sentence straight through the Hugging Face model to the class's logit [m]."""

    def __init__(self, model: ExplainedModel, target: Tensor) -> None:
        super().__init__()
        self.hugging_face, self.target = model.model, int(target)

    def forward(self, embeddings: Tensor) -> Tensor:
        """The logit."""
        return self.hugging_face(inputs_embeds=embeddings).logits[:, self.target]


class Case(NamedTuple):
    """A sentence as Captum gets it: one unpadded example and the class to explain."""

    batch: Batch
    target: Tensor
    embeddings: Tensor
    reference: Tensor
    unit: Tensor
    score: Direct


def main() -> None:
    """Measures, prints, and keeps the numbers as JSON."""
    options = given(__doc__, sentences=40, sig_sentences=4, parts=[])
    warnings.filterwarnings("ignore", module="captum")
    model = minilm()
    texts = sentences(options.sentences)
    cases = [case(model, text) for text in texts]
    with model.evaluation_mode():
        for one in cases[:PILOT]:
            one.score(one.embeddings)
        kinds = (calls, integrated_gradients, coalitions, rules, ablations, sequential)
        parts: dict[str, Callable[..., Any]] = {each.__name__: each for each in kinds}
        found: dict[str, Any] = {"sentences": len(cases), "tokens": [one.batch.length for one in cases]}
        for name in options.parts or parts:
            count = options.sig_sentences if name == "sequential" else len(cases)
            found[name] = parts[name](model, texts[:count], cases[:count])
            print(name, json.dumps(found[name], indent=2), file=sys.stderr, flush=True)
    keep(found, options.output)


def sentences(count: int) -> list[str]:
    """Sentences of mixed length from a real corpus."""
    rows = exegete.load_data(f"sst:{DATA / 'sst'}", "dev")["text"]
    return [rows[number] for number in np.linspace(0, len(rows) - 1, count).astype(int)]


def case(model: ExplainedModel, text: str) -> Case:
    """Everything that is not attribution is done before the clock runs."""
    batch = model.encode([text])
    with torch.no_grad():
        target, embeddings, reference = model.predict(batch), model.embed(batch), model.embed_reference(batch)
    return Case(batch, target, embeddings, reference, number_units(batch, "word"), Direct(model, target))


def calls(model: ExplainedModel, *_: Any) -> dict[str, Any]:
    """One call of `attribute` on one sentence, against passes of the model alone and Captum's feature ablation.

    Everything is timed in turn, over and over; the figures are medians, the ratios those of medians. Captum has a
    process of its own: memory that ours keeps between passes would serve it too (`captum, here`: where it does).
    """
    one = case(model, LONG)
    own: dict[str, Callable[[], Any]] = {
        "forward": torch.no_grad()(lambda: model.model(**one.batch.inputs)),
        "forward + backward": lambda: torch.autograd.grad(
            one.score(embeddings := one.embeddings.detach().requires_grad_()).sum(), embeddings
        ),
        **{name: partial(exegete.attribute, model, LONG, name) for name in CALLS},
    }
    timed: dict[str, Callable[[], float]] = {name: partial(seconds, call, 4) for name, call in own.items()}
    with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (1,)) as apart:
        for size in (8, 16, 32):
            timed[f"captum, here, {size} a pass"] = partial(feature_ablation, size)
            timed[f"captum, {size} a pass"] = lambda size=size: apart.submit(feature_ablation, size).result()
        rounds = [{name: time() for name, time in timed.items()} for _ in range(ROUNDS)]
    medians = {name: float(np.median([each[name] for each in rounds[1:]])) for name in timed}
    floors = {"F": medians["forward"], "F + B": medians["forward + backward"]}
    for floor in ("captum, here", "captum"):
        floors[floor] = min(medians[f"{floor}, {size} a pass"] for size in (8, 16, 32))
    ratios = {name: {floor: medians[name] / floors[floor] for floor in by} for name, by in CALLS.items()}
    return {"tokens": one.batch.length, "cpu_s": medians, "ratios": ratios}


@cache
def long_case() -> tuple[ExplainedModel, Case]:
    """The model and one sentence, once a process."""
    model = minilm()
    return model, case(model, LONG)


def feature_ablation(size: int) -> float:
    """CPU seconds of Captum's feature ablation of one sentence's words."""
    model, one = long_case()
    with model.evaluation_mode():
        return seconds(partial(masking, published.FeatureAblation, model, one, size, apart=True), 4)


def integrated_gradients(model: ExplainedModel, texts: list[str], cases: list[Case]) -> dict[str, Any]:
    """Fixed at 50 points, with the convergence delta on both sides."""

    def theirs(one: Case, size: int | None) -> Tensor:
        found, _ = published.IntegratedGradients(one.score).attribute(
            one.embeddings, one.reference, n_steps=50, internal_batch_size=size, return_convergence_delta=True
        )
        return found

    mine = {"integrated_gradients": ours(model, texts, cases, "integrated_gradients")}
    return versus(model, cases, theirs, (None, 10, 25), mine)


def rules(model: ExplainedModel, texts: list[str], _: Any) -> dict[str, float]:
    """Batched, each over a forward and a backward pass of the same batches."""
    encoded = [model.encode([texts[index] for index in indices]) for indices in make_batches(model, texts)]
    asked = [(batch, model.predict(batch)) for batch in encoded]

    def passes() -> None:
        for batch, target in asked:
            embeddings = model.embed(batch).detach().requires_grad_()
            torch.autograd.grad(model.task.score(model(batch, embeddings).logits, target).sum(), embeddings)

    def explained(name: str) -> None:
        with torch.no_grad():
            for batch, target in asked:
                exegete.explainer(name).attribute(model, batch, target)

    return ratios(passes, {name: partial(explained, name) for name in RULES}, 5)


def ablations(model: ExplainedModel, texts: list[str], _: Any) -> dict[str, Any]:
    """ContextCite's 64 ablations: of words of all sentences, and of eight sources of a prompt with its answer."""
    cite = ContextCite()
    prompted, prompt = made(PROMPT)
    found = {}
    for name, asked, batch in (("words of sentences", model, model.encode(texts)), ("sources", prompted, prompt)):
        unit = number_units(batch, default_granularity(batch))
        present, target = torch.nn.functional.pad(cite.present(unit), (1, 0), value=True), asked.predict(batch)
        keep = present.gather(2, (unit + 1).expand(len(present), -1, -1)) & batch.attended

        def one_at_a_time(asked: ExplainedModel = asked, batch: Batch = batch, keep: Tensor = keep) -> None:
            for row, masks in enumerate(keep.transpose(0, 1)):
                own = batch.inputs["input_ids"][row]
                for mask in masks:
                    asked.model(own[mask][None])

        single = spent(asked, torch.no_grad()(one_at_a_time))
        ours = spent(asked, partial(cite.attribute, asked, batch, target))
        ratio = {key: round(ours[key] / single[key], 3) for key in ("cpu_s", "tokens")}
        found[name] = {"one at a time": single, "context_cite": ours, "ours/one at a time": ratio}
    return found


def coalitions(model: ExplainedModel, texts: list[str], cases: list[Case]) -> dict[str, Any]:
    """LIME and KernelSHAP with 500 samples; Captum masks words, we mask or remove them."""
    found = {}
    for name, kind in (("lime", published.Lime), ("kernel_shap", published.KernelShap)):
        theirs = partial(masking, kind, model, n_samples=500)
        spec = f"{name}?n_samples=500&granularity=word&perturbation="
        mine = {how: ours(model, texts, cases, f"{spec}{how}") for how in ("remove", "mask")}
        found[name] = versus(model, cases, theirs, (16, 50, 125), mine)
    return found


def masking(kind: Any, model: ExplainedModel, one: Case, size: int, *, apart: bool = False, **given: Any) -> Tensor:
    """Captum's scores where words are masked; special tokens stay, with the first word or as a group `apart`."""

    def probability(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return model.model(input_ids=ids).logits.softmax(-1)[:, one.target[0]]

    ids, unit = one.batch.inputs["input_ids"], one.unit
    group = torch.where(unit >= 0, unit, unit.max() + 1 if apart else 0)
    masked = torch.where(unit >= 0, model.mask_id, ids)
    return kind(probability).attribute(ids, masked, feature_mask=group, perturbations_per_eval=size, **given)


def sequential(model: ExplainedModel, texts: list[str], cases: list[Case]) -> dict[str, Any]:
    """A loop over positions with Captum's integrated gradients, 50 points each."""

    def theirs(one: Case, size: int | None) -> Tensor:
        scores = torch.zeros(one.batch.length)
        for position in one.batch.content[0].nonzero().flatten().tolist():
            start = one.embeddings.detach().clone()
            start[0, position] = one.reference[0, position]
            found = published.IntegratedGradients(one.score).attribute(
                one.embeddings, start, n_steps=50, internal_batch_size=size
            )
            scores[position] = found.sum()
        return scores

    spec = "sequential_integrated_gradients?n_steps="
    mine = {f"n_steps={steps}": ours(model, texts, cases, f"{spec}{steps}") for steps in (50, "auto")}
    return versus(model, cases, theirs, (None,), mine)


def ours(model: ExplainedModel, texts: list[str], cases: list[Case], spec: str) -> Callable[[], Any]:
    """A call of exegete over all sentences at once: encoding and packing are inside the clock."""

    def call() -> None:
        for indices in make_batches(model, texts):
            batch = model.encode([texts[index] for index in indices])
            with torch.no_grad():
                target = torch.cat([cases[index].target for index in indices])
                exegete.explainer(spec).explain(model, batch, target)

    return call


def versus(
    model: ExplainedModel, cases: list[Case], theirs: Callable[[Case, Any], Tensor], sizes: tuple[int | None, ...],
    mine: dict[str, Callable[[], Any]],
) -> dict[str, Any]:  # fmt: skip
    """Captum over all cases at the batch size that is best for a few of them, ours, and the ratios."""

    def captum(size: int | None, some: list[Case]) -> dict[str, float]:
        return spent(model, lambda: [theirs(one, size) for one in some])

    size = sizes[0] if len(sizes) == 1 else min(sizes, key=lambda size: captum(size, cases[:PILOT])["cpu_s"])
    whole = captum(size, cases)
    result: dict[str, Any] = {"captum": whole | {"batch": size}}
    for name, call in mine.items():
        cost = spent(model, call)
        result[name] = cost | {"ours/captum": cost["cpu_s"] / whole["cpu_s"]}
    return result


def spent(model: ExplainedModel, call: Callable[[], Any]) -> dict[str, float]:
    """CPU seconds of a call, and the inputs and tokens that go through the encoder."""
    inputs = tokens = 0

    def count(module: Any, given: Any, output: Any) -> None:
        nonlocal inputs, tokens
        hidden = output if isinstance(output, Tensor) else output[0]
        inputs, tokens = inputs + hidden.shape[0], tokens + hidden.shape[0] * hidden.shape[1]

    with get_layers(model.model)[0].register_forward_hook(count):
        taken = seconds(call)
    return {"cpu_s": taken, "evaluations": inputs, "tokens": tokens}


if __name__ == "__main__":
    main()
