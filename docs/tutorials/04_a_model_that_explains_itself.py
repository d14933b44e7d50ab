# %% [markdown]
# # A model that explains itself
#
# `ivra` needs no rationales. It trains a model together with an attention that explains it, by a criterion that you
# choose (Xie et al. 2024). Here the criterion is comprehensiveness: without the words that the explanation ranks first,
# the prediction should change.
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")
# %%
recipe = expound.recipe("ivra", criteria="comprehensiveness", normalizer="softmax")
one_epoch = arguments | {"num_train_epochs": 1, "learning_rate": 5e-4}
result = expound.train("baseline", (train.select(range(800)), dev), recipe, output_dir="ivra", args=one_epoch)
result.metrics["accuracy"]

# %% [markdown]
# The folder contains the model and its explainer. Compare this explainer with plain attention and another method, by
# the criterion of training (comprehensiveness) and by one that was not trained (sufficiency):

# %%
trained = expound.load("ivra", device="cpu")
methods = ["interpretable_attention:ivra", "attention_all", "decompx_linear", "random"]
examples = test.select(range(60))
metrics = ["aopc_comprehensiveness", "aopc_sufficiency"]
expound.compare(trained, examples, methods, metrics)

# %% [markdown]
# The same comparison on the model before this training:

# %%
expound.compare(model, examples, ["attention_all", "decompx_linear", "random"], metrics)

# %% [markdown]
# The explanation adds only a few per cent to a forward pass. Most of the gain comes from the model, which learns to
# depend on the words that its attention names. [Results](../results/ivra.md) on three tasks.
