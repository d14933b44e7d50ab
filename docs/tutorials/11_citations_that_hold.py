# %% [markdown]
# # Citations that hold
#
# Removing each source in turn shows which sources an answer depends on, but needs one pass per source. A citation from
# a single pass is cheap, but may be wrong. `expound train cite` trains the model so that its cheap citation predicts
# what happens when sources are removed, and then calibrates how certain this prediction is. In this tutorial a small
# Llama learns in seconds to say who pays for what.
#
# ## Train a small model

# %%
import random
from pathlib import Path

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

import expound
from expound.data import generated_tokenizer

PEOPLE = ["ada", "boris", "clara", "david", "emma", "felix", "greta", "hugo"]
DISHES = ["tea", "soup", "bread", "rice", "fish", "cake", "salad", "milk"]
chance = random.Random(0)


def make_example():
    """Return four orders, a question about one of them, the correct answer, and the order that it needs."""
    pairs = list(zip(chance.sample(PEOPLE, 4), chance.sample(DISHES, 4), strict=True))
    needed = chance.randrange(4)
    return {
        "prompt": "{sources}\n\nbill for " + pairs[needed][0],
        "sources": [
            {"name": f"order {number}", "text": f"{who} {dish}."} for number, (who, dish) in enumerate(pairs, 1)
        ],
        "response": f" {pairs[needed][1]}",
        "evidence": [f"order {needed + 1}"],
    }


# %%
torch.manual_seed(0)
tokenizer = generated_tokenizer([*PEOPLE, *DISHES, "bill", "for"])
config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    eos_token_id=None,  # answers are one word and have no end token
)
llama = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(llama.parameters(), lr=3e-3)
# positions of the names in the questions; the model predicts the dish at the next position
asked = torch.arange(15, 31, 4)
for _ in range(600):
    notes = [[source["text"] for source in make_example()["sources"]] for _ in range(32)]
    bills = ["".join(f" bill for {note.rstrip('.')}" for note in chance.sample(each, k=4)) for each in notes]
    texts = [" ".join(each) + bill for each, bill in zip(notes, bills, strict=True)]
    ids = torch.tensor(tokenizer(texts)["input_ids"])
    logits = llama(ids).logits[:, asked]
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, asked + 1].flatten()).backward()
    optimizer.step()
llama.eval().save_pretrained("orders")
tokenizer.save_pretrained("orders")

# %% [markdown]
# ## Train its citations
#
# The loss has three terms: the cross-entropy of the answers; minus λ times the correlation between citation scores and
# the measured effects of eight random sets of sources; and a KL divergence that keeps the model close to the original.
# λ and the weight of the KL divergence are 10. On the command line:
#
# ```sh
# expound train cite --model orders --data jsonl:orders.jsonl --explainer decompx_linear --output-dir cited
# ```

# %%
train, dev = (Dataset.from_list([make_example() for _ in range(size)]) for size in (320, 200))
quick = {"max_steps": 60, "eval_steps": 60, "learning_rate": 1e-3, "disable_tqdm": True}
recipe = expound.recipe("cite", explainer="decompx_linear")
result = recipe.train("orders", train, dev, "cited", arguments=quick)
print({name: round(value, 3) for name, value in result.metrics.items()})

# %% [markdown]
# ## Does the citation predict removal?
#
# On new questions and new random sets of sources, `lds` measures whether the sum of the scores predicts the probability
# of the answer. `citation:cited` is the trained citation; it drops scores below a threshold that was chosen on training
# examples.

# %%
examples = [make_example() for _ in range(60)]
before, after = (expound.load(folder, device="cpu", task="generation") for folder in ("orders", "cited"))
for model, method in ((before, "decompx_linear"), (after, "citation:cited")):
    comparison = expound.compare(model, examples, [method, "occlusion"], ["lds", "recall_at_k"], unit="source")
    print(comparison.to_markdown())

# %% [markdown]
# ## Lower bounds
#
# On prompts that were not used in training, expound measures how much less likely the answer really becomes without a
# source. From this it computes lower bounds for new prompts of the same distribution; a bound is wrong in at most one
# of ten cases. A source has no bound if none above zero can be guaranteed, for example if it repeats another source.

# %%
for explanation in expound.attribute(after, examples[:3], "citation:cited", "sentences"):
    (answer,) = explanation.citations(k=1)
    print(answer.text, "←", answer.sources, "lower bounds:", dict(answer.lower_bounds) or "none")
print(Path("cited/citation/config.json").read_text())

# %% [markdown]
# `coverage` in this file is the share of bounds that held when one half of the dev prompts was calibrated on the other.
# The bounds are valid for prompts like these, not for prompts of another kind.
