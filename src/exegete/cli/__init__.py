"""The commands; each is a thin call into the rooms below."""

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
from exegete.cli.shared.stopping import asked, left, signal_of, stoppable
from exegete.cli.study.commands import app as study
from exegete.cli.summary import summary
from exegete.cli.train.commands import app as train
from exegete.errors import ExegeteError, Stopped, shorten

app = typer.Typer(
    name="exegete",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
COMMANDS = (compare, explain, summary, serve, power, attack, demo, push, methods, metrics, objectives, datasets, doctor)
for command in COMMANDS:
    app.command()(command)
app.add_typer(train, name="train")
app.add_typer(study, name="study")


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Runs a command. Returns 0, 2 for bad input (one line on standard error), or what a stopped command says.

    A file that cannot be read or written counts as bad input, too. Stopped by Ctrl-C or SIGTERM, it says what is kept.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # others import it, and it says what it does without
    try:
        with stoppable():
            app(args=None if argv is None else list(argv))
    except Stopped as stopped:
        say(f"stopped: {stopped}")
        return 128 + (stopped.signal or signal.SIGINT)
    except (ExegeteError, OSError) as error:
        say(f"exegete: {' '.join(str(error).split()) if isinstance(error, ExegeteError) else shorten(error)}")
        return 2
    except (KeyboardInterrupt, SystemError) as error:  # the latter: a signal while Python parses a source file
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else asked()
        if number is None:
            raise
        say(left())
        return 128 + number
    except SystemExit as stop:
        number = signal_of(stop)
        if number is not None:
            say(left())
            return 128 + number
        return stop.code if isinstance(stop.code, int) else 0
    return 0
