# %% [markdown]
# # Run a paper's table
#
# A study is a Python function that calls `train` and `judge` on named data, models and recipes, and declares the tables
# to make from the results. The calls are recorded; a command executes them. The studies of the papers' tables are
# listed in [studies](../studies/index.md); the one on this page is small enough to run here.

# %%
from pathlib import Path

Path("study.py").write_text("""
from expound_papers.study import Data, Model, Study, Training, register


@register
def guided(study: Study) -> None:
    study.arguments = {"num_train_epochs": 2, "learning_rate": 2e-3, "use_cpu": True}
    films = Data("films", "generated?size=300", split="train")
    dev = Data("dev", "generated?size=60", split="dev")
    test = films.but("test", split="test", limit=12)
    tiny = Model("tiny", "tiny", max_length=48)
    runs = study.train("Guided", "er_joint", Training("reviews", films, dev), tiny, explainer="attention")
    explainers = {"ATT": "attention_last", "DX": "decompx_linear"}
    metrics = {"AUC": "rationale_auc", "A-C": "aopc_comprehensiveness"}
    study.judge("own", runs, test, explainers, metrics)
    study.table("guided", "", rows="explainer", columns="metric", metrics=["AUC", "A-C"])
""")

# %% [markdown]
# A dry run shows which runs are missing, and an estimate of their time:

# %%
from expound.cli import main

main(["study", "run", "study.py", "--output-dir", "runs", "--dry-run"])

# %% [markdown]
# Run the study:

# %%
main(["study", "run", "study.py", "--output-dir", "runs", "--quiet"])

# %% [markdown]
# If the command is interrupted, run it again: it resumes, and finished runs are not repeated. The tables can also be
# printed as LaTeX:

# %%
main(["study", "table", "study.py", "--output-dir", "runs", "--format", "tex"])

# %% [markdown] A paper's table is run in the same way, by its name: `expound study run er-table-2 --scale small`, with
# the corpora in the folder `$EXPOUND_DATA`.
