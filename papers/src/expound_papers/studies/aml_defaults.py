"""AML with the default values of its recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from expound_papers.studies import aml
from expound_papers.studies.corpora import MINILM, SNLI, SST
from expound_papers.study import Data, Model, Study, Training, choose, register


class Defaults:
    """The recipe's default values, which the preset of the paper would replace, on SST and on SNLI."""

    def __init__(self, study: Study, test: Data | None = None, corpora: int = 2, **arguments: Any) -> None:
        model = Model("encoder", MINILM, max_length=128)
        # float32: made on a processor that multiplies bfloat16 matrices slowly
        study.arguments = {"bf16": False} if study.is_small else {}
        sst = Data("sst-train", SST, split="train", limit=3000)
        # Dev trains, so that no other file of SNLI is needed.
        snli = Data("snli-train", SNLI, split="dev", longest={"characters": 120}, rows=(0, 3000))
        self.tests = [test or Data("SST2", SST, limit=100), snli.but("SNLI", split="test", limit=100, rows=None)][
            :corpora
        ]
        trainings = [
            Training("SST2", sst, sst.but("sst-dev", split="dev", limit=200)),
            Training("SNLI", snli, snli.but("snli-dev", rows=(3000, 3200))),
        ]
        given = {"num_train_epochs": 2, "learning_rate": 1e-4, "per_device_train_batch_size": 16} | arguments
        self.study, self.model, self.trainings = study, model, trainings[:corpora]
        self.f = study.train("F", "baseline", self.trainings, model, arguments=given)
        self.masks = study.train("AML", "aml", self.trainings, model, start=self.f)

    def judge(self, names: Sequence[str], metrics: Mapping[str, str]) -> None:
        """Judge masks and other explanations on each corpus."""
        explainers = choose(aml.EXPLAINERS | aml.SMALL, *names)
        for test in self.tests:
            masks = {"fAML": aml.REFINED, "pAML": aml.MASKS["pAML"]}
            self.study.judge(test.name, self.masks.at(training=test.name), test, masks, metrics, model=self.f)
            self.study.judge(f"{test.name} methods", self.f.at(training=test.name), test, explainers, metrics)

    def add_table(
        self,
        name: str,
        caption: str,
        columns: Any = ("dataset", "metric"),
        metrics: Sequence[str] = ("Suff", "Comp", "A-C"),
    ) -> None:
        """Add a table of all explanations."""
        where = {"explainer": ["pAML", "fAML", "DCMP", aml.NOISY_DCMP, "attention", "random"]}
        where = {"explainer": [name for name in where["explainer"] if name in self.study.explainers]}
        self.study.table(
            name, caption, rows=["recipe", "explainer"], columns=columns, metrics=metrics, decimals=3, where=where
        )


@register
def aml_defaults(study: Study) -> None:
    """AML without options, on sentences and on pairs.

    The recipe's default values, with which λ_a does not grow, on SST and on SNLI; and on 300 examples instead of 1,000.
    """
    # Claims, stated before the runs: by A-C, masks are better than random on both corpora and from 300 examples, too;
    # refined masks are better than DecompX's scores and than the best of 11 noisy copies of them. 200 sentences were to
    # be judged, and LIME, IG and DeepLIFT too; for their cost, both were cut before any figure was seen.
    study.seeds = [42, 43, 44]
    setup, metrics = Defaults(study), choose(aml.METRICS, "Suff", "Comp", "A-C")
    few = study.train("AML, 300 examples", "aml", setup.trainings[0], setup.model, start=setup.f, train_rows=300)
    setup.judge(["DCMP", "attention", "random", aml.NOISY_DCMP], metrics)
    study.judge("SST2, 300 examples", few, setup.tests[0], choose(aml.MASKS, "pAML"), metrics, model=setup.f)
    caption = "Faithfulness of explanations; fAML and the best of 11 are chosen by A-C, on the example that is judged"
    setup.add_table("defaults", caption)


@register
def aml_defaults_seeds(study: Study) -> None:
    """AML without options: three more seeds.

    The same models and judgements, with six seeds.
    """
    # Stated before the runs: with three seeds, whether refined masks are better than DecompX's scores on SST (claim 4d)
    # was undecided, because the seeds' differences (.012 to .032) vary more than those of sentences. Three more seeds
    # test it again. Those of SNLI were added later, stated before their runs: there 4e was undecided by +.019
    # [-.020, +.059].
    study.seeds = [42, 43, 44, 45, 46, 47]
    setup = Defaults(study)
    setup.judge(["DCMP", "attention", "random", aml.NOISY_DCMP], choose(aml.METRICS, "Suff", "Comp", "A-C"))
    setup.add_table("seeds", "Faithfulness, six seeds")


@register
def aml_defaults_sentences(study: Study) -> None:
    """AML without options: other sentences.

    The recipe's default values on SST, judged on more sentences.
    """
    # Claims, stated before the runs, with the numbers of the results page: by A-C on 300 sentences that no other study
    # of AML judges, with three other seeds, pAML is at most .02 below DecompX (4f), and fAML is better than DecompX
    # (4d) and than the best of 11 noisy maps (4e).
    study.seeds = [48, 49, 50]
    arguments = {"bf16": True} if study.is_small else {}
    setup = Defaults(study, Data("SST2", SST, rows=(1000, 1300)), corpora=1, **arguments)
    setup.judge(["DCMP", "random", aml.NOISY_DCMP], choose(aml.METRICS, "A-C"))
    setup.add_table("defaults", "Faithfulness, other sentences and seeds", "metric", ["A-C"])
