# %% [markdown]
# # Explain a chat's sources
#
# Which source does an answer come from? A small Llama learns here, in seconds, to read orders and to say who pays for
# what. Then its answers are traced back to the orders. With a model of your own, skip the first part: `exegete.load`
# takes its folder or hub name, and `messages` in place of `prompt`.
#
# ## A model that answers

# %%
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import exegete
from exegete.data import generated_tokenizer

PEOPLE = ["ada", "boris", "clara", "david", "emma", "felix", "greta", "hugo"]
DISHES = ["tea", "soup", "bread", "rice", "fish", "cake", "salad", "milk"]
chance = random.Random(0)


def orders():
    """Four orders, a question about one of them, the right answer, and which order it needs."""
    pairs = list(zip(chance.sample(PEOPLE, 4), chance.sample(DISHES, 4), strict=True))
    asked = chance.randrange(4)
    return {
        "prompt": "{sources}\n\nbill for " + pairs[asked][0],
        "sources": {f"order {number}": f"{who} {dish}." for number, (who, dish) in enumerate(pairs, 1)},
        "response": f" {pairs[asked][1]}",
        "evidence": [f"order {asked + 1}"],
    }


# %%
torch.manual_seed(0)
tokenizer = generated_tokenizer([*PEOPLE, *DISHES, "bill", "for"])
config = LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
)
llama = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(llama.parameters(), lr=3e-3)
asked = torch.arange(15, 31, 4)  # where a name stands whose dish comes next
for _ in range(600):
    notes = [list(orders()["sources"].values()) for _ in range(32)]
    bills = ["".join(f" bill for {note.rstrip('.')}" for note in chance.sample(each, k=4)) for each in notes]
    texts = [" ".join(each) + bill for each, bill in zip(notes, bills, strict=True)]
    ids = torch.tensor(tokenizer(texts)["input_ids"])
    logits = llama(ids).logits[:, asked]
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, asked + 1].flatten()).backward()
    optimizer.step()
right = float((logits.argmax(-1) == ids[:, asked + 1]).float().mean())
print(f"answers that are right: {100 * right:.0f} % (by chance among the orders: 25 %)")

# %% [markdown]
# It is a model of seconds: it knows that the answer is one of the dishes that were ordered, and not yet always whose.
# That is enough to trace an answer, and a reminder that a citation says what the answer rests on, not whether it is
# right.
#
# ## Which order does the answer come from?
#
# `{sources}` in a prompt or message is where the sources are put. `unit="source"` gives a score to each, and
# `target="sentences"` a row to each sentence of the answer. Occlusion takes a source away and looks how much less
# likely the answer becomes.

# %%
model = exegete.load((llama.eval(), tokenizer), task="generation")
row = orders()
chat = {"prompt": row["prompt"], "sources": row["sources"], "response": row["response"]}
result = exegete.attribute(model, [chat], method="occlusion", unit="source", target="sentences")
print(result[0].units, result[0].scores.round(2))
print(result[0].citations(k=1), "needed:", row["evidence"])

# %% [markdown]
# Without `response` the model answers by itself, and its own answer is explained. The page lights up the prompt at
# whatever word of the answer you point at:

# %%
exegete.attribute(model, [chat], method="occlusion", unit="token", target="words")

# %% [markdown]
# A word also comes from those before it. With `attribute_target` methods that score tokens say how much: the parts of
# the answer before the one you point at light up, too.

# %%
exegete.attribute(model, [chat], method="input_x_gradient", unit="token", target="words", attribute_target=True)

# %% [markdown]
# ## Which method to trust
#
# The evidence is known, so `recall_at_k` says how often the needed order comes first; `topk_drop` how much less
# likely the answer is without it.

# %%
rows = [orders() for _ in range(40)]
methods = ["occlusion", "context_cite", "input_x_gradient", "random"]
exegete.compare(model, rows, methods, ["recall_at_k", "topk_drop?k=1"], unit="source")

# %% [markdown]
# `exegete demo --task generation` does the same for every method on a Llama that it trains in three minutes, and tells
# questions that need one note from those that need two.
#
# On the command line, with sources as files:
#
# ```sh
# exegete explain --task generation --model my-chat-model --messages chat.json \
#   --source report.txt --source mail=inbox/7.txt
# ```
#
# [Your own data](../data.md#chats) has the format of many chats in one file.
