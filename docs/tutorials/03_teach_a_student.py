# %% [markdown]
# # Teach a student
#
# A good explanation helps another model to foretell the explained one. `smat` trains a student on a teacher's answers
# and explanations, and the teacher's attention explainer so that the student does better (Fernandes et al. 2022).
# %%
import exegete
from exegete.training import train_baseline

train, dev, test = (exegete.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
train_baseline("tiny", train, dev, "baseline", arguments=arguments, masked_share=0.1)
model = exegete.load("baseline", device="cpu")
# %% [markdown]
# The teacher is the model above. The student starts anew and sees 200 texts: once without explanations, once with
# those that learn to teach.

# %%
from exegete.recipes import RECIPES

short = {"num_train_epochs": 6, "learning_rate": 1e-3, "use_cpu": True, "disable_tqdm": True}
figures = {}
for explainer in ("none", "learned"):
    recipe = RECIPES["smat"](teacher="baseline", explainer_id=explainer, student_size=200)
    result = recipe.train("tiny", train, dev, f"student-{explainer}", arguments=short, processing_class="baseline")
    figures[explainer] = result.metrics
{
    name: {key: round(value, 3) for key, value in each.items() if isinstance(value, float)}
    for name, each in figures.items()
}

# %% [markdown]
# One seed and 200 texts: a direction, not a result. `student-learned/teacher_explainer` is the explainer that was
# learned. It is a method like any other:

# %%
learned = "parameterised_attention:student-learned/teacher_explainer"
rows = test.select(range(50))
exegete.compare(model, rows, ["attention_all", learned, "random"], ["aopc_comprehensiveness", "auc"])

# %% [markdown]
# [What came out](../results/smat.md) on real data, with ten seeds; [the method's page](../recipes/smat.md) has all
# options.
