"""The command line: every command parses options and calls the library."""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from expound.cli.attack import attack
from expound.cli.compare import compare
from expound.cli.demo.command import demo
from expound.cli.doctor import doctor
from expound.cli.explain.command import explain
from expound.cli.lists import datasets, methods, metrics, objectives
from expound.cli.plugins import PluginGroup
from expound.cli.push import push
from expound.cli.serve import serve
from expound.cli.shared.console import say
from expound.cli.shared.help import GroupedCommand
from expound.cli.shared.stopping import ending_signal, handle_signals, last_signal, stop_message
from expound.cli.summary import summary
from expound.cli.train.commands import app as train
from expound.errors import ExpoundError, Stopped, is_disk_full, shorten

app = typer.Typer(
    name="expound", cls=PluginGroup, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
)
COMMANDS = (compare, explain, summary, serve, attack, demo, push, methods, metrics, objectives, datasets, doctor)
for command in COMMANDS:
    app.command(cls=GroupedCommand)(command)
app.add_typer(train, name="train")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(version("expound"))
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Explain language models, judge the explanations, and train models that explain themselves well."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The code is 0 after success, 2 for bad input (reported in one line on standard error), and 128 plus the signal's
    number after Ctrl-C or SIGTERM, with a line about what was saved. Unreadable and unwritable files are bad input.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        with handle_signals():
            app(args=None if argv is None else list(argv))
    except Stopped as stopped:
        say(f"stopped: {stopped}")
        return 128 + (stopped.signal or signal.SIGINT)
    # Python turns a signal that arrives while it parses a source file into a SystemError.
    except (KeyboardInterrupt, SystemError) as error:
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else last_signal()
        if number is None:
            raise
        say(stop_message())
        return 128 + number
    except SystemExit as stop:
        number = ending_signal(stop)
        if number is not None:
            say(stop_message())
            return 128 + number
        return stop.code if isinstance(stop.code, int) else 0
    except Exception as error:
        # Other libraries raise errors of their own types on a full disk.
        if not (isinstance(error, ExpoundError | OSError) or is_disk_full(error)):
            raise
        # Messages of our own are short, except for white space in the input that they name.
        message = " ".join(str(error).split()) if isinstance(error, ExpoundError) else shorten(error)
        # Advice such as "overwrite=True (--overwrite)" is for Python and for the command line.
        message = re.sub(r"\b[a-z_]+=[^\s,()]+ \((--[^()]*)\)", r"\1", message)
        say(f"expound: {message}")
        return 2
    return 0
