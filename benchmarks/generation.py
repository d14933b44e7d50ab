"""Explain a long answer: CPU seconds and memory, beside one forward pass, captum, and inseq if it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import captum.attr as captum
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from expound import explainer
from expound.explainers.gradients.paths import sum_scores_forward
from expound.models import Batch
from expound.models.generation.model import GeneratingModel
from timing import measure_seconds, parse_options, read_memory, write_results

PROMPT, ANSWER, SOURCES, VOCABULARY, MASKS = 256, 32, 8, 8000, 64
LONG = 4.0
MATRIX, INSEQ = "input_x_gradient, token × token", "inseq saliency, token × token"
BARS = {
    MATRIX: 38, "input_x_gradient, token × source": 16, "attn_lrp, token × source": 16, "leave one source out": 5,
    f"{MASKS} masks of sources": 20,
}  # fmt: skip
"""The most forward passes that each may take."""


def main() -> None:
    """Measure, print the numbers, and write them as JSON."""
    options = parse_options(__doc__, memory=0)
    if options.memory:
        print(json.dumps(measure_growth(options.memory)))
        return
    times = measure_times()
    growth = {length: measure_median_growth(length) for length in (1024, 2500)}
    ratios = times["forward_passes"]
    held = {f"{name} <= {bar} F": ratios[name] <= bar for name, bar in BARS.items()}
    held |= {"matrix <= 0.5 inseq": ratios[MATRIX] <= 0.5 * ratios[INSEQ]} if INSEQ in ratios else {}
    held |= {"1024 tokens <= 300 MiB": growth[1024]["matrix"] <= 300}
    held |= {"2500 tokens <= 1.5 F + B": growth[2500]["matrix"] <= 1.5 * growth[2500]["one forward and backward"]}
    write_results(times | {f"MiB beyond the model, {length} + {ANSWER} tokens": each for length, each in growth.items()}
         | {"held": held, "load": os.getloadavg()[0]}, options.output)  # fmt: skip


def measure_median_growth(length: int) -> dict[str, float]:
    """Return the median memory growth of three processes, which differ by a tenth."""
    command = [sys.executable, __file__, "--memory", str(length)]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(3)]
    return {name: sorted(run[name] for run in runs)[1] for name in runs[0]}


def make_model_and_prompt(length: int) -> tuple[GeneratingModel, Batch]:
    """Return a Llama of six layers with random weights, and a prompt in sources of equal length with an answer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        max_position_embeddings=4096,
    )  # fmt: skip
    model = GeneratingModel(LlamaForCausalLM(config).eval())
    ids = torch.randint(5, VOCABULARY, (length + ANSWER,))
    source = torch.arange(length) * SOURCES // length
    return model, model.batch(ids[:length], ids[length:], unit_of=source)


def measure_times() -> dict[str, Any]:
    """Return the CPU seconds of each way to explain, and the number of forward passes that take as long."""
    model, batch = make_model_and_prompt(PROMPT)
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
        "leave one source out": lambda: explainer("occlusion?unit=source&perturbation=remove").attribute_each(
            model, batch, tokens
        ),
        f"{MASKS} masks of sources": lambda: explainer(f"context_cite?n_samples={MASKS}").attribute(model, batch),
        "integrated_gradients, 10 points, whole answer": torch.no_grad()(
            lambda: explainer("integrated_gradients?n_steps=10&baselines=zero").attribute(model, batch)
        ),
        **make_captum_calls(model, batch),
        **make_inseq_calls(model, batch),
    }
    cpu_seconds, ratios = dict[str, float](), dict[str, float]()
    for name, run in contestants.items():
        # A forward pass is timed before and after each of them, since the machine's speed varies.
        forward = time_call(contestants["forward"])
        cpu_seconds[name] = time_call(run)
        ratios[name] = round(cpu_seconds[name] / min(forward, time_call(contestants["forward"])), 2)
        print(f"{name}: {ratios[name]} F", file=sys.stderr, flush=True)
    return {"tokens": [PROMPT, ANSWER], "cpu_s": cpu_seconds, "forward_passes": ratios}


def make_captum_calls(model: GeneratingModel, batch: Batch) -> dict[str, Callable[[], Any]]:
    """Return calls of Captum: gradient × activation token by token, and ablation of sources for the whole answer."""
    ids = batch.inputs["input_ids"]

    def score_token(input_ids: Tensor, token: int) -> Tensor:
        logits = model.model(input_ids[:, : PROMPT + token]).logits[:, -1]
        return logits.log_softmax(-1)[:, ids[0, PROMPT + token]]

    def score_answer(input_ids: Tensor) -> Tensor:
        table = model.model(input_ids).logits[:, PROMPT - 1 : -1].log_softmax(-1)
        return table.gather(-1, ids[:, PROMPT:, None].expand(len(input_ids), -1, 1)).sum((1, 2))

    def attribute_tokens() -> None:
        for token in range(ANSWER):
            method = captum.LayerGradientXActivation(
                lambda input_ids, t=token: score_token(input_ids, t), model.embedding
            )
            method.attribute(ids[:, : PROMPT + token])

    assert batch.unit_of is not None
    mask = torch.where(batch.unit_of < 0, SOURCES, batch.unit_of)
    baseline = ids.masked_fill(mask < SOURCES, 0)
    ablation = captum.FeatureAblation(score_answer)
    return {
        "captum gradient × activation, token × token": attribute_tokens,
        "captum ablation of sources, whole answer": torch.no_grad()(
            lambda: ablation.attribute(ids, baseline, feature_mask=mask)
        ),
    }


def make_inseq_calls(model: GeneratingModel, batch: Batch) -> dict[str, Callable[[], Any]]:
    """Return a call of inseq's saliency of every token, if it is installed."""
    try:
        import inseq
    except ImportError:
        return {}
    from expound.data.generated.tokenizer import generated_tokenizer

    words = [f"w{number}" for number in range(VOCABULARY - 100)]
    tokenizer = generated_tokenizer(words)
    inseq_model = inseq.load_model(model.model, "saliency", tokenizer=tokenizer)
    prompt, answer = (" ".join(words[:size]) for size in (PROMPT, PROMPT + ANSWER))
    return {INSEQ: lambda: inseq_model.attribute(prompt, answer, show_progress=False)}


def time_call(run: Callable[[], Any], repeats: int = 3) -> float:
    """Return the least CPU seconds of a few calls; a call that takes `LONG` seconds is made once."""
    first = measure_seconds(run)
    return first if first >= LONG else min(first, measure_seconds(run, repeats))


def measure_growth(length: int) -> dict[str, float]:
    """Return the MiB by which the process's peak memory grows in one forward and backward pass and in the matrix."""
    model, batch = make_model_and_prompt(length)
    tokens = torch.tensor([[[token, token + 1]] for token in range(ANSWER)])
    method = explainer("input_x_gradient")
    with torch.no_grad():
        model.model(torch.tensor([[1, 2, 3]]))
    peaks = [read_memory()]
    for spans in (tokens[:1], tokens):
        method.attribute_each(model, batch, spans)
        peaks.append(read_memory())
    return {"one forward and backward": round(peaks[1] - peaks[0]), "matrix": round(peaks[2] - peaks[0])}


if __name__ == "__main__":
    main()
