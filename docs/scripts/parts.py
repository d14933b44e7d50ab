"""A page for every method, metric, objective, recipe and dataset, made of cards and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from typing import Any, NamedTuple

import examples
import parameters
import scores
from latex2mathml.converter import convert

from exegete.data import READERS
from exegete.data.cards import DataCard, MethodCard, MetricCard
from exegete.data.registry import Registry
from exegete.data.source import read_source
from exegete.explainers import EXPLAINERS
from exegete.metrics.registry import METRICS, cards
from exegete.objectives import OBJECTIVES
from exegete.recipes import RECIPES

YES = {True: "yes", False: "no"}


class Kind(NamedTuple):
    """One kind of parts: its folder of pages, what the list says of it, and its registry."""

    folder: str
    title: str
    about: str
    registry: Registry[Any]


KINDS = (
    Kind(
        "methods", "Methods", "How much of a prediction is each word's. `exegete methods` prints this list.", EXPLAINERS
    ),
    Kind("metrics", "Metrics", "How good an attribution is. `exegete metrics` prints this list.", METRICS),
    Kind("objectives", "Objectives", "Terms of a training loss, for `exegete train custom`.", OBJECTIVES),
    Kind("recipes", "Training methods", "A paper's training method by name: `exegete train NAME`.", RECIPES),
    Kind("datasets", "Datasets", "What `--data` and `exegete.load_data` read. `exegete datasets` prints it.", READERS),
)


def pages(pictures: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Every page as its path and Markdown; `pictures` has an HTML fragment for parts, by folder and id."""
    for kind in KINDS:
        said, facts = notes(kind), facts_of(kind)
        rows = [f"| [{name}]({name}.md) | " + " | ".join(each.values()) + " |" for name, each in facts.items()]
        heads = ["id", *next(iter(facts.values()))]
        table = "\n".join([_row(heads), _row(["---"] * len(heads)), *rows])
        yield f"{kind.folder}/index.md", f"# {kind.title}\n\n{kind.about}\n\n{table}\n"
        for name in facts:
            picture = pictures.get(kind.folder, {}).get(name, "")
            yield f"{kind.folder}/{name}.md", page(kind, name, facts[name], said.get(name, {}), picture)


RESULTS = {
    "baseline": ("Baseline", "er"),
    "er_joint": ("ER + ATT", "er"),
    "er_constrained": ("ER-C + ATT", "er"),
    "er_bound": ("", "er"),
    "regex": ("", "regex"),
    "smat": ("Attention (SMaT)", "smat"),
    "ivra": ("", "ivra"),
    "aml": ("", "aml"),
}
"""Of recipes: their name in tables of results, and the results page that has them."""
HEADINGS = {
    "computed": "What is computed",
    "read": "Reading a value",
    "use": "When to use it",
    "avoid": "When not to use it",
}


def page(kind: Kind, name: str, facts: Mapping[str, str], said: Mapping[str, str], picture: str) -> str:
    """One part's page: facts, equation, when to use it, when not, parameters, an example, results, reference."""
    lines = [f"# {name}", *_idea(kind, name)]
    if "equation" in said:
        lines.append(f'<p class="equation">{_equation(said["equation"])}</p>')
    if len(facts) > 1:
        first, *rest = (f"| {key} | {value} |" for key, value in facts.items())
        lines.append("\n".join([first, "| --- | --- |", *rest]))
    for key, heading in HEADINGS.items():
        if key in said:
            lines += [f"## {heading}", said[key]]
    lines += _parameters(kind, name)
    lines += ["## Example", f"```sh\n{command(kind, name)}\n```"]
    if picture:
        lines.append(f'<div class="picture">{picture}</div>')
    lines += _model(kind, name, said)
    if scored := _scored(kind, name, said):
        lines += ["## On our results pages", scored]
    lines += ["## Reference", _reference(kind, name)]
    return "\n\n".join(lines) + "\n"


def _parameters(kind: Kind, name: str) -> list[str]:
    """A section with the parameters of a method or a metric."""
    if kind.folder not in ("methods", "metrics"):
        return []
    if name not in kind.registry.native:
        return []
    text = parameters.table(kind.registry[name]) or "It has none."
    if name in examples.FOLDERS:
        text = f"Given in training, and kept in its folder: `{name}:FOLDER`."
    elif "`" in text:
        text = f"Set as `{name}?PARAMETER=VALUE`; several are joined by `&`.\n\n{text}"
    return ["## Parameters", text]


def _model(kind: Kind, name: str, said: Mapping[str, str]) -> list[str]:
    """What an example shows, and how its model is made."""
    if kind.folder not in ("methods", "metrics"):
        return []
    lines = [said["example"]] if "example" in said else []
    if name in examples.UNTRAINED:
        lines.append(f"Shown is the method before it has learned anything; a trained one is `{name}:FOLDER`.")
    return [*lines, f"The model `baseline` is made in half a minute:\n\n```sh\n{examples.TRAINING}\n```"]


def notes(kind: Kind) -> Mapping[str, Mapping[str, str]]:
    """Return each part's texts, from its card or its own file; datasets have none."""
    if kind.folder == "methods":
        return {name: _method_notes(name) for name in kind.registry.native}
    if kind.folder == "objectives":
        return {name: _filled_notes(vars(part)) for name, part in OBJECTIVES.items() if name in OBJECTIVES.native}
    if kind.folder == "recipes":
        return {name: _recipe_notes(name) for name in RECIPES.native}
    if kind.folder == "metrics":
        return {name: _metric_notes(name, card) for name, card in cards().items()}
    return {}


def _recipe_notes(name: str) -> Mapping[str, str]:
    """Return the constants EQUATION, USE and AVOID of the recipe's module, and where results pages show the recipe."""
    source = read_source(RECIPES.native[name].module)
    texts = {key: source.constant(key.upper(), "") for key in ("equation", "use", "avoid")}
    called, results_page = RESULTS.get(name, ("", ""))
    return _filled_notes({**texts, "called": called, "page": results_page})


def _filled_notes(texts: Mapping[str, Any]) -> Mapping[str, str]:
    return {key: texts[key] for key in ("equation", "use", "avoid", "called", "page") if texts.get(key)}


def _method_notes(name: str) -> Mapping[str, str]:
    card = EXPLAINERS.card(name, MethodCard)
    texts = {key: getattr(card, key) for key in ("equation", "use", "avoid")}
    return texts | ({"example": examples.NOT_SHOWN[name]} if name in examples.NOT_SHOWN else {})


def _metric_notes(name: str, card: MetricCard) -> dict[str, str]:
    """Return the texts of a metric's card, and its note on the example."""
    texts = {"equation": card.equation}
    texts |= {field: card.text(field) for field in ("computed", "read", "use", "avoid")}
    if name in examples.METRIC_NOTES:
        texts["example"] = examples.METRIC_NOTES[name]
    return texts


def facts_of(kind: Kind) -> dict[str, dict[str, str]]:
    """Each native part's facts by id, as a table shows them."""
    if kind.folder == "methods":
        made = kind.registry.cards(MethodCard)
        return {
            name: {
                "family": card.family,
                "signed": YES[card.signed],
                "differentiable": YES[card.differentiable],
                "a score is": card.describe_scores() or "–",
                "cost": card.cost,
                "source": card.paper or "–",
            }
            for name, card in made.items()
            if name in kind.registry.native
        }
    if kind.folder == "metrics":
        return {
            name: {
                "family": card.family,
                "better": "higher" if card.higher_is_better else "lower",
                "values": card.range,
                "needs rationales": YES[card.needs_rationale],
                "source": card.paper or "–",
            }
            for name, card in cards().items()
        }
    if kind.folder == "datasets":
        found = kind.registry.cards(DataCard)
        return {
            name: {"what": card.what, "form": _code(card.form), "source": card.source, "licence": card.licence}
            for name, card in found.items()
            if name in kind.registry.native
        }
    return {name: {"in short": _first(docstring(kind, name))} for name in kind.registry.native}


def docstring(kind: Kind, name: str) -> str:
    """Return the docstring of a part."""
    return inspect.cleandoc(kind.registry[name].__doc__ or "")


def command(kind: Kind, name: str) -> str:
    """A command line that uses the part."""
    if kind.folder == "recipes":
        found = re.search(r"Example: (exegete .*?)(\n\n|\Z)", docstring(kind, name), re.DOTALL)
        return " ".join(found[1].split()) if found else f"exegete train {name} --help"
    if kind.folder == "objectives":
        loss = name if name == "cross_entropy" else f"cross_entropy,{name}"
        return f'exegete train custom --objectives "{loss}" --config tiny --data generated --output-dir runs/{name}'
    if kind.folder == "datasets":
        return f'exegete compare --model my-model --data "{READERS.cards(DataCard)[name].example}"'
    return examples.judging(name) if kind.folder == "metrics" else examples.explaining(name)


def _scored(kind: Kind, name: str, said: Mapping[str, str]) -> str:
    """What the part scored. Tables know it by its id, its title, or its short name in `scores.METRICS`."""
    short = [label for label, metric in scores.METRICS.items() if metric == name]
    names = {each.lower() for each in (name, _title(kind, name), *short) if each}
    measured = kind.folder in ("methods", "metrics", "recipes")
    return scores.told(names, said.get("page"), _long()) or "Not measured there yet." * measured


@cache
def _long() -> dict[str, str]:
    """Metrics in people's words by what tables of results call them."""
    return {short: cards()[name].heading for short, name in scores.METRICS.items()}


def _title(kind: Kind, name: str) -> str:
    """What tables call a method or a metric."""
    if kind.folder == "methods":
        return kind.registry.cards(MethodCard)[name].title
    return cards()[name].heading if kind.folder == "metrics" else ""


def _equation(latex: str) -> str:
    """MathML; the sign of a difference of sets is in few fonts as LaTeX has it."""
    return convert(latex, display="block").replace("&#x02216;", "∖").replace("&#x029F5;", "∖")


def _idea(kind: Kind, name: str) -> list[str]:
    if name not in kind.registry.native:
        return ["Measured beside every comparison: what an explanation costs."]
    return [_first(docstring(kind, name))]


def _reference(kind: Kind, name: str) -> str:
    if name not in kind.registry.native:
        return "See [`exegete.metrics.measure_cost`](../reference/05_metrics.md)."
    point = kind.registry.native[name]
    options = "heading_level: 3, show_source: false, show_bases: false"
    return f"::: {point.module}.{point.attr}\n    options: {{{options}}}"


def _first(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


def _code(text: str) -> str:
    return "" if not text else f"<code>{escape(text).replace('|', '&#124;')}</code>"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
