# %% [markdown]
# # Run a paper's table
#
# A study file lists data, models, recipes, seeds, explainers and metrics, and the tables to make from them. expound
# trains and judges all combinations. The files for the papers' tables are in [studies](../studies/index.md); the one on
# this page is small enough to run here.

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
# A dry run shows which runs are missing, and an estimate of their time:

# %%
from expound.cli import main

main(["study", "run", "study.yaml", "--output-dir", "runs", "--dry-run"])

# %% [markdown]
# Run the study:

# %%
main(["study", "run", "study.yaml", "--output-dir", "runs", "--quiet"])

# %% [markdown]
# If the command is interrupted, run it again: it resumes, and finished runs are not repeated. The tables can also be
# printed as LaTeX:

# %%
main(["study", "table", "study.yaml", "--output-dir", "runs", "--format", "tex"])

# %% [markdown]
# A paper's table is run in the same way: `expound study run studies/er-table-2.yaml --scale small`, with the corpora in
# the folder `$EXPOUND_DATA`. `expound study schema > study.schema.json` writes a JSON schema with which editors
# complete and check the keys.
