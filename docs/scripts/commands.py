"""Generate the reference of the command line from the commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from expound.cli import app


def pages() -> Iterator[tuple[str, str]]:
    """Yield a page per command, with its subcommands, as path and Markdown."""
    main = typer.main.get_command(app)
    context = main.make_context("expound", [], resilient_parsing=True)
    lines = [
        "# Command line",
        "`expound --version` prints the version; every command has `--help`.",
        "| | |\n| --- | --- |",
    ]
    for name, command in _commands(main, context):
        lines[-1] += f"\n| [`expound {name}`]({name}.md) | {_first_paragraph(command.help)} |"
        yield f"cli/{name}.md", _page(f"expound {name}", command, context)
    yield "cli/index.md", "\n\n".join(lines) + "\n"


def _commands(group: Any, context: Any) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(context):
        yield name, group.get_command(context, name)


def _page(name: str, command: Any, parent: Any) -> str:
    parts = [f"# {name}", *_help(command)]
    if not hasattr(command, "list_commands"):
        return "\n\n".join([*parts, _options(command, parent)]) + "\n"
    for each, inner in _commands(command, parent):
        parts += [f"## {name} {each}", *_help(inner), _options(inner, parent)]
    return "\n\n".join(parts) + "\n"


def _help(command: Any) -> list[str]:
    text, _, example = (command.help or "").partition("Example: ")
    parts = [text.strip().replace("<", "&lt;")]
    if example:
        parts.append(f"```sh\n{' '.join(example.split())}\n```")
    return parts


def _options(command: Any, parent: Any) -> str:
    context = command.make_context(command.name, [], parent=parent, resilient_parsing=True)
    rows = ["| | | default |", "| --- | --- | --- |"]
    for option in command.get_params(context):
        names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
        text = _cell(getattr(option, "help", "") or "") + (" **Required.**" if option.required else "")
        default = getattr(option, "default", None)
        has_default = not (default is None or default is False or callable(default))
        shown = f"`{getattr(default, 'value', default)}`" if has_default else ""
        rows.append(f"| {names} | {text} | {shown} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def _first_paragraph(text: str | None) -> str:
    return _cell(" ".join((text or "").split("\n\n")[0].split()))
