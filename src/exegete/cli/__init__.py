"""The command line: every command parses options and calls the library."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from exegete.cli.attack import attack
from exegete.cli.compare import compare
from exegete.cli.demo.command import demo
from exegete.cli.doctor import doctor
from exegete.cli.explain.command import explain
from exegete.cli.lists import datasets, methods, metrics, objectives
from exegete.cli.power import power
from exegete.cli.push import push
from exegete.cli.serve.command import serve
from exegete.cli.shared.console import say
from exegete.cli.shared.help import GroupedCommand
from exegete.cli.shared.stopping import ending_signal, handle_signals, last_signal, stop_message
from exegete.cli.study.commands import app as study
from exegete.cli.summary import summary
from exegete.cli.train.commands import app as train
from exegete.errors import ExegeteError, Stopped, shorten

app = typer.Typer(name="exegete", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
COMMANDS = (compare, explain, summary, serve, power, attack, demo, push, methods, metrics, objectives, datasets, doctor)
for command in COMMANDS:
    app.command(cls=GroupedCommand)(command)
app.add_typer(train, name="train")
app.add_typer(study, name="study")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(version("exegete"))
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
    # Other libraries import bitsandbytes, which then warns about kernels that are not installed.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        with handle_signals():
            app(args=None if argv is None else list(argv))
    except Stopped as stopped:
        say(f"stopped: {stopped}")
        return 128 + (stopped.signal or signal.SIGINT)
    except (ExegeteError, OSError) as error:
        # Messages of our own are short, except for white space in the input that they name.
        message = " ".join(str(error).split()) if isinstance(error, ExegeteError) else shorten(error)
        say(f"exegete: {message}")
        return 2
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
    return 0
