"""Learning to Scaffold, quality of translations: Tables 5 to 7, Figure 5."""

from __future__ import annotations

from typing import Any

from expound_papers.studies import smat
from expound_papers.studies.corpora import MINILM
from expound_papers.study import Data, Model, Significance, Study, Training, register


def begin_quality(study: Study) -> smat.Task:
    """Quality estimation of machine translations, a regression, of six language pairs together.

    Students are examined on the test split. $EXPOUND_PAIRS names other pairs. The small scale has one pair, ro-en, on
    parts of dev. MiniLM knows English only: claims about quality estimation are not testable with it, and this scale
    only shows that the study runs.
    """
    study.preset, study.seeds = "paper", smat.SEEDS
    slow = {"learning_rate": 1e-5, "warmup_steps": 4000, "metric_for_best_model": "pearson"}
    if not study.is_small:
        model = Model("encoder", "FacebookAI/xlm-roberta-base", max_length=256)
        pairs = "mlqe:${EXPOUND_DATA:-data}/mlqe-pe?pair=${EXPOUND_PAIRS:-en-de,en-zh,et-en,ne-en,ro-en,ru-en}"
        train = Data("teacher-train", pairs, split="train")
        dev = train.but("students-dev", split="dev")
        teacher = smat.train_teacher(study, model, Training("teacher", train, dev), 5, slow)
        pools = smat.make_pools({str(n): train.but(f"pool-{n}", limit=n) for n in (2100, 4200, 8400)}, dev)
        exam = train.but("exam", split="test")
        return smat.Task(
            study, model, exam, teacher, pools, smat.BATCH, patience=5, of_smat={"meta_learning_rate": 2e-4}
        )
    study.seeds, study.arguments = [0, 9, 11], {"bf16": True}
    model = Model("encoder", MINILM, max_length=96)
    train = Data("teacher-train", "mlqe:${EXPOUND_DATA:-data}/mlqe-pe?pair=ro-en", split="train", limit=1000)
    dev = train.but("students-dev", split="dev", limit=None, rows=(0, 150))
    arguments: dict[str, Any] = {
        "learning_rate": 5e-5,
        "warmup_steps": 0.06,
        "num_train_epochs": 2,
        "per_device_train_batch_size": 32,
    }
    arguments |= {"lr_scheduler_type": "linear"}
    teacher = smat.train_teacher(study, model, Training("teacher", train, dev), None, slow | arguments)
    pools = smat.make_pools({str(n): train.but(f"pool-{n}", limit=n) for n in (100, 200, 400)}, dev)
    few = smat.BATCH | {"optim": "adamw_torch", "learning_rate": 1e-4, "num_train_epochs": 4}
    return smat.Task(
        study,
        model,
        dev.but("exam", rows=(500, 800)),
        teacher,
        pools,
        few,
        of_smat={"meta_learning_rate": 2e-3},
        steps=8,
    )


@register
def smat_table_5(study: Study) -> None:
    """Learning to Scaffold, Table 5: simulatability of a quality estimator.

    Six language pairs together; at small scale one, read by a model of English alone: no claim is tested there.
    """
    task = begin_quality(study)
    task.examine(*smat.STATIC, smat.LEARNED, smat.AGAIN)
    how: dict[str, Any] = {"scale": 1, "decimals": 4, "significance": Significance("No Explainer", method="quartiles")}
    task.add_table("table-5", "Simulatability (Pearson) by the student's training pairs", **how)


def explain_quality(study: Study, *, static: bool = True) -> None:
    """Judge explanations against the words that post-editors changed, of the source and of the translation apart."""
    task = begin_quality(study)
    metrics = {"src.": "segment_auc?segment=1&absolute=false", "tgt.": "segment_auc?segment=2&absolute=false"}
    if static:
        study.judge("static", task.teacher, task.exam, smat.EXPLAINERS, metrics)
    learned = task.train(smat.LEARNED, pool="200" if study.is_small else "4200")
    study.judge("learned", learned, task.exam, smat.ATTN_SMAT, metrics, model=task.teacher)
    for side, spec in metrics.items() if static else ():
        how: dict[str, Any] = {"metric": spec}
        study.judge(f"supervised, {side}", task.teacher, task.exam, protocol="best_attention", **how)


@register
def smat_table_6(study: Study) -> None:
    """Learning to Scaffold, Table 6: plausibility of explanations of a quality estimator.

    Against the words that post-editors changed; pairs without errors are left out. Words of the source and of the
    translation are ranked apart.
    """
    explain_quality(study)
    study.table(
        "table-6", "AUC of explanations of the teacher against words that were changed", rows="explainer",
        columns="metric",
        metrics=["src.", "tgt."], where={"dataset": "exam"}, show="median [25–75]", decimals=2,
    )  # fmt: skip
    labels = {"best_layer": "Attn (best layer)*", "best_head": "Attn (best head)*"}
    sides = {"supervised, src.": "src.", "supervised, tgt.": "tgt."}
    study.table(
        "table-6-supervised", "The layer's and the head's attention that agree best with these very words",
        rows="metric",
        columns="judgement", metrics=["best_head", "best_layer"], labels=labels | sides, where={"judgement": [*sides]},
        decimals=2,
    )  # fmt: skip


@register
def smat_fig_5_quality(study: Study) -> None:
    """Learning to Scaffold, Figure 5, right: what the explainer that was learned on translations weighs heads by.

    Against the words that post-editors changed; pairs without errors are left out. Words of the source and of the
    translation are ranked apart.
    """
    explain_quality(study, static=False)
    smat.add_coefficients(study, "fig-5-quality")


@register
def smat_table_7(study: Study) -> None:
    """Learning to Scaffold, Table 7: what normalizes the heads' coefficients."""
    task, kinds = (
        begin_quality(study),
        {"Attention (all layers)": "untrained", "Attention (last layer)": "untrained_last"},
    )
    kinds[smat.LEARNED] = "learned"
    pool = "200" if study.is_small else "4200"
    runs = task.train("No Explainer", pool=pool)
    for ending, normalizer in {
        "": "sparsemax",
        ", softmax": "softmax",
        ", entmax": "entmax15",
        ", none": "none",
    }.items():
        if study.is_small and ending:
            task.arguments = {**task.arguments, "num_train_epochs": 6}
        for name, kind in kinds.items():
            # The rows that the table adds at small scale keep the paper's rate of the outer problem.
            rate = {"meta_learning_rate": 2e-3 if study.is_small and not ending else 2e-4} if kind == "learned" else {}
            if ending and study.is_small:
                task.patience = 5
            runs.append(task.add(name + ending, pool, explainer=kind, normalizer=normalizer, **rate))
    study.judge("normalized students", runs, task.exam, protocol="simulatability", teacher=task.teacher)
    by_kind = [name + ending for name in kinds for ending in (", softmax", ", entmax", ", none")]
    where = {"dataset": ["exam"], "recipe": ["No Explainer", *kinds, *by_kind]}
    caption = "Simulatability (Pearson) by what normalizes the coefficients; sparsemax where nothing is said"
    task.add_table("table-7", caption, scale=1, decimals=4, where=where)
