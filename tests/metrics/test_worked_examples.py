"""The docstring of every metric has an example with a number that a reader can add up by hand."""

from __future__ import annotations

import doctest

from expound.metrics.registry import METRICS
from expound.testing.counting import judge


def test_the_worked_example_of_every_metric():
    runner = doctest.DocTestRunner()
    without = set()
    for name in METRICS.native:
        (found,) = doctest.DocTestFinder(recurse=False).find(METRICS[name], name, globs={"judge": judge})
        runner.run(found)
        if not found.examples:
            without.add(name)
    # It needs the folder of a second model.
    assert without == {"f_fidelity"}
    assert runner.summarize(verbose=False).failed == 0
