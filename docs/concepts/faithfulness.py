# %% [markdown]
# # Faithfulness
#
# An explanation is faithful if it names what the model really used. No one can look that up, so it is tested by
# experiment: change the words that an explanation names, and ask the model again.
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")

methods, metrics = ["occlusion", "attention_rollout", "random"], ["aopc_comprehensiveness", "aopc_sufficiency"]
expound.compare(model, test.select(range(40)), methods, metrics)

# %% [markdown]
# **Comprehensiveness** removes the words with the highest scores. If they were used, the probability of the predicted
# class falls; higher is better. **Sufficiency** keeps only these words. If they were enough, the probability hardly
# falls; lower is better. Both are averages over several numbers of words here. `random` draws scores by chance: a
# method is faithful only to the degree that it beats this row by more than the intervals.
#
# Other metrics ask the same in other ways: how early the prediction flips (`decision_flip`), or whether sums of
# scores predict the model's output for random subsets of the input (`lds`).
#
# ## When it misleads
# - **Texts with holes are unusual.** A model that never saw any may react to the hole, not to the missing word. The
#   model above was trained with some words masked; for other models, `f_fidelity` asks a copy that was fine-tuned on
#   such texts, and `roar` trains a new model.
# - **Judge and method may be relatives.** Occlusion removes words, and so does comprehensiveness. A method that
#   searches for the best order (`solvex`) is a ceiling of the metric and no evidence for itself.
# - **Some predictions need no particular word.** If several words say the same, removing one changes nothing, and all
#   explanations look unfaithful.
# - **Ranges differ.** The probability of a confident prediction can fall farther. Compare models by NAOPC, which puts
#   each text on the scale between the worst and the best order of its words.
#
# Faithfulness says nothing about people: words may be those the model used and still make no sense to a reader. That
# is [plausibility](plausibility.md), and the two should not be mixed up.
#
# Next: [every metric](../metrics/index.md), [limits and traps](../limits.md).
