"""Fits coefficients of attention or of hidden states to the effects of ablations (AT2)."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm.auto import tqdm

from expound.data.provenance import digest, summarize_data, to_json_value, write_json
from expound.explainers.learned.base import FittedExplainer
from expound.explainers.perturbation.context_cite import ContextCite, default_unit
from expound.explainers.units import number_units
from expound.models import Batch, ExplainedModel
from expound.models.batch import to_float32
from expound.models.encoding.encode import make_batches
from expound.models.loading.checkpoint import digest_processor, digest_weights
from expound.models.rank_correlation import compute_pearson
from expound.reports.text import is_interactive
from expound.training.loop.callbacks import StopAfterStep
from expound.training.loop.options import RunOptions
from expound.training.loop.run import HISTORY, TrainingRun
from expound.training.loop.trainer import TrainResult


class Effects(NamedTuple):
    """The effects of M ablations on E answers.

    `inputs` [E, M, F] are X = Σ_s ±φ_s, the sum of the units' features with + for units that are present; `answers`
    [E, M] are the answers' log-odds.
    """

    inputs: Tensor
    answers: Tensor

    @classmethod
    def concatenate(cls, parts: Iterable[Effects]) -> Effects:
        """Concatenate the effects of several batches."""
        inputs, answers = zip(*parts, strict=True)
        return cls(torch.cat(inputs), torch.cat(answers))


@torch.no_grad()
def measure_effects(
    learner: FittedExplainer, model: ExplainedModel, batch: Batch, ablated: ContextCite, targets: Sequence[Tensor] = ()
) -> Effects:
    """Measure the effects of ablations on each target of a batch; by default on its predictions or whole responses.

    `learner` computes the units' features.
    """
    with model.evaluation_mode(), model.cache_perturbed():
        unit = number_units(batch, ablated.unit or default_unit(batch))
        present = ablated.draw_masks(unit)
        signs = (2 * present.double() - 1).transpose(0, 1)
        outputs = model(batch, capture=learner.capture)
        asked, parts = replace(ablated, output=None), []
        for target in targets or [model.resolve_target(batch)]:
            shares = learner.features(model, batch, outputs, target, unit)
            shares = to_float32(shares)
            answers = asked.evaluate_masks(model, batch, target, present, unit)
            parts.append(Effects(signs.to(shares) @ shares, answers.T.to(shares)))
    return Effects.concatenate(parts)


def fit_coefficients(
    effects: Effects, steps: int = 1000, rate: float = 1e-3, batch: int = 512, seed: int = 0
) -> Tensor:
    """Return weights w [F] with ‖w‖₁ = 1 that minimize −mean Pearson_m(Xw, y), by Adam with a cosine schedule.

    Each step uses `batch` random answers, or all of them if there are fewer.
    """
    (inputs, answers), random = effects, torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        weights = torch.full_like(inputs[0, 0], 1 / inputs.shape[-1], requires_grad=True)
        optimizer = torch.optim.Adam([weights], lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            drawn = torch.arange(len(inputs))
            if batch < len(inputs):
                drawn = torch.randperm(len(inputs), generator=random)
            few = drawn[:batch].to(inputs.device)
            optimizer.zero_grad()
            negative_correlation(inputs[few] @ weights, answers[few]).backward()
            torch.nn.utils.clip_grad_norm_([weights], 1.0)
            optimizer.step()
            schedule.step()
    # Correlations do not depend on the scale of w.
    result = weights.detach()
    return result / result.abs().sum()


def negative_correlation(predictions: Tensor, answers: Tensor) -> Tensor:
    """Return the negative mean over rows of Pearson's correlation of [E, M] and [E, M]."""
    return -compute_pearson(predictions, answers).mean()


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FitOptions:
    """Options of the fit: the number of Adam steps, the initial learning rate, and answers per step."""

    steps: int = 1000
    rate: float = 1e-3
    batch: int = 512


def train_source_attention(
    model: ExplainedModel,
    train: Dataset,
    dev: Dataset,
    output_dir: str | Path,
    ablated: ContextCite,
    fit: FitOptions,
    options: RunOptions,
    learner: FittedExplainer,
) -> TrainResult:
    """Fit `learner` to a model's ablations, into a folder for `expound.explainer("ID:FOLDER")`.

    The figures are the mean correlation with the answers on dev, and the same for equal coefficients.

    Raises:
        ExpoundError: the folder holds another run.
    """
    # Measuring takes nearly all of the time: each batch's effects are kept in a file until the run is finished, from
    # which an interrupted run resumes with the same result.
    run = TrainingRun(Path(output_dir), _resolve_config(model, train, dev, ablated, fit, options, learner))
    done = run.finished_metrics() if options.resume and not options.overwrite else None
    if done is not None:
        logger.warning("%s holds the finished run of this configuration: nothing to do", run.folder)
        _effects_folder(run, resume=False)
        return TrainResult(run.folder, model, done, reused=True)
    begun, stop, quiet = time.monotonic(), StopAfterStep(), bool(options.arguments.get("disable_tqdm"))
    with run.writing():
        run.begin(resume=options.resume, overwrite=options.overwrite)
        kept = _effects_folder(run, resume=options.resume and not options.overwrite)
        with stop.listening():
            for data, rows in ((kept / "train", train), (kept / "dev", dev)):
                if not _measure_effects(learner, model, rows, ablated, data, stop, quiet):
                    seconds = time.monotonic() - begun
                    return TrainResult(run.folder, model, {}, 0, seconds, finished=False, signal=stop.signal)
        seen, unseen = _read_effects(kept / "train", model.device), _read_effects(kept / "dev", model.device)
        coefficients = fit_coefficients(seen, fit.steps, fit.rate, fit.batch, options.seed)
        mean = torch.full_like(coefficients, 1 / len(coefficients))
        metrics = {"correlation": _correlation(unseen, coefficients), "correlation_of_mean": _correlation(unseen, mean)}
        staging = run.empty_staging_folder()
        learner.set_coefficients(coefficients)
        learner.save_pretrained(staging)
        write_json(staging / HISTORY, {"history": [{"train_correlation": _correlation(seen, coefficients)}]})
        run.finish(staging, metrics)
        _effects_folder(run, resume=False)
    return TrainResult(run.folder, model, metrics, fit.steps, time.monotonic() - begun)


def _effects_folder(run: TrainingRun, *, resume: bool) -> Path:
    """Return the folder of this run's measured effects; folders of other runs are removed."""
    kept = run.folder / f".effects-{digest(run.config)}"
    for other in run.folder.glob(".effects-*"):
        if other != kept or not resume:
            shutil.rmtree(other, ignore_errors=True)
    return kept


def _measure_effects(
    learner: FittedExplainer,
    model: ExplainedModel,
    data: Dataset,
    ablated: ContextCite,
    folder: Path,
    stop: StopAfterStep,
    quiet: bool,
) -> bool:
    """Measure the batches that have no file yet, one file per batch; return False after a stop."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(data)
    parts = [[row] for row in range(len(rows))]
    if not model.task.is_generated:
        parts = list(make_batches(model, rows))
    for number, part in enumerate(tqdm(parts, disable=quiet or not is_interactive(), desc=folder.name)):
        file = folder / f"{number:06}.safetensors"
        if stop.signal is not None:
            return False
        if not file.is_file():
            batch = model.encode([rows[row] for row in part])
            effects = measure_effects(learner, model, batch, ablated, _sentence_targets(batch))
            # Written under another name first: a file that exists is complete.
            save_file({name: value.contiguous() for name, value in effects._asdict().items()}, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
    return True


def _sentence_targets(batch: Batch) -> Sequence[torch.Tensor]:
    """Return a target for each sentence of a response; empty for answers that are not text."""
    if batch.exchanges is None:
        return ()
    (exchange,) = batch.exchanges
    return [torch.tensor([span], device=batch.device) for span in exchange.spans("sentences")]


def _read_effects(folder: Path, device: torch.device) -> Effects:
    files = sorted(folder.glob("*.safetensors"))
    return Effects.concatenate([Effects(**load_file(file, device=str(device))) for file in files])


def _correlation(effects: Effects, coefficients: torch.Tensor) -> float:
    return -float(negative_correlation(effects.inputs @ coefficients, effects.answers))


def _resolve_config(
    model: ExplainedModel,
    train: Dataset,
    dev: Dataset,
    ablated: ContextCite,
    fit: FitOptions,
    options: RunOptions,
    learner: FittedExplainer,
) -> Mapping[str, Any]:
    """Return everything that the outcome depends on, for the run's record."""
    return {
        "trainer": learner.name,
        "model": {"source": model.config._name_or_path, "weights": digest_weights(model.model), **model.settings},
        "processor": digest_processor(model.processing_class),
        "ablated": to_json_value(ablated.params),
        "fit": vars(fit),
        "data": {"train": summarize_data(train), "dev": summarize_data(dev)},
        "seed": options.seed,
    }
