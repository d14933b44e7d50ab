"""`expound train`: one command per recipe, built from the recipe's parameters and the shared options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperGroup

from expound.cli.shared.checks import check, check_arguments
from expound.cli.shared.help import GroupedCommand
from expound.cli.train.options import check_command, make_seed_folders, parse_trainer_arguments, run
from expound.data.registry import parse_params, split_ids
from expound.errors import ExpoundError, check_choice
from expound.training.loop.options import PYTHON_ONLY, RunOptions

if TYPE_CHECKING:
    from expound.recipes import Recipe

PRESET = Annotated[
    str | None,
    typer.Option(
        help="paper: the paper's values for options that are not given. Default: values for short runs on small data.",
        rich_help_panel="Recipe",
    ),
]
SEARCH = Annotated[
    list[str] | None,
    typer.Option(
        "--search",
        metavar="NAME=V,V",
        rich_help_panel="Recipe",
        help="Train once for each of these values of an option or of an argument of --set, in OUTPUT-DIR/search, and "
        "copy the best run to OUTPUT-DIR: by the recipe's target metric on dev, with accuracy at most .01 below the "
        "best. Repeatable: all combinations. With --seeds the mean over seeds counts, and the first is copied.",
    ),
]
SEARCH_BY = Annotated[
    str | None,
    typer.Option(
        metavar="FIGURE",
        rich_help_panel="Recipe",
        help="Choose the run of --search by this figure of metrics.json alone, as cross_entropy.",
    ),
]
RENAMED = {"processing_class": "tokenizer", "early_stopping_patience": "early-stopping"}
ARGUMENTS = {"epochs": "num_train_epochs", "batch_size": "per_device_train_batch_size", "lr": "learning_rate"}
"""Arguments of the Trainer by the names of their options."""


class Recipes(TyperGroup):
    """The recipes of the registry as commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all recipes, in the registry's order."""
        from expound.recipes import RECIPES

        return list(RECIPES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a recipe, None if the registry has no such recipe."""
        from expound.recipes import RECIPES

        return make_command(cmd_name, RECIPES[cmd_name]) if cmd_name in RECIPES else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the recipe's command, after a check of names that would otherwise fail once torch is imported."""
        from expound.recipes import RECIPES

        if not args[0].startswith("-"):
            check_choice("recipe", args[0], RECIPES)
        check_names(args)
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Recipes, help="Train a model: one command per recipe.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Train a model: one command per recipe."""


def check_names(words: Sequence[str]) -> None:
    """Raise ExpoundError for an unknown explainer, metric, objective or argument, or a missing model or data."""
    from expound.explainers.registry import EXPLAINERS
    from expound.metrics.registry import METRICS
    from expound.objectives.registry import OBJECTIVES
    from expound.recipes.registry import GUIDES

    given = dict(pairwise(words))
    # SMaT has names of its own for the explainer of its teacher.
    for option, known in (("--explainer", {*EXPLAINERS, *GUIDES}), ("--metric", {*METRICS})):
        if option in given and words[0] != "smat":
            check_choice(option.strip("-"), re.split("[?:]", given[option])[0], known)
    for spec in split_ids(given["--objectives"]) if "--objectives" in given else ():
        check_choice("objective", spec.split("?")[0], {*OBJECTIVES})
    check_arguments(parse_trainer_arguments([value for option, value in pairwise(words) if option == "--set"]))
    model = given.get("--model", given.get("-m"))
    check(models=[] if model is None else [model], data=given.get("--data", given.get("-d")))


def make_command(name: str, factory: Callable[..., Any]) -> Any:
    """Return the command of a recipe: the factory's docstring is the help, with the departures from the paper below."""
    epilog, departures = None, getattr(inspect.getmodule(factory), "DEPARTURES", ())
    if departures:
        epilog = "\n\n– ".join(["Departures from the paper:", *departures])
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(factory.__name__, cls=GroupedCommand, epilog=epilog)(_function(name, factory))
    return typer.main.get_command(alone)


def _function(name: str, factory: Callable[..., Any]) -> Callable[..., None]:
    """Return a function with the parameters of the recipe, of `run` and of RunOptions."""
    own = list(_options(factory, panel="Recipe"))
    # An option of the recipe with the name of one of all runs, as the rank of `lora`, has a default of its own.
    options = list(_options(RunOptions, leave_out=[*PYTHON_ONLY, *(option.name for option in own)]))

    def train(**values: Any) -> None:
        from expound.recipes.registry import RECIPES, paper_parameters, use_preset

        parameters = {option.name: values.pop(option.name) for option in own}
        context, preset, searched = values.pop("context"), values.pop("preset"), values.pop("search")
        search_by = values.pop("search_by")
        if search_by and not searched:
            raise ExpoundError("--search-by chooses among the runs of a search: give --search NAME=VALUE,VALUE, too")
        run_options = {option.name: values.pop(option.name) for option in options}
        # Mistakes in paths and names are reported before torch is imported.
        check_command(values, run_options["device"])
        if preset is not None:
            for option, value in paper_parameters(name).items():
                if context.get_parameter_source(option).name == "DEFAULT":
                    parameters[option] = value

        def make_recipe(**changes: Any) -> Recipe:
            return use_preset(RECIPES[name](**parameters | changes), preset)

        search = None
        if searched:
            from expound.recipes.search import Search

            names = inspect.signature(RECIPES[name]).parameters
            seeds = list(make_seed_folders(values.pop("seeds"), Path()))
            grid = parse_search(name, RECIPES[name], searched)
            search = Search.create(make_recipe, grid, names, search_by, seeds)
        recipe = search.candidates[0].recipe if search else make_recipe()
        run(recipe, search, RunOptions(**run_options), **values)

    known = {"Recipe": object, "Search": object, "RunOptions": object}
    shared = list(inspect.signature(run, eval_str=True, locals=known).parameters.values())[3:]
    # Only a model that stays as it is can be prompted: training replaces the head.
    if not factory().keeps_model:
        shared = [option for option in shared if option.name not in ("template", "labels")]
    keyword = inspect.Parameter.KEYWORD_ONLY
    preset = inspect.Parameter("preset", keyword, default=None, annotation=PRESET)
    search = inspect.Parameter("search", keyword, default=None, annotation=SEARCH)
    search_by = inspect.Parameter("search_by", keyword, default=None, annotation=SEARCH_BY)
    context = inspect.Parameter("context", keyword, annotation=typer.Context)
    train.__doc__, train.__name__ = factory.__doc__, factory.__name__
    train.__annotations__ = {"return": None}
    signature = inspect.Signature([context, *own, preset, search, search_by, *shared, *options])
    setattr(train, "__signature__", signature)  # noqa: B010  # functions have no such field
    return train


def parse_search(name: str, factory: Callable[..., Any], texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each searched parameter of a recipe or of its runs, from texts such as weight=0.1,1,10."""
    from expound.recipes.search import is_run_option

    parameters = {option.replace("-", "_"): parameter for parameter, option in RENAMED.items()} | ARGUMENTS
    own = inspect.signature(factory).parameters
    values: dict[str, list[Any]] = {}
    for text in texts:
        option, equals, choices = text.partition("=")
        if not equals or not choices:
            raise ExpoundError(f"expected --search NAME=VALUE,VALUE, got {text!r}")
        option = option.replace("-", "_")
        parameter = parameters.get(option, option)
        values[parameter] = []
        for choice in choices.split(","):
            if parameter not in own and is_run_option(parameter):
                values[parameter] += parse_trainer_arguments([f"{parameter}={choice.strip()}"]).values()
                continue
            values[parameter].append(parse_params(name, factory, {parameter: choice.strip()})[parameter])
    return values


def _options(
    called: Callable[..., Any], leave_out: Sequence[str] = (), panel: str | None = None
) -> Iterator[inspect.Parameter]:
    """Yield the parameters as typer options; each is Annotated with a help text, and optionally limits."""
    for parameter in inspect.signature(called, eval_str=True).parameters.values():
        if parameter.name in leave_out:
            continue
        if get_origin(parameter.annotation) is not Annotated:
            raise TypeError(f"{called.__name__}: {parameter.name} needs a help text, as Annotated[type, text]")
        kind, text, *limits = get_args(parameter.annotation)
        name = RENAMED.get(parameter.name, parameter.name.replace("_", "-"))
        flag = f"--{name}"
        if kind in (bool, bool | None) and parameter.default is not False:
            flag += f"/--no-{name}"
        settings = limits[0] if limits else {}
        option = typer.Option(flag, help=text, rich_help_panel=panel, **settings)
        # an option is text, where Python also takes an object: a model, an explainer, a tokenizer
        if kind is Any or str in get_args(kind):
            kind = str | None
        yield parameter.replace(annotation=Annotated[kind, option], kind=inspect.Parameter.KEYWORD_ONLY)
