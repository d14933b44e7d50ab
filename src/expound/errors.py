"""Errors caused by the input rather than the code, each with a one-line message for the user."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable
from difflib import get_close_matches

DISK_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "unexpected pos", "failed writing file")
"""Messages of a full disk: the system's, and torch's for a file that it could not write completely."""


class ExpoundError(ValueError):
    """Invalid input. The message says what was expected, what was given and what to do; commands exit with code 2."""


class ModelFailedError(ExpoundError, RuntimeError):
    """The model raises an error of its own on an input that it is given; the message holds that error's."""


class Stopped(ExpoundError):  # noqa: N818  # no error: a signal asked for it
    """A signal stopped a training whose result is needed. Checkpoints are kept, and the same call resumes from them."""

    def __init__(self, message: str, signal: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal


OTHER_NAMES = {
    "perturbation": "how reference baseline masking removal",
    "unit": "granularity level",
    "n_samples": "n_masks masks draws ablations samples n_perturbations",
    "fractions": "budgets bins",
    "fraction": "ratio share fractions",
    "k": "fraction top_k",
    "explainer": "guide citation learner method",
    "interval": "every meta_interval",
    "n_steps": "points steps",
    "stdevs": "noise deviation sigma stdev",
    "special_tokens": "specials",
    "keep_probability": "keep",
    "head_lr_multiplier": "head_rate",
    "lora_rank": "rank",
    "aggregate": "aggregation",
    "distance": "score",
    "segment": "side",
    "batch_fraction": "share",
    "sparsity_weight": "sparsity",
    "continuity_weight": "continuity",
    "multiplier_learning_rate": "learning_rate",
    "multiplier_decay": "decay",
    "kl_weight": "drift_weight",
    "lr_decay": "gamma",
    "student_learning_rate": "student_rate",
    "rationale_auc": "auc",
    "rationale_alignment": "explanation",
}
"""What other parts or libraries call a parameter, for the suggestion in an error."""


def unknown(what: str, name: str, valid: Iterable[str]) -> ExpoundError:
    """Return the error for an unknown name, which lists the valid names and suggests the closest one."""
    names = sorted(valid)
    close = [each for each in names if name in OTHER_NAMES.get(each, "").split()] or get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ExpoundError(f"unknown {what} {name!r}.{hint} Valid choices: {', '.join(names)}")


def check_choice(what: str, name: str, valid: Collection[str]) -> None:
    """Raise ExpoundError for a name that is not among the valid ones, see `unknown`."""
    if name not in valid:
        raise unknown(what, name, valid)


def shorten(text: object, length: int = 300) -> str:
    """Return the text as one line of at most `length` characters; the middle of a longer text is replaced by dots."""
    line = " ".join(str(text).split())
    half = (length - 3) // 2
    if len(line) <= length:
        return line
    return f"{line[: length - 3 - half]}...{line[-half:]}"


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, comes from a full disk or an exceeded quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        # safetensors, tokenizers and torch's writer raise their own error types, which carry the message alone.
        if any(words in str(error) for words in DISK_FULL):
            return True
        error = error.__cause__ or error.__context__
    return False
