"""The human study that `exegete serve` is asked for: made once, gone on with after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exegete.cli.shared.console import say
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.models import ExplainedModel
    from exegete.web.browse.stored import Result
    from exegete.web.human_study.cases import Case
    from exegete.web.human_study.protocol.file import Protocol
    from exegete.web.human_study.storage import Storage

LIMIT = 20
"""Examples of a study where nothing says how many."""
PLACES = {"prolific": "{{{{%{name}%}}}}", "mturk": "${{{name}}}"}
"""How a platform writes what it puts into an address."""


@dataclass(frozen=True)
class Plan:
    """A protocol, the text of its file, and the study's name."""

    name: str
    protocol: Protocol
    text: str

    @classmethod
    def of(cls, path: Path, name: str | None, kind: str | None) -> Plan:
        """A protocol's file. Raises ExegeteError for a malformed one, and for another kind than the command's."""
        from exegete.web.human_study.protocol.file import read_protocol

        protocol, text = read_protocol(path)
        if kind not in (None, protocol.kind):
            raise ExegeteError(f"{path} is of the kind {protocol.kind}, --kind says {kind}")
        return cls(name or protocol.name or path.stem, protocol, text)

    @property
    def digest(self) -> str:
        """The protocol's digest."""
        from exegete.web.human_study.protocol.file import digest_of

        return digest_of(self.text)

    @property
    def parameters(self) -> str:
        """Parameters that the platform has to put behind the study's address."""
        from exegete.web.human_study.protocol.admission import PARAMETERS

        platform = self.protocol.recruiting.platform
        names = PARAMETERS[platform]
        return "?" + "&".join(f"{name}={PLACES[platform].format(name=name)}" for name in names) if names else ""


@dataclass(frozen=True)
class Material:
    """Material of a study: a result with attributions, saved explanations, or a model, methods and rows.

    `sources`: where each model comes from; `data`: the rows' spec; `saved`: folders of `explain --output-dir`.
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


def saved_among(folders: Sequence[Path], study: str | None) -> list[Path]:
    """The folders that hold explanations which `explain --output-dir` saved, of which a study is made.

    Raises ExegeteError where there are some and no study is asked for.
    """
    from exegete.reports.storage import CONFIG, DATA

    found = [folder for folder in folders if (folder / DATA).is_file() and (folder / CONFIG).is_file()]
    if found and study is None:
        raise ExegeteError(f"{found[0]} holds saved explanations, of which a study is made: name it with --study")
    return found


def open_storage(url: str | None) -> Storage:
    """The storage at a URL; default: a file here."""
    from exegete.web.human_study.storage import DEFAULT, Storage

    return Storage(url or DEFAULT)


def make_study(storage: Storage, name: str, kind: str | None, material: Material, protocol: str | None) -> None:
    """Makes the study if there is none of its name. Raises ExegeteError where one of another plan has the name."""
    from sqlalchemy import select

    from exegete.web.human_study.kinds import KINDS
    from exegete.web.human_study.origin import origin_of
    from exegete.web.human_study.projects import check_new, create
    from exegete.web.human_study.tables import Project

    with storage.reading() as session:
        there = session.scalar(select(Project).where(Project.name == name))
    if there is not None:
        if kind not in (None, there.kind):
            raise ExegeteError(f"the study {name} is of the kind {there.kind}: choose another name for one of {kind}")
        if protocol is not None and protocol != there.protocol:
            raise ExegeteError(f"the study {name} was begun with another protocol: choose another name with --study")
        say(f"going on with the study {name}")
        return
    kind = kind or "rank"
    check_new(name, kind)
    found, labels = _cases(name, material)
    if KINDS[kind].changes:
        found = _changed(found, material, protocol)
    with storage.writing() as session:
        create(
            session,
            name,
            found,
            kind,
            labels=labels,
            seed=material.seed,
            protocol=protocol,
            origin=origin_of(material.models, material.sources, material.data, found) if material.models else None,
        )


def _changed(found: Sequence[Case], material: Material, protocol: str | None) -> list[Case]:
    """The examples with changed versions, by the protocol's rule or the usual one."""
    from exegete.web.human_study.changes import with_changes
    from exegete.web.human_study.protocol.file import ChangePart, protocol_of

    if not material.models:
        raise ExegeteError("people foretell a model's answers to changed examples: give that --model")
    rule = ChangePart() if protocol is None else protocol_of(protocol).change
    say("asking the model about changed examples")
    return with_changes(next(iter(material.models.values())), found, rule, material.seed)


def _cases(name: str, material: Material) -> tuple[list[Case], Sequence[str]]:
    """The study's examples, and what the model can answer."""
    from exegete.reports.attributions import Attributions
    from exegete.web.human_study.cases import compared, explained, followed_up, saved

    kept = next((each for each in material.results.values() if each.explained), None)
    if kept is not None:
        return compared(kept.comparison, material.limit), kept.comparison.config.get("labels", ())
    if material.saved:
        items = [item for folder in material.saved for item in Attributions.load(folder)]
        return saved(items, material.limit), ()
    if material.models and material.rows:
        model = next(iter(material.models.values()))
        say(f"explaining {len(material.rows)} examples for the study {name}")
        if len(material.models) > 1:
            method = material.methods[0] if material.methods else ""
            return followed_up(material.models, material.rows, method, material.seed), model.labels
        return explained(model, material.rows, material.methods, material.seed), model.labels
    raise ExegeteError(
        f"there is no study {name} yet: make it of --result DIR (of compare, or explain --output-dir), or of --model "
        "and --data"
    )
