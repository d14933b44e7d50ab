"""The schema of a protocol file: everything that annotators of a study read and answer, and its preregistration."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from expound.data.hub import read_text
from expound.errors import ExpoundError
from expound_people.protocol.yaml_lines import YamlDocument, parse_yaml

BYTES = 256 << 10
"""The most bytes of a protocol file."""
MAX_SEED = 2**31 - 1
"""The largest seed that every database stores."""
MAX_MINUTES = 366 * 24 * 60


def _to_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Paragraphs = Annotated[tuple[str, ...], BeforeValidator(_to_list, json_schema_input_type=str | list[str])]
"""Paragraphs; a single one may be given without a list."""
Count = Annotated[int, Field(ge=1, le=1_000_000)]
"""A number of people, examples, words or the like."""
GridSize = Annotated[int, Field(ge=1, le=50)]
"""Rows or columns of a generated picture."""
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,29}$")]


class Part(BaseModel):
    """A part of a protocol; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True, allow_inf_nan=False)


class SourcePart(Part):
    """Default model, data and methods of the study, for options that the command leaves out."""

    model: str | None = None
    data: str | None = None
    split: str | None = None
    limit: Count = 20
    methods: tuple[str, ...] = ()


class ConsentPart(Part):
    """The consent form: a text and statements, all of which have to be ticked."""

    text: Paragraphs
    agree: list[str] = Field(min_length=1)


class QuestionPart(Part):
    """A question with `choices`, a `scale` of several statements, a number or a text as its answer.

    `accept`: choices that admit an annotator; default: all. `reverse`: numbers of a scale's statements, from 1, whose
    values are reversed in the mean. A scale has `points` steps between its two `ends`.
    """

    name: Identifier
    question: str
    kind: Literal["choice", "scale", "number", "text"] = "choice"
    choices: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    points: int = Field(default=5, ge=2, le=11)
    ends: tuple[str, str] | None = None
    reverse: tuple[Count, ...] = ()
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
    """An example with a known answer, for training and attention checks: its evidence is planted.

    Either `text` that contains the `evidence`, or a generated picture of `grid` (rows, columns) squares with another
    color at `square` (row and column, from 1). In a study of generated answers, `text` is the question, and
    `evidence` names the `sources` (texts by name) of the answer. `prediction`: the model's answer; `changed` and
    `changed_prediction`: a changed version of the text and the model's answer to it, for counterfactual studies.
    """

    text: str | None = None
    evidence: tuple[str, ...] = ()
    sources: dict[str, str] = Field(default_factory=dict)
    square: tuple[GridSize, GridSize] | None = None
    grid: tuple[GridSize, GridSize] = (7, 7)
    prediction: str
    changed: str | None = None
    changed_prediction: str | None = None
    feedback: Paragraphs = ()

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.text is None) == (self.square is None):
            raise ValueError("expected a text with evidence, or a square of a generated picture")
        if self.sources and (self.text is None or not set(self.evidence) < set(self.sources)):
            raise ValueError("sources need a text that asks, and evidence that names some of them, not all")
        container = self.sources or self.text or ""
        if self.text is not None and (not self.evidence or any(part not in container for part in self.evidence)):
            raise ValueError("expected evidence that is a part of the text")
        if self.square is not None and any(at > size for at, size in zip(self.square, self.grid, strict=True)):
            raise ValueError("the square lies outside the grid")
        return self


class InstructionsPart(Part):
    """The instructions; default: those of the kind of study."""

    text: Paragraphs = ()
    example: KnownPart | None = None


class CheckPart(Part):
    """A question of the comprehension check, with its correct answer."""

    question: str
    choices: list[str] = Field(min_length=2)
    answer: str

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.answer not in self.choices:
            raise ValueError("the answer is not one of the choices")
        return self


class ComprehensionPart(Part):
    """The comprehension check: questions about the instructions, and the number of attempts."""

    attempts: int = Field(default=2, ge=1, le=100)
    questions: list[CheckPart] = Field(min_length=1)


class AttentionPart(Part):
    """Attention checks, spread among the examples; annotators who miss more than `allowed` are flagged.

    `fastest`: median seconds per example below which an annotator is flagged as too fast.
    """

    items: tuple[KnownPart, ...] = ()
    allowed: int = Field(default=0, ge=0, le=10_000)
    fastest: float | None = Field(default=None, gt=0, le=86_400)


class MainPart(Part):
    """The main part of a study.

    `items`: examples per annotator (default: all); `overlap`: annotators per example; `screen`: explanations on one
    screen. `show`: which scores are colored, the same for all methods: the positive ones, their absolute values, or
    both signs in two colors (only if all methods are signed). `confidence`: whether each answer asks for the
    annotator's confidence. `unit`: what annotators mark.
    """

    items: Count | None = None
    overlap: Count | None = None
    screen: int = Field(default=4, ge=2, le=100)
    show: Literal["positive", "absolute", "signed"] = "positive"
    confidence: bool = False
    unit: Literal["word", "sentence"] = "word"


class ChangePart(Part):
    """The rule that changes examples of a counterfactual study, at random and independent of all explanations.

    `how`: remove `words` words, or replace them by words of other examples. `tries`: versions to draw per example.
    `balanced`: take a version that changes the model's answer for half of the examples, if possible, and one that does
    not for the others; otherwise the first version is taken.
    """

    how: Literal["remove", "replace"] = "remove"
    words: int = Field(default=3, ge=1, le=1000)
    tries: int = Field(default=20, ge=1, le=1000)
    balanced: bool = True


class ExitPart(Part):
    """The way back to the platform for annotators: a completion code to copy, or an address."""

    code: str | None = None
    redirect: str | None = Field(default=None, pattern=r"^https://[^\s]+$")


class RecruitingPart(Part):
    """The conditions for taking part.

    `platform`: the link must have this platform's parameters; open: anybody. `people`: maximum number of annotators;
    `quotas`: maximum numbers by answer to a screening question; `minutes`: time limit from beginning to end.
    """

    platform: Literal["prolific", "mturk", "open"] = "open"
    people: Count | None = None
    quotas: dict[str, dict[str, Count]] = Field(default_factory=dict)
    minutes: int | None = Field(default=None, ge=1, le=MAX_MINUTES)
    complete: ExitPart = ExitPart()
    screened_out: ExitPart = ExitPart()
    failed: ExitPart = ExitPart()


class StopPart(Part):
    """Stop admitting annotators once the widest 95 % interval is at most `width`, after `least` complete annotators."""

    width: float = Field(gt=0, le=1000)
    least: Count = 10


class Protocol(Part):
    """A protocol: the plan of a study. `hypotheses` and `analysis` are for readers of the preregistration only."""

    name: str | None = None
    title: str
    kind: Literal["rank", "highlight", "simulate", "counterfactual"] = "rank"
    language: Literal["en", "de"] = "en"
    question: str = ""
    hypotheses: Paragraphs = ()
    analysis: Paragraphs = ()
    source: SourcePart = SourcePart()
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
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
        names = [question.name for question in (*self.screening, *self.questionnaire)]
        if len(set(names)) < len(names):
            raise ValueError("two questions have the same name")
        choices = {question.name: question.choices for question in self.screening}
        for name, counts in self.recruiting.quotas.items():
            if not set(counts) <= set(choices.get(name, ())):
                raise ValueError(f"quotas: {name} is no screening question with these choices")
        known = (*self.training, *self.attention.items)
        if self.kind != "rank" and any(part.sources for part in known):
            raise ValueError("sources belong to generated answers, whose explanations are ranked")
        if self.kind == "highlight" and self.stop is not None:
            raise ValueError("stop: marks have no interval to stop at")
        if self.kind == "highlight" and any(part.text is None for part in known):
            raise ValueError("evidence can be marked in texts only")
        is_complete = all(None not in (part.text, part.changed, part.changed_prediction) for part in known)
        if self.kind == "counterfactual" and not is_complete:
            raise ValueError("counterfactual: known examples need a text, 'changed' and 'changed_prediction'")
        return self


def get_text_prefix(kind: str, unit: str) -> str:
    """Return the prefix of the keys of a kind's question and instructions in the catalog."""
    return f"{kind}_{unit}" if kind == "highlight" and unit != "word" else kind


def get_main_part(text: str | None) -> MainPart:
    """Return the main part of a protocol's text; the default one for a study without a protocol."""
    return MainPart() if text is None else parse_protocol(text).main


def read_protocol(path: Path) -> tuple[Protocol, str]:
    """Read a protocol file; return the protocol and the text. Raises ExpoundError with file and line."""
    text = read_text(path)
    return parse_protocol(text, path), text


# Cached because every request of an annotator needs the protocol, which never changes after the study was created.
@cache
def parse_protocol(text: str, path: Path = Path("protocol")) -> Protocol:
    """Parse the text of a protocol. Raises ExpoundError with file and line."""
    if len(text.encode("utf-8", "surrogatepass")) > BYTES:
        raise ExpoundError(f"{path} has more than {BYTES >> 10} KiB: no protocol is that long")
    document = parse_yaml(text, path)
    if not isinstance(document.value, dict):
        raise ExpoundError(f"{document.line_of(())}: expected keys and values, got {type(document.value).__name__}")
    try:
        return Protocol.model_validate(document.value)
    except ValidationError as error:
        raise ExpoundError(_format_first_problem(error, document)) from error


def _format_first_problem(error: ValidationError, document: YamlDocument) -> str:
    """Return the first error of a validation with its line, and the number of further errors."""
    first, *others = error.errors()
    text = f"{document.line_of(first['loc'])}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    # Of a missing or unknown key pydantic gives the whole mapping as the input.
    if first["type"] not in ("missing", "extra_forbidden"):
        text += f", got {first['input']!r:.60}"
    if others:
        text += f" (and {len(others)} more)"
    return text


def digest_protocol(text: str) -> str:
    """Return the SHA-256 digest of a protocol's text, as `sha256sum FILE` prints it."""
    return sha256(text.encode()).hexdigest()
