"""Seconds and memory on a GPU: of every method, of compare, and of each recipe's step, beside Captum and plain passes.

Random weights in bfloat16, of BERT-base's shape (texts in batches) and of Llama-7B's (one text). The card is named in
the figures. `--device cpu --shapes tiny` tries the program without one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import captum.attr as published
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, LlamaConfig, PretrainedConfig

import exegete
from exegete.data.provenance import get_versions
from exegete.errors import ExegeteError
from exegete.explainers import EXPLAINERS
from exegete.metrics import measure_cost
from exegete.models import Batch, ExplainedModel
from exegete.recipes import RECIPES
from timing import given, keep

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SHAPES: dict[str, tuple[PretrainedConfig, int, int]] = {
    "tiny": (BertConfig(**TINY), 2, 16),
    "BERT-base": (BertConfig(), 32, 128),
    "Llama-7B": (LlamaConfig(num_labels=2, pad_token_id=0), 1, 256),
}
"""Configuration, rows, and tokens a row."""


def main() -> None:
    """Measures, prints, and keeps the numbers as JSON."""
    options = given(__doc__, device="cuda", shapes=["BERT-base", "Llama-7B"], texts=64, steps=10)
    cuda = options.device.startswith("cuda")
    found: dict[str, Any] = {"card": torch.cuda.get_device_name() if cuda else "none", "versions": get_versions()}
    for shape in options.shapes:
        found[shape] = explained(*SHAPES[shape], options.device)
    found["compare"] = compared(options.device, options.texts)
    found["steps"] = trained(options.steps, use_cpu=not cuda)
    keep(found, options.output)


def explained(config: PretrainedConfig, rows: int, tokens: int, device: str) -> dict[str, Any]:
    """Of every method and of Captum's gradients, each after one call that is not counted."""
    with torch.device(device):
        network = AutoModelForSequenceClassification.from_config(config, dtype=torch.bfloat16).eval()
    model = ExplainedModel(network)
    batch = Batch.from_ids(torch.randint(1000, 30000, (rows, tokens), device=device))
    target, embeddings = torch.ones(rows, dtype=torch.long, device=device), model.embed(batch).detach()
    captum = published.InputXGradient(lambda x: network(inputs_embeds=x).logits)
    calls: dict[str, Callable[[], Any]] = {
        "forward": torch.no_grad()(partial(network, **batch.inputs)),
        "captum, input_x_gradient": lambda: captum.attribute(embeddings.requires_grad_(), target=target),
    }
    calls |= {
        name: partial(exegete.explainer(name).attribute, model, batch, target)
        for name, kind in EXPLAINERS.items()
        if not kind.card.learned and kind.card.family != "prompted"
    }
    return {name: spent(call, device) for name, call in calls.items()}


def spent(call: Callable[[], Any], device: str) -> dict[str, float] | str:
    """Seconds and MiB beyond what was held; or why a method refuses, memory included."""
    try:
        call()
        with measure_cost(device) as cost:
            call()
    except (ExegeteError, torch.OutOfMemoryError) as error:
        return str(error).split("\n")[0]
    return {"seconds": cost.seconds, "mib": cost.peak_memory}


def compared(device: str, texts: int) -> dict[str, float] | str:
    """Of `compare` with its usual methods and metrics on made reviews, by a model that learned a little of them."""
    train, dev = (exegete.load_data("generated?size=400", split) for split in ("train", "dev"))
    with tempfile.TemporaryDirectory() as folder:
        made = RECIPES["baseline"]().train(
            "small", train, dev, folder, arguments={"max_steps": 20, "disable_tqdm": True}
        )
        model = made.model.to(device)
        rows = exegete.load_data("generated?size=400", "test", limit=texts)
        return spent(lambda: exegete.compare(model, rows, show_progress=False), device)


def trained(steps: int, *, use_cpu: bool) -> dict[str, float]:
    """Seconds of a step of each recipe in bfloat16: what twice as many take more; masks are of a trained model."""
    train, dev = (exegete.load_data("generated?size=400", split) for split in ("train", "dev"))
    unjudged: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    found = {}
    with tempfile.TemporaryDirectory() as folder:

        def run(name: str, count: int) -> float:
            arguments: dict[str, Any] = {"max_steps": count, "disable_tqdm": True, "use_cpu": use_cpu}
            start = f"{folder}/baseline" if name == "aml" else "small"
            arguments |= {} if name == "aml" else unjudged | {"bf16": True}
            with measure_cost() as cost:
                RECIPES[name]().train(start, train, dev, f"{folder}/{name}", overwrite=True, arguments=arguments)
            return cost.seconds

        for name in ("baseline", "er_joint", "er_constrained", "regex", "ivra", "smat", "aml"):
            run(name, 1)
            found[name] = (run(name, 2 * steps) - run(name, steps)) / steps
    return found


if __name__ == "__main__":
    main()
