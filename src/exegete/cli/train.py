"""`exegete train`: a command for every recipe, made of its own parameters and the options that all share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperGroup

from exegete.cli.train_options import run

if TYPE_CHECKING:
    from exegete.recipes import Factory

RENAMED = {"explainer_id": "--explainer"}


class Recipes(TyperGroup):
    """The registry as commands, read when first asked for, since recipes import torch."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all recipes, in the registry's order."""
        from exegete.recipes import RECIPES

        return list(RECIPES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a recipe; None where there is no such recipe."""
        from exegete.recipes import RECIPES

        return command(RECIPES[cmd_name]) if cmd_name in RECIPES else None


app = typer.Typer(cls=Recipes, help="Train a model: one command a training method.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Train a model: one command a training method."""


def command(factory: Factory) -> Any:
    """The command of one recipe; its docstring is the help."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(factory.__name__)(_function(factory))
    return typer.main.get_command(alone)


def _function(factory: Factory) -> Callable[..., None]:
    own = list(_own(factory))
    names = [parameter.name for parameter in own]

    def trained(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in names}
        run(factory(**chosen), **given)

    shared = list(inspect.signature(run, eval_str=True, locals={"Recipe": object}).parameters.values())[1:]
    trained.__doc__, trained.__name__ = factory.__doc__, factory.__name__
    trained.__annotations__ = {"return": None}
    setattr(trained, "__signature__", inspect.Signature([*own, *shared]))  # noqa: B010  # functions have no such field
    return trained


def _own(factory: Factory) -> Iterator[inspect.Parameter]:
    """The recipe's parameters as options: Annotated with a help text."""
    for parameter in inspect.signature(factory, eval_str=True).parameters.values():
        if get_origin(parameter.annotation) is not Annotated:
            raise TypeError(f"{factory.__name__}: {parameter.name} needs a help text, as Annotated[type, text]")
        kind, text = get_args(parameter.annotation)[:2]
        flag = RENAMED.get(parameter.name, f"--{parameter.name.replace('_', '-')}")
        option = typer.Option(flag, help=text)
        yield parameter.replace(annotation=Annotated[kind, option], kind=inspect.Parameter.KEYWORD_ONLY)
