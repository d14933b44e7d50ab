"""Checks of names, parameters and paths before models and data are loaded, so that mistakes are reported early."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from expound.cli.shared.options import split_ids
from expound.errors import ExpoundError, check_choice, unknown

DEVICE = re.compile(r"auto|(cpu|cuda|mps|xpu|npu|hpu|meta)(:[0-9]+)?")
DTYPES = ("float64", "float32", "bfloat16", "float16", "8bit", "4bit", "auto")


def check(
    *,
    models: Sequence[str] = (),
    data: str | None = None,
    methods: str | None = None,
    metrics: str | None = None,
    preset: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    files: Sequence[Path | str | None] = (),
) -> None:
    """Check a command's options as far as possible without a model.

    Raises:
        ExpoundError: an unknown method, metric, parameter, reader, device or data type, or a missing file.
    """
    from expound.data.hub import require_local_model
    from expound.data.load import open_reader

    for name in models:
        require_local_model(name)
    if device is not None and not DEVICE.fullmatch(device):
        raise ExpoundError(f"expected a device such as cpu, cuda or cuda:1, got {device}")
    if dtype is not None and dtype not in DTYPES:
        raise unknown("floating point type", dtype, DTYPES[:-1])
    for file in files:
        if file is not None and not Path(file).expanduser().exists():
            raise ExpoundError(f"{file} does not exist")
    _check_methods(methods)
    _check_metrics(metrics, preset)
    if data is not None:
        reader = open_reader(data)
        path = reader.path
        if path and reader.card.name != "hub" and "://" not in path and not Path(path).expanduser().exists():
            raise ExpoundError(f"the file or folder {path} of the data {data} does not exist")


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ExpoundError for an argument that transformers' Trainer does not have, or a text in place of a number."""
    # They are read from the source file, since importing TrainingArguments imports torch.
    package = find_spec("transformers")
    if not arguments or package is None or package.origin is None:
        return
    valid = dict[str, str]()
    for node in ast.parse(Path(package.origin).with_name("training_args.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments":
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    valid[part.target.id] = ast.unparse(part.annotation)
    for name, value in arguments.items():
        if valid and name not in valid:
            raise ExpoundError(f"unusable training arguments: {unknown('argument', name, valid)}")
        if isinstance(value, str) and valid and {"float", "int", "bool", "None"} >= set(valid[name].split(" | ")):
            raise ExpoundError(f"unusable training arguments: {name} is {valid[name]}, got {value!r}")


def _check_methods(methods: str | None) -> None:
    from expound.data.hub import looks_local
    from expound.explainers.registry import EXPLAINERS, describe_spec

    for spec in split_ids(methods) or ():
        name, _, path = spec.partition("?")[0].partition(":")
        if spec == "all":
            continue
        if not path:
            describe_spec(spec)
        elif EXPLAINERS[name] and looks_local(path) and not Path(os.path.expanduser(path)).exists():
            raise ExpoundError(f"no explainer is saved at {path}")


def _check_metrics(metrics: str | None, preset: str | None) -> None:
    from expound.metrics.presets import PRESETS
    from expound.metrics.registry import PEAK_MEMORY, SECONDS, metric

    if preset is not None:
        check_choice("preset", preset, PRESETS)
    for spec in split_ids(metrics) or ():
        if spec not in (SECONDS.name, PEAK_MEMORY.name):
            metric(spec)
