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
    """The group of all commands: the library's own, and those of installed packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands; those of packages come last."""
        own = super().list_commands(ctx)
        return own + sorted(set(find_installed(GROUP)) - set(own))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; one of a package is imported now.

        Raises:
            ExpoundError: the package that brings the command is not installed, or cannot be imported.
        """
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = find_installed(GROUP).get(cmd_name)
        if point is not None:
            try:
                command = point.load()
            except Exception as error:
                message = f"the command {cmd_name!r} of an installed package ({point.value}): {shorten(error)}"
                raise ExpoundError(message) from error
            return _to_click(command, cmd_name)
        if cmd_name in PACKAGES:
            package = PACKAGES[cmd_name]
            raise ExpoundError(f"`expound {cmd_name}` is in the package {package}: pip install {package}")
        return None


def _to_click(command: Any, name: str) -> Any:
    """Return a Typer app, or a function with Typer's annotations, as a command of this name."""
    if not isinstance(command, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(name)(command)
        return typer.main.get_command(app)
    group = typer.main.get_group(command)
    group.name = name
    return group
