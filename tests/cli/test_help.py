"""Help pages fit a terminal of 80 columns."""

import ast
import re
from pathlib import Path

import pytest
import typer
from rich.cells import cell_len
from typer.main import get_command

import expound
from expound.cli import app


def find_commands(command=None, path=()):
    """The words of every command that has no subcommands."""
    command = command or get_command(app)
    if not hasattr(command, "list_commands"):
        return [path]
    context, found = typer.Context(command), []
    for name in command.list_commands(context):
        found += find_commands(command.get_command(context, name), (*path, name))
    return found


def test_help_has_an_example_and_cuts_no_option(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for command in find_commands():
        with pytest.raises(SystemExit):
            get_command(app)([*command, "--help"], standalone_mode=True)
        text = capsys.readouterr().out
        assert max(map(cell_len, text.splitlines())) <= 80, command
        # An option that has no room is cut with an ellipsis.
        cut = [line for line in text.splitlines() if "--" in line.partition("…")[0] and "…" in line[:40]]
        assert not cut, command
        assert "<bool>" not in text, command
        assert re.search(rf"Examples?: expound {' '.join(command)}", " ".join(text.split())), command


def test_options_stand_in_groups(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    groups = {
        "explain": ["Arguments", "Model and data", "Generated text", "Method", "Output", "Machine"],
        "train ivra": ["Model and data", "Recipe", "Parts of the recipe", "Training", "Output", "Machine"],
    }
    for command, expected in groups.items():
        with pytest.raises(SystemExit):
            get_command(app)([*command.split(), "--help"])
        text = capsys.readouterr().out
        assert [line.strip("╭─╮ ") for line in text.splitlines() if line.startswith("╭─")] == expected
    # The rank is a parameter of the recipe `lora`, and an option of every other training.
    for command, panel in (("train lora", "Recipe"), ("train ivra", "Training")):
        with pytest.raises(SystemExit):
            get_command(app)([*command.split(), "--help"])
        assert "--lora-rank" in capsys.readouterr().out.partition(f"╭─ {panel} ─")[2].partition("╰─")[0]


@pytest.mark.parametrize("command", ["methods", "metrics", "objectives", "datasets"])
def test_lists_fit_the_terminal(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    get_command(app)([command], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert len(lines) > 10


def find_named_options(path):
    """The options that errors of a module name, with their lines."""
    found = []
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("ExpoundError", "say"):
            for part in ast.walk(call):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    found += [(option, part.lineno) for option in re.findall(r"--[a-z][a-z-]+", part.value)]
    return found


def test_options_that_errors_name_exist():
    options = {}
    for command in find_commands():
        node = get_command(app)
        for name in command:
            node = node.get_command(typer.Context(node), name)
        options[command] = {name for option in node.params for name in (*option.opts, *option.secondary_opts)}
    package, missing = Path(expound.__file__).parent, []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).with_suffix("").parts
        # Errors of a command's own modules name options of that command, others those of any command.
        own = [command for command in options if place[:2] == ("cli", command[0])]
        known = set().union(*(options[command] for command in own or options))
        missing += [f"{path.name}:{line} {name}" for name, line in find_named_options(path) if name not in known]
    assert not missing
