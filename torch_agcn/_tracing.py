r"""Tells whether PyTorch runs, compiles or transforms code."""
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor


def is_traced() -> bool:
    r"""Whether values may not be read: code is compiled, exported, traced, or
    transformed by :mod:`torch.func` or forward-mode differentiation.
    """
    return (torch.compiler.is_compiling()
            or torch._C._are_functorch_transforms_active()
            or torch.autograd.forward_ad._current_level >= 0
            or is_recorded())


def is_recorded() -> bool:
    r"""Whether :meth:`torch.jit.trace` runs."""
    return torch._C._get_tracing_state() is not None


def uses_custom_ops() -> bool:
    r"""Whether compiled, but not exported, code calls custom operators."""
    exporting = getattr(torch.compiler, 'is_exporting', None)  # torch 2.7
    return torch.compiler.is_dynamo_compiling() and not (
        exporting is not None and exporting())


def can_look(value: Tensor) -> bool:
    r"""Whether reading values is cheap."""
    return value.is_cpu and not is_traced()


def is_vmapped(grad: Tensor) -> bool:
    r"""Whether :meth:`torch.autograd.grad` got batched gradients."""
    return (torch._C._functorch.is_legacy_batchedtensor(grad)
            or torch._C._functorch.is_batchedtensor(grad))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    r"""The type of sums over nodes and edges."""
    return torch.promote_types(dtype, torch.float32)


class lazy_property:  # noqa: N801
    r"""A cached property that :meth:`torch.compile` supports."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make, self.name, self.__doc__ = make, make.__name__, make.__doc__

    def __get__(self, owner: Any, cls: Any = None) -> Any:
        value = self.make(owner)
        setattr(owner, self.name, value)
        return value


def _run(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


_REASON = {'reason': 'layers with cached=True are not compiled; pass '
           'cached=False for fullgraph=True'}
if 'reason' not in signature(torch.compiler.disable).parameters:
    _REASON = {}  # torch 2.6

#: Runs a layer that keeps its graph within a compiled network: comparing the
#: kept graph is data-dependent, so it runs eagerly.
run_eagerly: Callable[..., Any] = torch.compiler.disable(_run, **_REASON)
