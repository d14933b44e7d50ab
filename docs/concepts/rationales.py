# %% [markdown]
# # Rationales
#
# A rationale is the part of an input that people marked as the reason for its label. It is data about people, not
# about a model.
# %%
import expound

data = expound.load_data("generated", "test", limit=3)
for row in data:
    print(row["text"], "→", [row["text"][start:end] for start, end in row["rationale"]])

# %% [markdown]
# These reviews are generated, so their rationales are exact: the words that decide the label. expound stores a
# rationale as characters, `[start, end]` pairs in the column `rationale` (`rationale_pair` for the second text of a
# pair). It therefore belongs to no tokenizer; each model gets it as a mask over its own tokens:
# %%
from expound.testing import random_model

batch = random_model().encode(data)
print(batch.rationale_mask.shape, batch.rationale_mask.sum(1).tolist())

# %% [markdown]
# Two values look alike and are not: `null` means that nobody annotated the example, and an empty list that somebody
# looked and marked nothing. Metrics of plausibility have no value for either, because there is nothing to find.
#
# ## What they are for
# - **Judging**: [plausibility](plausibility.md) metrics compare an explanation with the rationale.
# - **Training**: [`er_joint`](../recipes/er_joint.md) and its relatives pull attributions towards rationales.
# - **Finding shortcuts**: `expound summary` lists the examples whose explanation and rationale disagree most.
#
# ## When they mislead
# - Instructions decide what is marked: "all the evidence" and "enough evidence" give different rationales, and
#   annotators differ from each other.
# - A rationale explains the label that people gave. If the model predicts another class, its explanation should not
#   look like the rationale.
# - Words that people leave unmarked may be needed by a model, and the other way round.
#
# *Rationale* also means the words that a method selects for a second model, which sees nothing else
# ([FRESH](../recipes/fresh.md)): `expound.recipes.extract_rationales` writes them into a dataset.
#
# Formats of your own data: [data](../data.md). To collect rationales: [a human
# study](../tutorials/08_a_human_study.md).
