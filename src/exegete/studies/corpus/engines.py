"""Who explains a corpus: this process, several on this machine, those of `accelerate launch`, or a Ray cluster."""

from __future__ import annotations

from typing import Any

from exegete.errors import ExegeteError
from exegete.studies.corpus.job import CorpusJob, explain_shard
from exegete.studies.corpus.parts import Parts

SHARDS_PER_WORKER = 4
"""Ray hands out so many stripes a worker, so that a quick one does more of them and a dead one's are done again."""


def explain_corpus(job: CorpusJob, workers: int = 1, *, threads: int | None = None, ray: str | None = None) -> int:
    """Explains what is not yet explained of a corpus; returns its number of rows.

    Under `accelerate launch` each process takes its share, on its own device. Otherwise:

    Args:
        job: what is explained.
        workers: processes; with GPUs, number i uses GPU i modulo their number.
        threads: of each process on a CPU; default: the machine's cores shared out among several workers.
        ray: work on the Ray cluster at this address ("auto": the one that runs here), by Ray Data; all machines must
            see the folder, the model and the data under the same paths.

    Raises:
        ExegeteError: what cannot be read or explained; a worker that died. What is finished is kept.
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
    return Parts(job.folder).finish()


def _explain_on_workers(job: CorpusJob, workers: int, threads: int | None) -> None:
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

    from exegete.studies.workers.local import available_cores

    try:
        spawn(_run_worker, (job, workers, threads or max(1, available_cores() // workers)), nprocs=workers, daemon=True)
    except ProcessRaisedException as error:
        last = str(error).strip().splitlines()[-1]
        raise ExegeteError(last.removeprefix(f"{ExegeteError.__module__}.{ExegeteError.__qualname__}: ")) from error
    except ProcessExitedException as error:
        raise ExegeteError(f"a worker died ({error}): the same command goes on where it stopped") from error


def _run_worker(number: int, job: CorpusJob, workers: int, threads: int) -> None:
    import torch

    from exegete.studies.workers.local import prepare_worker

    prepare_worker(threads)
    gpus = 0 if job.loading.get("device") else torch.cuda.device_count()
    explain_shard(job, job.load(f"cuda:{number % gpus}" if gpus else None), number, workers)


class _ShardExplainer:
    """A worker of Ray Data: it gets numbers of stripes and gives the same back when their parts are written."""

    def __init__(self, job: CorpusJob, stripes: int) -> None:
        from exegete.studies.workers.local import prepare_worker

        prepare_worker(1)
        self.job, self.stripes, self.model = job, stripes, job.load()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for stripe in batch["id"]:
            explain_shard(self.job, self.model, int(stripe), self.stripes)
        return batch


def _explain_on_ray(job: CorpusJob, workers: int, address: str) -> None:
    try:
        import ray  # an extra
        import ray.data
    except ImportError as error:
        raise ExegeteError("--ray needs the extra 'cluster': pip install 'exegete[cluster]'") from error
    from exegete.studies.workers.on_ray import join_cluster

    ours, stripes = not ray.is_initialized(), workers * SHARDS_PER_WORKER
    if ours:
        join_cluster(ray, None if address == "auto" else address)
    try:
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= workers else 0
        ray.data.DataContext.get_current().enable_progress_bars = False
        numbers = ray.data.from_items([{"id": stripe} for stripe in range(stripes)], override_num_blocks=stripes)
        pool = ray.data.ActorPoolStrategy(size=workers)
        options = {"batch_size": 1, "compute": pool, "num_cpus": 1, "num_gpus": gpus}
        numbers.map_batches(_ShardExplainer, fn_constructor_args=(job, stripes), **options).materialize()
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, ExegeteError) else str(error).strip().splitlines()[-1]
        raise ExegeteError(str(cause)) from error
    except ray.exceptions.RayError as error:
        raise ExegeteError(f"the cluster gave up ({type(error).__name__}): the same command goes on") from error
    finally:
        if ours:
            ray.shutdown()
