r"""Tells objects apart by what they are and do, in every process alike."""
import builtins
import copyreg
import dis
import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...),
         type(NotImplemented), torch.dtype, torch.device, torch.layout,
         torch.memory_format)
SLOTS = (GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType,
         WrapperDescriptorType)


def digest(value: Any) -> str | None:
    r"""A digest of the content of an object, or :obj:`None` if nothing tells
    it, *e.g.*, that of an open file.

    The content is what :obj:`pickle` would store, and of functions and classes
    it is their code and all that the code refers to. Code of installed
    packages counts by its name, its file and the version of the package.

    Args:
        value (Any): The object.
    """
    content = _Content()
    try:
        content.add(value)
    except Exception:  # Objects decide themselves how they fail.
        return None
    return content.hash.hexdigest()[:16]


class _Content:
    r"""Hashes one object after the other. One that comes again, as in a cycle,
    is its number.
    """

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.seen: dict[Any, tuple[int, Any]] = {}
        self.release = functools.cache(_release)

    def put(self, *parts: Any) -> None:
        for part in parts:
            text = repr(part).encode()
            self.hash.update(f'{len(text)}:'.encode() + text)

    def is_new(self, key: Any, value: Any) -> bool:
        if key in self.seen:
            self.put('seen', self.seen[key][0])
            return False
        # Held, so that no other object gets its id.
        self.seen[key] = len(self.seen), value
        return True

    def add(self, value: Any) -> None:
        cls = type(value)
        self.put(cls.__qualname__)
        # Whether two constants are one object is up to the compiler:
        if cls in PLAIN:
            self.put(value)
        elif cls is tuple:
            self.add_all(value)
        elif cls in (set, frozenset):  # Their order changes with the process.
            self.put(sorted(_digest_or_raise(item) for item in value))
        elif cls is CodeType:
            self.add_code(value)
        elif isinstance(value, ModuleType):
            self.add_module(value, ())
        elif self.is_new(id(value), value):
            self.add_object(value)

    def add_all(self, values: Any) -> None:
        values = list(values)
        self.put(len(values))
        for value in values:
            self.add(value)

    def add_object(self, value: Any) -> None:
        cls = type(value)
        if cls is list:
            self.add_all(value)
        elif cls is dict:
            self.add_all(value.items())
        elif cls is FunctionType:
            self.add_function(value)
        elif isinstance(value, type):
            self.add_class(value)
        elif isinstance(value, BuiltinFunctionType):
            self.add_builtin(value)
        elif isinstance(value, SLOTS):
            self.put(value.__qualname__)
        elif cls is property:
            self.add_all([value.fget, value.fset, value.fdel])
        elif cls in (staticmethod, classmethod):
            self.add(value.__func__)
        elif cls is functools.cached_property:
            self.add(value.func)
        elif cls is functools._lru_cache_wrapper:
            self.add(value.__wrapped__)
        elif (cls in (Tensor, torch.nn.Parameter)
              and value.layout == torch.strided and not value.is_quantized):
            self.put(value.dtype, list(value.shape))
            value = value.detach().cpu().resolve_conj().resolve_neg()
            value = value.contiguous().flatten().view(torch.uint8)
            self.hash.update(value.numpy())
        else:
            self.add_reduced(value)

    def add_reduced(self, value: Any) -> None:
        reduce = copyreg.dispatch_table.get(type(value))
        out = reduce(value) if reduce else value.__reduce_ex__(4)
        if isinstance(out, str):
            if not self.add_name(value, getattr(value, '__module__', ''), out):
                raise TypeError(f'nothing but a name is known of {value}')
            return
        self.add(type(value))
        self.add_all(list(part) if isinstance(part, Iterator) else part
                     for part in out)

    def add_name(self, value: Any, module: str, name: str) -> bool:
        r"""Adds the name of what belongs to an installed package."""
        found: Any = sys.modules.get(module)
        for part in name.split('.'):
            found = getattr(found, part, None)
        if found is not value or not _is_installed(module):
            return False
        self.put(module, name, self.release(module))
        return True

    def add_builtin(self, value: Any) -> None:
        owner = value.__self__
        if owner is None or isinstance(owner, type | ModuleType):
            module = value.__module__ or getattr(owner, '__module__', '')
            if not _is_installed(module):
                raise TypeError(f'{value} is compiled')
            self.put(module, value.__qualname__, self.release(module))
        else:
            self.put(value.__name__)
            self.add(owner)

    def add_class(self, cls: type) -> None:
        if self.add_name(cls, cls.__module__, cls.__qualname__):
            return
        self.put(cls.__qualname__)
        self.add_all([type(cls), *cls.__bases__])
        for name, value in vars(cls).items():
            # Of names with underscores, methods alone make a difference.
            if name in ('_abc_impl', '__annotate__', '__annotate_func__') or (
                    name.startswith('__') and not callable(value)):
                continue
            self.put(name)
            self.add(value)

    def add_function(self, function: FunctionType) -> None:
        if self.add_name(function, function.__module__,
                         function.__qualname__):
            return
        self.put(function.__qualname__)
        notes = {key: value for key, value in vars(function).items()
                 if not key.startswith('_torchdynamo')}  # has addresses
        self.add_all([function.__code__, function.__defaults__,
                      function.__kwdefaults__, notes])
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self.put('empty')
        # What the code refers to:
        known, names = function.__globals__, tuple(_names(function.__code__))
        for kind, name in _references(function.__code__):
            self.put(kind, name)
            if kind == 'import':
                package = known.get('__package__') or ''
                name = importlib.util.resolve_name(name, package)
                self.add_import(name, names)
            elif isinstance(known.get(name), ModuleType):
                self.add_module(known[name], names)
            elif name in known:
                self.add(known[name])
            else:
                self.put(hasattr(builtins, name))

    def add_code(self, code: CodeType) -> None:
        self.put(code.co_code, code.co_names, code.co_varnames,
                 code.co_freevars, code.co_cellvars, code.co_argcount,
                 code.co_posonlyargcount, code.co_kwonlyargcount,
                 code.co_flags, getattr(code, 'co_exceptiontable', b''))
        self.add_all(code.co_consts)

    def add_import(self, name: str, names: tuple[str, ...]) -> None:
        if name in sys.modules:
            self.add_module(sys.modules[name], names)
            return
        spec = importlib.util.find_spec(name.partition('.')[0])
        if spec is not None and not _is_installed_file(spec.origin):
            raise TypeError(f'{name} is not imported yet')
        self.put(spec is not None)

    def add_module(self, module: ModuleType, names: tuple[str, ...]) -> None:
        r"""Adds a module by what of it the code has the names of."""
        self.put(module.__name__)
        if _is_installed(module.__name__):
            self.put(self.release(module.__name__))
        elif self.is_new((id(module), names), module):
            for name in names:
                value = getattr(module, name, None)
                self.put(name, hasattr(module, name))
                if isinstance(value, ModuleType):
                    self.add_module(value, names)
                else:
                    self.add(value)


def _digest_or_raise(value: Any) -> str:
    content = _Content()
    content.add(value)
    return content.hash.hexdigest()


def _codes(code: CodeType) -> Iterator[CodeType]:
    r"""A function's code and that of the functions within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _names(code: CodeType) -> dict[str, None]:
    r"""All names of globals and attributes, in their order."""
    return dict.fromkeys(name for c in _codes(code) for name in c.co_names)


def _references(code: CodeType) -> dict[tuple[str, str], None]:
    r"""The globals and the imported modules, in their order."""
    out: dict[tuple[str, str], None] = {}
    for part in _codes(code):
        steps = list(dis.get_instructions(part))
        for i, step in enumerate(steps):
            if step.opname in ('LOAD_GLOBAL', 'LOAD_NAME'):
                out['global', step.argval] = None
            elif step.opname == 'IMPORT_NAME':  # The level comes two before.
                level = steps[i - 2].argval
                out['import', '.' * level + step.argval] = None
    return out


def _is_installed(module: str) -> bool:
    r"""Whether a module came with Python or with a package manager."""
    if module in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(module), '__file__', None)
    if file is None and '.' in module:  # A part of a compiled module.
        return _is_installed(module.rpartition('.')[0])
    return _is_installed_file(file)


def _is_installed_file(file: str | None) -> bool:
    if file in ('built-in', 'frozen'):
        return True
    path = Path(file or '')
    return (Path(os.__file__).parent in path.parents
            or not {'site-packages', 'dist-packages'}.isdisjoint(path.parts))


def _release(module: str) -> tuple[str, str]:
    r"""The version of an installed package, and what is in the file of the
    module, which may have been edited since.
    """
    package = sys.modules.get(module.partition('.')[0])
    version = str(getattr(package, '__version__', sys.version_info[:2]))
    path = Path(getattr(sys.modules.get(module), '__file__', None) or '')
    if path.suffix != '.py' or not path.exists():
        return version, ''
    return version, hashlib.sha256(path.read_bytes()).hexdigest()
