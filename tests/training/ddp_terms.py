"""Gradients of explanation terms in two processes, each with half of a batch; run by `test_terms.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from datasets import Dataset
from safetensors.torch import save_file
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainingArguments

import expound
from expound.training.terms import ExplanationTerms
from test_terms import classifier_inputs

ENTROPY = expound.objective("attribution_entropy", explainer="input_x_gradient")


class MeanTrainer(Trainer):
    """A Trainer whose loss is the mean over each process's batch.

    BERT ignores `num_items_in_batch`, and then the plain Trainer's loss is the number of processes times that.
    """

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Return the model's loss."""
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class SaveGradients(TrainerCallback):
    """Saves the gradients of the first step."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        """Write the file."""
        if state.is_world_process_zero:
            inner = getattr(model, "module", model)
            save_file({name: weight.grad for name, weight in inner.named_parameters()}, self.file)


def main(folder: Path) -> None:
    """Save the gradients of a plain loop and of a Trainer."""
    model, inputs = classifier_inputs()
    rows = [{name: value[i].tolist() for name, value in inputs.items()} for i in range(4)]
    arguments = TrainingArguments(
        str(folder / "run"), max_steps=1, per_device_train_batch_size=2, use_cpu=True, report_to="none",
        save_strategy="no", max_grad_norm=0.0,
    )  # fmt: skip
    trainer = expound.with_objectives(MeanTrainer, [ENTROPY])(
        model.model, arguments, train_dataset=Dataset.from_list(rows), processing_class=model.processing_class,
        callbacks=[SaveGradients(folder / "trainer.safetensors")],
    )  # fmt: skip
    trainer.train()
    model, inputs = classifier_inputs()
    rank = distributed.get_rank()
    terms = DistributedDataParallel(ExplanationTerms(model, [ENTROPY]))
    terms({name: value[2 * rank : 2 * rank + 2] for name, value in inputs.items()}).loss.backward()
    if rank == 0:
        found = {name: weight.grad for name, weight in model.model.named_parameters()}
        save_file(found, folder / "terms.safetensors")
    bounded = expound.Constraint(ENTROPY, bound=1.0)
    halves = {name: value[2 * rank : 2 * rank + 2] for name, value in inputs.items()}
    ExplanationTerms(model, [bounded])(halves)
    save_file({"value": bounded.multiplier.square}, folder / f"multiplier_{rank}.safetensors")
    distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
