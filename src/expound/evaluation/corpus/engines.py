"""Execution of a corpus job: in this process, on workers of this machine or of Ray, or under `accelerate launch`."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

from expound.errors import ExpoundError
from expound.evaluation.corpus.job import CorpusJob, explain_shard
from expound.evaluation.corpus.parts import CorpusParts
from expound.evaluation.workers.local import LocalWorkers
from expound.evaluation.workers.on_ray import RayWorkers
from expound.evaluation.workers.scheduler import Workers, run_all
from expound.evaluation.workers.task import Task
from expound.models import ExplainedModel

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
