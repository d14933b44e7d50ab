# %% [markdown]
# # Robustness
#
# Three questions: does the prediction stay the same when a name or a number is swapped? Does the explanation stay the
# same when the prediction does? Do two models that differ only in their random seed have similar explanations?
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")
# %% [markdown]
# ## The prediction
#
# `expound attack` swaps contractions, names, places and numbers, which should not matter, and searches for a text on
# which the model is wrong.

# %%
from expound.cli import main

main(["attack", "--model", "baseline", "--data", "generated?size=4000", "--split", "test", "--limit", "100", "--quiet"])

# %% [markdown]
# ## The explanation
#
# `max_sensitivity` measures how much the scores change when all embeddings change a little (lower is better).
# `input_consistency` measures how many of the top words stay the same when a name is swapped (higher is better).

# %%
import numpy as np

from expound.metrics import input_consistency, max_sensitivity

examples = test.select(range(100))
batch = model.encode(examples.select(range(8)))
for method in ("saliency", "decompx_linear", "attention_rollout"):
    sensitivity = float(max_sensitivity(model, batch, method, n_samples=4).mean())
    consistency = float(np.nanmean(input_consistency(model, examples, method, versions=2)))
    print(f"{method:18} sensitivity {sensitivity:.3f}   consistency {consistency:.3f}")

# %% [markdown]
# ## Two seeds
#
# `model_consistency` compares the top quarter of the words (Jaccard similarity) between models: two trained models that
# differ in their seed, and a model that was never trained.

# %%
from expound.metrics import model_consistency
from expound.testing import random_model

short = arguments | {"num_train_epochs": 2}
expound.train(
    "tiny", (train, dev), "baseline", output_dir="seed-1", options={"masked_share": 0.1, "seed": 1}, args=short
)
models = {"seed 0": model, "seed 1": expound.load("seed-1", device="cpu"), "untrained": random_model()}
model_consistency(models, examples.select(range(30)), "decompx_linear").matrix.round(2)

# %% [markdown]
# The two trained models should be similar to each other, and different from the untrained one. A method that explains
# trained and untrained models in the same way does not depend on the weights. The recipe
# [REGEX](../recipes/regex.md) trains for robustness; see its [results](../results/regex.md).
