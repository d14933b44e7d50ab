# %% [markdown]
# # Trust an explanation
#
# Different methods explain the same prediction differently. This tutorial measures which one to trust: first on
# generated reviews, for which the evidence is known, then on a table of your own.
#
# ## A model to explain
#
# In the generated reviews a few words decide the label, and these words are marked as the rationale. A BERT with two
# layers learns the task in seconds. With `masked_share=0.1`, some words are masked in training, so that the model can
# later judge texts from which words were removed.
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")
# %% [markdown]
# If the folder `baseline` already contains this training run, it is not repeated.
#
# ## One text, three methods

# %%
example = test[0]
expound.attribute(model, [example], method="occlusion")

# %%
for method in ("integrated_gradients", "attention_rollout", "random"):
    print(expound.attribute(model, [example], method=method)[0])

# %% [markdown]
# Each line ends with the three words that have the highest scores. `random` is the control: its scores are drawn by
# chance.
#
# ## Which one to trust
#
# `compare` explains many texts with every method and then asks the model two questions. How much does the probability
# drop when the words with the highest scores are removed (comprehensiveness, higher is better)? How much does it drop
# when only these words are kept (sufficiency, lower is better)? The data also has rationales, so AUC measures how often
# a marked word has a higher score than an unmarked one.

# %%
methods = ["decompx_linear", "integrated_gradients?n_steps=10", "occlusion", "attention_rollout", "random"]
metrics = ["aopc_comprehensiveness", "aopc_sufficiency", "rationale_auc"]
comparison = expound.compare(model, test.select(range(60)), methods, metrics)
comparison

# %% [markdown]
# Read the table in this order. Is the method better than `random`? Is one method better than the others, or do their
# confidence intervals leave a tie? How long does it take? [Reading the report](../report.md) explains every part of the
# output, and [limits](../limits.md) what such numbers cannot show.
#
# ## Your own table
#
# A CSV file with a column of texts and a column of labels is enough. If the columns are not called `text` and `label`,
# name them.

# %%
from pathlib import Path

Path("reviews.csv").write_text(
    "review,stars\n"
    "The script was bad.,negative\n"
    "I found the script brilliant.,positive\n"
    "The camera was not dull.,positive\n"
    "The dialogue is simply dreadful.,negative\n"
)
reviews = expound.load_data("csv:reviews.csv", "all", text_column="review", label_column="stars")
expound.compare(model, reviews, ["occlusion", "random"], ["aopc_comprehensiveness"])

# %% [markdown]
# Four texts are too few to tell two methods apart, and the verdict says so. The same comparison on the command line:
#
# ```sh
# expound compare --model baseline --data csv:reviews.csv --text-column review --label-column stars \
#   --methods occlusion,random --output-dir comparison
# ```
