# %% [markdown]
# # A human study
#
# In a human study, people rank explanations without knowing which method made them. The package expound-people has the
# web pages, the database and the statistics for it.
#
# ## A model to explain
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")
# %% [markdown]
# ## How many people?
#
# `expound people power` simulates studies. Suppose that the better of two neighboring methods is ranked first in
# 65 % of the cases. How many annotators does a study of three methods need to find the order of the methods?

# %%
from expound.cli import main

main(["people", "power", "--effect", "0.65", "--methods", "3", "--items", "10", "--people", "10,20,40", "--runs", "50"])

# %% [markdown]
# Power is the share of simulated studies that find the complete order; 80 % is customary.
#
# ## What people will see
#
# An example of the study is a text with one explanation per method. In the browser, the methods are called A, B and C,
# in a different order for every person.

# %%
methods = ["decompx_linear", "attention_rollout", "random"]
expound.attribute(model, [test[0]], method=methods[0])

# %%
expound.attribute(model, [test[0]], method=methods[2])

# %% [markdown]
# ## Start the study
#
# ```sh
# expound people create films --model baseline --data generated --limit 6 \
#   --methods decompx_linear,attention_rollout,random
# expound people serve films
# ```
#
# The first command explains the examples and creates the study `films` in the database `expound-studies.db`. The second
# one prints an address with the administrator's token. On the page of the study you invite annotators by name; each
# gets a link that signs them in. Answers are saved at once, so that people can continue later.
#
# ## Results
#
# The page of the study shows a rating of each method (TrueSkill, with 95 % intervals) and the agreement between people
# (Kendall's W). Answers can be exported as CSV, Parquet, Label Studio or Argilla records, or as a dataset for training;
# `expound people export films` writes the same files.
#
# ## Kinds of study
#
# `--kind` chooses the question:
#
# - `rank`: rank explanations of the same prediction.
# - `highlight`: mark the evidence in the text. The marks are rationales, for training or for plausibility metrics.
#   People mark words, or sentences if the protocol says `main: {unit: sentence}`.
# - `simulate`: guess the model's prediction, first without and then with an explanation. The result is the gain.
# - `counterfactual`: people know the model's prediction for an example. They guess it for a changed version, in
#   which words are removed or replaced, before and after they see an explanation of the original example. The protocol
#   sets the change: `change: {how: remove, words: 3, balanced: true}`. It is drawn with the protocol's seed and is the
#   same for every method. With `balanced`, half of the versions change the model's prediction, if there are enough such
#   versions.
#
# For a language model, people rank what each method says about the sources of an answer:
#
# ```sh
# expound people create cited --task generation --model my-chat-model --data jsonl:chats.jsonl
# ```
#
# ## Participants from a crowd-sourcing platform
#
# A protocol is a YAML file with everything that participants read and are asked: consent, instructions, practice with
# feedback, comprehension questions, attention checks with planted evidence, a questionnaire, quotas, and the completion
# code of the platform. It is also the preregistration of the study: participants see its SHA-256, and exports contain
# it.
#
# ```sh
# expound people create --protocol study.yaml
# expound people serve --host 0.0.0.0 --public-host https://study.example.org
# ```
#
# `papers/studies/people/smat-table-4.yaml` is a complete protocol; `expound people schema` prints the schema.
