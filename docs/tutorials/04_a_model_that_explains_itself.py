# %% [markdown]
# # A model that explains itself
#
# `ivra` needs no rationales: it trains the model together with an attention that explains it, for the criterion that
# you name (Xie et al. 2024). Here: the model should need the words that its explanation puts first.
# %%
import exegete
from exegete.training import train_baseline

train, dev, test = (exegete.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
train_baseline("tiny", train, dev, "baseline", arguments=arguments, masked_share=0.1)
model = exegete.load("baseline", device="cpu")
# %%
from exegete.recipes import RECIPES

recipe = RECIPES["ivra"](criteria="comprehensiveness", normaliser="softmax")
once = arguments | {"num_train_epochs": 1, "learning_rate": 5e-4}
result = recipe.train("baseline", train.select(range(800)), dev, "ivra", arguments=once)
result.metrics["accuracy"]

# %% [markdown]
# The folder holds the model and its explainer. Three attentions on the trained model, by the criterion and by its
# opposite:

# %%
trained = exegete.load("ivra", device="cpu")
methods = ["interpretable_attention:ivra", "attention_all", "decompx_linear", "random"]
rows = test.select(range(60))
exegete.compare(trained, rows, methods, ["aopc_comprehensiveness", "aopc_sufficiency"])

# %% [markdown]
# And what the same attention was worth before:

# %%
exegete.compare(
    model, rows, ["attention_all", "decompx_linear", "random"], ["aopc_comprehensiveness", "aopc_sufficiency"]
)

# %% [markdown]
# The explanation costs a few per cent of a forward pass. Most of the gain is the model's: it learns to need what its
# attention names. [What came out](../results/ivra.md) on three tasks.
