"""Long prompts: memory of removal by the number of units, time and memory of methods of one pass, and tree search.

Each measurement is a process of its own, since memory that a process has freed would be used again unseen. The model is
a Llama with random weights; times are multiples of one forward pass, by processor time.

`--simulate` plants additive effects of .5 to 1.5, and noise of .01, in paragraphs of five sentences, and says how often
the search finds those with the largest effects by an eighth of the removals.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from scipy.stats import binomtest
from transformers import LlamaConfig, LlamaForCausalLM

import expound
from expound.explainers.perturbation.tree_search import search_tree
from expound.metrics import measure_cost
from expound.models.generation.model import GeneratingModel
from timing import parse_options, write_results

RESPONSE, VOCABULARY = 8, 2000
REMOVAL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 64}
ONE_PASS = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 512}


def number_units(batch: Any, count: int) -> Any:
    """Return the batch with its content cut into `count` units of adjacent tokens of about the same number."""
    units, inside = torch.full_like(batch.word_of, -1), batch.content[0]
    total = int(inside.sum())
    units[0, inside] = torch.arange(total) * count // total
    return replace(batch, unit_of=units)


def measure(method: str, tokens: int, units: int) -> dict[str, Any]:
    """Return the time of a method, in forward passes, and its memory above the model's."""
    torch.manual_seed(0)
    sizes = REMOVAL if method == "occlusion" else ONE_PASS
    head = {"num_key_value_heads": 1, "head_dim": sizes["hidden_size"] // sizes["num_attention_heads"]}
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=tokens + RESPONSE, **sizes, **head)
    model = GeneratingModel(LlamaForCausalLM(config).eval(), None)
    ids = torch.randint(5, VOCABULARY, (tokens,)).tolist()
    params: dict[str, Any] = {"perturbation": "remove", "unit": "source"} if method == "occlusion" else {}
    explainer = expound.explainer(method, **params)
    batch = number_units(model.batch([ids[:-RESPONSE]], [ids[-RESPONSE:]]), units)
    with torch.no_grad(), model.evaluation_mode():
        # The model's assumptions are tested once, here on a short text.
        explainer.attribute(model, number_units(model.batch([ids[:40]], [ids[40:48]]), 8))
        start = time.process_time()
        model(batch)
        forward = time.process_time() - start
        with measure_cost(model.device) as cost:
            start = time.process_time()
            explainer.attribute(model, batch)
            seconds = time.process_time() - start
    found = {"method": method, "tokens": tokens, "units": units, "passes": seconds / forward}
    return found | {"mib": cost.peak_memory, "cpu_seconds": seconds}


def simulate_search(units: int, planted: int, *, is_adjacent: bool, draws: int = 200) -> dict[str, Any]:
    """Return how often the best unit, and all planted ones, are found; `is_adjacent`: they are in one paragraph."""
    draw, parents, budget = torch.Generator().manual_seed(1), [unit // 5 for unit in range(units)], (units + 1) // 8 - 1
    best, every = 0, 0
    for _ in range(draws):
        effects = 0.01 * torch.randn(1, units, generator=draw, dtype=torch.float64)
        places = torch.randperm(units, generator=draw)[:planted]
        if is_adjacent:
            places = 5 * int(torch.randint(units // 5, (1,), generator=draw)) + torch.arange(planted)
        effects[0, places] += torch.rand(planted, generator=draw, dtype=torch.float64) + 0.5

        def remove(groups: Sequence[range], effects: torch.Tensor = effects) -> torch.Tensor:
            return torch.stack([effects[:, group.start : group.stop].sum(1) for group in groups], 1)

        found = search_tree(remove, parents, budget)[0]
        best += int(found.argmax()) == int(effects[0].argmax())
        every += set(found.topk(planted).indices.tolist()) == set(places.tolist())
    shares: dict[str, Any] = {"units": units, "removals": budget, "planted": planted, "adjacent": is_adjacent}
    for name, hits in (("best", best), ("all", every)):
        low, high = binomtest(hits, draws).proportion_ci()
        shares[name] = {"share": hits / draws, "low": low, "high": high}
    return shares


def main() -> None:
    """Measure each method at each size in a new process."""
    options = parse_options(
        __doc__,
        tokens=8000,
        units=[100, 400, 1600],
        methods=["decompx_linear", "attn_lrp", "flash_trace"],
        one="",
        simulate=False,
    )
    if options.simulate:
        found = []
        for units in (70, 140, 280, 560):
            for planted, is_adjacent in ((1, False), (3, False), (5, False), (5, True)):
                found.append(simulate_search(units, planted, is_adjacent=is_adjacent))
        write_results({"simulated": found}, options.output)
        return
    if options.one:
        print(json.dumps(measure(options.one, options.tokens, options.units[0])))
        return
    results = []
    for method, units in [
        *(("occlusion", count) for count in options.units),
        *((name, 100) for name in options.methods),
    ]:
        command = [sys.executable, __file__, "--one", method, "--tokens", str(options.tokens), "--units", str(units)]
        results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        print(results[-1], flush=True)
    write_results({"measured": results, "load": os.getloadavg()[0]}, options.output)


if __name__ == "__main__":
    main()
