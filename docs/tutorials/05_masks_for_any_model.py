# %% [markdown]
# # Masks for any model
#
# `aml` trains a second model, the masking model (Attributive Masking Learning, Barkan et al. 2024). It reads a text and
# the explained model's prediction, and estimates in one pass how much the prediction needs each word. The explained
# model is not changed, so that this also works for a prompted chat model.
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")
# %%
weights = {"preservation_weight": 0.5, "sparsity_weight": 0.1, "inverse_weight": 0.5}
recipe = expound.recipe("aml", train_rows=600, dev_rows=80, **weights)
quick = {"num_train_epochs": 4, "learning_rate": 1e-3, "use_cpu": True, "disable_tqdm": True}
recipe.train("baseline", train, dev, "masking", arguments=quick)

# %% [markdown]
# The three weights are set here. Without them, thirty trials search for the weights that are best by `metric`. The
# result is a method that is loaded from its folder:

# %%
examples = test.select(range(60))
methods = ["attributive_masking:masking", "decompx_linear", "occlusion", "random"]
expound.compare(model, examples, methods, ["aopc_comprehensiveness", "rationale_auc"])

# %%
expound.attribute(model, [test[2]], method="attributive_masking:masking")

# %% [markdown]
# `attributive_masking:masking?refine_steps=10` trains a copy of the masking model on each text and keeps the mask that
# is best by a metric. Judge such masks by another metric as well, because they were selected by this one.
# [Results](../results/aml.md).
