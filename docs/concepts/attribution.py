# %% [markdown]
# # Attribution
#
# An attribution gives each word of an input a number: its part in one output of the model. It answers "what was this
# prediction computed from?". It does not answer whether the prediction is right, or which words matter to people.
#
# Here a small BERT has learned the sentiment of generated reviews.
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")

text = "Most of it was shot by the sea. The editing was tedious."
expound.attribute(model, [text], method="occlusion")

# %% [markdown]
# Occlusion removes one word at a time. The score of a word is how much the probability of the predicted class falls
# without it. Three choices are hidden in that sentence, and every method makes them.
#
# **Which output?** An attribution explains one number: here the probability of the predicted class. Gradient methods
# usually explain its logit. Ask for another class, and the scores are others:
# %%
for label in ("positive", "negative"):
    print(expound.attribute(model, [text], method="integrated_gradients", target=label)[0].top(2))

# %% [markdown]
# **Compared with what?** A part of a prediction is always a difference from something. Occlusion deletes the word;
# integrated gradients replaces its embedding by that of the mask token, gradually; a gradient asks about a tiny
# change. A model may react differently to each, so two correct methods may disagree.
#
# **What does a score mean?** *Signed* scores tell evidence for the output (above 0) from evidence against it.
# *Unsigned* scores, such as attention weights, tell only how much a word counts. The line above each explanation
# names the unit.
#
# ## Why methods disagree
# If words acted independently, the question would have one answer. They do not: "not" matters because of "dull", and
# the effect belongs to both. Occlusion gives each of them the whole effect, Shapley values share it, and if two words
# say the same, removing either changes nothing. None of these is wrong; they answer different questions. Therefore
# [faithfulness](faithfulness.md) is measured instead of assumed.
#
# ## Words and tokens
# Models read tokens, which are often pieces of words. expound keeps a score per token (`scores`) and adds them up for
# words (`scores`), sentences or sources (`unit`). Special tokens such as `[CLS]` carry no score.
#
# Next: [every method](../methods/index.md), and [which one to choose](../choose.md).
