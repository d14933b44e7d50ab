"""A search for the weights of a masking model's loss terms that are best by a metric."""

from __future__ import annotations

import logging
import os
import platform
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
from datasets import Dataset
from optuna.trial import FrozenTrial, Trial, TrialState
from tqdm import tqdm
from transformers import PreTrainedModel, TrainerCallback

from expound.data.provenance import digest, digest_data, to_json_value
from expound.data.selection import exclude_examples
from expound.errors import ExpoundError
from expound.explainers.attributive_masking.losses import MaskWeights
from expound.explainers.plan import measure_pass
from expound.metrics import Metric, metric
from expound.models import ExplainedModel
from expound.models.encoding import encode as encoding
from expound.models.loading.digest import digest_processor, digest_weights
from expound.models.state import freeze_weights, preserve_random_state
from expound.training.loop.data import log_once
from expound.training.loop.options import RunOptions
from expound.training.masking.run import (
    default_arguments,
    make_masking_arguments,
    make_masking_model,
    sample_stratified,
    select_texts,
)
from expound.training.masking.trainer import MaskCollapseError, MaskingTrainer

logger = logging.getLogger(__name__)
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
PROCESS = "process"
PASSES_PER_STEP, PASSES_PER_EVALUATION = 9, 6
"""Forward passes of the explained model per example; a backward pass counts as two."""
TERMS = ("preservation", "sparsity", "inverse")


@dataclass(frozen=True, kw_only=True)
class WeightSearch:
    """A search with TPE over λ_p, λ_a and λ_inv in [0, 1]: short trainings on part of the data, pruned at the median.

    The same search on the same storage resumes an interrupted one: a killed trial is not counted, and the resumed
    search draws the same numbers as an uninterrupted one. Several processes or machines may share one storage.

    Args:
        trials: number of finished or pruned trials, over all processes.
        epochs: epochs per trial; the learning rate decays as for the number in `arguments` (10).
        train_rows: training examples per trial, in proportion to the classes.
        dev_rows: examples that each trial is evaluated on.
        storage: an Optuna storage URL. Default: an SQLite file in the folder.
        seed: seed of the sampler.
        weights: the forms of the terms; its λ are not used.
        fixed: λ that are not searched, by the name of their term.
    """

    trials: int = 30
    epochs: float = 2
    train_rows: int | None = 450
    dev_rows: int | None = 200
    storage: str | None = None
    seed: int = 42
    weights: MaskWeights = field(default_factory=MaskWeights)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.trials < 1 or self.epochs <= 0:
            raise ExpoundError(f"expected at least one trial of more than 0 epochs, got {self.trials} of {self.epochs}")

    def run(
        self,
        model: ExplainedModel,
        train: Dataset,
        dev: Dataset,
        output_dir: str | Path,
        selection: str | Metric,
        *,
        backbone: str | PreTrainedModel | None = None,
        tokenizer: Any = None,
        masking_settings: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> MaskWeights:
        """Return the weights of the best trial by the metric. The arguments are those of `train_masking`.

        Raises:
            ExpoundError: the storage cannot be opened, or the metric is undefined in all trials.
        """
        judge = selection if isinstance(selection, Metric) else metric(selection)
        few = sample_stratified(dev, self.dev_rows, self.seed)
        case = _SearchTrial(
            self, model, select_texts(sample_stratified(exclude_examples(train, dev), self.train_rows, self.seed)),
            select_texts(few), judge, backbone, tokenizer, dict(masking_settings or {}), options or RunOptions(),
        )  # fmt: skip
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        url = self.storage or f"sqlite:///{(folder / 'search.db').resolve()}"
        study = open_study(url, case.name, case.judge.card.higher_is_better)
        study.pruner = optuna.pruners.MedianPruner()
        self._announce(case, study, folder)
        while self._count_missing(study) > 0:
            with _hide_tracebacks():
                study.optimize(case, n_trials=1)
            last = study.trials[-1]
            logger.info("trial %d: %s %s", last.number, last.state.name.lower(), last.value)
        return self._best(study, case)

    def _count_missing(self, study: optuna.Study) -> int:
        return self.trials - len(study.get_trials(deepcopy=False, states=FINISHED))

    def _announce(self, case: _SearchTrial, study: optuna.Study, folder: Path) -> None:
        """Log an estimate of the search's duration, from the measured time of a forward pass."""
        left = self._count_missing(study)
        if left <= 0:
            return
        passes = self.epochs * (PASSES_PER_STEP * len(case.train) + PASSES_PER_EVALUATION * len(case.dev))
        seconds = left * passes * measure_pass(case.model, list(case.train))
        logger.warning(
            "searching the weights of three terms: %d trials, about %s; the same call resumes them from %s",
            left, tqdm.format_interval(seconds), folder,
        )  # fmt: skip

    def _best(self, study: optuna.Study, case: _SearchTrial) -> MaskWeights:
        if not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            raise ExpoundError(
                f"no trial was finished: {case.judge.name} is undefined for these texts, or all diverged"
            )
        best: FrozenTrial = study.best_trial
        logger.info("best of %d trials: %s = %.4f with %s", len(study.trials), case.judge.name, best.value, best.params)
        return replace(self.weights, **self.fixed, **best.params)


@dataclass(frozen=True)
class _SearchTrial:
    """The objective function of the search: trains a masking model and returns its metric."""

    search: WeightSearch
    model: ExplainedModel
    train: Dataset
    dev: Dataset
    judge: Metric
    backbone: Any
    tokenizer: Any
    masking_settings: dict[str, Any]
    options: RunOptions

    @property
    def name(self) -> str:
        """The name of the study, with a digest of everything but λ that a trial's outcome depends on."""
        # Another search on the same storage must not reuse these trials.
        facts: dict[str, Any] = {
            "model": {"weights": digest_weights(self.model.model), **self.model.settings},
            "processors": [digest_processor(each) for each in (self.model.processing_class, self.tokenizer)],
            "data": [digest_data(self.train), digest_data(self.dev)],
            "metric": {self.judge.name: self.judge.params},
            "backbone": self.backbone if isinstance(self.backbone, str | None) else digest_weights(self.backbone),
            "choices": self.masking_settings,
            "arguments": self.options.trainer_arguments,
            "search": {name: getattr(self.search, name) for name in ("epochs", "seed")},
            "forms": [self.search.weights.inverse_form, self.search.weights.sparsity_form],
            "sparsity_warmup": self.search.weights.sparsity_warmup,
        }
        if self.search.fixed:
            facts["fixed"] = self.search.fixed
        return f"aml-{self.judge.name}-{digest(to_json_value(facts))}"

    def __call__(self, trial: Trial) -> float:
        """Train one trial and return the metric after its last epoch."""
        weights = {**self.search.fixed, **suggest_weights(trial, self.search.seed, self.search.fixed)}
        watch = _PruningCallback(trial, f"eval_{self.judge.name}", self.search.epochs)
        with tempfile.TemporaryDirectory() as folder, freeze_weights(self.model), preserve_random_state():
            quiet = {"save_strategy": "no", "load_best_model_at_end": False, "disable_tqdm": True}
            arguments = {**self.options.trainer_arguments, **quiet}
            options = replace(self.options, arguments=arguments, seed=self.search.seed).fill_defaults(
                default_arguments(self.model)
            )
            args = make_masking_arguments(options, [self.judge], len(self.train), Path(folder))
            settings = self.masking_settings | {"weights": replace(self.search.weights, **weights)}
            masking = make_masking_model(self.model, self.backbone, self.tokenizer, settings, self.search.seed)
            data = {"train_dataset": self.train, "eval_dataset": self.dev}
            loop = MaskingTrainer(self.model, args, masking, [self.judge], callbacks=[watch], **data)
            with self.model.evaluation_mode(), log_once(encoding.__name__):
                try:
                    loop.train()
                    if not watch.pruned:
                        return float(loop.evaluate()[f"eval_{self.judge.name}"])
                except MaskCollapseError as error:
                    raise optuna.TrialPruned from error
                raise optuna.TrialPruned


def suggest_weights(trial: Trial, seed: int, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Draw a trial's λ that are not fixed."""
    # A sampler seeded by the number of trials before it draws the same λ in a resumed search. Trials that other
    # processes run count too, so that two processes never draw the same λ.
    trial.set_user_attr(PROCESS, [platform.node(), os.getpid()])
    before = 0
    for other in trial.study.get_trials(deepcopy=False):
        if other.number < trial.number:
            is_running = other.state == TrialState.RUNNING and _may_be_running(other)
            before += is_running or other.state in FINISHED
    trial.study.sampler = optuna.samplers.TPESampler(seed=seed + before)
    return {name: trial.suggest_float(name, 0.0, 1.0) for name in TERMS if name not in fixed}


def _may_be_running(trial: FrozenTrial) -> bool:
    """Return whether a trial's process may be alive; processes of other machines are taken to be."""
    machine, process = trial.user_attrs.get(PROCESS, (None, 0))
    if machine != platform.node():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # The process exists but belongs to another user.
    except PermissionError:
        return True
    return True


class _PruningCallback(TrainerCallback):
    """Reports every evaluation to the study, and ends the trial after its epochs or when the study prunes it."""

    def __init__(self, trial: Trial, name: str, epochs: float) -> None:
        self.trial, self.name, self.epochs, self.pruned = trial, name, epochs, False

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """Report the metric to the study, and stop if it prunes the trial."""
        # The evaluation after the last epoch is the trial's value.
        if state.epoch >= self.epochs or self.pruned:
            return
        self.trial.report(metrics[self.name], state.global_step)
        if self.trial.should_prune():
            self.pruned = control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the trial after its last epoch, without another evaluation."""
        if state.epoch >= self.epochs:
            control.should_training_stop = True
            control.should_evaluate = False


@contextmanager
def _hide_tracebacks() -> Iterator[None]:
    """Keep Optuna from logging an error's traceback inside the block; the error itself is raised."""
    told = logging.getLogger("optuna.study._optimize")
    told.addFilter(_no_traceback)
    try:
        yield
    finally:
        told.removeFilter(_no_traceback)


def _no_traceback(record: logging.LogRecord) -> bool:
    return not record.exc_info


def open_study(url: str, name: str, higher_is_better: bool) -> optuna.Study:
    """Open the study of a name in a storage, or create it.

    Raises:
        ExpoundError: the storage cannot be opened.
    """
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        direction = "maximize" if higher_is_better else "minimize"
        return optuna.create_study(storage=url, study_name=name, direction=direction, load_if_exists=True)
    # Optuna passes on the errors of every kind of database.
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExpoundError(f"the search's storage {url!r} cannot be opened: {first}") from error
    finally:
        optuna.logging.set_verbosity(before)
