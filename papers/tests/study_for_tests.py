"""Two learning rates, two seeds: eight runs."""

from expound_papers.study import Axis, Data, Model, Significance, Study, Training, register


@register
def study_for_tests(study: Study) -> None:
    """Two learning rates."""
    study.seeds = 2
    study.arguments = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "eval_steps": 2}
    films = Data("films", "generated?size=32", split="train")
    dev = films.but("dev", split="dev")
    runs = []
    for name, rate in {"slow": 1e-4, "fast": 3e-3}.items():
        data, model = Training("films", films, dev), Model("tiny", "tiny", max_length=24)
        runs.append(study.train(name, "baseline", data, model, arguments={"learning_rate": rate}))
    explainers = {"IxG": "input_x_gradient", "ATT": "attention_last", "DX": "decompx"}
    metrics = {"AUC": "rationale_auc", "A-C": "aopc_comprehensiveness"}
    study.judge("all", runs, dev, explainers, metrics, keep_attributions=True, layers=True)
    study.table(
        "f1", "", rows="recipe", columns=["dataset", "metric"], metrics=["accuracy", "f1_macro"], scale=100,
        significance=Significance("slow"),
    )  # fmt: skip
    study.table(
        "explainers", "", rows=["recipe", "explainer"], columns="metric", metrics=["AUC", "A-C"],
        where={"explainer": ["IxG", "ATT"]}, show="median [25–75]",
        significance=Significance("slow", method="bootstrap", correction="bh", resamples=200),
    )  # fmt: skip
    study.table("losses", "", rows="recipe", columns="metric", metrics="dev_cross_entropy", show="mean ± se")
    study.figure("seeds", "seeds", metrics="f1_macro")
    study.figure("scatter", "scatter", x=Axis("dev_cross_entropy"), y=Axis("AUC", "dev", "IxG"), average=True)
    study.figure("budgets", "curves", metrics="A-C", where={"recipe": "fast"})
    study.figure("layers", "layers", metrics="AUC", where={"explainer": "DX"})
    study.figure("agreement", "agreement", against="slow")
    study.figure("pairs", "agreement", between="explainers")
