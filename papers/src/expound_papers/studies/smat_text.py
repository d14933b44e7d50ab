"""Learning to Scaffold, text classification: Tables 1 and 2, Figure 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from expound_papers.studies import smat
from expound_papers.studies.corpora import MINILM, MOVIES, SST
from expound_papers.study import Data, Model, Significance, Study, Training, register


def begin_text(
    study: Study, seeds: Sequence[int] = smat.SEEDS, teacher_seeds: Sequence[int] = (0,), **arguments: Any
) -> smat.Task:
    """Text classification: IMDB at paper scale, SST at the small one."""
    study.preset, study.seeds = "paper", seeds
    if not study.is_small:
        model = Model("encoder", "google/electra-small-discriminator", max_length=256)
        test = Data("teacher-dev", "hub:stanfordnlp/imdb", rows=(0, 12500))
        train = Data("teacher-train", "hub:stanfordnlp/imdb", split="train")
        pools = {str(n): test.but(f"pool-{n}", rows=(12500, 12500 + n)) for n in (500, 1000, 2000)}
        teacher = smat.train_teacher(study, model, Training("teacher", train, test), 5, {})
        trainings = smat.make_pools(pools, test.but("students-dev", rows=(21250, 22500)))
        return smat.Task(study, model, test.but("exam", rows=(22500, 25000)), teacher, trainings)
    # The teacher learns from a part of train, students from short sentences of test that it never saw. What is learned
    # takes many steps of the outer problem; at 2e-3 a coefficient moves by its own size, 1/72, in seven. Every student
    # may have 416 steps of 8 sentences; dev chooses among them, as in the paper, and ends the training of one that has
    # not grown better for 260. Students of gradients, which take longest to explain, have three seeds.
    study.arguments = {"bf16": True} | arguments
    model = Model("encoder", MINILM, max_length=256)
    train = Data("teacher-train", SST, split="train", limit=3000)
    short = train.but("pool-100", split="test", limit=None, longest={"words": 18}, rows=(0, 100))
    dev = short.but("students-dev", rows=(100, 220))
    exam = train.but("exam", split="test", limit=None, exclude=(short, dev))
    usual = {name: None for name in smat.TEACHER if name not in ("learning_rate", "num_train_epochs")}
    data = Training("teacher", train, train.but("teacher-dev", split="dev", limit=300))
    teacher = smat.train_teacher(study, model, data, None, usual | {"num_train_epochs": 2}, seeds=teacher_seeds)
    few = {"optim": "adamw_torch", "learning_rate": 1e-4, "num_train_epochs": 32, "per_device_train_batch_size": 8}
    return smat.Task(
        study, model, exam, teacher, smat.make_pools({"100": short}, dev), few | {"eval_steps": 26}, patience=10,
        of_smat={"meta_learning_rate": 2e-3}, gradient_seeds=[0, 9, 11],
    )  # fmt: skip


@register
def smat_table_1(study: Study) -> None:
    """Learning to Scaffold, Table 1: simulatability of a text classifier."""
    task = begin_text(study)
    task.examine(*smat.STATIC, smat.LEARNED, smat.AGAIN)
    caption = "Simulatability (accuracy, %) by the student's training sentences"
    task.add_table("table-1", caption, significance=Significance("No Explainer", method="quartiles"))


@register
def smat_seeds(study: Study) -> None:
    """Learning to Scaffold, Table 1: other seeds."""
    # Claim, stated before the runs: students of SMaT learn more than those of static attention of all layers. With the
    # five seeds of Table 1 it is undecided (+2.7 points, interval from −2.0 to +7.5).
    # Ten seeds and five rows were planned. No Explainer and the last layer had run for seed 1 when the cost was seen;
    # before any figure was looked at, the rows but the two of the claim were left out. The last five seeds ran later,
    # when the first five had been judged and the claim was still undecided.
    # Single precision, since the processor multiplies bfloat16 matrices slowly; the teacher is therefore another one.
    task = begin_text(study, smat.OTHER_SEEDS, bf16=False)
    task.examine(
        *(["Attention (all layers)", smat.LEARNED] if study.is_small else [*smat.STATIC, smat.LEARNED, smat.AGAIN])
    )
    task.add_table("seeds", "Simulatability (accuracy, %), other seeds and another teacher")


@register
def smat_attention(study: Study) -> None:
    """Learning to Scaffold, Table 1: attention of all layers and of the last one, with ten seeds."""
    # For claim 8 of the results page, which the five seeds of Table 1 leave undecided. Planned when their figures were
    # known, and before any of the others.
    task = begin_text(study, smat.SEEDS + smat.OTHER_SEEDS[:5])
    task.examine("Attention (all layers)", "Attention (last layer)")
    task.add_table("attention", "Simulatability (accuracy, %) of static attention, ten seeds")


def explain_reviews(study: Study, *, static: bool = True) -> None:
    """How plausible explainers of the teacher are on reviews with rationales; learned ones come from students' runs."""
    task = begin_text(study)
    movies = Data("Movies", MOVIES, limit=60 if study.is_small else None)
    metrics = {"AUC": "rationale_auc?absolute=false"}
    if static:
        # Integrated gradients of long reviews take longer than all the rest.
        explainers = {
            name: spec for name, spec in smat.EXPLAINERS.items() if not (study.is_small and "Integrated" in name)
        }
        study.judge("static", task.teacher, movies, explainers, metrics)
    learned = task.train(smat.LEARNED, pool="100" if study.is_small else "1000")
    study.judge("learned", learned, movies, smat.ATTN_SMAT, metrics, model=task.teacher)
    if static:
        # The rows with a star: people's rationales of the test reviews choose the layer and the head.
        how: dict[str, Any] = {"metric": "rationale_auc?absolute=false"}
        study.judge("supervised", task.teacher, movies, protocol="best_attention", **how)


@register
def smat_table_2(study: Study) -> None:
    """Learning to Scaffold, Table 2: plausibility on MovieReviews.

    The rows with a star, which people's rationales choose, are a table of their own: they are no explainers.
    """
    explain_reviews(study)
    study.table(
        "table-2", "AUC of explanations of the teacher against rationales, MovieReviews", rows="explainer",
        columns="metric",
        metrics="AUC", where={"dataset": "Movies"}, show="median [25–75]", decimals=2,
    )  # fmt: skip
    study.table(
        "table-2-supervised", "The layer's and the head's attention that agree best with these very rationales",
        rows="metric", columns="dataset", metrics=["best_head", "best_layer"], where={"dataset": "Movies"}, decimals=2,
        labels={"best_layer": "Attn (best layer)*", "best_head": "Attn (best head)*"},
    )  # fmt: skip


@register
def smat_fig_5(study: Study) -> None:
    """Learning to Scaffold, Figure 5: what the learned explainer weighs heads by.

    Text classification; for the others see smat-fig-5-images and smat-fig-5-quality.
    """
    explain_reviews(study, static=False)
    smat.add_coefficients(study, "fig-5")
