# %% [markdown]
# # Teach a student
#
# A good explanation helps a second model, the student, to predict what the explained model, the teacher, predicts.
# `smat` trains the student on the teacher's predictions and explanations. At the same time it trains the teacher's
# attention explainer so that the student learns more (Learning to Scaffold, Fernandes et al. 2022).
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")
# %% [markdown]
# The teacher is the model above. The student starts from random weights and sees 200 texts: once without explanations,
# and once with explanations from the explainer that is trained to teach.

# %%
short = {"num_train_epochs": 6, "learning_rate": 1e-3, "use_cpu": True, "disable_tqdm": True}
for explainer in ("none", "learned"):
    recipe = expound.recipe("smat", teacher="baseline", explainer=explainer, student_size=200)
    result = recipe.train("tiny", train, dev, f"student-{explainer}", arguments=short, processing_class="baseline")
    print(f"explanations: {explainer}, simulatability: {result.metrics['simulatability']:.3f}")

# %% [markdown]
# One seed and 200 texts show a direction, not a result. The folder `student-learned/teacher_explainer` contains the
# learned explainer, which can be used like every other method:

# %%
learned = "parameterized_attention:student-learned/teacher_explainer"
examples = test.select(range(50))
expound.compare(model, examples, ["attention_all", learned, "random"], ["aopc_comprehensiveness", "rationale_auc"])

# %% [markdown]
# [Results](../results/smat.md) on real data with several seeds; [SMaT's page](../recipes/smat.md) lists the options.
