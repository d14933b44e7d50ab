# %% [markdown]
# # Citations that hold
#
# Taking every source away tells what an answer rests on, and costs a pass a source. A citation of one pass is cheap and
# may be wrong. `exegete train cite` trains the model until its cheap citation foretells what happens when sources go,
# and then says how sure it is. Here a small Llama learns, in seconds, to say who pays for what.
#
# ## A model that answers

# %%
import random
from pathlib import Path

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

import exegete
from exegete.data import generated_tokenizer
from exegete.recipes import RECIPES

PEOPLE = ["ada", "boris", "clara", "david", "emma", "felix", "greta", "hugo"]
DISHES = ["tea", "soup", "bread", "rice", "fish", "cake", "salad", "milk"]
chance = random.Random(0)


def orders():
    """Four orders, a question about one of them, the right answer, and which order it needs."""
    pairs = list(zip(chance.sample(PEOPLE, 4), chance.sample(DISHES, 4), strict=True))
    asked = chance.randrange(4)
    return {
        "prompt": "{sources}\n\nbill for " + pairs[asked][0],
        "sources": [
            {"name": f"order {number}", "text": f"{who} {dish}."} for number, (who, dish) in enumerate(pairs, 1)
        ],
        "response": f" {pairs[asked][1]}",
        "evidence": [f"order {asked + 1}"],
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
    eos_token_id=None,  # its answers are one word: nothing ends them
)
llama = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(llama.parameters(), lr=3e-3)
asked = torch.arange(15, 31, 4)  # where a name stands whose dish comes next
for _ in range(600):
    notes = [[each["text"] for each in orders()["sources"]] for _ in range(32)]
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
# The loss: its answers, minus λ times the correlation of citations and measured effects on eight random sets of
# sources, plus how far it went from the model it was. λ and the weight of that are 10. On the command line:
#
# ```sh
# exegete train cite --model orders --data jsonl:orders.jsonl --citation decompx_linear --output-dir cited
# ```

# %%
train, dev = (Dataset.from_list([orders() for _ in range(size)]) for size in (320, 200))
quick = {"max_steps": 60, "eval_steps": 60, "learning_rate": 1e-3, "disable_tqdm": True}
result = RECIPES["cite"](citation="decompx_linear").train("orders", train, dev, "cited", arguments=quick)
print({name: round(value, 3) for name, value in result.metrics.items()})

# %% [markdown]
# ## Does the citation hold?
#
# `lds` asks whether the sums of scores foretell the answers under new random sets of sources, of new questions.
# `citation:cited` is what was trained, without the small scores that training rows had no use for.

# %%
rows = [orders() for _ in range(60)]
before, after = (exegete.load(folder, device="cpu", task="generation") for folder in ("orders", "cited"))
for model, method in ((before, "decompx_linear"), (after, "citation:cited")):
    print(exegete.compare(model, rows, [method, "occlusion"], ["lds", "recall_at_k"], unit="source").to_markdown())

# %% [markdown]
# ## What it promises
#
# Prompts that were not trained on say how much an answer really falls. Of a new prompt from the same world a bound is
# then wrong in one case of ten at most. Where nothing can be promised, as of a source that repeats another, nothing is.

# %%
found = exegete.attribute(after, rows[:3], "citation:cited", "sentences")
for item in found:
    (answer,) = item.citations(k=1)
    print(answer.text, "←", answer.sources, "falls at least by", answer.promised or "nothing that can be promised")
print(Path("cited/citation/config.json").read_text())

# %% [markdown]
# `coverage` there is the share of bounds that held, each half of the dev prompts judged by the other. A promise is
# about prompts like these: of another kind of prompts it says nothing.
