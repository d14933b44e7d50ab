"""Help pages fit a terminal of 80 columns."""

import re

import pytest
import typer
from rich.cells import cell_len
from typer.main import get_command

from exegete.cli import app


def commands(command=None, path=()):
    """The names of all commands that do something."""
    command = command or get_command(app)
    if not hasattr(command, "list_commands"):
        return [path]
    context, found = typer.Context(command), []
    for name in command.list_commands(context):
        found += commands(command.get_command(context, name), (*path, name))
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_has_an_example_and_cuts_no_option(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        get_command(app)([*command, "--help"], standalone_mode=True)
    text = capsys.readouterr().out
    assert max(map(cell_len, text.splitlines())) <= 80
    # An option that has no room is cut with an ellipsis.
    assert not [line for line in text.splitlines() if "--" in line.partition("…")[0] and "…" in line[:40]]
    assert "<bool>" not in text
    assert re.search(rf"Examples?: exegete {' '.join(command)}", " ".join(text.split()))


def test_options_stand_in_groups(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        get_command(app)(["explain", "--help"])
    titles = [line.strip("╭─╮ ") for line in capsys.readouterr().out.splitlines() if line.startswith("╭─")]
    assert titles == ["Arguments", "Model and data", "Method", "Output", "Machine"]


@pytest.mark.parametrize("command", ["methods", "metrics", "objectives", "datasets"])
def test_lists_fit_the_terminal(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    get_command(app)([command], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert len(lines) > 10
