"""IvRA: attention that is trained to explain by criteria such as comprehensiveness, sufficiency and consistency."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from datasets import Dataset

from expound.data.registry import parse_params, parse_spec, split_ids
from expound.errors import ExpoundError, check_choice
from expound.explainers.learned.interpretable_attention import InterpretableAttention, Mix
from expound.explainers.learned.learned_attention import Norm
from expound.models import ExplainedModel
from expound.models.checks import check_pairwise_mask
from expound.objectives import (
    ClusteringConsistencyLoss,
    ComprehensivenessLoss,
    ConsistencyLoss,
    Criterion,
    CrossEntropy,
    Objective,
    RankConsistencyLoss,
    SufficiencyLoss,
)
from expound.objectives.criterion import ErasureCriterion, Replacement
from expound.recipes.base import Effect, Recipe
from expound.training import CriterionModule, RunOptions, Simulatability, TrainResult
from expound.training.bilevel.criteria import CRITERION_METRICS
from expound.training.loop.data import sort_longest_first, text_lengths
from expound.training.loop.lora import adapt_like, share_frozen_weights
from expound.training.loop.starting_model import Source, load_starting_model

logger = logging.getLogger(__name__)
CALIBRATION_ROWS = 64
PAPER = {"normalizer": "sparsemax", "lr_multiplier": 1.0, "calibrate": False, "perturbation": "mask"}


class CriterionValues(NamedTuple):
    """A criterion, its best learning rate in the paper, and the factor of the rate every two epochs (Table 7)."""

    kind: type[Criterion]
    rate: float
    gamma: float


CRITERIA: Mapping[str, CriterionValues] = {
    "simulatability": CriterionValues(Simulatability, 3e-5, 0.75),
    "comprehensiveness": CriterionValues(ComprehensivenessLoss, 3e-4, 0.5),
    "sufficiency": CriterionValues(SufficiencyLoss, 3e-4, 0.5),
    "consistency": CriterionValues(ConsistencyLoss, 1e-4, 0.25),
    "rank_consistency": CriterionValues(RankConsistencyLoss, 1e-4, 0.25),
    "clustering_consistency": CriterionValues(ClusteringConsistencyLoss, 1e-4, 0.25),
}
EQUATION = r"\text{CE} + \sum_k \lambda_k \text{criterion}_k(r)"
USE = "The model may change and is to be explained by its own attention, by a criterion you name."
AVOID = "The model must stay as it is and post-hoc methods suffice."
DEPARTURES = (
    "Model and coefficients are trained together on the cross-entropy and the criteria, each of weight 1; the paper"
    " does not say.",
    "The paper does not name NORM's axis. Scores add up to 1 if it is over heads (layers) and positions together"
    " (literal), or over positions with a mean over heads and layers (per_head). Softmax is applied to the coefficients"
    " instead, or to a grid scaled to standard deviation 1: without scaling (calibrate) its explanations are nearly"
    " uniform.",
    "In training what is taken away gets a fiftieth of the attention, or another embedding, with a straight-through"
    " gradient; one of the five shares is drawn for each example and step. Metrics delete.",
    "The clean prediction (of sufficiency) and the distances of hidden states are held still.",
    "Epochs of several criteria are chosen by the sum of their metrics, with the rate of the slowest of them.",
    "The student of simulatability sees the model's training data: half of the examples to learn, the others, in every"
    " epoch the same, to be judged on. Its own explainer has softmax, which has the derivatives it takes, and is of"
    " words alone where the model's is.",
    "Questions are never taken away, only words of the context. Special tokens are never taken away, either, but have a"
    " part in explanations.",
)


@dataclass(frozen=True, kw_only=True)
class IvraRecipe(Recipe):
    """IvRA: criteria on one `InterpretableAttention`, which is made for the model when training starts.

    Attributes:
        criteria: the criteria, with another explainer than the one that is trained.
        attention: parameters of `InterpretableAttention`.
        calibrate: whether grids of the normalizer softmax are scaled to standard deviation 1.
        train_model: whether the model is trained together with the attention's coefficients.
        perturbation: what is done to words that are taken away, of the criteria in `without_perturbation`; None:
            `attend`, or `mask` if answers are spans or the model's attention takes no weights.
        without_perturbation: names of the criteria that do not say it themselves.
    """

    criteria: Sequence[Criterion]
    attention: Mapping[str, Any]
    calibrate: bool = True
    train_model: bool = True
    perturbation: Replacement | None = None
    without_perturbation: Sequence[str] = ()

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Train the model together with the coefficients of its attention."""
        # a schedule that the user names replaces the steps by gamma, whose arguments other schedules do not know
        if "lr_scheduler_type" in options.arguments:
            options = options.fill_defaults({"lr_scheduler_kwargs": {}})
        return super().run(model, train, dev, folder, options)

    def build_objectives(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """Return the criteria on one common explainer, and the cross-entropy if the model is trained.

        Raises:
            ExpoundError: a student with a smaller vocabulary than the model, or adapters that are not to be trained.
        """
        given = [self._add_student(each, model, train, seed) for each in self.criteria]
        explainer = InterpretableAttention.for_model(model, **self.attention).to(model.device)
        if self.calibrate and explainer.mix != "coefs" and explainer.normalizer == "softmax":
            # such a softmax is nearly uniform: its grids are scaled to standard deviation 1, measured on some rows
            explainer.calibrate(model, model.encode(list(train.select(range(min(CALIBRATION_ROWS, len(train)))))))
        if not self.train_model:
            if hasattr(model.model, "peft_config"):
                raise ExpoundError("adapters train the model: leave lora_rank out, or train_model on")
            model.requires_grad_(False)
        criteria = [replace(each, explainer=explainer) for each in self._set_perturbation(given, model, train)]
        # L = CE + Σ_c L_c (§3.5); the fixed model needs no cross-entropy
        return (*self.objectives, *criteria) if self.train_model else criteria

    def _set_perturbation(
        self, criteria: Sequence[Criterion], model: ExplainedModel, train: Dataset
    ) -> Sequence[Criterion]:
        """Return the criteria, with a perturbation for those that name none."""
        if not self.without_perturbation or model.modality != "text":
            return criteria
        how = self.perturbation
        if how is None:
            # A mask replaces the windows of local attention, of which short texts have one.
            longest = model.encode([train[sort_longest_first(text_lengths(train))[0]]])
            reason = "that reads an answer at its words, attended to or not"
            if not model.task.reads_context:
                reason = check_pairwise_mask(model, longest)
            how = "mask" if reason else "attend"
            if reason:
                logger.warning("words are replaced by [MASK] in training, for a model %s", reason)
        return [
            replace(each, perturbation=how)
            if isinstance(each, ErasureCriterion) and each.name in self.without_perturbation
            else each
            for each in criteria
        ]

    def _add_student(self, criterion: Criterion, model: ExplainedModel, train: Dataset, seed: int) -> Criterion:
        """Return the criterion, simulatability with a student that was loaded for the model."""
        if not isinstance(criterion, Simulatability) or not isinstance(criterion.student, str):
            return criterion
        start = load_starting_model(
            criterion.student, train, model.processing_class, max_length=model.requested_max_length, seed=seed
        )
        known, needed = start.config.vocab_size, model.config.vocab_size
        # the student reads the model's token ids, and explanations are compared token by token
        if known < needed:
            raise ExpoundError(f"the student has {known} tokens, the model {needed}: give both the same tokenizer")
        start.model.to(model.device)
        # With adapters the student costs its own adapters, if it starts from the weights below those of the model.
        adapt_like(start, model)
        share_frozen_weights(start.model, model.model)
        return criterion.with_student(start, special_tokens=bool(self.attention.get("special_tokens", True)))


def ivra(
    criteria: Annotated[
        str | Sequence[Criterion],
        "Criteria with commas: comprehensiveness, sufficiency, consistency, simulatability, …; with parameters as "
        "comprehensiveness?perturbation=mixture&unit=word, sufficiency?form=kl, consistency?distance=l1, "
        "simulatability?student=MODEL&student_optimizer=adamw.",
    ] = "comprehensiveness",
    normalizer: Annotated[
        Norm, "Normalization (NORM); in the paper softmax is best for comprehensiveness, sparsemax for the others."
    ] = "softmax",
    mix: Annotated[
        Mix | None,
        "Effect of coefficients: literal or per_head, two readings of the equations, or coefs, on logits. Default:"
        " literal; with softmax: coefs.",
    ] = None,
    calibrate: Annotated[
        bool, "Scale what softmax normalizes to standard deviation 1 (literal, per_head); the paper does not."
    ] = True,
    learn_features: Annotated[bool, "Learn coefficients of features."] = True,
    learn_heads: Annotated[bool, "Learn coefficients of heads."] = True,
    learn_layers: Annotated[bool, "Learn coefficients of layers."] = True,
    special_tokens: Annotated[
        bool, "Special tokens are part of explanations, as all positions are in the paper."
    ] = True,
    lr_decay: Annotated[
        float | None,
        "Factor of the learning rate every two epochs, unless --set names a schedule. Default: the criterion's.",
    ] = None,
    lr_multiplier: Annotated[
        float,
        "Learning rate of the coefficients, as a multiple of the model's. They change by up to rate times steps:"
        " with 1, hundreds of steps leave them where they were.",
    ] = 100.0,
    train_model: Annotated[bool, "Train the model together with the coefficients."] = True,
    perturbation: Annotated[
        Replacement | None,
        "What words that are taken away get: little attention (attend), or the embedding of [MASK] or another. Default:"
        " attend, or mask for questions and for models whose attention takes no weights; criteria can name their own.",
    ] = None,
) -> Recipe:
    """Train a fine-tuned model together with an attention that explains it (IvRA).

    Any criteria are added to the cross-entropy: comprehensiveness and sufficiency take words away, consistency compares
    the explanations of a batch, simulatability teaches a student. They keep a model that is not fine-tuned from
    learning the task. For data with prompts and responses the log-probability of the response is what explanations are
    judged by; unit=source or word takes away whole ones. Models learn to react to [MASK] itself, but not to words that
    get little attention, which is the default. Simulatability's student starts from a model that is pretrained, not
    fine-tuned, with the same tokenizer; small ones learn more with student_optimizer=adamw, student_learning_rate=1e-4
    and student_weight=10 than with the paper's values.

    On 1,000 sentences of SST the defaults raise comprehensiveness by deletion from .21 to .34, at 2 points of accuracy,
    and lower sufficiency from .13 to .04, at 1 point (MiniLM, one seed). On 200 film reviews of 512 tokens two epochs
    do not help: comprehensiveness of 50 reviews is .14 against .13, and for sufficiency the model forgets the task.

    Mostly the model improves: trained for comprehensiveness with the defaults, equal coefficients explain it almost as
    well. The epoch that is best on dev by the criteria's metrics is kept. The coefficients are saved in the folder of
    the model: --methods interpretable_attention:runs/ivra. Decoders of billions of weights need --lora-rank; the
    student then has adapters, too.

    Example: expound train ivra --criteria comprehensiveness,consistency --model runs/baseline --data sst:data/sst
    --output-dir runs/ivra
    """
    terms = [replace(each, lr_multiplier=lr_multiplier) for each in parse_criteria(criteria)]
    names = [each.name for each in terms]
    # several criteria: the rate of the one that needs the lowest
    slowest = min((CRITERIA[name] for name in names), key=lambda values: values.rate)
    arguments = {
        "learning_rate": slowest.rate,
        "num_train_epochs": 20,
        "per_device_train_batch_size": 64,
        "lr_scheduler_kwargs": {"gamma": slowest.gamma if lr_decay is None else lr_decay, "epochs": 2},
        "warmup_steps": 0,
        "metric_for_best_model": "criterion",
    }
    # simulatability has no metric to compare trained and untrained coefficients by
    effect, judge = None, CRITERION_METRICS.get(names[0])
    if judge is not None:
        untrained = f"interpretable_attention?untrained&normalizer={normalizer}"
        untrained += f"&mix={mix}" if mix else ""
        effect = Effect(judge.name, "interpretable_attention:{run}", untrained)
    return IvraRecipe(
        name="ivra",
        paper="Xie et al. 2024",
        objectives=(CrossEntropy(),),
        module=CriterionModule,
        trains_language_models=True,
        criteria=terms,
        attention={
            "normalizer": normalizer,
            "mix": mix,
            "learn_features": learn_features,
            "learn_heads": learn_heads,
            "learn_layers": learn_layers,
            "special_tokens": special_tokens,
        },
        calibrate=calibrate,
        train_model=train_model,
        perturbation=perturbation,
        without_perturbation=list_without_perturbation(criteria),
        arguments={**arguments, "learning_rate": 3e-5, "num_train_epochs": 2, "per_device_train_batch_size": 16},
        paper_arguments=arguments,
        effect=effect,
        departures=DEPARTURES,
    )


def parse_criteria(criteria: str | Sequence[Criterion]) -> list[Criterion]:
    """Return the criteria of a list of specs with commas, in the order of `CRITERIA`; objects are kept.

    Raises:
        ExpoundError: an unknown criterion or parameter, or simulatability without a student.
    """
    found = {}
    for each in split_ids(criteria) if isinstance(criteria, str) else criteria:
        criterion = _make_criterion(each) if isinstance(each, str) else each
        if isinstance(criterion, Simulatability) and criterion.student is None:
            raise ExpoundError("simulatability needs the pretrained model of a student: simulatability?student=MODEL")
        found[criterion.name] = criterion
    return [found[name] for name in CRITERIA if name in found]


def list_without_perturbation(criteria: str | Sequence[Criterion]) -> list[str]:
    """Return the names of the specs of criteria that take words away and do not say how; objects say it."""
    specs = [
        parse_spec(each)
        for each in (split_ids(criteria) if isinstance(criteria, str) else criteria)
        if isinstance(each, str)
    ]
    return [
        name
        for name, given in specs
        if issubclass(CRITERIA[name].kind, ErasureCriterion) and "perturbation" not in given
    ]


def _make_criterion(spec: str) -> Criterion:
    name, given = parse_spec(spec)
    check_choice("criterion", name, CRITERIA)
    kind = CRITERIA[name].kind
    return kind(**parse_params(name, kind, dict(given), fixed=("explainer", "lr_multiplier")))
