# %% [markdown]
# # Train with rationales and see what changes
#
# People marked the words that decide. `er_joint` adds the distance between the model's attention and these marks to
# the loss (Ferreira et al. 2024). Does the attention follow, and what happens to the rest?
# %%
import exegete
from exegete.training import train_baseline

train, dev, test = (exegete.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
train_baseline("tiny", train, dev, "baseline", arguments=arguments, masked_share=0.1)
model = exegete.load("baseline", device="cpu")
# %%
from exegete.recipes import RECIPES

recipe = RECIPES["er_joint"](guide="attention", weight=1.0)
recipe.train("baseline", train, dev, "guided", arguments=arguments | {"num_train_epochs": 1, "learning_rate": 5e-4})
guided = exegete.load("guided", device="cpu")

# %% [markdown]
# The last layer's attention of both models, on the same text:

# %%
exegete.attribute(model, [test[3]], method="attention_last")

# %%
exegete.attribute(guided, [test[3]], method="attention_last")

# %% [markdown]
# Is it more than one text? AUC is plausibility (agreement with the marks), comprehensiveness is faithfulness.

# %%
import pandas as pd

rows = test.select(range(80))
methods = ["attention_last", "decompx_linear", "random"]
tables = {
    name: exegete.compare(each, rows, methods, ["auc", "aopc_comprehensiveness"]).to_pandas()
    for name, each in {"baseline": model, "guided": guided}.items()
}
pd.concat(tables)[["auc", "aopc_comprehensiveness"]].round(3)

# %% [markdown]
# Guided attention agrees with the marks; methods that were not guided change less. Agreement is not faithfulness:
# look at both columns. On real data at our scale, guidance raised AUC and did not make models better out of domain
# ([results](../results/er.md)).
#
# Where the distance has to come below a bound, use [er_constrained](../recipes/er_constrained.md).
