"""Explanations of untrained models, noisy explanations, and students, of one recipe with two seeds."""

from expound_papers.study import Data, Explainer, Model, Noisy, Significance, Study, Training, choose, register


@register
def study_of_controls(study: Study) -> None:
    """Controls."""
    study.seeds = 2
    study.arguments = {"num_train_epochs": 1, "per_device_train_batch_size": 8, "learning_rate": 3e-3}
    films = Data("films", "generated?size=48", split="train", limit=24)
    dev, test = films.but("dev", split="dev", limit=4), films.but("test", split="test", limit=4)
    pool, tiny = films.but("pool", limit=8, exclude=(films,)), Model("tiny", "tiny", max_length=24)
    runs = study.train("Model", "baseline", Training("films", films, dev), tiny)
    explainers = {
        "nothing": "none",
        "untrained": "parameterized_attention?untrained",
        "words": "interpretable_attention?untrained&normalizer=softmax&special_tokens=false",
        "IxG": "input_x_gradient",
        "noisy": Explainer("input_x_gradient", noisy=Noisy("aopc_comprehensiveness", maps=5)),
    }
    some = choose(explainers, "untrained", "words", "IxG", "noisy")
    limits = {"noisy": 2, "words": 3, "IxG": 99}
    study.judge("explained", runs, test, some, {"A-C": "aopc_comprehensiveness"}, limits=limits)
    arguments = {"num_train_epochs": 2, "learning_rate": 1e-3}
    some = choose(explainers, "nothing", "untrained", "IxG")
    how = {"pool": pool, "dev": dev, "start": tiny, "count": 2, "arguments": arguments}
    study.judge("taught", runs, test, some, protocol="students", **how)
    study.table(
        "explained", "", rows="explainer", columns="metric", metrics="A-C", where={"judgement": "explained"},
        significance=Significance("IxG", method="bootstrap", resamples=100),
    )  # fmt: skip
    study.table("taught", "", rows="explainer", columns="metric", metrics="simulatability")
    study.table("accuracy", "", rows="recipe", columns="metric", metrics="accuracy", where={"dataset": "test"})
