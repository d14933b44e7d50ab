"""`expound doctor`: the environment, for bug reports."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated

import typer
from packaging.requirements import Requirement

from expound.cli.plugins import PACKAGES
from expound.cli.shared.console import console, say

EXTRAS = ("serve", "cluster", "lora", "sentencepiece", "interactions", "quantized", "gguf", "remote", "inspect", "docs")
PROGRAMS = {"chromium": "tests of the pages", "initdb": "tests of many annotators", "docker": "the image"}


Model = Annotated[str | None, typer.Option(help="Show which methods can explain this model: a folder or hub name.")]
Task = Annotated[str | None, typer.Option(help="The model's task, if its configuration does not say it.")]


def doctor(model: Model = None, task: Task = None) -> None:
    """Show versions, missing or outdated packages, extras and devices; or what holds for a model.

    The exit code is 1 if a required package is missing or too old. Example: expound doctor --model FOLDER
    """
    if model is not None:
        _show_model(model, task)
        return
    from expound.reports.table import Table

    rows = [("expound", version("expound"), ""), ("Python", platform.python_version(), platform.platform())]
    needed = list(_requirements(""))
    for requirement in needed:
        rows.append((requirement.name, _installed(requirement.name), _state(requirement)))
    for extra in EXTRAS:
        wrong = [f"{each.name}: {_state(each)}" for each in _requirements(extra) if _state(each) != "ok"]
        rows.append((f"extra {extra}", "", "; ".join(wrong) or "ok"))
    for command, package in PACKAGES.items():
        rows.append((package, _installed(package), f"brings expound {command}"))
    for name, use in PROGRAMS.items():
        rows.append((name, shutil.which(name) or "", use))
    rows += [(name, "", state) for name, state in (*_broken(), *_devices())]
    console().print(Table(("part", "", "state"), rows, texts=3))
    wrong = [each.name for each in needed if _state(each) != "ok"]
    if wrong:
        say(f"expound: missing or too old: {', '.join(wrong)}; install the newest expound with pip")
        raise typer.Exit(1)


def _show_model(model: str, task: str | None) -> None:
    """Print which methods are exact, approximate or refused for the model."""
    import expound
    from expound.reports.table import Table

    report = expound.check_model(expound.load(model, task=task))
    rows = [(each.method, each.state, each.reason) for each in report.methods]
    console().print(Table(("method", report.model_type, ""), rows, texts=3))


def _broken() -> Iterator[tuple[str, str]]:
    """Yield parts of installed packages that cannot be loaded, with the reason."""
    from expound.data import READERS
    from expound.data.cards import DataCard, MethodCard, MetricCard
    from expound.explainers.registry import EXPLAINERS
    from expound.metrics.registry import METRICS
    from expound.objectives import OBJECTIVES
    from expound.recipes import RECIPES

    for registry, kind in ((EXPLAINERS, MethodCard), (METRICS, MetricCard), (READERS, DataCard)):
        yield from registry.find_broken(kind).items()
    for each in (OBJECTIVES, RECIPES):
        yield from each.find_broken().items()


def _requirements(extra: str) -> Iterator[Requirement]:
    """Yield the requirements of the package, or of one of its extras."""
    for line in requires("expound") or ():
        requirement = Requirement(line)
        marker = requirement.marker
        is_needed = marker is None or marker.evaluate({"extra": ""})
        if extra:
            # An extra's own requirements are those that are not needed without it.
            is_needed = not is_needed and marker is not None and marker.evaluate({"extra": extra})
        if is_needed and requirement.name != "expound":
            yield requirement


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _state(requirement: Requirement) -> str:
    installed = _installed(requirement.name)
    if not installed:
        return "missing"
    if requirement.specifier.contains(installed, prereleases=True):
        return "ok"
    return f"needs {requirement.specifier}"


def _devices() -> Iterator[tuple[str, str]]:
    try:
        import torch
    except Exception as error:
        yield "devices", f"torch cannot be imported: {str(error).splitlines()[0]}"
        return
    yield "cpu", f"{torch.get_num_threads()} threads"
    for number in range(torch.cuda.device_count()):
        yield f"cuda:{number}", torch.cuda.get_device_name(number)
    if torch.backends.mps.is_available():
        yield "mps", "available"
