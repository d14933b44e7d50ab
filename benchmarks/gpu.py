"""Measure seconds and memory on a GPU: methods, `compare`, and steps of recipes, beside Captum and plain passes.

Random weights in bfloat16, of BERT-base's shape (texts in batches) and of Llama-7B's (one text). The figures
name the card. `--device cpu --shapes tiny` tries the program without one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import captum.attr as captum
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, LlamaConfig, PretrainedConfig

import expound
from expound.data.provenance import get_versions
from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS
from expound.metrics import measure_cost
from expound.models import Batch, ExplainedModel
from expound.recipes import RECIPES
from timing import parse_options, write_results

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SHAPES: dict[str, tuple[PretrainedConfig, int, int]] = {
    "tiny": (BertConfig(**TINY), 2, 16),
    "BERT-base": (BertConfig(), 32, 128),
    "Llama-7B": (LlamaConfig(num_labels=2, pad_token_id=0), 1, 256),
}
"""Configuration, rows, and tokens per row."""


def main() -> None:
    """Measure, print the numbers, and write them as JSON."""
    options = parse_options(__doc__, device="cuda", shapes=["BERT-base", "Llama-7B"], texts=64, steps=10)
    cuda = options.device.startswith("cuda")
    results: dict[str, Any] = {"card": torch.cuda.get_device_name() if cuda else "none", "versions": get_versions()}
    for shape in options.shapes:
        results[shape] = measure_methods(*SHAPES[shape], options.device)
    results["compare"] = measure_compare(options.device, options.texts)
    results["steps"] = measure_steps(options.steps, use_cpu=not cuda)
    write_results(results, options.output)


def measure_methods(config: PretrainedConfig, rows: int, tokens: int, device: str) -> dict[str, Any]:
    """Measure every method and Captum's gradients, each after one call that is not counted."""
    with torch.device(device):
        network = AutoModelForSequenceClassification.from_config(config, dtype=torch.bfloat16).eval()
    model = ExplainedModel(network)
    batch = Batch.from_ids(torch.randint(1000, 30000, (rows, tokens), device=device))
    target, embeddings = torch.ones(rows, dtype=torch.long, device=device), model.embed(batch).detach()
    captum_method = captum.InputXGradient(lambda x: network(inputs_embeds=x).logits)
    calls: dict[str, Callable[[], Any]] = {
        "forward": torch.no_grad()(partial(network, **batch.inputs)),
        "captum, input_x_gradient": lambda: captum_method.attribute(embeddings.requires_grad_(), target=target),
    }
    calls |= {
        name: partial(expound.explainer(name).attribute, model, batch, target)
        for name, kind in EXPLAINERS.items()
        if not kind.card.learned and kind.card.family != "prompted"
    }
    return {name: measure_call(call, device) for name, call in calls.items()}


def measure_call(call: Callable[[], Any], device: str) -> dict[str, float] | str:
    """Return the seconds of a call and its MiB beyond those held before; or the error, such as too little memory."""
    try:
        call()
        with measure_cost(device) as cost:
            call()
    except (ExpoundError, torch.OutOfMemoryError) as error:
        return str(error).split("\n")[0]
    return {"seconds": cost.seconds, "mib": cost.peak_memory}


def measure_compare(device: str, texts: int) -> dict[str, float] | str:
    """Measure `compare` with its default methods and metrics, on generated reviews and a briefly trained model."""
    train, dev = (expound.load_data("generated?size=400", split) for split in ("train", "dev"))
    with tempfile.TemporaryDirectory() as folder:
        result = RECIPES["baseline"]().train(
            "small", train, dev, folder, arguments={"max_steps": 20, "disable_tqdm": True}
        )
        model = result.model.to(device)
        rows = expound.load_data("generated?size=400", "test", limit=texts)
        return measure_call(lambda: expound.compare(model, rows, show_progress=False), device)


def measure_steps(steps: int, *, use_cpu: bool) -> dict[str, float]:
    """Return the seconds of a step of each recipe in bfloat16; `aml` trains masks for the trained baseline.

    They are the difference between a run and one of twice as many steps, divided by the number of steps.
    """
    train, dev = (expound.load_data("generated?size=400", split) for split in ("train", "dev"))
    no_evaluation: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    results = {}
    with tempfile.TemporaryDirectory() as folder:

        def run_recipe(name: str, count: int) -> float:
            arguments: dict[str, Any] = {"max_steps": count, "disable_tqdm": True, "use_cpu": use_cpu}
            start = f"{folder}/baseline" if name == "aml" else "small"
            arguments |= {} if name == "aml" else no_evaluation | {"bf16": True}
            with measure_cost() as cost:
                RECIPES[name]().train(start, train, dev, f"{folder}/{name}", overwrite=True, arguments=arguments)
            return cost.seconds

        for name in ("baseline", "er_joint", "er_constrained", "regex", "ivra", "smat", "aml"):
            run_recipe(name, 1)
            results[name] = (run_recipe(name, 2 * steps) - run_recipe(name, steps)) / steps
    return results


if __name__ == "__main__":
    main()
