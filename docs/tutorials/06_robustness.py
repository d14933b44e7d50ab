# %% [markdown]
# # Robustness
#
# Does the answer change when a name or a number does? Does the explanation, when the answer stays? Do two models that
# differ by their seed explain themselves alike?
# %%
import exegete
from exegete.training import train_baseline

train, dev, test = (exegete.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
train_baseline("tiny", train, dev, "baseline", arguments=arguments, masked_share=0.1)
model = exegete.load("baseline", device="cpu")
# %% [markdown]
# ## The answer
#
# `attack` swaps contractions, names, places and numbers, and looks for a wrong answer.

# %%
from exegete.metrics.attack import attack

rows = test.select(range(100))
report = attack(model, rows)
report.counts

# %% [markdown]
# ## The explanation
#
# `max_sensitivity`: how far scores move when all embeddings move a little (lower is better). `input_consistency`: how
# many of the top words stay the same when a name is swapped (higher is better).

# %%
import numpy as np

from exegete.metrics.sensitivity import input_consistency, max_sensitivity

batch = model.encode(rows.select(range(8)))
for method in ("saliency", "decompx_linear", "attention_rollout"):
    moved = float(max_sensitivity(model, batch, method, samples=4).mean())
    alike = float(np.nanmean(input_consistency(model, rows, method, versions=2)))
    print(f"{method:18} moved {moved:.3f}   top words alike {alike:.3f}")

# %% [markdown]
# ## Two seeds
#
# The Jaccard similarity of the top quarter of the words, between two trained models and one that was not trained.

# %%
from exegete.metrics.robustness import model_consistency
from exegete.testing import random_model

short = arguments | {"num_train_epochs": 2}
train_baseline("tiny", train, dev, "seed-1", arguments=short, masked_share=0.1, seed=1)
models = {"seed 0": model, "seed 1": exegete.load("seed-1", device="cpu"), "untrained": random_model()}
model_consistency(models, rows.select(range(30)), "decompx_linear").matrix.round(2)

# %% [markdown]
# Trained models should be like each other, and unlike the untrained one. A method that explains both alike does not
# look at the weights. `regex` trains for robustness: [its page](../recipes/regex.md), [what came
# out](../results/regex.md).
