# %% [markdown]
# # Plausibility
#
# An explanation is plausible if it agrees with people: if its highest scores are on the words that people marked as
# the reason for the label, the [rationale](rationales.md).
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")

metrics = ["rationale_auc", "recall_at_k", "aopc_comprehensiveness"]
expound.compare(model, test.select(range(40)), ["occlusion", "attention_rollout", "random"], metrics)

# %% [markdown]
# **AUC** is the chance that a marked word has a larger score than an unmarked one: 0.5 is chance, 1 is perfect.
# **Recall** asks how many of G marked words are among the G words with the largest scores. Both compare scores by
# size, without the sign; the model is not asked. The third column is one of [faithfulness](faithfulness.md), which
# asks the model and not people. The two can disagree: here attention rollout agrees best with people, and the words
# that occlusion names are those the model can do without least.
#
# ## What each combination means
# - *Faithful and plausible*: the model uses the words that people would use.
# - *Faithful and not plausible*: the model uses something else, a shortcut or knowledge that people do not have. This
#   is often the most useful finding.
# - *Plausible and not faithful*: the dangerous case. It convinces, and tells nothing about the model.
# - *Neither*: the method does not work here; compare with `random`.
#
# ## When it misleads
# - **It does not judge the model.** A model may be right for reasons that people did not mark.
# - **It does not judge the method alone.** A faithful explanation of a model that relies on a shortcut *must* have
#   low plausibility. Choosing methods by plausibility alone prefers those that flatter.
# - **Rationales are incomplete.** People stop marking when they have found enough; an unmarked word is not always
#   unimportant. Texts in which nothing, or everything, is marked have no value.
#
# Plausibility can be trained: [explanation regularization](../recipes/er_joint.md) adds the distance between
# attributions and rationales to the loss. The model then attends to what people marked; whether it also needs these
# words is again a question of faithfulness.
