"""Commands that installed packages add to `expound`, through the entry point group `expound.commands`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from expound.data.registry import find_installed
from expound.errors import ExpoundError, shorten

GROUP = "expound.commands"
PACKAGES = {"study": "expound-papers", "people": "expound-people"}
"""Commands of our own packages, and the package that brings each."""


class PluginGroup(TyperGroup):
    """The group of all commands: the library's own, and commands of installed packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands; commands of packages come last."""
        own = super().list_commands(ctx)
        return own + sorted(set(find_installed(GROUP)) - set(own))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None for an unknown name; a package's command is imported now."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = find_installed(GROUP).get(cmd_name)
        if point is not None:
            try:
                return _to_click(point.load(), cmd_name)
            except Exception as error:
                # Not raised here: a broken package must not break `expound --help`.
                reason = f"{cmd_name!r} ({point.value}) cannot be loaded: {shorten(error)}"
                return _make_failing_command(cmd_name, reason)
        if cmd_name in PACKAGES:
            package = PACKAGES[cmd_name]
            return _make_failing_command(cmd_name, f"{cmd_name!r} is in the package {package}: pip install {package}")
        return None


def _to_click(command: Any, name: str) -> Any:
    """Return a Typer app, or a function with Typer's annotations, as a click command."""
    if isinstance(command, typer.Typer):
        group = typer.main.get_group(command)
        group.name = name
        return group
    app = typer.Typer(add_completion=False)
    app.command(name)(command)
    return typer.main.get_command(app)


def _make_failing_command(name: str, reason: str) -> Any:
    """Return a command that takes any arguments and raises ExpoundError."""

    def fail() -> None:
        raise ExpoundError(f"the command {reason}")

    app = typer.Typer(add_completion=False)
    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(name, help=reason, context_settings=settings)(fail)
    return typer.main.get_command(app)
