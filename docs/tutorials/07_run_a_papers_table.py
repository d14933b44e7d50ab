# %% [markdown]
# # Run a paper's table
#
# A study file says which data, models, recipes, seeds, explainers and metrics there are, and which tables come out.
# The files of the papers are in [studies](../studies/index.md). This one is small enough to run here.

# %%
from pathlib import Path

Path("study.yaml").write_text("""
datasets:
  films: {spec: "generated?size=300", split: train}
  dev: {spec: "generated?size=60", split: dev}
  test: {spec: "generated?size=300", split: test, limit: 12}
training:
  reviews: {train: films, dev: dev}
models:
  tiny: {source: tiny, max_length: 48}
arguments: {num_train_epochs: 2, learning_rate: 2.0e-3, use_cpu: true}
recipes:
  Guided: {recipe: er_joint, parameters: {guide: attention}}
seeds: 1
explainers: {ATT: attention_last, DX: decompx_linear}
metrics: {AUC: auc, A-C: aopc_comprehensiveness}
judgements:
  own: {datasets: test, explainers: [ATT, DX], metrics: [AUC, A-C]}
tables:
  guided: {rows: explainer, columns: metric, metrics: [AUC, A-C], where: {judgement: own}}
""")

# %% [markdown]
# First what there is to do, and how long it may take:

# %%
from exegete.cli import main

main(["study", "run", "study.yaml", "--output-dir", "runs", "--dry-run"])

# %%
main(["study", "run", "study.yaml", "--output-dir", "runs", "--quiet"])

# %% [markdown]
# Stopped or killed, the same command goes on where it was; a finished run is never done twice. The tables again, as
# LaTeX:

# %%
main(["study", "table", "study.yaml", "--output-dir", "runs", "--format", "tex"])

# %% [markdown]
# A paper's file runs in the same way: `exegete study run studies/er-table-2.yaml --scale small` (with the corpora in
# `$EXEGETE_DATA`). `exegete study schema > study.schema.json` gives editors the names of all keys.
