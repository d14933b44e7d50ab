"""Settings of a masking model and of its refinement."""

from __future__ import annotations

from dataclasses import dataclass, field

from expound.errors import ExpoundError
from expound.explainers.attributive_masking.losses import MaskWeights
from expound.explainers.attributive_masking.modes import Mode
from expound.explainers.attributive_masking.retokenization import Aggregation
from expound.explainers.map_metric import load_metric


@dataclass(frozen=True)
class MaskingSettings:
    """The settings of a masking model, without its backbone.

    `classes`: number of classes of the explained model. `mode`, `predictor`: see `SoftMasking`. `aggregation`: how
    several tokens of the masking model that share a token of the explained model give it one score. `weights`,
    `metric`, `learning_rate`: values of the training, which refinement uses too. `nominal_steps`: number of steps
    after which the learning rate of refinement reaches 0. `masked_width`: width of the explained model's embeddings.
    """

    classes: int
    mode: Mode = "mask"
    predictor: str | None = None
    aggregation: Aggregation = "max"
    weights: MaskWeights = field(default_factory=MaskWeights)
    metric: str = "aopc_comprehensiveness"
    learning_rate: float = 4e-5
    nominal_steps: int = 20
    masked_width: int = 0

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ExpoundError(f"attributive_masking explains classifiers, got {self.classes} class(es)")


@dataclass(frozen=True)
class Refinement:
    """Refinement of the masking model for each example at inference (Barkan et al. 2024, §3.1).

    A copy of the masking model, without dropout, takes `refine_steps` AdamW steps on the example's own loss; its
    embeddings do not change. `metric` evaluates the map before every step and after the last one, and the best map is
    kept, the first one if several are equal. Values of this metric are therefore selected on the examples that they
    are reported for.

    A step of the whole masking model costs two forward and two backward passes of the explained model and, with the
    gradients of its weights, three passes of the masking model. With `refine_layers` the lower layers run once for all
    steps.

    Args:
        refine_steps: number of steps, 0 for no refinement; the paper takes up to 10.
        refine_layers: number of upper layers that change, together with the head; 0: the head only; default: all
            layers, as in the paper.
        metric: a metric by spec; default: the one that the masking model was selected by.
        refine_rate: learning rate of the first step, which decreases linearly to 0 at `nominal_steps`; default: that of
            the training.
        lora_rank: rank of low-rank changes of each linear layer; 0: full copies, as in the paper.
        batch_size: number of examples that are refined side by side.
    """

    refine_steps: int = 0
    refine_layers: int | None = None
    metric: str | None = None
    refine_rate: float | None = None
    lora_rank: int = 0
    batch_size: int = 32

    def __post_init__(self) -> None:
        smallest = {"refine_steps": 0, "refine_layers": 0, "lora_rank": 0, "batch_size": 1}
        for name, low in smallest.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ExpoundError(f"expected {name} of at least {low}, got {value}")
        if self.refine_rate is not None and not self.refine_rate > 0:
            raise ExpoundError(f"expected a refine_rate above 0, got {self.refine_rate}")
        if self.metric is not None:
            # An unknown metric raises here and not after minutes of refinement.
            load_metric(self.metric)
