"""Steps of eight under FSDP by two processes on a CPU, also from half of them; run by `test_sharded.py`.

Accelerate shards models over GPUs alone; here it is told that these processes have some. All else is as on GPUs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from exegete import ExegeteError
from steps_of_eight import prepare

usual = AcceleratorState.__init__
SHARDS = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}}
MOMENTUM = {"optim_args": "momentum=0.5"}
"""Gives the optimiser something to save."""


def sharding(state, *args, fsdp_plugin=None, **named):
    """Makes the state as on GPUs."""
    usual(state, *args, fsdp_plugin=fsdp_plugin, **named)
    state.fsdp_plugin = fsdp_plugin or state.__dict__.get("fsdp_plugin")
    if state.fsdp_plugin is not None:
        state.distributed_type = DistributedType.FSDP


def refused(folder: Path, guide: str) -> str:
    """What a training says that cannot be."""
    try:
        prepare(folder, guide, **SHARDS).train()
    except ExegeteError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    """Trains, saves, and does the second half again from the checkpoint; what is refused is told, too."""
    guide, said = "attention_rollout", [refused(folder / "none", "attention_rollout")]
    AcceleratorState._reset_state()
    AcceleratorState.__init__ = sharding
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
    said += [refused(folder / "none", guide) for guide in ("input_x_gradient", "alti")]
    (folder / f"refused-{loop.args.process_index}.json").write_text(json.dumps(said))
    loop.accelerator.wait_for_everyone()
    loop.accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # all is written; a thread of gloo that still runs would abort an orderly exit
