"""Steps of eight under FSDP by two processes on a CPU, also from half of them; run by `test_sharded.py`.

Accelerate shards models only over GPUs; here it is told that these processes have some. The rest is as on GPUs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from expound import ExpoundError
from steps_of_eight import prepare

original_init = AcceleratorState.__init__
SHARDS = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}}
MOMENTUM = {"optim_args": "momentum=0.5"}
"""Gives the optimizer something to save."""


def init_sharded_state(state, *args, fsdp_plugin=None, **named):
    """Initialize the accelerator's state as on GPUs."""
    original_init(state, *args, fsdp_plugin=fsdp_plugin, **named)
    state.fsdp_plugin = fsdp_plugin or state.__dict__.get("fsdp_plugin")
    if state.fsdp_plugin is not None:
        state.distributed_type = DistributedType.FSDP


def get_error_message(folder: Path, guide: str) -> str:
    """Return the message of the error that training raises, or an empty text if it raises none."""
    try:
        prepare(folder, guide, **SHARDS).train()
    except ExpoundError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    """Train, save, train the second half again from the checkpoint, and write the messages of refused runs."""
    guide, messages = "attention_rollout", [get_error_message(folder / "none", "attention_rollout")]
    AcceleratorState._reset_state()
    AcceleratorState.__init__ = init_sharded_state
    ends = {"whole": None, "resumed": str(folder / "whole" / "checkpoint-3")}
    for name, checkpoint in ends.items():
        more = {"save_strategy": "steps", "save_steps": 3} if checkpoint is None else {}
        loop = prepare(folder / name, guide, **SHARDS, **MOMENTUM, **more)
        loop.train(resume_from_checkpoint=checkpoint)
        loop.save_model()
        here = [weight.to_local().numel() for weight in loop.model.parameters()]
        loop.accelerator.wait_for_everyone()
        if loop.is_world_process_zero():
            curve = [entry["loss"] for entry in loop.state.log_history if "loss" in entry]
            whole = sum(weight.numel() for weight in loop.model.parameters())
            told = {"processes": loop.args.world_size, "curve": curve, "share": sum(here) / whole}
            (folder / name / "told.json").write_text(json.dumps(told))
    messages += [get_error_message(folder / "none", guide) for guide in ("input_x_gradient", "alti")]
    (folder / f"refused-{loop.args.process_index}.json").write_text(json.dumps(messages))
    loop.accelerator.wait_for_everyone()
    loop.accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # all is written; a thread of gloo that still runs would abort an orderly exit
