"""The operations of a pass, caught one by one, whose derivatives follow rules, and where their tensors come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from expound.models.batch import to_float32
from expound.models.layers import activations
from expound.models.layers.held_factors import DerivativeRules, HeldFactors

NORMS = frozenset({"layer_norm", "rms_norm", "group_norm", "normalize"})
KEEPS_NUMBERS = frozenset(
    [
        *("add", "sub", "mul", "div", "neg", "__rsub__", "__add__", "__radd__", "clone", "contiguous", "to", "float"),
        *("double", "half", "bfloat16", "type", "type_as", "view", "reshape", "unsqueeze", "squeeze", "flatten"),
        *("dropout", "masked_fill", "transpose", "permute", "add_", "mul_", "div_"),
    ]
)
"""Functions whose result at a place depends on the operands at that place alone."""
RESTARTING = frozenset({"linear", "addmm", "conv1d", "conv2d", *NORMS})
"""Functions with weights, behind which factors are counted anew."""
MIXING = RESTARTING | {"matmul", "bmm", "mm", "einsum"}
"""Functions that mix numbers, so that their result is no activation any more."""


class Origin:
    """What a tensor that depends on the input was computed from.

    Args:
        root: the origin of the tensor of which this one is a function of each number alone; None: it is its own.
        kind: `gate`, the output of an activation; `product`, of two tensors that depend on the input; or empty.
        degree: the number of factors that depend on the input, whose product it is.
    """

    __slots__ = ("degree", "kind", "root")

    def __init__(self, root: Origin | None = None, kind: str = "", degree: int = 1) -> None:
        self.root = self if root is None else root
        self.kind = kind
        self.degree = degree


def mark_input(tensor: Tensor) -> Tensor:
    """Mark a tensor as the input of the network, on which the operands of rules depend."""
    tensor._expound_origin = Origin()  # type: ignore[attr-defined]
    return tensor


def list_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments, also those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (x for x in value if isinstance(x, Tensor))


def copy_origin(target: Tensor, source: Any) -> Tensor:
    """Return a tensor with the origin of another one, if that has any."""
    origin = getattr(source, "_expound_origin", None)
    if origin is not None:
        target._expound_origin = origin  # type: ignore[attr-defined]
    return target


def join_origins(name: str, origins: Sequence[Origin]) -> Origin:
    """Return the origin of what a function without a rule makes of its operands."""
    first = origins[0]
    degree = max(origin.degree for origin in origins)
    if name in MIXING:
        return Origin(None, "", 1 if name in RESTARTING else degree)
    if len(origins) == 1:
        return first if name in KEEPS_NUMBERS else Origin(None, first.kind, degree)
    kinds = {origin.kind for origin in origins}
    if name in KEEPS_NUMBERS and all(origin.root is first.root for origin in origins):
        return Origin(first.root, "gate" if "gate" in kinds else "", degree)
    return Origin(None, "product" if "product" in kinds else "", degree)


SOFTMAX = frozenset({"softmax", "_softmax"})
PRODUCTS = frozenset({"mul", "multiply", "matmul", "bmm", "mm", "einsum", "baddbmm", "__matmul__"})
QUOTIENTS = frozenset({"div", "divide", "true_divide", "__rdiv__"})
LIKE_ANOTHER = frozenset({"type_as", "view_as", "expand_as", "reshape_as", "to"})
ATTENTION = "scaled_dot_product_attention"
ACTIVATIONS_MODULE = "transformers.activations"


@dataclass
class Explained:
    """What the derivatives of a pass have to explain besides the input.

    Args:
        constants: all that was added to tensors that depend on the input, as leaves of the graph.
        attention_logits: the logits of attention, where its softmax passes a derivative on.
        outputs: the module, the name and the result of every operation, if `keep_outputs`.
        modules: the modules that run, the innermost last.
    """

    keep_outputs: bool = False
    constants: list[Tensor] = field(default_factory=list)
    attention_logits: list[Tensor] = field(default_factory=list)
    outputs: list[tuple[str, str, Tensor]] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)


class OperationRules(TorchFunctionMode):
    """Applies rules to every operation on tensors that depend on the input.

    - a function f of each number alone: its slope f(x)/x is held if f(0) = 0, else its whole output;
    - a softmax of products (attention) follows the attention's rule; another one (routers, pooling) is held;
    - LayerNorm, RMSNorm and quotients: the scale, or the denominator, is held;
    - a product of two tensors that both depend on the input: a gate, which is the output of an activation, follows the
      gate's rule; of x·f(x), f(x) is held as an activation; any other product of n factors gives each the n-th part,
      in whichever order they are multiplied.

    All other functions keep their derivatives.

    Args:
        factors: how the held factors are obtained.
        rules: the rules.
        is_frozen: no weight has a gradient, so that whatever has one depends on the input.
        explained: filled with what a proof needs, see `prove_rules`.
    """

    def __init__(
        self, factors: HeldFactors, rules: DerivativeRules, *, is_frozen: bool, explained: Explained | None = None
    ) -> None:
        super().__init__()
        self.factors, self.rules, self.is_frozen, self.explained = factors, rules, is_frozen, explained
        self.is_muted = False
        self.methods = self._list_rules()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.is_muted or name == "__get__":
            return func(*args, **kwargs)
        if name == "requires_grad_":
            return mark_input(func(*args, **kwargs))
        # Of some operands only the type or the shape is taken.
        operands = args[:1] if name in LIKE_ANOTHER else (*args, *kwargs.values())
        origins = [origin for origin in map(self._find_origin, list_tensors(operands)) if origin]
        if not origins or name == "detach":
            return func(*args, **kwargs)
        if name.endswith("_") and not name.endswith("__") and name[:-1] in self.methods:
            result = self.__torch_function__(getattr(Tensor, name[:-1]), types, args, kwargs)
            return copy_origin(args[0].copy_(result), result)
        return self._apply(func, name, args, kwargs, origins)

    def _list_rules(self) -> dict[str, Callable[..., Any]]:
        """Return the method that applies a rule, by the names of functions."""
        methods: dict[str, Callable[..., Any]] = {}
        if self.rules.activations or self.rules.norms:
            methods |= dict.fromkeys(activations.ELEMENTWISE, self._hold_elementwise)
        if self.rules.norms:
            methods |= dict.fromkeys(("rsqrt", "reciprocal"), self._hold_elementwise)
            methods |= dict.fromkeys(NORMS, self._hold_norm) | dict.fromkeys(QUOTIENTS, self._divide)
        methods |= dict.fromkeys(SOFTMAX, self._apply_softmax) | dict.fromkeys(PRODUCTS, self._multiply)
        return methods | {ATTENTION: self._attend, "glu": self._hold_glu}

    def _apply(self, func: Any, name: str, args: Any, kwargs: Any, origins: list[Origin]) -> Any:
        """Return the result of one operation on tensors that depend on the input."""
        rule = self.methods.get(name)
        # A product with a constant is linear.
        if rule is not None and (len(origins) > 1 or name not in PRODUCTS):
            return rule(func, name, args, kwargs)
        result = func(*args, **kwargs)
        if self.explained is not None:
            result = self._separate_constant(func, name, args, kwargs, result)
        if name == "__setitem__":
            return self._mark(args[0], Origin())
        has_graph = torch.is_grad_enabled() and any(x.requires_grad for x in list_tensors(args))
        if has_graph and isinstance(result, Tensor) and not result.requires_grad:
            # Such as zeros of the shape and type of hidden states: they do not depend on their values.
            return result
        return self._mark(result, join_origins(name, origins), name)

    def _run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function under the rules, which do not see what is called inside of them."""
        return self.__torch_function__(func, (), args, kwargs)

    # -- which tensors depend on the input ---------------------------------------------------------------------------

    def _find_origin(self, tensor: Tensor) -> Origin | None:
        origin: Origin | None = getattr(tensor, "_expound_origin", None)
        if origin is None and self.is_frozen and tensor.requires_grad and tensor.is_floating_point():
            origin = Origin()
        return origin

    def _mark(self, result: Any, origin: Origin, name: str = "") -> Any:
        """Give the result, or each of several, an origin; parts of one tensor are different tensors."""
        parts = list(list_tensors([result]))
        for part in parts:
            if part.is_floating_point() or part.is_complex():
                part._expound_origin = origin if len(parts) == 1 else Origin(None, origin.kind, origin.degree)  # type: ignore[attr-defined]
                if self.explained is not None and self.explained.keep_outputs and part.requires_grad:
                    module = self.explained.modules[-1] if self.explained.modules else ""
                    self.explained.outputs.append((module, name, part))
        return result

    def run_activation(self, module: nn.Module, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return what an activation module gives, with the rule of a single function."""
        origin = self._find_origin(x)
        if origin is None or not self.rules.activations or self.is_muted:
            return own(x) if origin is None else self._mark(self._mute(own, x), Origin(origin.root, "gate"))
        name = activations.find_activation_name(module)
        return self._mute(lambda x: self._hold_elementwise(own, name or type(module).__name__, (x,), {}), x)

    def _mute(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        before, self.is_muted = self.is_muted, True
        try:
            return function(x)
        finally:
            self.is_muted = before

    # -- rules -------------------------------------------------------------------------------------------------------

    def _hold_elementwise(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
        origin = self._find_origin(args[0]) if isinstance(args[0], Tensor) else None
        if origin is None or any(map(self._find_origin, list_tensors((*args[1:], *kwargs.values())))):
            # Its other arguments depend on the input, too: no rule, so that the proof fails if it matters.
            return self._mark(func(*args, **kwargs), Origin(), name)

        def function(x: Tensor) -> Tensor:
            value: Tensor = func(x, *args[1:], **kwargs)
            return value

        options = (*args[1:], *kwargs.values())
        if not activations.is_zero_at_zero(function, name, options, args[0]):
            return self.factors.take(lambda: function(args[0]))
        if not self.rules.activations:
            return self._mark(function(args[0]), Origin(origin.root, "gate", origin.degree), name)
        slope = activations.find_slope(function, name, options)
        held = self.factors.hold_slope(function, slope, args[0])
        return self._mark(held, Origin(origin.root, "gate", origin.degree), name)

    def _apply_softmax(self, func: Any, name: str, args: Any, kwargs: Any) -> Tensor:
        rule, temperature = self.rules.attention, self.rules.temperature
        origin = self._find_origin(args[0])
        is_attention = origin is not None and origin.kind == "product"
        if is_attention and self.explained is not None and rule == "shared":
            self.explained.attention_logits.append(args[0])
        if rule == "held" or not is_attention or self.explained is not None:
            return self.factors.take(lambda: func(*args, **kwargs))
        logits, *others = args
        weights = func(*args, **kwargs)
        if temperature == 1:
            marked: Tensor = self._mark(weights, Origin())
            return marked
        logits = logits / temperature
        # Masked logits are the lowest finite number, which a division by T < 1 turns into −∞.
        if temperature < 1:
            logits = logits.clamp(min=torch.finfo(logits.dtype).min)
        # The derivative of softmax(x / T) has a factor 1/T, which is multiplied away here.
        smooth = self.factors.straight_through(weights, func(logits, *others, **kwargs), temperature)
        return copy_origin(smooth, self._mark(smooth, Origin()))

    def _hold_glu(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        value, gate = args[0].chunk(2, kwargs.get("dim", args[1] if len(args) > 1 else -1))
        gate = self._run(torch.sigmoid, copy_origin(gate, args[0]))
        return self._run(torch.mul, self._mark(value, Origin()), gate)

    def _hold_norm(self, func: Any, name: str, args: Any, kwargs: Any) -> Tensor:
        x, *rest = args
        if name == "normalize":
            options = dict(zip(("p", "dim", "eps"), (2.0, 1, 1e-12), strict=True)) | kwargs
            options |= dict(zip(("p", "dim", "eps"), rest, strict=False))
            length = self.factors.take(
                lambda: x.norm(options["p"], options["dim"], keepdim=True).clamp(min=options["eps"])
            )
            normalized: Tensor = self._mark(x / length, Origin(), name)
            return normalized
        names = ("normalized_shape", "weight", "eps") if name == "rms_norm" else ("shape", "weight", "bias", "eps")
        given = dict(zip(names, rest, strict=False)) | kwargs
        weight, bias, eps = given.get("weight"), given.get("bias"), given.get("eps", 1e-5)
        shape = x.shape
        if name == "group_norm":
            groups = given.get("num_groups", given.get("shape"))
            x = x.reshape(len(x), groups, -1)
            weight, bias = (None if v is None else v.view(-1, *[1] * (len(shape) - 2)) for v in (weight, bias))
            dims: tuple[int, ...] = (-1,)
        else:
            dims = tuple(range(-len(given.get("normalized_shape", given.get("shape"))), 0))
        # torch reads eps=None as the machine epsilon of the type.
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        wide, is_centered = to_float32(x), name != "rms_norm"

        def measure() -> Tensor:
            square = wide.var(dims, correction=0, keepdim=True) if is_centered else wide.pow(2).mean(dims, keepdim=True)
            return (square + eps).rsqrt()

        scaled = (wide - wide.mean(dims, keepdim=True) if is_centered else wide) * self.factors.take(measure)
        scaled = scaled.to(x.dtype).reshape(shape)
        scaled = scaled if weight is None else scaled * weight
        self._mark(scaled, Origin(), name)
        if bias is None:
            return scaled
        shifted: Tensor = self._mark(self._run(torch.add, scaled, bias), Origin())
        return shifted

    def _divide(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        top, bottom = args[:2] if name != "__rdiv__" else (args[1], args[0])
        if not isinstance(bottom, Tensor) or self._find_origin(bottom) is None:
            return self._mark(func(*args, **kwargs), self._find_origin(top) or Origin(), name)
        held = self.factors.take(lambda: bottom)
        result = func(held, top) if name == "__rdiv__" else func(top, held, **kwargs)
        origin = self._find_origin(top) if isinstance(top, Tensor) else None
        return result if origin is None else self._mark(result, Origin(None, origin.kind, origin.degree), name)

    def _attend(self, func: Any, name: str, args: Any, kwargs: Any) -> Tensor:
        """Apply the rules to fused attention, or compute it explicitly if no factor describes them."""
        rules, factors = self.rules, self.factors
        query, key, value, *others = args
        scale = {"held": 0.0, "shared": 0.5, "free": 1.0}[rules.attention]
        if rules.temperature != 1 or not factors.is_plain or self.explained is not None:
            return self._attend_explicitly(query, key, value, *others, **kwargs)
        query, key = (factors.scale_gradient(x, scale) for x in (query, key))
        mixed: Tensor = func(query, key, value, *others, **kwargs)
        if rules.attention == "shared":
            mixed = factors.straight_through(mixed, mixed, 0.5)
        marked: Tensor = self._mark(mixed, Origin(), ATTENTION)
        return marked

    def _attend_explicitly(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if enable_gqa:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (copy_origin(x.repeat_interleave(repeats, -3), x) for x in (key, value))
        query = self._run(torch.mul, query, query.shape[-1] ** -0.5 if scale is None else scale)
        logits = self._run(torch.matmul, query, copy_origin(key.mT, key))
        if is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            logits = self._run(torch.masked_fill, logits, ~attn_mask, torch.finfo(logits.dtype).min)
        elif attn_mask is not None:
            logits = self._run(torch.add, logits, attn_mask)
        mixed: Tensor = self._run(torch.matmul, self._run(torch.softmax, logits, -1), value)
        return mixed

    def _multiply(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Return a product of two tensors that depend on the input."""
        if name == "baddbmm":
            one, other = args[1:] or (kwargs["batch1"], kwargs["batch2"])
            product = self._run(torch.mul, self._run(torch.bmm, one, other), kwargs.get("alpha", 1))
            return self._run(torch.add, product, args[0] * kwargs.get("beta", 1))
        places = [i for i, x in enumerate(args) if isinstance(x, Tensor) and self._find_origin(x)]
        if len(places) != 2:
            return self._mark(func(*args, **kwargs), Origin(), name)
        one, other = (args[i] for i in places)
        origins = [origin for origin in (self._find_origin(one), self._find_origin(other)) if origin]

        def multiply(first: Tensor, second: Tensor) -> Tensor:
            operands = list(args)
            operands[places[0]], operands[places[1]] = first, second
            product: Tensor = func(*operands, **kwargs)
            return product

        kinds = [origin.kind == "gate" for origin in origins]
        is_elementwise = name in ("mul", "multiply") and one.shape == other.shape
        if is_elementwise and origins[0].root is origins[1].root:
            # x·f(x), as in activations that are written out.
            if not self.rules.activations:
                return self._mark(multiply(one, other), Origin(origins[0].root, "gate"), name)
            held = self._hold_one(multiply, one, other, hold_first=not kinds[1])
            return self._mark(held, Origin(origins[0].root, "gate"), name)
        rule = self.rules.gate
        if rule == "value" and is_elementwise and sum(kinds) == 1:
            return self._mark(self._hold_one(multiply, one, other, hold_first=kinds[0]), Origin(), name)
        degree = origins[0].degree + origins[1].degree
        product = multiply(one, other) if rule == "free" else None
        if product is None:
            product = self.factors.share(multiply, one, other, origins[0].degree / degree)
        return self._mark(product, Origin(None, "product", degree), name)

    def _hold_one(self, multiply: Callable[..., Tensor], one: Tensor, other: Tensor, *, hold_first: bool) -> Tensor:
        held = self.factors.take(lambda: one if hold_first else other)
        return multiply(held, other) if hold_first else multiply(one, held)

    # -- proof -------------------------------------------------------------------------------------------------------

    def _separate_constant(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> Any:
        """Return the result with the function's constant part, its value at zero, as a leaf that gets a gradient."""
        if not isinstance(result, Tensor) or not result.is_floating_point() or name in KEEPS_ALL:
            return result
        with torch.no_grad():

            def remove(value: Any) -> Any:
                if isinstance(value, Tensor) and self._find_origin(value):
                    return torch.zeros_like(value)
                if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
                    return type(value)([remove(x) for x in value])
                return value

            at_zero = [remove(value) for value in args]
            is_in_place = name.endswith("_") and not name.endswith("__")
            if is_in_place and args and at_zero[0] is args[0]:
                return result
            constant = func(*at_zero, **{key: remove(value) for key, value in kwargs.items()})
        if constant.shape != result.shape or not constant.any():
            return result
        leaf = constant.detach().clone().requires_grad_()
        assert self.explained is not None
        self.explained.constants.append(leaf)
        # Not added: the lowest numbers of masks would take all digits of the others.
        return _add_derivative(result, leaf)


KEEPS_ALL = frozenset({"view", "reshape", "transpose", "permute", "to", "contiguous", "requires_grad_", "__getitem__"})
"""Functions without anything constant."""


class _AddDerivative(torch.autograd.Function):
    """Return `value` unchanged, with a gradient for `constant` too, as if the constant were added here."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, constant: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        return slope, slope


_add_derivative: Callable[[Tensor, Tensor], Tensor] = _AddDerivative.apply


def is_activation(module: nn.Module) -> bool:
    """Return whether a module is an activation that may be written out in many operations, or in none that is seen."""
    # BLOOM's has a backward pass of its own.
    is_gelu = type(module).__name__.lower().endswith("gelu") and not any(True for _ in module.parameters())
    return is_gelu or type(module).__module__ == ACTIVATIONS_MODULE
