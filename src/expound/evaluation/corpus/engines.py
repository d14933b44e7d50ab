"""Execution of a corpus job: in this process, in several local ones, under `accelerate launch`, or on Ray."""

from __future__ import annotations

from typing import Any

from expound.errors import ExpoundError
from expound.evaluation.corpus.job import CorpusJob, explain_shard
from expound.evaluation.corpus.parts import CorpusParts
from expound_papers.runs.store import available_cores

SHARDS_PER_WORKER = 4
"""On Ray: fast workers take more shards than slow ones, and a dead worker loses one shard, not its whole share."""


def explain_corpus(job: CorpusJob, workers: int = 1, *, threads: int | None = None, ray: str | None = None) -> int:
    """Explain the parts of a corpus that are not finished, and return its number of explanations.

    Under `accelerate launch`, each process takes its share, on its own device, and the other arguments are ignored.

    Args:
        job: the corpus, model and method.
        workers: number of processes; with GPUs, worker i uses GPU i modulo their number.
        threads: CPU threads per process; default: the machine's cores divided by the number of workers.
        ray: address of a Ray cluster ("auto": the one that runs here), on which Ray Data executes the job; all machines
            must see the folder, the model and the data under the same paths.

    Raises:
        ExpoundError: data that cannot be read or explained, or a worker that died. Finished parts are kept.
    """
    from accelerate import PartialState

    state = PartialState()
    if state.num_processes > 1:
        parts = explain_shard(job, job.load(str(state.device)), state.process_index, state.num_processes)
        state.wait_for_everyone()
        return parts.finish() if state.is_main_process else 0
    if ray is not None:
        _explain_on_ray(job, workers, ray)
    elif workers > 1:
        _explain_on_workers(job, workers, threads)
    else:
        return explain_shard(job, job.load()).finish()
    return CorpusParts(job.folder).finish()


def _explain_on_workers(job: CorpusJob, workers: int, threads: int | None) -> None:
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

    try:
        spawn(_run_worker, (job, workers, threads or max(1, available_cores() // workers)), nprocs=workers, daemon=True)
    except ProcessRaisedException as error:
        # The message is a whole traceback, whose last line names the exception.
        last = str(error).strip().splitlines()[-1]
        raise ExpoundError(last.removeprefix(f"{ExpoundError.__module__}.{ExpoundError.__qualname__}: ")) from error
    except ProcessExitedException as error:
        raise ExpoundError(f"a worker died ({error}): the same command resumes") from error


def _run_worker(number: int, job: CorpusJob, workers: int, threads: int) -> None:
    import torch

    from expound.evaluation.workers.local import prepare_worker

    prepare_worker(threads)
    # A device that the user names wins over the distribution among GPUs.
    gpus, device = torch.cuda.device_count(), None
    if gpus and not job.loading.get("device"):
        device = f"cuda:{number % gpus}"
    explain_shard(job, job.load(device), number, workers)


class _ShardExplainer:
    """A worker of Ray Data: it receives numbers of shards and returns them when their parts are written."""

    def __init__(self, job: CorpusJob, num_shards: int) -> None:
        from expound.evaluation.workers.local import prepare_worker

        prepare_worker(1)
        self.job, self.num_shards, self.model = job, num_shards, job.load()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for shard in batch["id"]:
            explain_shard(self.job, self.model, int(shard), self.num_shards)
        return batch


def _explain_on_ray(job: CorpusJob, workers: int, address: str) -> None:
    try:
        import ray  # optional dependency
        import ray.data
    except ImportError as error:
        raise ExpoundError("--ray needs the extra 'cluster': pip install 'expound[cluster]'") from error
    from expound.evaluation.workers.on_ray import join_cluster

    owns_ray, num_shards = not ray.is_initialized(), workers * SHARDS_PER_WORKER
    if owns_ray:
        join_cluster(ray, None if address == "auto" else address)
    try:
        # A worker gets a whole GPU, or none if the cluster has fewer GPUs than workers.
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= workers else 0
        ray.data.DataContext.get_current().enable_progress_bars = False
        numbers = ray.data.from_items([{"id": shard} for shard in range(num_shards)], override_num_blocks=num_shards)
        pool = ray.data.ActorPoolStrategy(size=workers)
        options = {"batch_size": 1, "compute": pool, "num_cpus": 1, "num_gpus": gpus}
        numbers.map_batches(_ShardExplainer, fn_constructor_args=(job, num_shards), **options).materialize()
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if not isinstance(error.cause, ExpoundError):
            cause = str(error).strip().splitlines()[-1]
        raise ExpoundError(str(cause)) from error
    except ray.exceptions.RayError as error:
        raise ExpoundError(f"the cluster gave up ({type(error).__name__}): the same command resumes") from error
    finally:
        if owns_ray:
            ray.shutdown()
