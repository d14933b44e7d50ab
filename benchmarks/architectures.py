"""Measure what methods of relevance and decomposition cost on several architectures, beside Llama of equal size.

All language models are random, of four layers and 256 numbers per position. The projections that components pass
through have equal sizes in all of them: values and outputs of four heads of 64 numbers, and feed-forwards in which 704
numbers are active at each position. Experts divide these among themselves: two of 352 in Mixtral, two of 240 and a
shared one in DeepSeek V2. Gates, queries and keys, which not all families have, are held.

`METHOD` is a method's CPU seconds over those of a plain forward and backward pass of the same model, and
`METHOD_to_llama` its seconds over Llama's. At most 1.3 times Llama's is the goal: in seconds for methods that follow
components through weights (`decompx`, `alti`), in passes for those that run the model's own code (`decompx_linear`,
`attn_lrp`), since its own code for experts takes longer.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import expound
from expound.models import Batch
from timing import measure_seconds, parse_options, write_results

METHODS = ("decompx_linear", "attn_lrp", "decompx", "alti")
SIZES = {
    **{"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 64},
    **{"num_key_value_heads": 4, "intermediate_size": 704, "max_position_embeddings": 256, "sliding_window": 64},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 352}
LATENT = {
    **{"q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32},
    **{"v_head_dim": 64, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 240, "n_group": 1},
    **{"n_shared_experts": 1, "topk_group": 1, "first_k_dense_replace": 1},
}
GPTJ = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_inner": 704, "n_positions": 256, "rotary_dim": 32}
TYPES: dict[str, dict[str, Any]] = {
    "llama": {}, "olmo2": {}, "gptj": GPTJ, "cohere": {}, "gemma2": {}, "gemma3_text": {}, "qwen3": {}, "granite": {},
    "mixtral": EXPERTS, "deepseek_v2": LATENT,
}  # fmt: skip


def main() -> None:
    """Measure all methods on all models in turn, print the ratios, and write the figures as JSON."""
    options = parse_options(__doc__, types=tuple(TYPES), methods=METHODS, tokens=64, rounds=2)
    cases = {name: make_case(name, options.tokens) for name in options.types}
    seconds: dict[str, dict[str, float]] = {name: {} for name in cases}
    for _ in range(options.rounds):
        for name, (model, batch) in cases.items():
            calls = {"pass": lambda model=model, batch=batch: run_pass(model, batch)}
            for method in options.methods:
                chosen = expound.explainer(method)
                calls[method] = lambda chosen=chosen, model=model, batch=batch: chosen.explain(model, batch)
            for label, call in calls.items():
                if label not in seconds[name]:
                    # The first call checks the model.
                    try:
                        call()
                    except expound.ExpoundError as error:
                        print(f"{name} {label}: {error}", flush=True)
                        continue
                seconds[name][label] = min(seconds[name].get(label, torch.inf), measure_seconds(call, 2))
    results = {}
    for name, own in seconds.items():
        results[name] = {"pass_seconds": own["pass"]}
        for method in options.methods:
            if method in own:
                to_llama = own[method] / seconds["llama"][method]
                results[name] |= {
                    method: round(own[method] / own["pass"], 2),
                    f"{method}_to_llama": round(to_llama, 2),
                }
    write_results(results, options.output)


def make_case(name: str, tokens: int) -> tuple[Any, Batch]:
    """Return a random model, and a prompt with a response of four tokens."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **SIZES | TYPES[name])
    raw = AutoModelForCausalLM.from_config(config).eval()
    if name in ("mixtral", "deepseek_v2"):
        raw.set_experts_implementation("eager")
    model: Any = expound.load(raw, task="generation")
    ids = torch.randint(5, 1000, (tokens,)).tolist()
    return model, model.batch(ids[:-4], ids[-4:])


def run_pass(model: Any, batch: Batch) -> None:
    """Run a plain forward and backward pass, down to the embeddings."""
    with torch.enable_grad():
        embeddings = model.embed(batch).detach().requires_grad_()
        torch.autograd.grad(model(batch, embeddings).logits.sum(), embeddings)


if __name__ == "__main__":
    main()
