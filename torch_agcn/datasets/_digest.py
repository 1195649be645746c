r"""Digests of objects that are the same in every process."""
import dis
import functools
import hashlib
import os
import sys
import warnings
from abc import ABC
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, range, type(None), type(...),
         torch.dtype, torch.device, torch.layout, torch.memory_format)
# The attributes that objects of a type consist of.
ATTRIBUTES: dict[type, str] = {
    CodeType: 'co_code co_consts co_names co_varnames co_freevars co_cellvars '
              'co_argcount co_posonlyargcount co_kwonlyargcount co_flags '
              'co_exceptiontable',
    FunctionType: '__code__ __defaults__ __kwdefaults__ __dict__',
    MethodType: '__func__ __self__',
    functools.partial: 'func args keywords __dict__',
    property: 'fget fset fdel',
    staticmethod: '__func__ __dict__',
    classmethod: '__func__ __dict__',
}
OURS = __name__.partition('.')[0]
# Names by which code reaches values that it does not refer to.
OUTSIDE = {'__import__', 'builtins', 'eval', 'exec', 'globals', 'importlib',
           'input', 'open', 'os', 'sys'}
LAYOUT = ['__basicsize__', '__itemsize__', '__dictoffset__',
          '__weakrefoffset__']


class _Plain(ABC):
    r"""A class with the default memory layout."""

    attribute: int


def digest(owner: str, name: str, value: Any) -> str | None:
    r"""Returns a digest of an argument, or :obj:`None` with a warning.
    Functions count by their code and references, other objects by class and
    attributes.
    """
    try:
        return _hash(value)[:16]
    except Exception as error:  # Objects may raise anything.
        warnings.warn(f"'{owner}' is not stored and is made anew each time, "
                      f"as the content of its '{name}' cannot be told: "
                      f'{error}', stacklevel=4)
        return None


def _hash(value: Any) -> str:
    content, todo = hashlib.sha256(), [value]
    seen: dict[int, tuple[int, Any]] = {}
    while todo:
        value = todo.pop()
        if type(value) in PLAIN:
            found = f'is {value!r}'
        elif id(value) in seen:  # as in a cycle
            found = f'was {seen[id(value)][0]}'
        else:
            parts = list(_parts(value))
            found = f'has {len(parts)}'
            todo.extend(reversed(parts))
            if type(value) is not tuple:  # The compiler may merge these.
                # Held, so that no other object gets its id.
                seen[id(value)] = len(seen), value
        text = f'{type(value).__qualname__} {found}'.encode()
        content.update(f'{len(text)}:'.encode() + text)
    return content.hexdigest()


def _parts(value: Any) -> Iterable[Any]:
    r"""The content of an object."""
    cls = type(value)
    if cls in (tuple, list, torch.Size):
        return value
    if cls in (dict, OrderedDict):
        return value.items()
    if cls in (set, frozenset):  # Their order changes with the process.
        return sorted(_hash(item) for item in value)
    if cls in (Tensor, torch.nn.Parameter):
        array = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return (value.dtype, value.shape, value.requires_grad, vars(value),
                array.flatten().view(torch.uint8).numpy())
    if cls is np.ndarray and not value.dtype.hasobject:
        content = hashlib.sha256(np.ascontiguousarray(value).data)
        return repr(value.dtype), value.shape, content.digest()
    if isinstance(value, ModuleType):
        if found := _release(value.__name__):
            return found
        raise TypeError(f"it refers to '{value.__name__}', a module of your "
                        f'own; import by name what it needs of that')
    if found := _installed(value):
        return found
    if cls in ATTRIBUTES:
        parts = [getattr(value, name, None)
                 for name in ATTRIBUTES[cls].split()]
        if cls is FunctionType:
            parts += [_references(value, value.__code__), *(
                cell.cell_contents for cell in value.__closure__ or ())]
        return parts
    if isinstance(value, type):
        return [cls, value.__bases__, {name: item for name, item in
                vars(value).items() if name not in vars(_Plain)}]
    # Objects with the default memory layout consist of attributes only.
    if any(getattr(cls, name) != getattr(_Plain, name) for name in LAYOUT):
        raise TypeError(f"nothing tells what is in a '{cls.__name__}'")
    return cls, vars(value)


def _references(function: Any, code: CodeType) -> dict[str, Any]:
    r"""The globals that the code refers to."""
    if OUTSIDE.intersection(code.co_names) or any(
            step.opname == 'IMPORT_NAME' for step in dis.Bytecode(code)):
        raise TypeError(f"'{function.__qualname__}' has an import, or 'open', "
                        f"'eval', 'os' or the like, in it")
    known = function.__globals__
    found = {name: known[name] for name in code.co_names if name in known}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= _references(function, const)
    return found


def _installed(value: Any) -> list[str]:
    r"""The name and release of an object of an installed package."""
    module = str(getattr(value, '__module__', None))
    for key in ('__qualname__', '__name__'):
        name, found = str(getattr(value, key, None)), sys.modules.get(module)
        for part in name.split('.'):
            found = getattr(found, part, None)
        if found is value and (release := _release(module)):
            return [name, *release]
    return []


def _release(module: str) -> list[str]:
    r"""Module, version and digest of its file; empty if not installed."""
    package = module.partition('.')[0]
    file = Path(next((found for found in (
        getattr(sys.modules.get(name), '__file__', None)
        for name in (module, package)) if found), ''))
    if package not in {OURS, *sys.builtin_module_names} and (
            Path(os.__file__).parent not in file.parents
            and {'site-packages', 'dist-packages'}.isdisjoint(file.parts)):
        return []
    version = getattr(sys.modules[package], '__version__', sys.version)
    files = [file] if package != OURS else sorted(
        Path(__file__).parents[1].rglob('*.py'))
    return [module, str(version), *(
        hashlib.sha256(path.read_bytes()).hexdigest() for path in files
        if path.suffix == '.py')]
