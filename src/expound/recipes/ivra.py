"""IvRA: attention that is trained to explain by criteria such as comprehensiveness, sufficiency and consistency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from datasets import Dataset
from torch import nn

from expound.errors import ExpoundError, check_choice
from expound.explainers.learned.interpretable_attention import InterpretableAttention, Mix
from expound.explainers.learned.learned_attention import Norm
from expound.models import ExplainedModel
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
from expound.objectives.consistency import Distance
from expound.objectives.criterion import TEMPERATURE
from expound.objectives.sufficiency import Form
from expound.recipes.base import Effect, Recipe
from expound.training import CriterionTrainer, RunOptions, TrainResult
from expound.training.bilevel.criteria import CRITERION_METRICS
from expound.training.bilevel.simulatability import InnerOptimizerName, Simulatability, SimulatingStudent
from expound.training.loop.lora import add_lora, temporary_adapters
from expound.training.loop.starting_model import Source, load_starting_model

CALIBRATION_ROWS = 64
PAPER = {"normalizer": "sparsemax", "temperature": TEMPERATURE}


class CriterionValues(NamedTuple):
    """The paper's best learning rate of a criterion, and the factor of the rate every two epochs (Table 7)."""

    rate: float
    gamma: float


CRITERION_VALUES: Mapping[str, CriterionValues] = {
    "simulatability": CriterionValues(3e-5, 0.75),
    "comprehensiveness": CriterionValues(3e-4, 0.5),
    "sufficiency": CriterionValues(3e-4, 0.5),
    "consistency": CriterionValues(1e-4, 0.25),
    "rank_consistency": CriterionValues(1e-4, 0.25),
    "clustering_consistency": CriterionValues(1e-4, 0.25),
}
CRITERIA: Mapping[str, type[Criterion]] = {
    Simulatability.name: Simulatability,
    ComprehensivenessLoss.name: ComprehensivenessLoss,
    SufficiencyLoss.name: SufficiencyLoss,
    ConsistencyLoss.name: ConsistencyLoss,
    RankConsistencyLoss.name: RankConsistencyLoss,
    ClusteringConsistencyLoss.name: ClusteringConsistencyLoss,
}
EQUATION = r"\text{CE} + \sum_k \lambda_k \text{criterion}_k(r)"
USE = "The model may change and is to be explained by its own attention, by a criterion you name."
AVOID = "The model must stay as it is and post-hoc methods suffice."
DEPARTURES = (
    "Model and coefficients are trained together on the cross-entropy and the criteria, each of weight 1; the paper"
    " does not say.",
    "NORM is over heads (layers) and positions together: only so do scores add up to 1. Softmax is applied to the"
    " coefficients instead, or to a grid scaled to standard deviation 1: as printed its explanations are uniform.",
    "In training what is taken away is replaced by the mask token's embedding, with a straight-through gradient; one of"
    " the five shares is drawn for each example and step. Metrics delete.",
    "The clean answer (of sufficiency) and the distances of hidden states are held still.",
    "Epochs of several criteria are chosen by the sum of their metrics, with the rate of the slowest of them.",
    "The student of simulatability sees the model's training data: half of the examples to learn, the others, in every"
    " epoch the same, to be judged on. Its own explainer has softmax, which has the derivatives it takes, and is of"
    " words alone where the model's is. The outer loss has no KL, as in SMaT; --outer-divergence adds it.",
    "Questions are never taken away, only words of the context. Special tokens are never taken away, either, but have a"
    " part in explanations.",
)


@dataclass(frozen=True, kw_only=True)
class IvraRecipe(Recipe):
    """IvRA: criteria on one `InterpretableAttention`, which is made for the model when training starts.

    Attributes:
        criteria: the parameters of each criterion, by its id.
        attention: parameters of `InterpretableAttention`.
        lr_multiplier: see `Criterion`.
        train_model: whether the model is trained together with the attention's coefficients.
        lora: whether adapters are trained instead of all weights; None: for decoders.
        student: the model that the student of simulatability starts from.
        student_optimizer: see `SimulatingStudent`.
        student_weight: see `SimulatingStudent`.
    """

    criteria: Mapping[str, Mapping[str, Any]]
    attention: Mapping[str, Any]
    lr_multiplier: float = 1.0
    train_model: bool = True
    lora: bool | None = None
    student: str | None = None
    student_optimizer: InnerOptimizerName = "sgd"
    student_weight: float = 1.0

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Train the model; one passed as an object gets back its requires_grad flags and loses added adapters."""
        # a schedule that the user names replaces the steps by gamma, whose arguments other schedules do not know
        if "lr_scheduler_type" in options.arguments:
            options = options.fill_defaults({"lr_scheduler_kwargs": {}})
        with temporary_adapters(model if isinstance(model, nn.Module) else None):
            return super().run(model, train, dev, folder, options)

    def build_objectives(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """Return the criteria on one common explainer, and the cross-entropy if the model is trained.

        Raises:
            ExpoundError: a student with a smaller vocabulary than the model.
        """
        student = self._make_student(model, train, seed)
        explainer = InterpretableAttention.for_model(model, **self.attention).to(model.device)
        if explainer.mix == "literal" and explainer.normalizer == "softmax":
            # literal softmax is uniform to 1e-6: its grids are scaled to standard deviation 1, measured on some rows
            explainer.calibrate(model, model.encode(list(train.select(range(min(CALIBRATION_ROWS, len(train)))))))
        if not self.train_model:
            model.requires_grad_(False)
        elif self.lora or (self.lora is None and model.is_decoder):
            add_lora(model)
        criteria: list[Objective] = []
        for name, params in self.criteria.items():
            extra: dict[str, Any] = {}
            if name == Simulatability.name:
                extra = {"student": student}
            criteria.append(CRITERIA[name](explainer, lr_multiplier=self.lr_multiplier, **params, **extra))
        # L = CE + Σ_c L_c (§3.5); the fixed model needs no cross-entropy
        return (*self.objectives, *criteria) if self.train_model else criteria

    def _make_student(self, model: ExplainedModel, train: Dataset, seed: int) -> SimulatingStudent | None:
        if Simulatability.name not in self.criteria:
            return None
        assert self.student is not None
        start = load_starting_model(
            self.student, train, model.processing_class, max_length=model.requested_max_length, seed=seed
        )
        known, needed = start.config.vocab_size, model.config.vocab_size
        # the student reads the model's token ids, and explanations are compared token by token
        if known < needed:
            raise ExpoundError(f"the student has {known} tokens, the model {needed}: give both the same tokenizer")
        start.model.to(model.device)
        special_tokens = bool(self.attention.get("special_tokens", True))
        return SimulatingStudent(start, self.student_weight, self.student_optimizer, special_tokens)


def ivra(
    criteria: Annotated[
        str, "Criteria, one or several with commas: comprehensiveness, sufficiency, consistency, simulatability, …"
    ] = "comprehensiveness",
    normalizer: Annotated[
        Norm, "NORM; in the paper softmax is best for comprehensiveness, sparsemax for the others."
    ] = "softmax",
    mix: Annotated[
        Mix | None, "Effect of coefficients. Default: literal, as in the equations; with softmax: coefs, on logits."
    ] = None,
    features: Annotated[bool, "Learn coefficients of features."] = True,
    heads: Annotated[bool, "Learn coefficients of heads."] = True,
    layers: Annotated[bool, "Learn coefficients of layers."] = True,
    special_tokens: Annotated[
        bool, "Special tokens are part of explanations, as all positions are in the paper."
    ] = True,
    comprehensiveness_margin: Annotated[float, "μ, margin of comprehensiveness."] = 1.0,
    sufficiency_margin: Annotated[float, "μ, margin of sufficiency."] = 0.1,
    sufficiency_form: Annotated[Form, "Form of the loss of sufficiency."] = "margin",
    consistency_distance: Annotated[
        Distance, "Distance of hidden states in the loss of consistency; the paper found l1 worse."
    ] = "l2",
    temperature: Annotated[
        float, "How far from the border of the top scores have a gradient, in standard deviations."
    ] = 1.0,
    student: Annotated[
        str | None,
        "Model that simulatability's student starts from: pretrained, not fine-tuned, with the same tokenizer.",
    ] = None,
    student_optimizer: Annotated[
        InnerOptimizerName,
        "Optimizer of the student. The paper uses sgd; small models learn little with it in short runs.",
    ] = "sgd",
    student_learning_rate: Annotated[float, "Learning rate of the student; for adamw try 1e-4."] = 5e-3,
    student_weight: Annotated[
        float,
        "β, weight of explanations in the student's loss. The paper uses 1, SMaT 5; small models learn more with 10.",
    ] = 1.0,
    outer_divergence: Annotated[
        bool, "Add β·KL(r ‖ r*) to the outer loss, as printed; SMaT's outer loss compares answers only."
    ] = False,
    lr_decay: Annotated[
        float | None,
        "Factor of the learning rate every two epochs, unless --set names a schedule. Default: the criterion's.",
    ] = None,
    lr_multiplier: Annotated[float, "Learning rate of the coefficients, as a multiple of the model's."] = 1.0,
    train_model: Annotated[bool, "Train the model together with the coefficients."] = True,
    lora: Annotated[bool | None, "Train LoRA adapters instead of all weights. Default: for decoders."] = None,
) -> Recipe:
    """Train a fine-tuned model together with an attention that explains it (IvRA).

    Any criteria are added to the cross-entropy: comprehensiveness and sufficiency mask the top of the explanation,
    consistency compares the explanations of a batch, simulatability teaches a student. They keep a model that is not
    fine-tuned from learning the task. The epoch that is best on dev by the criteria's own metrics is kept. The
    coefficients are saved in the folder of the model: --methods interpretable_attention:runs/ivra.

    Example: expound train ivra --criteria comprehensiveness,consistency --model runs/baseline --data sst:data/sst
    --output-dir runs/ivra
    """
    names = _parse_criteria(criteria)
    # several criteria: the rate of the one that needs the lowest
    slowest = min((CRITERION_VALUES[name] for name in names), key=lambda values: values.rate)
    params: dict[str, dict[str, Any]] = {
        "comprehensiveness": {"margin": comprehensiveness_margin, "temperature": temperature},
        "sufficiency": {"margin": sufficiency_margin, "form": sufficiency_form, "temperature": temperature},
        "consistency": {"distance": consistency_distance},
        "simulatability": {"rate": student_learning_rate, "outer_divergence": outer_divergence},
    }
    if Simulatability.name in names and student is None:
        raise ExpoundError("simulatability needs a student: give the pretrained model it starts from as --student")
    if lora and not train_model:
        raise ExpoundError("adapters train the model: leave lora out, or train_model on")
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
        effect = Effect(judge.name, "interpretable_attention:{run}", untrained)
    return IvraRecipe(
        name="ivra",
        paper="Xie et al. 2024",
        objectives=(CrossEntropy(),),
        trainer=CriterionTrainer,
        criteria={name: params.get(name, {}) for name in names},
        attention={
            "normalizer": normalizer,
            "mix": mix,
            "features": features,
            "heads": heads,
            "layers": layers,
            "special_tokens": special_tokens,
        },
        lr_multiplier=lr_multiplier,
        train_model=train_model,
        lora=lora,
        student=student,
        student_optimizer=student_optimizer,
        student_weight=student_weight,
        arguments={**arguments, "learning_rate": 3e-5, "num_train_epochs": 2, "per_device_train_batch_size": 16},
        paper_arguments=arguments,
        effect=effect,
        departures=DEPARTURES,
    )


def _parse_criteria(criteria: str) -> list[str]:
    """Return the criteria of a list with commas, each once, in the order of `CRITERIA`."""
    names = [name.strip() for name in criteria.split(",") if name.strip()]
    if not names:
        raise ExpoundError(f"expected at least one criterion. Valid choices: {', '.join(CRITERIA)}")
    for name in names:
        check_choice("criterion", name, CRITERIA)
    return [name for name in CRITERIA if name in names]
