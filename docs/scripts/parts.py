"""A page for every method, metric, objective, recipe and dataset, made from cards, docstrings and `ideas.yaml`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from html import escape
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

import examples
import parameters
import scores
import symbols
import yaml

from expound.data import READERS
from expound.data.cards import DataCard, MethodCard, MetricCard, display_name
from expound.data.registry import Registry
from expound.explainers import EXPLAINERS
from expound.metrics.registry import METRICS, cards
from expound.objectives import OBJECTIVES
from expound.recipes import RECIPES

YES = {True: "yes", False: "no"}
IDEAS: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("ideas.yaml").read_text(encoding="utf-8"))
"""Families with a sentence on each, and two sentences of intuition for each part, by folder of pages."""


class Kind(NamedTuple):
    """One kind of parts: its folder of pages, the introduction of its index page, and its registry."""

    folder: str
    title: str
    about: str
    registry: Registry[Any]


KINDS = (
    Kind(
        "methods",
        "Methods",
        "A method gives every word a score for its share in a prediction. `expound methods` prints this list; "
        "[Choose](../choose.md) helps to pick one. In the examples, `explain` of `expound.testing.counting` explains a "
        "model that adds up, see [Metrics](../metrics/index.md).",
        EXPLAINERS,
    ),
    Kind(
        "metrics",
        "Metrics",
        "A metric says how good an attribution is. `expound metrics` prints this list; [Choose](../choose.md) helps to "
        "pick one. In the examples, `judge` of `expound.testing.counting` asks a model that adds up: P(positive) is "
        '.2, and .3 more for each "good", .2 more for each "fine", .1 less for each "bad".',
        METRICS,
    ),
    Kind(
        "objectives",
        "Objectives",
        "An objective is one term of a training loss. `expound train custom` adds any of them up; "
        "`expound objectives` prints this list.",
        OBJECTIVES,
    ),
    Kind(
        "recipes",
        "Recipes",
        "A recipe is how a paper trains a model: `expound train ID`. `--preset paper` takes the paper's values.",
        RECIPES,
    ),
    Kind(
        "datasets",
        "Datasets",
        "Datasets and file formats that `--data` and `expound.load_data` read. `expound datasets` prints this list.",
        READERS,
    ),
)


def pages(pictures: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield every page as its path and Markdown; `pictures` maps folder and id to an HTML fragment."""
    for kind in KINDS:
        texts, facts = notes(kind), facts_of(kind)
        yield f"{kind.folder}/index.md", index_page(kind, facts)
        for names in group_by_family(kind, facts).values():
            for name in names:
                picture = pictures.get(kind.folder, {}).get(name, "")
                yield f"{kind.folder}/{name}.md", page(kind, name, facts[name], texts.get(name, {}), picture)


def group_by_family(kind: Kind, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the ids of each family, in the order of `ideas.yaml`. Datasets are one family without a name."""
    families = IDEAS[kind.folder]["families"] if kind.folder in IDEAS else {"": {}}
    groups: dict[str, list[str]] = {family: [] for family in families}
    for name in names:
        groups.setdefault(family_of(kind, name), []).append(name)
    return {family: members for family, members in groups.items() if members}


def index_page(kind: Kind, facts: Mapping[str, Mapping[str, str]]) -> str:
    """Return the list of a kind's parts: a section per family, with a sentence about it and a table."""
    lines = [f"# {kind.title}", kind.about]
    for family, names in group_by_family(kind, facts).items():
        if family:
            # A new part needs no entry: its family then has a title and no introduction.
            texts = IDEAS[kind.folder]["families"].get(family, {"title": display_name(family), "about": ""})
            lines += [f"## {texts['title']}", texts["about"]]
        columns = [column for column in facts[names[0]] if column != "family"]
        rows = [_row(["", "id", *columns]), _row(["---"] * (len(columns) + 2))]
        for name in names:
            cells = [facts[name][column] for column in columns]
            rows.append(_row([f"[{title_of(kind, name)}]({name}.md)", f"`{name}`", *cells]))
        lines.append("\n".join(rows))
    return "\n\n".join(lines) + "\n"


def title_of(kind: Kind, name: str) -> str:
    """Return the name that people use for a part."""
    title = _texts(kind, name).get("title")
    if title:
        return str(title)
    if kind.folder == "datasets":
        return name
    return _card_title(kind, name) or display_name(name)


def family_of(kind: Kind, name: str) -> str:
    """Return the family of a part; empty for datasets."""
    if kind.folder == "methods":
        return kind.registry.cards(MethodCard)[name].family
    if kind.folder == "metrics":
        return cards()[name].family
    default = "" if kind.folder == "datasets" else "other"
    return str(_texts(kind, name).get("family", default))


def intuition(kind: Kind, name: str) -> str:
    """Return two sentences of intuition about a part; of a dataset, the first lines of its docstring."""
    return str(_texts(kind, name).get("idea", "")) or _summary(kind, name)


def _texts(kind: Kind, name: str) -> Mapping[str, str]:
    texts = IDEAS.get(kind.folder, {}).get("parts", {}).get(name, {})
    return {"idea": texts} if isinstance(texts, str) else texts


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
"""Each recipe's name in tables of results, and the results page with these tables."""


def page(kind: Kind, name: str, facts: Mapping[str, str], texts: Mapping[str, str], picture: str) -> str:
    """Return the page of one part.

    The order is: intuition, picture, code, when to use it, when it misleads, definition, parameters, results.
    """
    lines = [f"# {title_of(kind, name)}", intuition(kind, name)]
    if picture:
        lines.append(f'<div class="picture">{picture}</div>')
    lines += ["## Example", *_code_tabs(kind, name), *_example_notes(kind, name, texts)]
    avoid = "When it misleads" if kind.folder in ("methods", "metrics") else "When not to use it"
    for key, heading in (("use", "When to use it"), ("avoid", avoid)):
        if key in texts:
            lines += [f"## {heading}", texts[key]]
    lines += _definition(kind, name, facts, texts)
    lines += _parameters(kind, name)
    results = _results(kind, name, texts)
    if results:
        lines += ["## On our results pages", results]
    return "\n\n".join(lines) + "\n"


def _code_tabs(kind: Kind, name: str) -> list[str]:
    """Return the example in Python and on the command line, as tabs; without Python, the command alone."""
    code, shell = examples.python_code(kind.folder, name), f"```sh\n{command(kind, name)}\n```"
    if not code:
        return [shell]
    blocks = {"Python": f"```python\n{code}\n```", "Command line": shell}
    return [f'=== "{title}"\n\n{indent(block, " " * 4)}' for title, block in blocks.items()]


def _definition(kind: Kind, name: str, facts: Mapping[str, str], texts: Mapping[str, str]) -> list[str]:
    """Return the section with the equation, what is computed, how to read a value, and the properties."""
    lines = ["## Definition"]
    if "equation" in texts:
        lines.append(symbols.render_equation(kind.folder, name, texts["equation"]))
    # Other pages have the first line of the docstring below the equation, from the reference.
    lines += [texts["computed"]] if "computed" in texts else [_reference(kind, name)]
    if "read" in texts:
        lines += ["### Reading a value", texts["read"]]
    rows = [_row(["id", f"`{name}`"]), _row(["---", "---"])]
    rows += [_row([key, value]) for key, value in facts.items() if key != "in short"]
    return [*lines, "\n".join(rows), *([_reference(kind, name)] if "computed" in texts else [])]


def _parameters(kind: Kind, name: str) -> list[str]:
    """Return a section with the parameters of a method, a metric or a recipe."""
    if kind.folder == "recipes":
        return ["## Parameters", parameters.signature_table(RECIPES[name]) or "It has no parameters."]
    if kind.folder not in ("methods", "metrics") or name not in kind.registry.native:
        return []
    text = parameters.table(kind.registry[name]) or "It has no parameters."
    if name in examples.FOLDERS:
        text = f"The parameters are set in training and saved in its folder: `{name}:FOLDER`."
    elif "`" in text:
        text = f"Write `{name}?PARAMETER=VALUE`, with `&` between several parameters.\n\n{text}"
    return ["## Parameters", text]


def _example_notes(kind: Kind, name: str, texts: Mapping[str, str]) -> list[str]:
    """Return what the example shows, and the command that trains its model."""
    if kind.folder not in ("methods", "metrics"):
        return []
    lines = [texts["example"]] if "example" in texts else []
    if name in examples.UNTRAINED:
        lines.append(f"The picture shows the method before training; a trained one is `{name}:FOLDER`.")
    training = f"    ```sh\n    {examples.TRAINING}\n    ```"
    return [*lines, f'??? note "This command trains the model `baseline` in half a minute"\n{training}']


def notes(kind: Kind) -> Mapping[str, Mapping[str, str]]:
    """Return each part's texts, from its card or its own file; empty for datasets."""
    if kind.folder == "methods":
        return {name: _method_notes(name) for name in kind.registry.native}
    if kind.folder == "objectives":
        return {name: _drop_empty_notes(vars(part)) for name, part in OBJECTIVES.items() if name in OBJECTIVES.native}
    if kind.folder == "recipes":
        return {name: _recipe_notes(name) for name in RECIPES.native}
    if kind.folder == "metrics":
        return {name: _metric_notes(name, card) for name, card in cards().items()}
    return {}


def _recipe_notes(name: str) -> Mapping[str, str]:
    """Return the constants EQUATION, USE and AVOID of the recipe's module, and where results pages show the recipe."""
    module = import_module(RECIPES.native[name].module)
    texts = {key: getattr(module, key.upper(), "") for key in ("equation", "use", "avoid")}
    called, results_page = RESULTS.get(name, ("", ""))
    return _drop_empty_notes({**texts, "called": called, "page": results_page})


def _drop_empty_notes(texts: Mapping[str, Any]) -> Mapping[str, str]:
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
    """Return the properties of each native part by id, as a table shows them."""
    if kind.folder == "methods":
        method_cards = kind.registry.cards(MethodCard)
        return {
            name: {
                "family": card.family,
                "signed": YES[card.signed],
                "differentiable": YES[card.differentiable],
                "a score is": card.describe_scores() or "–",
                "cost (F forward, B backward passes)": card.cost,
                "source": card.paper or "–",
            }
            for name, card in method_cards.items()
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
        data_cards = kind.registry.cards(DataCard)
        return {
            name: {"what": card.what, "form": _code(card.form), "source": card.source, "license": card.license}
            for name, card in data_cards.items()
            if name in kind.registry.native
        }
    facts = {}
    for name in kind.registry.native:
        first_sentence = intuition(kind, name).split(". ")[0].rstrip(".")
        facts[name] = {"in short": f"{first_sentence}."}
    if kind.folder == "recipes":
        for name, row in facts.items():
            row["source"] = RECIPES[name]().paper or "–"
    return facts


def docstring(kind: Kind, name: str) -> str:
    """Return the docstring of a part."""
    return inspect.cleandoc(kind.registry[name].__doc__ or "")


def command(kind: Kind, name: str) -> str:
    """Return a command line that uses the part."""
    if kind.folder == "recipes":
        example = re.search(r"Example: (expound .*?)(\n\n|\Z)", docstring(kind, name), re.DOTALL)
        return " ".join(example[1].split()) if example else f"expound train {name} --help"
    if kind.folder == "objectives":
        loss = name if name == "cross_entropy" else f"cross_entropy,{name}"
        return f'expound train custom --objectives "{loss}" --config tiny --data generated --output-dir runs/{name}'
    if kind.folder == "datasets":
        return f'expound compare --model my-model --data "{READERS.cards(DataCard)[name].example}"'
    return examples.compare_command(name) if kind.folder == "metrics" else examples.explain_command(name)


def _results(kind: Kind, name: str, texts: Mapping[str, str]) -> str:
    """Return the part's figures. Tables know it by its id, its title, or its short name in `scores.METRICS`."""
    short = [label for label, metric in scores.METRICS.items() if metric == name]
    names = {label.lower() for label in (name, _card_title(kind, name), texts.get("called"), *short) if label}
    text = scores.figures_of(names, texts.get("page"), _metric_headings())
    if text or kind.folder not in ("methods", "metrics", "recipes"):
        return text
    return "Not measured there yet."


@cache
def _metric_headings() -> dict[str, str]:
    """Return the full names of metrics, by their short names in tables of results."""
    return {short: cards()[name].heading for short, name in scores.METRICS.items()}


def _card_title(kind: Kind, name: str) -> str:
    """Return the title on the card of a method or a metric, which tables of results use, too; empty for others."""
    if kind.folder == "methods":
        return kind.registry.cards(MethodCard)[name].title
    return cards()[name].heading if kind.folder == "metrics" else ""


def _summary(kind: Kind, name: str) -> str:
    """Return the first paragraph of a part's docstring, on one line."""
    if name not in kind.registry.native:
        return ""
    return " ".join(docstring(kind, name).split("\n\n", maxsplit=1)[0].split())


def _reference(kind: Kind, name: str) -> str:
    if name not in kind.registry.native:
        return "See [`expound.metrics.measure_cost`](../reference/05_metrics.md)."
    point = kind.registry.native[name]
    options = "heading_level: 3, show_source: false, show_bases: false"
    # The table below has the parameters, and the methods are those of every part of its kind.
    if kind.folder in ("methods", "metrics", "recipes"):
        options += ", members: false, show_docstring_parameters: false, show_signature: false"
    return f"::: {point.module}.{point.attr}\n    options: {{{options}}}"


def _code(text: str) -> str:
    return "" if not text else f"<code>{escape(text).replace('|', '&#124;')}</code>"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
