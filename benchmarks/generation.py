"""Explaining a long answer: CPU seconds and memory beside one forward pass, captum, and inseq where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import captum.attr as published
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from exegete import explainer
from exegete.explainers.gradients.forward_sums import sum_scores_forward
from exegete.models import Batch
from exegete.models.generation.model import GeneratingModel
from timing import given, keep, memory, seconds

PROMPT, ANSWER, SOURCES, VOCABULARY, MASKS = 256, 32, 8, 8000, 64
LONG = 4.0
MATRIX, INSEQ = "input_x_gradient, token × token", "inseq saliency, token × token"
BARS = {
    MATRIX: 38, "input_x_gradient, token × source": 16, "attn_lrp, token × source": 16, "leave one source out": 5,
    f"{MASKS} masks of sources": 20,
}  # fmt: skip
"""Forward passes at most."""


def main() -> None:
    """Measures, prints, and keeps the numbers as JSON."""
    options = given(__doc__, memory=0)
    if options.memory:
        print(json.dumps(growth(options.memory)))
        return
    found = times()
    grown = {length: middle_of_three(length) for length in (1024, 2500)}
    ratios = found["forward_passes"]
    held = {f"{name} <= {bar} F": ratios[name] <= bar for name, bar in BARS.items()}
    held |= {"matrix <= 0.5 inseq": ratios[MATRIX] <= 0.5 * ratios[INSEQ]} if INSEQ in ratios else {}
    held |= {"1024 tokens <= 300 MiB": grown[1024]["matrix"] <= 300}
    held |= {"2500 tokens <= 1.5 F + B": grown[2500]["matrix"] <= 1.5 * grown[2500]["one forward and backward"]}
    keep(found | {f"MiB beyond the model, {length} + {ANSWER} tokens": each for length, each in grown.items()}
         | {"held": held, "load": os.getloadavg()[0]}, options.output)  # fmt: skip


def middle_of_three(length: int) -> dict[str, float]:
    """The median of what three processes needed, which differs by a tenth."""
    command = [sys.executable, __file__, "--memory", str(length)]
    each = [json.loads(subprocess.check_output(command)) for _ in range(3)]
    return {name: sorted(one[name] for one in each)[1] for name in each[0]}


def made(length: int) -> tuple[GeneratingModel, Batch]:
    """A Llama of six layers with random weights, and a prompt in sources of equal length with an answer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        max_position_embeddings=4096,
    )  # fmt: skip
    model = GeneratingModel(LlamaForCausalLM(config).eval())
    ids = torch.randint(5, VOCABULARY, (length + ANSWER,))
    source = torch.arange(length) * SOURCES // length
    return model, model.batch(ids[:length], ids[length:], unit_of=source)


def times() -> dict[str, Any]:
    """CPU seconds of each way, and how many forward passes they are."""
    model, batch = made(PROMPT)
    ids = batch.inputs["input_ids"]
    tokens = torch.tensor([[[token, token + 1]] for token in range(ANSWER)])
    parts = (batch.unit_of == torch.arange(SOURCES)[:, None])[:, None]
    contestants: dict[str, Callable[[], Any]] = {
        "forward": torch.no_grad()(lambda: model.model(ids)),
        MATRIX: lambda: explainer("input_x_gradient").attribute_each(model, batch, tokens),
        "input_x_gradient, token × source": lambda: sum_scores_forward(
            explainer("input_x_gradient"), model, batch, list(tokens), parts
        ),
        "attn_lrp, token × source": lambda: sum_scores_forward(
            explainer("attn_lrp"), model, batch, list(tokens), parts
        ),
        "leave one source out": lambda: explainer("occlusion?granularity=source&perturbation=remove").attribute_each(
            model, batch, tokens
        ),
        f"{MASKS} masks of sources": lambda: explainer(f"context_cite?n_samples={MASKS}").attribute(model, batch),
        "integrated_gradients, 10 points, whole answer": torch.no_grad()(
            lambda: explainer("integrated_gradients?n_steps=10&baselines=zero").attribute(model, batch)
        ),
        **of_captum(model, batch),
        **of_inseq(model, batch),
    }
    taken, ratios = dict[str, float](), dict[str, float]()
    for name, run in contestants.items():
        forward, taken[name] = timed(contestants["forward"]), timed(run)  # beside each, as the machine is now
        ratios[name] = round(taken[name] / min(forward, timed(contestants["forward"])), 2)
        print(f"{name}: {ratios[name]} F", file=sys.stderr, flush=True)
    return {"tokens": [PROMPT, ANSWER], "cpu_s": taken, "forward_passes": ratios}


def of_captum(model: GeneratingModel, batch: Batch) -> dict[str, Callable[[], Any]]:
    """Captum's layer gradient × activation token by token, and its ablation of sources for the whole answer."""
    ids = batch.inputs["input_ids"]

    def log_prob(given: Tensor, token: int) -> Tensor:
        logits = model.model(given[:, : PROMPT + token]).logits[:, -1]
        return logits.log_softmax(-1)[:, ids[0, PROMPT + token]]

    def answer(given: Tensor) -> Tensor:
        table = model.model(given).logits[:, PROMPT - 1 : -1].log_softmax(-1)
        return table.gather(-1, ids[:, PROMPT:, None].expand(len(given), -1, 1)).sum((1, 2))

    def gradients() -> None:
        for token in range(ANSWER):
            method = published.LayerGradientXActivation(lambda given, t=token: log_prob(given, t), model.embedding)
            method.attribute(ids[:, : PROMPT + token])

    assert batch.unit_of is not None
    mask = torch.where(batch.unit_of < 0, SOURCES, batch.unit_of)
    baseline = ids.masked_fill(mask < SOURCES, 0)
    ablation = published.FeatureAblation(answer)
    return {
        "captum gradient × activation, token × token": gradients,
        "captum ablation of sources, whole answer": torch.no_grad()(
            lambda: ablation.attribute(ids, baseline, feature_mask=mask)
        ),
    }


def of_inseq(model: GeneratingModel, batch: Batch) -> dict[str, Callable[[], Any]]:
    """Inseq's saliency of every token, where it is installed."""
    try:
        import inseq
    except ImportError:
        return {}
    from exegete.data.generated.tokenizer import generated_tokenizer

    words = [f"w{number}" for number in range(VOCABULARY - 100)]
    tokenizer = generated_tokenizer(words)
    known = inseq.load_model(model.model, "saliency", tokenizer=tokenizer)
    prompt, answer = (" ".join(words[:size]) for size in (PROMPT, PROMPT + ANSWER))
    return {INSEQ: lambda: known.attribute(prompt, answer, show_progress=False)}


def timed(run: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest CPU seconds of a few calls; a call of seconds is made once."""
    first = seconds(run)
    return first if first >= LONG else min(first, seconds(run, repeats))


def growth(length: int) -> dict[str, float]:
    """MiB that the process's high-water mark rises by: one forward and backward pass, then the whole matrix."""
    model, batch = made(length)
    tokens = torch.tensor([[[token, token + 1]] for token in range(ANSWER)])
    method = explainer("input_x_gradient")
    with torch.no_grad():
        model.model(torch.tensor([[1, 2, 3]]))
    peaks = [memory()]
    for asked in (tokens[:1], tokens):
        method.attribute_each(model, batch, asked)
        peaks.append(memory())
    return {"one forward and backward": round(peaks[1] - peaks[0]), "matrix": round(peaks[2] - peaks[0])}


if __name__ == "__main__":
    main()
