# %% [markdown]
# # Explain a chat's sources
#
# Which source does an answer come from? In this tutorial a small Llama learns in seconds to read orders and to say who
# pays for what; then its answers are traced back to the orders. If you have your own model, skip the first part: pass
# its folder or hub name to `expound.load`, and use `messages` instead of `prompt` for a chat.
#
# ## Train a small model

# %%
import random

import torch
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
        "sources": {f"order {number}": f"{who} {dish}." for number, (who, dish) in enumerate(pairs, 1)},
        "response": f" {pairs[needed][1]}",
        "evidence": [f"order {needed + 1}"],
    }


# %%
torch.manual_seed(0)
tokenizer = generated_tokenizer([*PEOPLE, *DISHES, "bill", "for"])
config = LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
)
llama = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(llama.parameters(), lr=3e-3)
ask = tokenizer.convert_tokens_to_ids("for")
for _ in range(600):
    notes = [list(make_example()["sources"].values()) for _ in range(32)]
    bills = ["".join(f" bill for {note.rstrip('.')}" for note in chance.sample(each, k=4)) for each in notes]
    texts = [" ".join(each) + bill for each, bill in zip(notes, bills, strict=True)]
    ids = torch.tensor(tokenizer(texts)["input_ids"])
    # the name follows the word "for"; at the name, the model predicts the dish
    asked = (ids[0] == ask).nonzero()[:, 0] + 1
    logits = llama(ids).logits[:, asked]
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, asked + 1].flatten()).backward()
    optimizer.step()
accuracy = float((logits.argmax(-1) == ids[:, asked + 1]).float().mean())
print(f"correct answers: {100 * accuracy:.0f} % (by chance among the orders: 25 %)")

# %% [markdown]
# After so little training, the model knows that the answer is one of the ordered dishes, but does not always choose the
# right one. This is enough to trace an answer. A citation shows what the answer depends on, not whether it is correct.
#
# ## Which order does the answer come from?
#
# The sources are inserted at `{sources}` in the prompt or message. `unit="source"` gives one score per source, and
# `target="sentences"` explains each sentence of the answer separately. Occlusion removes one source at a time and
# measures how much less likely the answer becomes.

# %%
model = expound.load((llama.eval(), tokenizer), task="generation")
example = make_example()
chat = {"prompt": example["prompt"], "sources": example["sources"], "response": example["response"]}
result = expound.attribute(model, [chat], method="occlusion", unit="source", target="sentences")
print(result[0].to_pandas().round(2))
print(result[0].citations(k=1), "needed:", example["evidence"])

# %% [markdown]
# If `response` is missing, the model generates an answer, and this answer is explained. Here the given answer is
# explained word by word. Point at a word of the answer to highlight the parts of the prompt that it depends on:

# %%
expound.attribute(model, [chat], method="occlusion", unit="token", target="words")

# %% [markdown]
# A word of the answer also depends on the words of the answer before it. With `attribute_target=True`, these words get
# scores too, and are highlighted when you point at a later word.

# %%
expound.attribute(model, [chat], method="input_x_gradient", unit="token", target="words", attribute_target=True)

# %% [markdown]
# ## Which method to trust
#
# The evidence is known here. `recall_at_k` measures how often the needed order has the highest score. `topk_drop`
# measures how much less likely the answer becomes without the source that has the highest score.

# %%
examples = [make_example() for _ in range(40)]
methods = ["occlusion", "context_cite", "input_x_gradient", "random"]
expound.compare(model, examples, methods, ["recall_at_k", "topk_drop?k=1"], unit="source")

# %% [markdown]
# On the command line, with sources as files:
#
# ```sh
# expound explain --task generation --model my-chat-model --messages chat.json \
#   --source report.txt --source mail=inbox/7.txt
# ```
#
# `expound serve --api` gives the same citations to programs, as annotations of OpenAI's protocol
# ([Serve answers with citations](../serving.md)). [Your own data](../data.md#chats) describes the format for many chats
# in one file.
