"""Docstrings of metrics, and of methods by gradients or removal, have an example whose number adds up by hand."""

from __future__ import annotations

import doctest

from expound.explainers import EXPLAINERS
from expound.metrics.registry import METRICS
from expound.testing.counting import explain, judge


def test_worked_examples():
    runner = doctest.DocTestRunner()
    without = {"metrics": set(), "methods": set()}
    for kind, registry in (("metrics", METRICS), ("methods", EXPLAINERS)):
        for name in registry.native:
            names = {"judge": judge, "explain": explain}
            (found,) = doctest.DocTestFinder(recurse=False).find(registry[name], name, globs=names)
            runner.run(found)
            if not found.examples:
                without[kind].add(name)
    # It needs the folder of a second model.
    assert without["metrics"] == {"f_fidelity"}
    assert len(EXPLAINERS.native) - len(without["methods"]) == 13
    assert runner.summarize(verbose=False).failed == 0
