"""`expound people create`: make a study of explanations that exist, or of a model and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expound.cli.serve import load_models, load_rows, name_models
from expound.cli.shared import options
from expound.cli.shared.checks import check
from expound.cli.shared.console import say, silence_libraries
from expound.cli.shared.threads import Threads
from expound.errors import ExpoundError
from expound_people.cli.shared import StorageUrl, open_storage

if TYPE_CHECKING:
    from expound.models import ExplainedModel
    from expound_people.items import StudyItem

LIMIT = 20
"""Default number of examples of a study."""


def create(
    name: Annotated[
        str | None, typer.Argument(help="Name of the study. Default: the protocol's, or that of its file.")
    ] = None,
    result: Annotated[
        list[Path] | None,
        typer.Option(
            "--result", "-r", help="Folder that `expound compare` or `expound explain --output-dir` wrote; repeatable."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Explain this model; two models are compared blind. Repeatable."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", "-d", help="Examples that the model explains.")] = None,
    split: options.SplitOrAll = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of examples. Default: the protocol's, or 20.")
    ] = None,
    methods: options.Methods = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="People rank explanations, highlight evidence, simulate the model, or predict its answers to changed "
            "examples (counterfactual). Default: rank."
        ),
    ] = None,
    protocol: Annotated[
        Path | None, typer.Option(help="A study protocol (YAML): participants, instructions and questions.")
    ] = None,
    storage: StorageUrl = None,
    task: options.Task = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    max_length: options.MaxLength = None,
    threads: Threads = None,
) -> None:
    """Create a human study. Afterwards, `expound people serve` serves it.

    Examples: expound people create films --result comparison --kind rank

    expound people create notes --result explained

    expound people create said --kind simulate --model my-model --data generated --limit 30

    expound people create --protocol study.yaml --result comparison
    """
    text = None
    if protocol is not None:
        from expound_people.protocol.file import read_protocol

        plan, text = read_protocol(protocol)
        if kind not in (None, plan.kind):
            raise ExpoundError(f"{protocol} describes a study of kind {plan.kind}, but --kind is {kind}")
        name, kind, seed = name or plan.name or protocol.stem, plan.kind, plan.seed
        if not model and not result and plan.source.model:
            model = [plan.source.model]
        data, limit = data or plan.source.data, limit or plan.source.limit
        methods, split = methods or ",".join(plan.source.methods) or None, split or plan.source.split
    if name is None:
        raise ExpoundError("give the study a name, or a --protocol")
    check(models=model or [], data=data, methods=methods, device=device, dtype=dtype, files=result or [])
    from expound_people.kinds import KINDS
    from expound_people.projects import check_new_study, create_project
    from expound_people.protocol.rehearsal import rehearse

    kind, studies = kind or "rank", open_storage(storage)
    with studies.read_session() as session:
        check_new_study(session, name, kind)
    silence_libraries()
    sources = name_models(model or [])
    models = load_models(sources, threads, device, dtype=dtype, max_length=max_length, task=task)
    rows = load_rows(data, split, limit or LIMIT, seed, models)
    if result:
        items, labels = _select_items(result, limit or LIMIT)
    elif models and rows:
        say(f"explaining {len(rows)} examples for the study {name}")
        items, labels = _explain_rows(models, rows, options.split_ids(methods) or [], seed)
    else:
        raise ExpoundError(
            f"the study {name} needs explanations: give --result DIR (a folder that compare or explain has written), "
            "or --model and --data"
        )
    if KINDS[kind].has_changes:
        items = _add_changed_versions(items, models, text, seed)
    origin = None
    if models:
        from expound_people.origin import describe_origin

        origin = describe_origin(models, sources, data, items)
    with studies.write_session() as session:
        project = create_project(session, name, items, kind, labels=labels, seed=seed, protocol=text, origin=origin)
        if text is not None:
            rehearse(session, project)
    say(f"created the study {name} with {len(items)} examples; `expound people serve` serves it")


def _select_items(folders: Sequence[Path], limit: int) -> tuple[list[StudyItem], Sequence[str]]:
    """Return examples of the first comparison in some folders, or of the explanations that `explain` has saved."""
    from expound.evaluation.compare.comparison import Comparison
    from expound.reports.explanations import Explanation, Explanations
    from expound.reports.storage import CONFIG, DATA
    from expound_people.items import select_comparison_items, select_saved_items

    explanations: list[Explanation] = []
    for folder in folders:
        if not (folder / DATA).is_file() or not (folder / CONFIG).is_file():
            comparison = Comparison.load(folder)
            return select_comparison_items(comparison, limit), comparison.config.get("labels", ())
        explanations += Explanations.load(folder)
    return select_saved_items(explanations, limit), ()


def _explain_rows(
    models: Mapping[str, ExplainedModel], rows: Sequence[Mapping[str, Any]], methods: Sequence[str], seed: int
) -> tuple[list[StudyItem], Sequence[str]]:
    """Return the examples with explanations by several methods, or by one method of several models, and the labels."""
    from expound_people.items import explain_items, make_follow_up_items

    model = next(iter(models.values()))
    if len(models) > 1:
        return make_follow_up_items(models, rows, methods[0] if methods else "", seed), model.labels
    return explain_items(model, rows, methods, seed), model.labels


def _add_changed_versions(
    items: Sequence[StudyItem], models: Mapping[str, ExplainedModel], protocol: str | None, seed: int
) -> list[StudyItem]:
    """Add changed versions to the examples, by the protocol's rule or the default rule."""
    from expound_people.changes import add_changed_versions
    from expound_people.protocol.file import ChangePart, parse_protocol

    if not models:
        raise ExpoundError("a study of kind counterfactual needs the --model whose answers people predict")
    rule = ChangePart() if protocol is None else parse_protocol(protocol).change
    say("running the model on changed examples")
    return add_changed_versions(next(iter(models.values())), items, rule, seed)
