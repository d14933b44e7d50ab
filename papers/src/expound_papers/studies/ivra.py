"""Xie et al. 2024, IvRA: A Framework to Enhance Attention-Based Explanations for Language Models with
Interpretability-Driven Training: Tables 1 to 7, and what they share with the other studies.

$EXPOUND_IVRA_MODEL names another model: gpt2-medium for Tables 8 to 11, say; decoders are trained by adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from expound_papers.study import Data, Model, Runs, Study, Training, choose, register

IDS = {"SIM": "simulatability", "COMP": "comprehensiveness", "SUFF": "sufficiency", "CONS": "consistency"}
TASKS = ("Sentiment", "Entailment", "Questions")
METRICS = {
    "COMP": "aopc_comprehensiveness?keep_question=true",
    "SUFF": "aopc_sufficiency?keep_question=true",
    "CONS": "consistency",
    "Important tokens": "important_tokens",
    "AUC": "rationale_auc",
}
POST_HOC = ["Attention (all layers)", "Attention (last layer)", "Input × Gradient", "Integrated Gradients", "LIME"]
UNTRAINED, SPARSE = "IvRA, untrained", "IvRA, untrained sparsemax"
ORDER = [*POST_HOC, "SMaT", "IvRA", UNTRAINED, SPARSE, "Random"]
COEFS: dict[str, Any] = {"mix": "coefs", "special_tokens": False}
STUDENT: dict[str, Any] = {"student_optimizer": "adamw", "student_learning_rate": 1e-4, "student_weight": 10.0}
LAST: dict[str, Any] = {
    "warmup_steps": 0,
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
}
WARM: dict[str, Any] = {"temperature": 1.0}


class Setup:
    """Three tasks, and the fine-tuned models that everything starts from.

    A fifth of each test split is the students'; the rest judges. The small scale has MiniLM; SST, SNLI's published dev
    split as its training data, and questions of the SQuAD subset on the sentences that answer them; three seeds.
    Criteria are trained for 24 steps, and the last model is what counts.
    """

    def __init__(
        self,
        study: Study,
        tasks: Sequence[str] = TASKS,
        seeds: Sequence[int] = (0,),
        arguments: Mapping[str, Any] | None = None,
        others: Sequence[Training] = (),
        **changes: Mapping[str, Any],
    ) -> None:
        self.study, self.small = study, study.is_small
        study.preset, study.seeds = "paper", 3 if self.small else 5
        if self.small:
            study.arguments = {"bf16": True} if arguments is None else arguments
        source = "${EXPOUND_BACKBONE:-sentence-transformers/all-MiniLM-L6-v2}"
        self.model = Model("model", "${EXPOUND_IVRA_MODEL:-google/electra-base-discriminator}", max_length=384)
        if self.small:
            self.model = Model("model", source, max_length=256)
        self.explainers: dict[str, Any] = {
            # Attention that a token gets from all others, as in IvRA's module; a span's answer is read in two places.
            "Attention (all layers)": "attention_all?query=mean",
            "Attention (last layer)": "attention_last?query=mean",
            "Input × Gradient": "input_x_gradient",
            "Integrated Gradients": f"integrated_gradients?n_steps={8 if self.small else 50}&baselines=zero",
            "LIME": f"lime?n_samples={64 if self.small else 500}",
            "SMaT": "parameterized_attention:{run}/teacher_explainer",
            "IvRA": "interpretable_attention:{run}",
            UNTRAINED: "interpretable_attention?untrained&normalizer=softmax",
            SPARSE: "interpretable_attention?untrained",
            "Random": "random",
        }
        self.data = make_small_data() if self.small else make_data()
        for name, fields in changes.items() if self.small else ():
            self.data[name] = self.data[name].but(self.data[name].name, **fields)
        of_task: dict[str, dict[str, Any]] = {task: {} for task in TASKS}
        if self.small:
            of_task["Sentiment"] = {"num_train_epochs": 2}
            of_task["Entailment"] = {"num_train_epochs": 3, "learning_rate": 1e-4}
            of_task["Questions"] = {"num_train_epochs": 12, "learning_rate": 2e-4, "per_device_train_batch_size": 16}
        self.tasks, self.trainings = tasks, dict[str, Training]()
        for task in tasks:
            self.trainings[task] = self.make_training(task, task, "train", of_task[task])
        self.trainings |= {each.name: each for each in others}
        self.fine = study.train("Fine-tuned", "baseline", [*self.trainings.values()], self.model, seeds=seeds)

    def make_training(self, name: str, task: str, split: str, arguments: Mapping[str, Any] | None = None) -> Training:
        """Return a split of a task as training data."""
        return Training(name, self.data[f"{task.lower()}-{split}"], self.data[f"{task.lower()}-dev"], arguments or {})

    def steps(self, count: int, **more: Any) -> dict[str, Any]:
        """Return the arguments of a short training, at small scale."""
        return (
            {"max_steps": count, "learning_rate": 3e-5, "per_device_train_batch_size": 16, **LAST, **more}
            if self.small
            else {}
        )

    def train(
        self, name: str, criteria: str, small: Mapping[str, Any], steps: int = 24, data: Any = None, *,
        normalizer: str = "sparsemax", arguments: Mapping[str, Any] | None = None, start: Runs | None = None,
        seeds: Any = None, **parameters: Any,
    ) -> Runs:  # fmt: skip
        """Train attention for criteria; `small` are parameters of the small scale alone."""
        ids = ",".join(IDS.get(each, each) for each in criteria.split(", "))
        given = {"criteria": ids, "normalizer": normalizer} | parameters | (dict(small) if self.small else {})
        if "SIM" in criteria:
            given["student"] = self.model
        return self.study.train(
            name, "ivra", data or [*self.trainings.values()], self.model, start=start or self.fine, seeds=seeds,
            arguments=self.steps(steps) if arguments is None else arguments, **given,
        )  # fmt: skip

    def train_control(self, steps: int, data: Any = None, rate: float = 3e-4) -> Runs:
        """Train as long by the cross-entropy alone."""
        arguments = {"learning_rate": rate, "num_train_epochs": 20, "per_device_train_batch_size": 64}
        if self.small:
            arguments = self.steps(steps)
        data = data or [*self.trainings.values()]
        return self.study.train("Control", "baseline", data, self.model, start=self.fine, arguments=arguments)

    def judge(
        self, name: str, runs: Any, explainers: Sequence[str], metrics: Sequence[str], tasks: Any = None, **how: Any
    ) -> None:
        """Judge explanations on the test data of each task, of the runs on its training data."""
        for task in tasks or self.tasks:
            chosen = [each.at(training=task) for each in ([runs] if isinstance(runs, Runs) else runs)]
            names = choose(self.explainers, *explainers), choose(METRICS, *metrics)
            self.study.judge(name.format(task.lower()), chosen, self.data[task], *names, **how)

    def add_table(self, name: str, caption: str, metrics: Any, rows: Any = ("recipe", "explainer"), **how: Any) -> None:
        """Add a table, explainers in the order of the paper."""
        fields: dict[str, Any] = {"columns": "dataset", "show": "mean ± se", "decimals": 3, "where": {}} | how
        if "explainer" in rows:
            order = [each for each in ORDER if each in self.study.explainers]
            fields["where"] = {"explainer": order, **fields["where"]}
        self.study.table(name, caption, rows=rows, metrics=metrics, **fields)


def make_data() -> dict[str, Data]:
    """Return the paper's data by split."""
    imdb, snli = (
        Data("sentiment-train", "hub:stanfordnlp/imdb", split="train"),
        Data("entailment-train", "hub:stanfordnlp/snli", split="train"),
    )
    squad = Data("questions-train", "squad:${EXPOUND_DATA:-data}/squad/train-v1.1.json", split="all")
    asked = Data("questions-dev", "squad:${EXPOUND_DATA:-data}/squad/dev-v1.1.json", split="all", rows=(0, 1000))
    data = [
        imdb,
        imdb.but("sentiment-dev", split="test", rows=(0, 2500)),
        imdb.but("sentiment-pool", split="test", rows=(2500, 7500)),
        imdb.but("Sentiment", split="test", rows=(7500, 25000)),
        snli,
        snli.but("entailment-dev", split="dev"),
        snli.but("entailment-pool", split="test", rows=(0, 2000)),
        snli.but("Entailment", split="test", rows=(2000, 9800)),
        squad,
        asked,
        asked.but("questions-pool", rows=(1000, 3000)),
        asked.but("Questions", rows=(3000, 10570)),
    ]
    return {each.name: each for each in data}


def make_small_data() -> dict[str, Data]:
    """Return the data of the small scale by split."""
    sst = Data("sentiment-train", "sst:${EXPOUND_DATA:-data}/sst", split="train", limit=3000)
    short = sst.but("sentiment-pool", split="test", limit=None, longest={"characters": 110}, rows=(0, 64))
    pairs = Data(
        "entailment-train", "snli:${EXPOUND_DATA:-data}/snli", split="dev", longest={"characters": 120}, rows=(0, 2400)
    )
    spec, longest = "squad:${EXPOUND_DATA:-data}/squad/dev-subset.json?sentences=true", {"characters": 420}
    asked = Data("questions-train", spec, split="train", longest=longest, limit=500)
    data = [
        sst,
        sst.but("sentiment-dev", split="dev", limit=300),
        short,
        short.but("Sentiment", rows=(300, 428)),
        pairs,
        pairs.but("entailment-dev", rows=(6000, 6100)),
        pairs.but("entailment-pool", split="test", rows=(0, 96)),
        pairs.but("Entailment", split="test", rows=(300, 428)),
        asked,
        asked.but("questions-dev", split="dev", limit=None, rows=(0, 60)),
        asked.but("questions-pool", limit=None, rows=(0, 192)),
        asked.but("Questions", split="test", limit=None, rows=(0, 56)),
    ]
    return {each.name: each for each in data}


@register
def ivra_table_1(study: Study) -> None:
    """IvRA, Table 1: simulatability of explanations.

    A student of each explanation of each model, from the pretrained model, on a fifth of the test split; its answers
    are counted without explanations. It explains itself by IvRA's own module and learns by SGD, β 1. SMaT's explainer
    is learned first, then held still.
    """
    # At small scale without questions; a thousand inputs judge, since three seeds of students differ by less than a
    # hundred could tell. AdamW and β 10: by SGD and 1 small models learn next to nothing from so few sentences.
    tasks = TASKS[:2] if study.is_small else TASKS
    setup = Setup(study, tasks, Sentiment={"rows": (64, 1070)}, Entailment={"rows": (300, 1300)})
    rate = {"lr_multiplier": 167, **STUDENT}
    soft = setup.train("SIM softmax", "SIM", rate | {"special_tokens": False}, 96, normalizer="softmax")
    sparse = setup.train("SIM sparsemax", "SIM", rate | COEFS, 96)
    few = {"optim": "adamw_torch", "learning_rate": 1e-4, "num_train_epochs": 6, "per_device_train_batch_size": 16}
    usual: dict[str, Any] = {"student_weight": 1.0, "student_explainer": "interpretable_attention"}
    if study.is_small:
        usual |= {"student_weight": 10.0, "normalizer": "softmax"}
    for task in tasks:
        training = setup.make_training(f"{task}, students", task, "pool")
        arguments = few if study.is_small else {}
        (fine, taught_soft, taught_sparse), students = (
            (each.at(training=task) for each in (setup.fine, soft, sparse)),
            list[Runs](),
        )

        def teach(
            name: str, teacher: Runs, spec: Any, *, task: str = task, training: Training = training, **changes: Any
        ) -> Runs:
            given = usual | {"arguments": arguments} | {"teacher": teacher, "explainer": spec} | changes
            return study.train(f"{task}: {name}", "smat", training, setup.model, **given)

        for name in ("No explanation", *POST_HOC):
            students.append(teach(name, fine, setup.explainers.get(name, "none")))
        learned: dict[str, Any] = {"student_weight": 5.0, "student_explainer": "parameterized_attention"}
        if study.is_small:
            learned |= {"student_weight": 10.0, "meta_learning_rate": 2e-3, "normalizer": "sparsemax"}
        explainer = teach("SMaT, learned", fine, "learned", **learned).folder("teacher_explainer")
        students.append(teach("SMaT", fine, explainer))
        exam, place = setup.data[task], task.lower()
        others = {}
        for name, teacher in {"IvRA softmax": taught_soft, "IvRA sparsemax": taught_sparse}.items():
            others[teacher.name] = teach(name, teacher, "interpretable_attention"), teacher
        study.judge(f"{place}, students of Fine-tuned", students, exam, protocol="simulatability", teacher=fine)
        for name, (runs, teacher) in others.items():
            study.judge(f"{place}, students of {name}", runs, exam, protocol="simulatability", teacher=teacher)
        caption = f"Simulatability (share of equal answers), {place}"
        setup.add_table(f"table-1-{place}", caption, "simulatability", "recipe", where={"dataset": task})


def compare_criterion(
    study: Study, number: int, criterion: str, caption: str, small: Mapping[str, Any], **others: str
) -> None:
    """Each criterion alone: explanations of fine-tuned models, which Tables 2 to 4 share, and what training adds."""
    setup, all_metrics = Setup(study), ["COMP", "SUFF", "CONS"]
    smat = None
    if not study.is_small:
        how: dict[str, Any] = {"teacher": setup.fine, "explainer": "learned", "student_size": 5000}
        smat = study.train("SMaT", "smat", [*setup.trainings.values()], setup.model, **how)
    control = setup.train_control(24)
    soft = [setup.train(f"{criterion} softmax", criterion, small, normalizer="softmax")]
    soft += [setup.train(f"{criterion} {name}", each, small, normalizer="softmax") for name, each in others.items()]
    sparse = setup.train(f"{criterion} sparsemax", criterion, small)
    setup.judge("{}, post hoc", setup.fine, [*POST_HOC, UNTRAINED, SPARSE], all_metrics)
    # Trained on as long, by the cross-entropy alone.
    setup.judge("{}, control", control, [UNTRAINED], all_metrics)
    if smat:
        setup.judge("{}, SMaT", smat, ["SMaT"], all_metrics, model=setup.fine)
    setup.judge("{}, softmax", soft, ["IvRA", UNTRAINED], [criterion])
    setup.judge("{}, sparsemax", sparse, ["IvRA", SPARSE], [criterion])
    setup.add_table(f"table-{number}", caption, criterion, labels={"Fine-tuned": "", "SMaT": ""})


@register
def ivra_table_2(study: Study) -> None:
    """IvRA, Table 2: comprehensiveness of explanations.

    The same for other models (Tables 8 to 11): set EXPOUND_IVRA_MODEL. Beside each trained explanation that of the same
    model with all coefficients alike.
    """
    compare_criterion(study, 2, "COMP", "Comprehensiveness (AOPC), higher is better", {"lr_multiplier": 333, **WARM})


@register
def ivra_table_3(study: Study) -> None:
    """IvRA, Table 3: sufficiency of explanations.

    The same for other models (Tables 8 to 11): set EXPOUND_IVRA_MODEL. Beside each trained explanation that of the same
    model with all coefficients alike.
    """
    compare_criterion(study, 3, "SUFF", "Sufficiency (AOPC), lower is better", {"lr_multiplier": 167, **WARM})


@register
def ivra_table_4(study: Study) -> None:
    """IvRA, Table 4: consistency of explanations.

    The same for other models (Tables 8 to 11): set EXPOUND_IVRA_MODEL. Beside each trained explanation that of the same
    model with all coefficients alike. CONS ranks: the loss is 1 − Spearman's ρ with soft ranks, in place of the printed
    one.
    """
    caption = "Consistency (mean ρ over pairs of a batch), higher is better"
    compare_criterion(study, 4, "CONS", caption, {"lr_multiplier": 100}, ranks="rank_consistency")


def list_sets(*sizes: int) -> list[str]:
    """Return the sets of criteria of these sizes."""
    return [f"{{{', '.join(names)}}}" for size in sizes for names in combinations(IDS, size)]


def train_sets(setup: Setup, names: Sequence[str]) -> list[Runs]:
    """Train a model for every set of criteria."""
    runs = []
    for name in names:
        steps, small = 24, dict[str, Any](lr_multiplier=333 if name == "{COMP}" else 100)
        if "SIM" in name:
            small, steps = {"lr_multiplier": 167, **STUDENT}, 32
        runs.append(setup.train(name, name.strip("{}"), small, steps))
    return runs


@register
def ivra_table_5(study: Study) -> None:
    """IvRA, Table 5: what criteria cost in accuracy."""
    setup = Setup(study, TASKS[:1] if study.is_small else TASKS)
    setup.judge("{}", [setup.fine, *train_sets(setup, list_sets(1, 2, 4))], [], [])
    how: dict[str, Any] = {"show": "mean ± sd", "scale": 100, "decimals": 1}
    setup.add_table("table-5", "Accuracy, of questions exact match, %", ["accuracy", "exact_match"], "recipe", **how)


@register
def ivra_table_6(study: Study) -> None:
    """IvRA, Table 6: plausibility of explanations of review sentiment."""
    # After 400 reviews MiniLM gives all the same answer: models of Tables 1 to 4, which learned from sentences, explain
    # sentences, whose strongest phrases are rationales, and reviews.
    movies = Data("Movies", "eraser:${EXPOUND_DATA:-data}/movies", limit=60 if study.is_small else None)
    others = [Training("Movies", movies.but("movies-train", split="train"), movies.but("movies-dev", split="dev"))]
    if study.is_small:
        setup = Setup(study, TASKS[:1], Sentiment={"rows": (64, 364), "rationales": True})
    else:
        setup = Setup(study, (), others=others)
    learn: dict[str, Any] = {"teacher": setup.fine, "explainer": "learned"}
    if study.is_small:
        few = {"optim": "adamw_torch", "learning_rate": 1e-4, "num_train_epochs": 6, "per_device_train_batch_size": 16}
        learn |= {
            "student_weight": 10.0,
            "student_explainer": "parameterized_attention",
            "meta_learning_rate": 2e-3,
            "arguments": few,
        }
        training = setup.make_training("Sentiment, students", "Sentiment", "pool")
        smat = study.train("SMaT", "smat", training, setup.model, **learn)
    else:
        smat = study.train("SMaT", "smat", setup.trainings["Movies"], setup.model, student_size=500, **learn)
    trained = [setup.train("SIM sparsemax", "SIM", {"lr_multiplier": 167, **COEFS, **STUDENT}, 96)]
    trained.append(setup.train("COMP sparsemax", "COMP", {"lr_multiplier": 333, **WARM}))
    trained.append(setup.train("SUFF sparsemax", "SUFF", {"lr_multiplier": 167, **WARM}))
    trained.append(setup.train("CONS sparsemax", "CONS", {"lr_multiplier": 100}))
    metrics, names = choose(METRICS, "AUC"), POST_HOC
    if study.is_small:
        names = [*POST_HOC[:2], SPARSE, *POST_HOC[2:]]
    for name, test in {"movies": movies, "sentences": setup.data["Sentiment"]}.items():
        if name == "movies" or study.is_small:
            limits = {"Integrated Gradients": 15, "LIME": 15} if study.is_small and name == "movies" else {}
            study.judge(f"{name}, post hoc", setup.fine, test, choose(setup.explainers, *names), metrics, limits=limits)
            study.judge(f"{name}, SMaT", smat, test, choose(setup.explainers, "SMaT"), metrics, model=setup.fine)
            study.judge(f"{name}, IvRA", trained, test, choose(setup.explainers, "IvRA"), metrics)
    where = {"dataset": ["Sentiment", "Movies"]} if study.is_small else {}
    setup.add_table("table-6", "AUC against rationales", "AUC", labels={"Fine-tuned": ""}, where=where)


@register
def ivra_table_7(study: Study) -> None:
    """IvRA, Table 7: learning rate and its factor every two epochs.

    Sentiment. The paper searched with Llama-2: set EXPOUND_IVRA_MODEL; students of simulatability are those that
    learned along.
    """
    # At small scale 24 steps are less than two epochs, after which the factor is first applied: learning rates alone.
    setup = Setup(study, TASKS[:1])
    if study.is_small:
        study.seeds = 1
    for criterion, metric in IDS.items():
        names = []
        for rate in ("3e-5", "3e-4", "1e-4", "1e-3"):
            for gamma in (1.0,) if study.is_small else (1.0, 0.75, 0.5, 0.25):
                names.append(f"{criterion}, {rate}, {gamma:g}")
                small: dict[str, Any] = {"lr_multiplier": 100}
                seeds, arguments = None, {"learning_rate": float(rate)}
                if study.is_small:
                    arguments |= {
                        "max_steps": 24,
                        "eval_steps": 12,
                        "per_device_train_batch_size": 16,
                        "warmup_steps": 0,
                    }
                if study.is_small and criterion == "SIM":
                    small, seeds = {**small, **STUDENT}, 2 if rate == "1e-4" else 3
                setup.train(names[-1], criterion, small, arguments=arguments, seeds=seeds, lr_decay=gamma)
        how: dict[str, Any] = {"columns": "training", "where": {"recipe": names}}
        caption = f"{criterion} of the best epoch, on dev"
        setup.add_table(f"table-7-{criterion.lower()}", caption, f"dev_criterion_{metric}", "recipe", **how)
