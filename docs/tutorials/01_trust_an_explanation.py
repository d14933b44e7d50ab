# %% [markdown]
# # Trust an explanation
#
# Methods disagree about the same prediction. This page finds out which one to believe, on a model whose evidence is
# known, and then on a table of your own.
#
# ## A model to explain
#
# The corpus is made up: every review has words that decide its label, and they are marked. A BERT of two layers
# learns it in seconds. `masked_share` shows it texts with holes, so that it can be asked about such texts later.
# %%
import exegete
from exegete.training import train_baseline

train, dev, test = (exegete.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
train_baseline("tiny", train, dev, "baseline", arguments=arguments, masked_share=0.1)
model = exegete.load("baseline", device="cpu")
# %% [markdown]
# A finished training in the folder `baseline` is not done again.
#
# ## One text by three methods

# %%
row = test[0]
result = exegete.attribute(model, [row], method="occlusion")
result

# %%
for method in ("integrated_gradients", "attention_rollout", "random"):
    print(exegete.attribute(model, [row], method=method)[0])

# %% [markdown]
# A line ends with the three words that scored highest. `random` is the control: it knows nothing.
#
# ## Which one to trust
#
# `compare` explains many texts by every method and asks the model: what happens to the answer without the words that
# scored highest (comprehensiveness, higher is better), and with these words alone (sufficiency, lower is better)? The
# corpus also has rationales, so AUC says how often a marked word is ahead of an unmarked one.

# %%
methods = ["decompx_linear", "integrated_gradients?n_steps=10", "occlusion", "attention_rollout", "random"]
metrics = ["aopc_comprehensiveness", "aopc_sufficiency", "auc"]
comparison = exegete.compare(model, test.select(range(60)), methods, metrics)
comparison

# %% [markdown]
# Read it in this order: is a method above `random`? Do the intervals leave a winner, or a tie? What does it cost?
# [Reading the report](../report.md) has the details, [limits](../limits.md) what such numbers cannot say.
#
# ## Your own table
#
# A CSV with a column of texts and one of labels is enough. Column names that are not `text` and `label` are given.

# %%
from pathlib import Path

Path("reviews.csv").write_text(
    "review,stars\n"
    "The script was bad.,negative\n"
    "I found the script brilliant.,positive\n"
    "The camera was not dull.,positive\n"
    "The dialogue is simply dreadful.,negative\n"
)
mine = exegete.load_data("csv:reviews.csv", "all", text_column="review", label_column="stars")
exegete.compare(model, mine, ["occlusion", "random"], ["aopc_comprehensiveness"])

# %% [markdown]
# Four texts decide nothing, and the verdict says so. The same on the command line:
#
# ```sh
# exegete compare --model baseline --data csv:reviews.csv --text-column review --label-column stars \
#   --methods occlusion,random --output-dir comparison
# ```
