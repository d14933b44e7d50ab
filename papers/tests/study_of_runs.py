"""Runs that start from, read, or are explained by the files of other runs."""

from expound_papers.study import Data, Explainer, Model, Significance, Study, Training, choose, register

TOP = "jaccard?share=0.25"


@register
def study_of_runs(study: Study) -> None:
    """Runs of runs."""
    study.seeds = 3
    study.arguments = {"num_train_epochs": 1, "per_device_train_batch_size": 8, "learning_rate": 3e-3}
    films = Data("films", "generated?size=48", split="train")
    dev, test = films.but("dev", split="dev", limit=12), films.but("test", split="test", limit=12)
    exam = films.but("exam", rows=(16, 28))
    teaching, few = Training("teaching", films, dev), Training("20 students", films.but("few", limit=16), dev)
    tiny = Model("tiny", "tiny", max_length=24)
    teacher = study.train("Teacher", "attentive", teaching, tiny, seeds=[7])
    student = study.train("Student", "baseline", few, tiny)
    one = {"seeds": [0]}
    continued = study.train("Continued", "baseline", few, tiny, start=teacher, arguments={"learning_rate": 0}, **one)
    taken = study.train("Taken", None, few, tiny, start=teacher, **one)
    how = {"explained_model": teacher, "fraction": 0.4}
    fresh = study.train("FRESH", "fresh", few, tiny, explainer="occlusion", **one, **how)
    explainers = {
        "ATT": "attention_last",
        "learned": "parameterized_attention:{run}/explainer",
        "moved": Explainer("parameterized_attention:{run}/explainer", teacher),
    }
    metrics = {"A-C": "aopc_comprehensiveness", "A-S": "aopc_sufficiency"}
    study.judge("own", teacher, test, explainers, metrics | {"F": f"f_fidelity?copy={continued}&n_samples=1"})
    some = choose(explainers, "ATT", "moved")
    study.judge("students", student, [dev, test], some, metrics, keep_attributions=True)
    study.judge("again", [continued, taken], test)
    study.judge("teacher's", fresh, test, model=teacher)
    study.judge("foretold", [student, taken], exam, protocol="simulatability", teacher=teacher)
    study.judge("rationales", fresh, test, protocol="select_then_predict", explainer="occlusion", **how)
    study.compare("DIT", "students", TOP)
    shown = {"columns": "metric", "where": {"judgement": "own"}, "show": "mean [95 %]"}
    study.table("tied", "", rows="explainer", metrics=["A-C", "A-S"], **shown)
    study.table("mixed", "", rows=["recipe", "explainer"], metrics="A-C", **shown)
    study.table("alike", "", rows="explainer", columns="dataset", metrics="DIT")
    study.table(
        "gains", "", rows="explainer", columns="metric", metrics=["A-C", "A-S"], where={"recipe": "Student"},
        over="dataset", gain={"A-C": "ATT", "A-S": "ATT"},
    )  # fmt: skip
    study.table(
        "foretold", "", rows="recipe", columns="dataset", metrics="simulatability", show="median [25–75]",
        significance=Significance("Student", method="quartiles"),
    )  # fmt: skip
    where = {"recipe": "Student", "dataset": "test"}
    study.figure("weights", "coefficients", where={"explainer": "learned"})
    study.figure("gains", "heat", table="gains")
    study.figure("rate", "sweep", over="training", metrics="A-C", where=where)
    study.figure("losses", "history", metrics="eval_cross_entropy", where={"recipe": "Student"})
    study.figure("seeds", "agreement", between="seeds", measure=TOP, where=where | {"explainer": "moved"})
