"""How a run is trained: the options that the command line, recipes, studies and every loop have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from exegete.errors import ExegeteError, unknown


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is trained, whatever it is trained for; where one is None, the recipe's own value counts.

    `arguments` are those of transformers' Trainer by name. Each of the others says here what it is, for `exegete train`
    too: (type, help text, limits).
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    processing_class: Annotated[Any, "Folder of a tokenizer or image processor. Default: the model's own."] = None
    max_length: Annotated[int | None, "Tokens a text may have in training.", {"min": 8}] = None
    masked_share: Annotated[
        float,
        "Examples that lose random words in training, so that the model can be asked about texts without some.",
        {"min": 0, "max": 1},
    ] = 0.0
    head_rate: Annotated[
        float | None,
        "The head's learning rate as a multiple of the encoder's. Default: the method's, or 1.",
    ] = None
    head_dropout: Annotated[
        float | None,
        "Dropout between encoder and output. Default: the method's, or the model's own.",
        {"min": 0, "max": 1},
    ] = None
    head_activation: Annotated[
        str | None,
        "Activation of a head that would have its encoder's (BigBird's); others keep their own. Default: the method's.",
    ] = None
    early_stopping_patience: Annotated[
        int | None, "Stop after so many evaluations without improvement.", {"min": 1}
    ] = None
    early_stopping_threshold: Annotated[float | None, "How much counts as an improvement.", {"min": 0}] = None
    log_gradient_norms: Annotated[
        bool, "Log how long the gradient of each weighted term is; costs a backward pass a term and step."
    ] = False
    seed: Annotated[int, "Decides all that is left to chance."] = 0
    device: Annotated[str | None, "cpu or cuda. Default: the GPU if there is one."] = None
    resume: Annotated[bool, "Go on where an interrupted run stopped."] = True
    overwrite: Annotated[bool, "Replace another run in the output folder."] = False

    def __post_init__(self) -> None:
        if self.device not in (None, "cpu", "cuda"):
            raise ExegeteError(
                f"expected the device cpu or cuda, got {self.device!r}; CUDA_VISIBLE_DEVICES chooses among GPUs"
            )
        if self.device == "cuda" and not _has_cuda():
            raise ExegeteError("there is no CUDA device here: use the device cpu")

    @classmethod
    def of(cls, options: RunOptions | None, given: Mapping[str, Any]) -> RunOptions:
        """The options, with those on top that were given by name.

        Raises:
            ExegeteError: a name that is none.
        """
        valid = [each.name for each in fields(cls)]
        wrong = next((name for name in given if name not in valid), None)
        if wrong is not None:
            raise unknown("option of a run", wrong, valid)
        return replace(options or cls(), **given)

    @property
    def named(self) -> dict[str, Any]:
        """The Trainer's arguments by name, with what the device means for them."""
        return {**self.arguments} | ({} if self.device is None else {"use_cpu": self.device == "cpu"})

    def require_fixed_model(self) -> None:
        """Raises ExegeteError for options that are about training a model which is only explained."""
        of_head = self.head_rate not in (None, 1) or self.head_dropout is not None or self.head_activation is not None
        if self.masked_share or of_head:
            raise ExegeteError("the explained model stays as it is: masked_share, head_rate, head_dropout do not apply")

    def filled(self, arguments: Mapping[str, Any], **usual: Any) -> RunOptions:
        """With usual values for what is None, and these arguments below its own."""
        missing = {name: value for name, value in usual.items() if getattr(self, name) is None}
        return replace(self, arguments={**arguments, **self.arguments}, **missing)


def _has_cuda() -> bool:
    # `exegete train RECIPE --help` reads the options above, and shall not wait for torch
    import torch  # noqa: PLC0415

    return torch.cuda.is_available()
