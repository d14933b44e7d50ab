"""A corpus to explain, and the explaining of its parts; several processes may each take every so-manieth part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from exegete.data.load import Stream
from exegete.errors import ExegeteError
from exegete.explainers import Explainer, attribute, explainer
from exegete.explainers.base import describe_explainer
from exegete.explainers.registry import add_seed, default_method
from exegete.models import ExplainedModel, load
from exegete.models.encoding.labels import make_renumbering
from exegete.models.loading.digest import digest_weights
from exegete.reports.progress import is_interactive
from exegete.studies.corpus.parts import Parts, explained_row

ROWS_PER_PART = 1000


@dataclass(frozen=True, kw_only=True)
class CorpusJob:
    """A corpus to explain, and where the explanations go; plain values, so that other processes can do some of it.

    Args:
        model: a folder or a hub name.
        data: a spec, see `exegete.load_data`.
        folder: where the parts go.
        split: of the data; default: as `exegete compare` chooses it.
        method: an id; default: see `default_method`.
        target: what is explained, see `exegete.attribute`.
        loading: options of `exegete.load`.
        columns: options of the data.
        rows_a_part: examples in a file; what is killed loses so many at most.
        seed: of methods that have one.
        batch_size: examples a batch; default: a budget of tokens.
        allow_nan: go on where scores are no finite numbers.
        stride: see `exegete.attribute`.
    """

    model: str
    data: str
    folder: Path
    split: str | None = None
    method: str | None = None
    target: Any = "predicted"
    loading: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    rows_per_part: int = ROWS_PER_PART
    seed: int = 0
    batch_size: int | None = None
    allow_nan: bool = False
    stride: int | None = None

    def stream(self) -> Stream:
        """The data, a row at a time."""
        return Stream(self.data, self.split, **self.columns)

    def load(self, device: str | None = None) -> ExplainedModel:
        """The model, on this device if one is given."""
        return load(self.model, **{**self.loading, **({} if device is None else {"device": device})})


def explain_shard(job: CorpusJob, model: ExplainedModel, stripe: int = 0, stripes: int = 1) -> Parts:
    """Explains the parts number `stripe`, `stripe` + `stripes`, ... that are not there yet; memory holds one of them.

    Raises:
        ExegeteError: what cannot be read or explained, in which rows; a folder of another corpus; generated text.
    """
    if model.task.name == "generation":
        raise ExegeteError("a corpus of generated text is explained by `exegete compare`: choose one method there")
    stream = job.stream()
    method = explainer(add_seed(job.method or default_method(model), job.seed))
    parts = Parts(job.folder, _resolve_config(job, model, method, stream))
    to_model = make_renumbering(model, stream.features)
    shown = is_interactive() and not stripe
    number = -1
    with tqdm(desc="explaining", unit=" rows", disable=not shown, delay=1, leave=False) as bar:
        for number, rows in enumerate(_split_rows(stream, job.rows_per_part)):
            if number % stripes == stripe and not parts.has(number, rows):
                first = number * job.rows_per_part
                try:
                    found = _explain_rows(job, model, method, [to_model(stream.decode(row)) for row in rows], first)
                except ExegeteError as error:
                    where = f"rows {first} to {first + len(rows) - 1} of {stream.spec}"
                    raise ExegeteError(f"{where} (counted from 0): {error}") from error
                parts.write(number, rows, found)
            bar.update(len(rows))
    if parts.path(number + 1).exists():
        raise ExegeteError(f"{job.folder} explains more rows than there are: the data changed; choose another folder")
    return parts


def _explain_rows(
    job: CorpusJob, model: ExplainedModel, method: Explainer, rows: list[dict[str, Any]], first: int
) -> list[dict[str, Any]]:
    each = [(first + number, one) for number, row in enumerate(rows) for one in model.expand_examples([row])]
    if not each:
        return []
    limits: dict[str, Any] = {"batch_size": job.batch_size, "allow_nan": job.allow_nan, "stride": job.stride}
    found = attribute(model, [row for _, row in each], method, job.target, show_progress=False, **limits)
    return [
        explained_row(item, row, _label_name(model, row.get("label"))) | {"index": index}
        for item, (index, row) in zip(found, each, strict=True)
    ]


def _label_name(model: ExplainedModel, label: Any) -> str | None:
    return model.labels[label] if isinstance(label, int) else None if label is None else str(label)


def _split_rows(rows: Iterable[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    each = iter(rows)
    while part := list(islice(each, size)):
        yield part


def _resolve_config(job: CorpusJob, model: ExplainedModel, method: Explainer, stream: Stream) -> dict[str, Any]:
    """All that the explanations depend on but the rows, of which each part has a digest."""
    return {
        "model": model.config._name_or_path,
        "weights": digest_weights(model.model),
        "settings": model.settings,
        "labels": list(model.labels),
        "data": stream.spec,
        "split": stream.split,
        "method": describe_explainer(method),
        "target": str(job.target),
        "rows_per_part": job.rows_per_part,
        **({} if job.stride is None else {"stride": job.stride}),
    }
