"""What a person sees in a terminal of 80, 100 and 160 columns: a real one, as the commands believe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
from functools import partial

import pytest

import families
from expound.evaluation.compare.comparison import Comparison
from expound.explainers.registry import make_titles
from expound.metrics import cards
from first_impressions.conftest import METHODS
from forks import command_in_terminal, forge

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WIDTHS = (80, 100, 160)


@pytest.fixture(scope="module")
def run_in_terminal():
    """A function that runs a command in a terminal of a width, and returns its exit code and its text with escapes."""
    with forge() as process:
        yield partial(_run_in_terminal, process)


def _run_in_terminal(process, width, *words):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process.start(command_in_terminal, os.ttyname(theirs), words)
    text = b""
    while process.running() or select.select([ours], [], [], 0)[0]:
        if select.select([ours], [], [], 0.05)[0]:
            text += os.read(ours, 65536)
    os.close(ours), os.close(theirs)
    return process.wait(), text.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def outputs(run_in_terminal, model_folder, data, result, pictures):
    """The comparison's output with its escapes, by width."""
    command = ("compare", "--model", str(model_folder), "--data", str(data), "--methods", ",".join(METHODS))
    found = {}
    for width in WIDTHS:
        code, text = run_in_terminal(width, *command, "--output-dir", str(result), "--device", "cpu")
        assert code == 0, text
        (pictures / f"compare-{width}.ansi").write_text(text, encoding="utf-8")
        found[width] = text
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out_and_no_word_is_broken(width, outputs):
    lines = ESCAPES.sub("", outputs[width]).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("method"))
    end = next(at for at, line in enumerate(lines) if line.startswith("Bold numbers are"))
    assert max(map(len, (line.rstrip() for line in lines[:end]))) <= width
    known = {word for title in make_titles(METHODS).values() for word in title.split()}
    known |= {word for card in cards().values() for word in card.title.split()}
    known |= {"no", "better", "than", "random"}
    # The second way of removal.
    known |= {"(AOPC),", "perturbation=mask"}
    words = {word for line in lines[start - 1 : end] for word in line.split() if re.search(r"[^\W\d]", word)}
    assert {word for word in words - known if not re.fullmatch(r"n=\d+|method|nan", word)} == set()


def test_a_narrow_terminal_says_what_it_leaves_out(outputs):
    plain = {width: " ".join(ESCAPES.sub("", text).split()) for width, text in outputs.items()}
    assert "Too narrow for intervals" in plain[80]
    # The path of the report, which has all columns, is printed below.
    assert "widen the terminal." in plain[80].partition("report")[0]
    assert "Too narrow" not in plain[160]
    assert re.search(r"\d…-?\d", plain[160])
    assert not re.search(r"\d…-?\d", plain[80])


@pytest.mark.parametrize("width", WIDTHS)
def test_the_last_lines_say_the_best_the_cost_and_where_the_report_is(width, outputs, result):
    board = Comparison.load(result).leaderboard
    last = " ".join(" ".join(ESCAPES.sub("", outputs[width]).splitlines()[-15:]).split())
    assert str(result / "report.html") in last.replace(" ", "") or f"report: {result}/report.html" in last
    assert board.titles[0] in last or "no method is" in last
    assert "s per example" in last or "no method is" in last


def test_the_best_is_bold_and_intervals_are_dim(outputs):
    assert "\x1b[1m" in outputs[160]
    assert "\x1b[2m" in outputs[160]


@pytest.mark.parametrize(("command", "width"), families.rotate(["methods", "metrics", "datasets"], WIDTHS))
def test_lists_fit(run_in_terminal, command, width):
    code, text = run_in_terminal(width, command)
    assert code == 0
    assert max(map(len, ESCAPES.sub("", text).splitlines())) <= width
