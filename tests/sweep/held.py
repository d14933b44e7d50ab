"""A pass in which the factors that linear rules hold keep the values of an earlier pass, by operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

ZERO_AT_ZERO = {"gelu", "silu", "relu", "tanh", "pow", "square", "erf", "clamp"}
CONSTANT = {"softmax", "sigmoid", "softplus", "exp", "rsqrt"}


class Held(TorchFunctionMode):
    """Records each factor of a pass that the definition holds, and then uses it in passes on other embeddings.

    What depends on the input is what requires a gradient: weights must not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple] = []
        self.place: int | None = None
        self.gates: dict[int, Tensor] = {}

    def hold(self, *factors: Tensor) -> tuple:
        if self.place is None:
            self.kept.append(tuple(x.detach() for x in factors))
            return self.kept[-1]
        self.place += 1
        return self.kept[self.place - 1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.__name__
        depends = [isinstance(x, Tensor) and x.requires_grad for x in args]
        if not any(depends):
            return func(*args, **kwargs)
        if name in CONSTANT:
            return self.hold(func(*args, **kwargs))[0]
        if name in ZERO_AT_ZERO:
            value = func(*args, **kwargs)
            held = args[0] * self.hold(torch.where(args[0] == 0, 0, value / args[0]))[0]
            self.gates[id(held)] = held
            return held
        if name == "amax":
            place = self.hold(args[0].argmax(args[1], keepdim=True))[0]
            return args[0].gather(args[1], place).squeeze(args[1])
        if name == "topk":
            (chosen,) = self.hold(func(*args, **kwargs).indices)
            return args[0].gather(-1, chosen), chosen
        if name == "rms_norm":
            x = args[0]
            return x * self.hold((x.square().mean(-1, keepdim=True) + kwargs["eps"]).rsqrt())[0] * kwargs["weight"]
        if name == "layer_norm":
            x = args[0]
            scale = self.hold((x.var(-1, correction=0, keepdim=True) + kwargs["eps"]).rsqrt())[0]
            scaled = (x - x.mean(-1, keepdim=True)) * scale * kwargs["weight"]
            return scaled if kwargs["bias"] is None else scaled + kwargs["bias"]
        if name == "div" and len(depends) > 1 and depends[1]:
            return func(args[0], self.hold(args[1])[0])
        if name in ("mul", "matmul") and all(depends[:2]):
            is_gate = [id(x) in self.gates for x in args]
            one, other = self.hold(*args)
            if sum(is_gate) == 1:
                return func(one, args[1]) if is_gate[0] else func(args[0], other)
            return (func(one, args[1]) + func(args[0], other)) / 2
        return func(*args, **kwargs)
