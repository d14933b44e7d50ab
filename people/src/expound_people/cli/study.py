"""The human study of `expound serve`: created by the first call, continued by later ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expound.cli.shared.console import say
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from expound.models import ExplainedModel
    from expound.serve.browse.stored import Result
    from expound_people.items import StudyItem
    from expound_people.protocol.file import Protocol
    from expound_people.storage import Storage

LIMIT = 20
"""Default number of examples of a study."""
PLACES = {"prolific": "{{{{%{name}%}}}}", "mturk": "${{{name}}}"}
"""The syntax of each recruiting platform for values that it inserts into a URL."""


@dataclass(frozen=True)
class StudyPlan:
    """A study's name and protocol, with the text of the protocol's file."""

    name: str
    protocol: Protocol
    text: str

    @classmethod
    def of(cls, path: Path, name: str | None, kind: str | None) -> StudyPlan:
        """Read a protocol file. Raises ExpoundError if it is malformed or of another kind than `kind`."""
        from expound_people.protocol.file import read_protocol

        protocol, text = read_protocol(path)
        if kind not in (None, protocol.kind):
            raise ExpoundError(f"{path} describes a study of kind {protocol.kind}, but --kind is {kind}")
        return cls(name or protocol.name or path.stem, protocol, text)

    @property
    def digest(self) -> str:
        """The SHA-256 of the protocol file."""
        from expound_people.protocol.file import digest_protocol

        return digest_protocol(self.text)

    @property
    def parameters(self) -> str:
        """The query string that the platform must append to the study's address."""
        from expound_people.protocol.admission import PARAMETERS

        platform = self.protocol.recruiting.platform
        names = PARAMETERS[platform]
        if not names:
            return ""
        return "?" + "&".join(f"{name}={PLACES[platform].format(name=name)}" for name in names)


@dataclass(frozen=True)
class StudyMaterial:
    """The inputs of a new study: results with attributions, saved explanations, or models, methods and examples.

    `sources`: the path of each model; `data`: the spec of the examples; `saved`: folders of `explain --output-dir`.
    """

    models: Mapping[str, ExplainedModel]
    methods: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    results: Mapping[str, Result]
    limit: int
    seed: int
    sources: Mapping[str, str] = field(default_factory=dict)
    data: str | None = None
    saved: Sequence[Path] = ()


def find_saved_explanations(folders: Sequence[Path], study: str | None) -> list[Path]:
    """Return the folders with explanations saved by `explain --output-dir`, which only a study can use.

    Raises ExpoundError if such folders are given without the name of a study.
    """
    from expound.reports.storage import CONFIG, DATA

    saved = [folder for folder in folders if (folder / DATA).is_file() and (folder / CONFIG).is_file()]
    if saved and study is None:
        raise ExpoundError(f"{saved[0]} contains saved explanations for a human study: name the study with --study")
    return saved


def open_storage(url: str | None) -> Storage:
    """Open the database at a URL; default: a file in the working directory."""
    from expound_people.storage import DEFAULT_URL, Storage

    return Storage(url or DEFAULT_URL)


def make_study(storage: Storage, name: str, kind: str | None, material: StudyMaterial, protocol: str | None) -> None:
    """Create the study unless it exists. Raises ExpoundError if an existing study has another kind or protocol."""
    from sqlalchemy import select

    from expound_people.kinds import KINDS
    from expound_people.origin import describe_origin
    from expound_people.projects import check_name_and_kind, create_project
    from expound_people.tables import Project

    with storage.read_session() as session:
        existing = session.scalar(select(Project).where(Project.name == name))
    if existing is not None:
        if kind not in (None, existing.kind):
            raise ExpoundError(
                f"the study {name} is of kind {existing.kind}: choose another name for a study of kind {kind}"
            )
        if protocol is not None and protocol != existing.protocol:
            raise ExpoundError(f"the study {name} was started with another protocol: choose another name with --study")
        say(f"continuing the study {name}")
        return
    kind = kind or "rank"
    check_name_and_kind(name, kind)
    cases, labels = _make_cases(name, material)
    if KINDS[kind].has_changes:
        cases = _add_changed_versions(cases, material, protocol)
    origin = None
    if material.models:
        origin = describe_origin(material.models, material.sources, material.data, cases)
    with storage.write_session() as session:
        create_project(session, name, cases, kind, labels=labels, seed=material.seed, protocol=protocol, origin=origin)


def _add_changed_versions(cases: Sequence[StudyItem], material: StudyMaterial, protocol: str | None) -> list[StudyItem]:
    """Add changed versions to the examples, by the protocol's rule or the default rule."""
    from expound_people.changes import add_changed_versions
    from expound_people.protocol.file import ChangePart, parse_protocol

    if not material.models:
        raise ExpoundError("a study of kind counterfactual needs the --model whose answers people predict")
    rule = ChangePart() if protocol is None else parse_protocol(protocol).change
    say("running the model on changed examples")
    return add_changed_versions(next(iter(material.models.values())), cases, rule, material.seed)


def _make_cases(name: str, material: StudyMaterial) -> tuple[list[StudyItem], Sequence[str]]:
    """Return the study's examples, and the labels of the model."""
    from expound.reports.explanations import Explanation, Explanations
    from expound_people.items import (
        explain_items,
        make_follow_up_items,
        select_comparison_items,
        select_saved_items,
    )

    for result in material.results.values():
        if result.has_attributions:
            comparison = result.comparison
            return select_comparison_items(comparison, material.limit), comparison.config.get("labels", ())
    if material.saved:
        items: list[Explanation] = []
        for folder in material.saved:
            items += Explanations.load(folder)
        return select_saved_items(items, material.limit), ()
    if material.models and material.rows:
        model = next(iter(material.models.values()))
        say(f"explaining {len(material.rows)} examples for the study {name}")
        if len(material.models) > 1:
            method = material.methods[0] if material.methods else ""
            return make_follow_up_items(material.models, material.rows, method, material.seed), model.labels
        return explain_items(model, material.rows, material.methods, material.seed), model.labels
    raise ExpoundError(
        f"the study {name} does not exist: create it from --result DIR (a folder that compare or explain has "
        "written), or from --model and --data"
    )
