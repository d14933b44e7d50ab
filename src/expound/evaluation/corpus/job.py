"""A corpus to explain, part by part; several processes can share the parts among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from tqdm.auto import tqdm

from expound.data.load import Stream
from expound.errors import ExpoundError
from expound.evaluation.corpus.parts import CorpusParts, make_explained_row, split_rows
from expound.evaluation.workers.local import LocalWorkers
from expound.evaluation.workers.on_ray import RayWorkers
from expound.evaluation.workers.scheduler import Task, Workers, run_all
from expound.explainers import Explainer, attribute, explainer
from expound.explainers.base import describe_explainer
from expound.explainers.check_model import default_method
from expound.explainers.registry import add_seed
from expound.models import ExplainedModel, load
from expound.models.encoding.labels import make_renumbering
from expound.models.loading.checkpoint import digest_weights
from expound.reports.text import is_interactive

ROWS_PER_PART = 1000


@dataclass(frozen=True, kw_only=True)
class CorpusJob:
    """A corpus to explain and the folder for the explanations, in plain values that other processes can receive.

    Args:
        model: a folder or a name on the Hugging Face Hub.
        data: a spec, see `expound.load_data`.
        folder: where the parts are written.
        split: of the data; default: the one that `expound compare` uses.
        method: an id; default: see `default_method`.
        target: the output to explain, see `expound.attribute`.
        loading: options of `expound.load`.
        columns: options of the data.
        rows_per_part: examples per file; a process that is killed loses at most this many.
        seed: random seed of methods that have one.
        batch_size: examples per batch; default: a budget of tokens.
        allow_nan: continue if scores are not finite.
        stride: see `expound.attribute`.
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
        """Return the data as a stream of rows."""
        return Stream(self.data, self.split, **self.columns)

    def load(self, device: str | None = None) -> ExplainedModel:
        """Load the model, on `device` if one is given."""
        options = dict(self.loading)
        if device is not None:
            options["device"] = device
        return load(self.model, **options)


def explain_shard(job: CorpusJob, model: ExplainedModel, shard: int = 0, num_shards: int = 1) -> CorpusParts:
    """Explain the missing ones of the parts `shard`, `shard` + `num_shards`, …; memory holds one part.

    Raises:
        ExpoundError: data that cannot be read or explained (names the rows), a folder of another corpus, generated
            text.
    """
    if model.task.is_generated:
        raise ExpoundError("a corpus of generated text is explained by `expound compare`: choose one method there")
    stream = job.stream()
    method = explainer(add_seed(job.method or default_method(model), job.seed), model)
    parts = CorpusParts(job.folder, _resolve_config(job, model, method, stream))
    to_model = make_renumbering(model, stream.features)
    shown = is_interactive() and not shard
    number = -1
    with tqdm(desc="explaining", unit=" rows", disable=not shown, delay=1, leave=False) as bar:
        # Every process reads all rows, since only their content says whether a part is finished.
        for number, rows in enumerate(split_rows(stream, job.rows_per_part)):
            if number % num_shards == shard and not parts.has(number, rows):
                first = number * job.rows_per_part
                try:
                    decoded = [to_model(stream.decode(row)) for row in rows]
                    explained = _explain_rows(job, model, method, decoded, first)
                except ExpoundError as error:
                    place = f"rows {first} to {first + len(rows) - 1} of {stream.spec}"
                    raise ExpoundError(f"{place} (counted from 0): {error}") from error
                parts.write(number, rows, explained)
            bar.update(len(rows))
    if parts.path(number + 1).exists():
        raise ExpoundError(f"{job.folder} has parts beyond the last row: the data changed; choose another folder")
    return parts


def _explain_rows(
    job: CorpusJob, model: ExplainedModel, method: Explainer, rows: list[dict[str, Any]], first: int
) -> list[dict[str, Any]]:
    """Return the explanations of rows as stored, each with the number of its row in the corpus."""
    examples, numbers = list[Any](), list[int]()
    # Tagging has several examples per row: one per stretch of text.
    for number, row in enumerate(rows, first):
        for example in model.expand_examples([row]):
            examples.append(example)
            numbers.append(number)
    if not examples:
        return []
    limits: dict[str, Any] = {"batch_size": job.batch_size, "allow_nan": job.allow_nan, "stride": job.stride}
    attributions = attribute(model, examples, method, job.target, show_progress=False, **limits)
    stored = []
    for attribution, example, number in zip(attributions, examples, numbers, strict=True):
        label = _label_name(model, example.get("label"))
        stored.append(make_explained_row(attribution, example, label) | {"index": number})
    return stored


def _label_name(model: ExplainedModel, label: Any) -> str | None:
    if isinstance(label, int):
        return model.labels[label]
    return None if label is None else str(label)


def _resolve_config(job: CorpusJob, model: ExplainedModel, method: Explainer, stream: Stream) -> dict[str, Any]:
    """Return everything that the explanations depend on, except the rows: each part stores a digest of its own."""
    config = {
        "model": model.config._name_or_path,
        "weights": digest_weights(model.model),
        "settings": model.settings,
        "labels": list(model.labels),
        "data": stream.spec,
        "split": stream.split,
        "method": describe_explainer(method),
        "target": str(job.target),
        "rows_per_part": job.rows_per_part,
    }
    if job.stride is not None:
        config["stride"] = job.stride
    return config


SHARDS_PER_WORKER = 4
"""On Ray: fast workers take more shards than slow ones, and a dead worker loses one shard, not its whole share."""

_loaded: dict[str, ExplainedModel] = {}
"""The model of a worker process, by the call of `explain_corpus` that it works for."""


def explain_corpus(job: CorpusJob, workers: int = 1, *, threads: int | None = None, ray: str | None = None) -> int:
    """Explain the parts of a corpus that are not finished, and return its number of explanations.

    Under `accelerate launch`, each process takes its share, on its own device, and the other arguments are ignored.

    Args:
        job: the corpus, model and method.
        workers: number of processes; with GPUs, worker i uses GPU i modulo their number.
        threads: CPU threads per process; default: the machine's cores divided by the number of workers, on Ray 1.
        ray: address of a Ray cluster ("auto": the one that runs here), whose machines must see the folder, the model
            and the data under the same paths.

    Raises:
        ExpoundError: data that cannot be read or explained, or workers that died. Finished parts are kept.
    """
    from accelerate import PartialState

    state = PartialState()
    if state.num_processes > 1:
        parts = explain_shard(job, job.load(str(state.device)), state.process_index, state.num_processes)
        state.wait_for_everyone()
        return parts.finish() if state.is_main_process else 0
    if ray is not None:
        address = None if ray == "auto" else ray
        _explain_on(RayWorkers(job.folder, workers, threads or 1, address), job, workers * SHARDS_PER_WORKER)
    elif workers > 1:
        # A device that the user names wins over the distribution among GPUs.
        gpus = 0 if job.loading.get("device") else None
        _explain_on(LocalWorkers(workers, threads, gpus), job, workers)
    else:
        return explain_shard(job, job.load()).finish()
    return CorpusParts(job.folder).finish()


def _explain_on(workers: Workers, job: CorpusJob, num_shards: int) -> None:
    tasks, call = list[Task](), uuid4().hex
    for shard in range(num_shards):
        tasks.append(Task(str(shard), f"shard {shard}", partial(_run_shard, job, call, shard, num_shards)))
    for reason in run_all(tasks, workers).failed.values():
        raise ExpoundError(reason)


def _run_shard(job: CorpusJob, call: str, shard: int, num_shards: int, threads: int) -> bool:
    """Explain a shard with the model that this process loaded for an earlier shard of the same call, if any."""
    # Ray's processes outlive a call, and the files of a model may change between two calls.
    if call not in _loaded:
        _loaded.clear()
        _loaded[call] = job.load()
    explain_shard(job, _loaded[call], shard, num_shards)
    return True
