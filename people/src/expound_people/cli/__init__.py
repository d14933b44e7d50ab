"""`expound people`: human studies of explanations."""

from __future__ import annotations

import typer

from expound.cli.shared.help import GroupedCommand
from expound_people.cli.create import create
from expound_people.cli.export import export, schema
from expound_people.cli.power import power
from expound_people.cli.serve import serve

app = typer.Typer(help="Run human studies of explanations in the browser.", no_args_is_help=True)
for command in (create, serve, export, power, schema):
    app.command(cls=GroupedCommand)(command)
