"""The study that is attacked."""

from expound_papers.study import Data, Model, Study, Training, register


@register
def attacked_study(study: Study) -> None:
    """Two learning rates."""
    study.arguments = {"num_train_epochs": 2, "per_device_train_batch_size": 8}
    films, dev = (Data(name, "generated?size=32", split=split) for name, split in (("films", "train"), ("dev", "dev")))
    data, tiny = Training("films", films, dev), Model("tiny", "tiny", max_length=24)
    runs = []
    for name, rate in {"slow": 1e-4, "fast": 3e-3}.items():
        runs.append(study.train(name, "baseline", data, tiny, arguments={"learning_rate": rate}))
    study.judge("all", runs, dev, {"IxG": "input_x_gradient"}, {"A-C": "aopc_comprehensiveness"})
    study.table("scores", "", rows="recipe", columns="metric", metrics=["A-C", "f1_macro"])
