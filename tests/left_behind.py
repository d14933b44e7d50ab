"""Everything about a model and the process that a call must leave as it was."""

from __future__ import annotations

import copy

import numpy as np
import torch


def state(model):
    """Modes, hooks, gradients, weights, modules, configuration and random states, comparable with ==."""
    modules = dict(model.model.named_modules())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    config = copy.deepcopy(model.config.to_dict())
    return {
        "modules": {name: id(module) for name, module in modules.items()},
        "training": {name: module.training for name, module in modules.items()},
        "hooks": {name: [list(getattr(module, hook)) for hook in hooks] for name, module in modules.items()},
        "attention types": {name: getattr(module, "attention_type", None) for name, module in modules.items()},
        "requires grad": {name: weight.requires_grad for name, weight in model.model.named_parameters()},
        "gradients": {name: weight.grad for name, weight in model.model.named_parameters()},
        "weights": {name: (w.data_ptr(), w.shape, w._version) for name, w in model.model.state_dict().items()},
        "config": config,
        "implementation": model.config._attn_implementation,
        "vocabulary": len(model.processing_class) if hasattr(model.processing_class, "__len__") else None,
        "memory": model.memory,
        "torch": bytes(torch.get_rng_state()),
        "numpy": [str(part) for part in np.random.get_state()],  # noqa: NPY002
        "gradients enabled": torch.is_grad_enabled(),
    }  # fmt: skip


def mixed_modes(model):
    """Some submodules train, some do not, and some weights are frozen."""
    for number, module in enumerate(model.model.modules()):
        module.training = number % 3 == 0
    for number, weight in enumerate(model.model.parameters()):
        weight.requires_grad_(number % 4 != 0)
    return model


def failing(model, at):
    """A hook on the whole model that raises at the given forward pass, and the counter it uses."""
    passes = []

    def fail(*_):
        passes.append(None)
        if len(passes) == at:
            raise RuntimeError("the model broke")

    return model.model.base_model.register_forward_hook(fail)
