"""The schema of a protocol: everything that people of a study read and are asked, which is also its preregistration."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, ValidationError, model_validator

from exegete.errors import ExegeteError
from exegete.studies.spec.schema import Part
from exegete.studies.spec.study_file import format_first_problem
from exegete.studies.spec.yaml_lines import YamlDocument, parse_yaml


def _to_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Paragraphs = Annotated[tuple[str, ...], BeforeValidator(_to_list, json_schema_input_type=str | list[str])]
"""Paragraphs; one alone may stand without a list."""
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,29}$")]


class SourcePart(Part):
    """Model, data and methods that the study is made of, where the command names nothing else."""

    model: str | None = None
    data: str | None = None
    split: str | None = None
    limit: PositiveInt = 20
    methods: tuple[str, ...] = ()


class ConsentPart(Part):
    """Consent: a text, and statements of which each has to be ticked."""

    text: Paragraphs
    agree: list[str] = Field(min_length=1)


class QuestionPart(Part):
    """A question: one of `choices`, a `scale` of several statements, a number or a text.

    `accept`: answers with which somebody may take part. `reverse`: statements of a scale, from 1, that count the other
    way round. A scale has `points` steps between its two `ends`.
    """

    name: Identifier
    question: str
    kind: Literal["choice", "scale", "number", "text"] = "choice"
    choices: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    points: int = Field(default=5, ge=2, le=11)
    ends: tuple[str, str] | None = None
    reverse: tuple[PositiveInt, ...] = ()
    optional: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "choice" and len(self.choices) < 2:
            raise ValueError("a choice needs 2 choices or more")
        if self.kind == "scale" and (not self.statements or self.ends is None):
            raise ValueError("a scale needs statements and its two ends")
        if not set(self.accept) <= set(self.choices) or any(n > len(self.statements) for n in self.reverse):
            raise ValueError("'accept' names choices, 'reverse' numbers of statements")
        return self


class KnownPart(Part):
    """An example whose answer is known, as its evidence is planted: for training and for checks of attention.

    `text` with the `evidence` in it, or a made picture of `rows` by `columns` squares with one of another colour at
    `square` (row and column from 1). In a study of generated answers `text` is the question, `evidence` names the
    `sources` (texts by name) that the answer comes from. `prediction`: what the model says of it; `changed` and
    `changed_prediction`: a changed version of the text and what the model says of that, where people are asked for it.
    """

    text: str | None = None
    evidence: tuple[str, ...] = ()
    sources: dict[str, str] = Field(default_factory=dict)
    square: tuple[PositiveInt, PositiveInt] | None = None
    grid: tuple[PositiveInt, PositiveInt] = (7, 7)
    prediction: str
    changed: str | None = None
    changed_prediction: str | None = None
    feedback: Paragraphs = ()

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.text is None) == (self.square is None):
            raise ValueError("expected a text with evidence, or a square of a made picture")
        if self.sources and (self.text is None or not set(self.evidence) < set(self.sources)):
            raise ValueError("sources need a text that asks, and evidence that names some of them, not all")
        where = self.sources or self.text or ""
        if self.text is not None and (not self.evidence or any(each not in where for each in self.evidence)):
            raise ValueError("expected evidence that stands in the text")
        if self.square is not None and any(at > size for at, size in zip(self.square, self.grid, strict=True)):
            raise ValueError("the square lies outside the grid")
        return self


class InstructionsPart(Part):
    """Instructions before people begin; default: the kind's."""

    text: Paragraphs = ()
    example: KnownPart | None = None


class CheckPart(Part):
    """A question of the comprehension check, with its right answer."""

    question: str
    choices: list[str] = Field(min_length=2)
    answer: str

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.answer not in self.choices:
            raise ValueError("the answer is not one of the choices")
        return self


class ComprehensionPart(Part):
    """Questions that show whether the instructions were understood, and how often one may try."""

    attempts: PositiveInt = 2
    questions: list[CheckPart] = Field(min_length=1)


class AttentionPart(Part):
    """Checks of attention, strewn among the examples; who misses more than `allowed` is flagged."""

    items: tuple[KnownPart, ...] = ()
    allowed: int = Field(default=0, ge=0)
    fastest: float | None = Field(default=None, gt=0)


class MainPart(Part):
    """`items`: examples of each person (default: all); `overlap`: people for each; `screen`: explanations on a screen.

    `show`: how scores become colours, the same for every method: their positive part, their size, or both signs in two
    colours (only where all methods are signed). `confidence`: whether each answer comes with how sure one is. `unit`:
    what people mark.
    """

    items: PositiveInt | None = None
    overlap: PositiveInt | None = None
    screen: int = Field(default=4, ge=2)
    show: Literal["positive", "absolute", "signed"] = "positive"
    confidence: bool = False
    unit: Literal["word", "sentence"] = "word"


class ChangePart(Part):
    """How examples are changed whose answers people foretell; chance decides, whatever a method says of them.

    `how`: `words` words are removed, or replaced by words of other examples. Of `tries` versions one is taken: where
    `balanced`, for half of the examples one to which the model answers otherwise, as far as there are such, and for the
    others one to which it doesn't; else the first.
    """

    how: Literal["remove", "replace"] = "remove"
    words: PositiveInt = 3
    tries: PositiveInt = 20
    balanced: bool = True


class ExitPart(Part):
    """How a person goes back to where they came from: a code to copy, an address to return to."""

    code: str | None = None
    redirect: str | None = Field(default=None, pattern=r"^https://[^\s]+$")


class RecruitingPart(Part):
    """Who may take part. `people`: at most so many; `quotas`: at most so many by answer to a screening question.

    `platform`: whose parameters the address has to bring; `open`: anybody. `minutes` from the beginning to the end.
    """

    platform: Literal["prolific", "mturk", "open"] = "open"
    people: PositiveInt | None = None
    quotas: dict[str, dict[str, PositiveInt]] = Field(default_factory=dict)
    minutes: PositiveInt | None = None
    complete: ExitPart = ExitPart()
    screened_out: ExitPart = ExitPart()
    failed: ExitPart = ExitPart()


class StopPart(Part):
    """Admits nobody more when the widest 95 % interval is this narrow, after `least` complete people."""

    width: float = Field(gt=0)
    least: PositiveInt = 10


class Protocol(Part):
    """A study as it was planned. `hypotheses` and `analysis` are for readers of the preregistration."""

    name: str | None = None
    title: str
    kind: Literal["rank", "highlight", "simulate", "counterfactual"] = "rank"
    language: Literal["en", "de"] = "en"
    question: str = ""
    hypotheses: Paragraphs = ()
    analysis: Paragraphs = ()
    source: SourcePart = SourcePart()
    seed: int = 0
    consent: ConsentPart
    screening: tuple[QuestionPart, ...] = ()
    instructions: InstructionsPart = InstructionsPart()
    training: tuple[KnownPart, ...] = ()
    comprehension: ComprehensionPart | None = None
    attention: AttentionPart = AttentionPart()
    main: MainPart = MainPart()
    change: ChangePart = ChangePart()
    questionnaire: tuple[QuestionPart, ...] = ()
    thanks: Paragraphs
    recruiting: RecruitingPart = RecruitingPart()
    stop: StopPart | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [each.name for each in (*self.screening, *self.questionnaire)]
        if len(set(names)) < len(names):
            raise ValueError("two questions have the same name")
        asked = {each.name: each.choices for each in self.screening}
        for name, counts in self.recruiting.quotas.items():
            if not set(counts) <= set(asked.get(name, ())):
                raise ValueError(f"quotas: {name} is no screening question with these choices")
        if self.kind != "rank" and any(each.sources for each in (*self.training, *self.attention.items)):
            raise ValueError("sources belong to generated answers, whose explanations are ranked")
        if self.kind == "highlight" and self.stop is not None:
            raise ValueError("stop: marks have no interval to stop at")
        if self.kind == "highlight" and any(each.text is None for each in (*self.training, *self.attention.items)):
            raise ValueError("evidence can be marked in texts only")
        known = ((each.text, each.changed, each.changed_prediction) for each in (*self.training, *self.attention.items))
        if self.kind == "counterfactual" and any(None in each for each in known):
            raise ValueError("counterfactual: known examples need a text, 'changed' and 'changed_prediction'")
        return self

    @property
    def text_prefix(self) -> str:
        """What the catalogue calls the usual question and instructions."""
        return get_text_prefix(self.kind, self.main.unit)


def get_text_prefix(kind: str, unit: str) -> str:
    """How the catalogue's question and instructions begin for a kind of study."""
    return f"{kind}_{unit}" if kind == "highlight" and unit != "word" else kind


def get_main_part(text: str | None) -> MainPart:
    """The main part of a protocol's text; the usual one where a study has no protocol."""
    return MainPart() if text is None else parse_protocol(text).main


def read_protocol(path: Path) -> tuple[Protocol, str]:
    """A protocol and the text that it was read from. Raises ExegeteError, with file and line, for what is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExegeteError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return parse_protocol(text, path), text


@cache
def parse_protocol(text: str, path: Path = Path("protocol")) -> Protocol:
    """The protocol in a text. Raises ExegeteError, with file and line."""
    document: YamlDocument = parse_yaml(text, path)
    if not isinstance(document.value, dict):
        raise ExegeteError(f"{document.lines[()]}: expected keys and values, got {type(document.value).__name__}")
    try:
        return Protocol.model_validate(document.value)
    except ValidationError as error:
        raise ExegeteError(format_first_problem(error, document)) from error


def digest_protocol(text: str) -> str:
    """The protocol's SHA-256, as `sha256sum FILE` prints it."""
    return sha256(text.encode()).hexdigest()
