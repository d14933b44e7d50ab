# %% [markdown]
# # Masks for any model
#
# `aml` trains a second model that reads a text and the explained model's answer, and says in one pass how much of
# each word the answer needs (Barkan et al. 2024). The explained model stays as it is: a prompted chat model would do,
# too.
# %%
import exegete
from exegete.training import train_baseline

train, dev, test = (exegete.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
train_baseline("tiny", train, dev, "baseline", arguments=arguments, masked_share=0.1)
model = exegete.load("baseline", device="cpu")
# %%
from exegete.recipes import RECIPES

recipe = RECIPES["aml"](preservation_weight=0.5, sparsity_weight=0.1, inverse_weight=0.5, train_rows=600, dev_rows=80)
quick = {"num_train_epochs": 4, "learning_rate": 1e-3, "use_cpu": True, "disable_tqdm": True}
recipe.train("baseline", train, dev, "masking", arguments=quick)

# %% [markdown]
# With the three weights given there is no search; without them, thirty trials look for the weights that are best by
# `metric`. The result is a method with a folder:

# %%
rows = test.select(range(60))
exegete.compare(
    model,
    rows,
    ["attributive_masking:masking", "decompx_linear", "occlusion", "random"],
    ["aopc_comprehensiveness", "auc"],
)

# %%
exegete.attribute(model, [test[2]], method="attributive_masking:masking")

# %% [markdown]
# `attributive_masking:masking?refine_steps=10` trains a copy of it on each text and keeps the map that the metric
# likes best. Judge such maps by another metric as well: they were chosen by this one. [What came
# out](../results/aml.md).
