"""Commands of installed packages: found, broken, and of packages that are not installed."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from expound.cli import main, plugins


@pytest.fixture
def installed(monkeypatch):
    points = {}
    monkeypatch.setattr(plugins, "find_installed", lambda group: points if group == plugins.GROUP else {})
    return points


@pytest.mark.parametrize(("command", "package"), [("study", "expound-papers"), ("people", "expound-people")])
def test_a_command_of_a_package_that_is_not_installed_says_which_to_install(installed, capsys, command, package):
    assert main([command, "run", "--dry-run"]) == 2
    assert f"pip install {package}" in capsys.readouterr().err


def test_a_broken_package_breaks_its_own_command_alone(installed, capsys):
    installed["broken"] = EntryPoint("broken", "no_such_module:app", plugins.GROUP)
    assert main(["broken"]) == 2
    error = capsys.readouterr().err
    assert "'broken'" in error
    assert "no_such_module" in error
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "broken" in shown
    assert "compare" in shown


def test_an_unknown_command_is_an_error(installed, capsys):
    assert main(["no-such-command"]) == 2
    assert "no-such-command" in capsys.readouterr().err


def test_a_package_cannot_replace_a_command_of_the_library(installed, capsys):
    installed["compare"] = EntryPoint("compare", "no_such_module:app", plugins.GROUP)
    assert main(["compare", "--help"]) == 0
    assert "--metrics" in capsys.readouterr().out
