"""`exegete train`: a command for every recipe, made of its own parameters and the options that all share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperGroup

from exegete.cli.shared.checks import by_outlines
from exegete.cli.train.options import check_command, run
from exegete.data.outline import outline, outlined, signature

if TYPE_CHECKING:
    from exegete.recipes import Factory

RENAMED = {
    "explainer_id": "explainer",
    "processing_class": "tokenizer",
    "early_stopping_patience": "early-stopping",
}


class Recipes(TyperGroup):
    """The registry as commands, by outlines: a recipe is imported, and so torch, when its command is right."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all recipes, in the registry's order."""
        from exegete.recipes import RECIPES

        return list(RECIPES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a recipe; None where there is no such recipe."""
        from exegete.recipes import RECIPES

        if cmd_name not in RECIPES:
            return None
        with outlined(), suppress(Exception):
            return command(RECIPES[cmd_name], lambda: RECIPES[cmd_name])
        return command(RECIPES[cmd_name])


app = typer.Typer(cls=Recipes, help="Train a model: one command a training method.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Train a model: one command a training method."""


def command(factory: Factory, called: Callable[[], Factory] | None = None) -> Any:
    """The command of one recipe; its docstring is the help. `called`: gives the recipe of which this is an outline."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    function = _function(factory, called or (lambda: factory))
    alone.command(factory.__name__, epilog=_departures(factory))(function)
    return typer.main.get_command(alone)


def _departures(factory: Factory) -> str | None:
    """The departures of the method from its paper, as it is without further options."""
    if any(each.default is each.empty for each in inspect.signature(factory).parameters.values()):
        return None
    made = factory()
    lines = [f"– {departure}" for departure in made.departures]
    return "\n\n".join([f"Departures from {made.paper}:", *lines]) if lines else None


def _function(factory: Factory, called: Callable[[], Factory]) -> Callable[..., None]:
    run_options = outline("exegete.training.loop.options")["RunOptions"]
    own, options = list(_options(factory)), list(_options(run_options, leave_out=("arguments",)))

    def trained(**given: Any) -> None:
        parameters, chosen = ({each.name: given.pop(each.name) for each in part} for part in (own, options))
        with by_outlines():
            factory(**parameters)
        check_command(given, chosen["device"])
        from exegete.training import RunOptions

        run(called()(**parameters), RunOptions(**chosen), **given)

    known = {"Recipe": object, "RunOptions": object}
    shared = list(inspect.signature(run, eval_str=True, locals=known).parameters.values())[2:]
    trained.__doc__, trained.__name__ = factory.__doc__, factory.__name__
    trained.__annotations__ = {"return": None}
    every = inspect.Signature([*own, *shared, *options])
    setattr(trained, "__signature__", every)  # noqa: B010  # functions have no such field
    return trained


def _options(called: Callable[..., Any], leave_out: Sequence[str] = ()) -> Iterator[inspect.Parameter]:
    """The parameters as options: each is Annotated with a help text, and limits of its value if it has some."""
    for parameter in signature(called).parameters.values():
        if parameter.name in leave_out:
            continue
        if get_origin(parameter.annotation) is not Annotated:
            raise TypeError(f"{called.__name__}: {parameter.name} needs a help text, as Annotated[type, text]")
        kind, text, *limits = get_args(parameter.annotation)
        name = RENAMED.get(parameter.name, parameter.name.replace("_", "-"))
        on_or_off = kind in (bool, bool | None) and parameter.default is not False
        flag = f"--{name}/--no-{name}" if on_or_off else f"--{name}"
        option = typer.Option(flag, help=text, **(limits[0] if limits else {}))
        kind = str | None if kind is Any else kind
        yield parameter.replace(annotation=Annotated[kind, option], kind=inspect.Parameter.KEYWORD_ONLY)
