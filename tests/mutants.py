r"""Do the tests notice? python tests/mutants.py --sample 60

Makes small changes to the mathematics, one at a time, and runs the tests that
reach the changed line, quickest first, till one fails. What no test notices is
printed: a test is missing, or the change changes nothing, for a reason that is
then written into ``EQUIVALENT``.

The tree itself is never touched: changes are made in a copy of it, or in the
memory of a process that has collected the tests and is forked for each mutant.
Results go to a CSV file, and the same command goes on where it was stopped;
functions that were changed since start anew.
"""
import argparse
import ast
import csv
import gc
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FUNCTIONAL = 'torch_agcn/functional.py'
CONV = 'torch_agcn/nn/conv/agcn_conv.py'
TESTS = ['tests/test_functional.py', 'tests/test_sparse.py',
         'tests/nn/conv/test_agcn_conv.py',
         'tests/test_minibatch.py', 'tests/nn/conv/test_agcn2_conv.py',
         'tests/nn/models/test_agcn.py', 'tests/nn/models/test_deep_agcn.py',
         'tests/test_corners.py', 'tests/test_fuzz.py']
COLUMNS = ['file', 'function', 'digest', 'place', 'original', 'mutant', 'kind',
           'line', 'outcome', 'test', 'seconds']
# To compile takes longer than all other tests together; only survivors that
# are tried again have to pass these too:
LEFT_OUT = 'compile or export'
SLOW = 5.0  # seconds of a test that is left out as well
PATIENCE = 60  # seconds of processor time on top for those that do not end
MEMORY = 2**33
NOT_IN_PLACE = 9  # the exit code for what has to be changed in the file

BLOCKS = 'how large the blocks are is a matter of memory alone'
ONE_DIM = 'it has one dimension, of which the first is the last'
SPEED = 'the same number in another time'
FEW = 'row.numel() * x.size(-1) < MANY_NUMBERS'
ZERO = 'what is divided by this is zero'
LOOKED = ('how much is looked at: any part of the sum proves as much, and no '
          'proof means that all is summed')
PART_OF_ITSELF = ('the spread is compared with 1e-9 of this, and never as '
                  'small as that part of itself')
WHEN_NEEDED = 'what is not made ahead is made when it is needed'
SIZE = 'there is a size where there is a batch vector'
ENOUGH = 'how much is enough is not known so exactly'
ON_DEVICES = 'it is true of all that is on the CPU; tests on devices would see'


class Excuse(NamedTuple):
    r"""A reason why no test can see changes of a piece of a function, or one
    change of it. Anything else has to be seen.
    """

    function: str
    piece: str
    reason: str
    mutant: str | None = None


EQUIVALENT = [
    Excuse('_sum_over_edges', 'blocks(row.numel(), x.size(-1))', BLOCKS),
    Excuse('_MatrixEnergy.backward', 'blocks(x.size(-2), x.size(-1))', BLOCKS),
    Excuse('_difference_of_sums', 'blocks(x.size(-2), x.size(-1))', BLOCKS),
    Excuse('_is_same', 'blocks(new.size(-1), 32)', BLOCKS),
    Excuse('blocks', 'max(2**20 // max(width, 1), 1)', BLOCKS),
    Excuse('symmetric_step', 'degree.sqrt().unsqueeze(-1)', ONE_DIM),
    Excuse('mean_over_nodes', '.unsqueeze(-1)', ONE_DIM, '(1)'),
    Excuse('energy_sums', '.unsqueeze(-1)', ONE_DIM, '(1)'),
    Excuse('matmul', '.unsqueeze(-1)', ONE_DIM, '(1)'),
    Excuse('_MatrixEnergy.backward', 'mean_degree.unsqueeze(-1)', ONE_DIM,
           '(1)'),
    Excuse('_energy_gradient', '.unsqueeze(-1)', ONE_DIM, '(1)'),
    Excuse('energy_from_product', '.unsqueeze(-1)', ONE_DIM, '(1)'),
    Excuse('energy_from_neighbors', '.unsqueeze(-1)', ONE_DIM, '(1)'),
    Excuse('_difference_of_sums', '.unsqueeze(-1)', ONE_DIM, '(1)'),
    Excuse('_plain_gradient', '.squeeze(-1)', 'of two dimensions, the last is '
           'the second', '(1)'),
    Excuse('sum_graphs', 'size or 0', SIZE, '(size)'),
    Excuse('sum_graphs', 'size or 0', SIZE, '(1)'),
    Excuse('sum_rows', 'size or 0', SIZE, '(size)'),
    Excuse('sum_rows', 'size or 0', SIZE, '(1)'),
    Excuse('matrix_energy', 'x.requires_grad and torch.is_grad_enabled()',
           SPEED, '(torch.is_grad_enabled())'),
    Excuse('energy_by_matrix', '0.001', ENOUGH, '(0.002)'),
    Excuse('energy_by_matrix', '1e-3', ENOUGH, '(0.002)'),
    Excuse('_is_of_normal_size', 'high < 2.0 ** 80', ENOUGH,
           '(high <= 2.0 ** 80)'),
    Excuse('_is_of_normal_size', 'low > 2.0 ** (-80)', ENOUGH,
           '(low >= 2.0 ** (-80))'),
    Excuse('_is_of_normal_size', '80', ENOUGH, '(81)'),
    Excuse('_is_much', 'part >= share * whole', ENOUGH,
           '(part > share * whole)'),
    Excuse('_is_much', 'float(part) >= share * float(whole)', ENOUGH,
           '(float(part) > share * float(whole))'),
    Excuse('_difference_of_sums', 'len(parts) > 1', BLOCKS, '(2)'),
    Excuse('_sum_over_edges', 'size or 0', SIZE, '(size)'),
    Excuse('matrix_energy', 'x.requires_grad and torch.is_grad_enabled()',
           SPEED, '(x.requires_grad)'),
    Excuse('matrix_energy', 'x.requires_grad and torch.is_grad_enabled()',
           SPEED, '(x.requires_grad or torch.is_grad_enabled())'),
    Excuse('energy_from_neighbors', '_squares(mean, batch) / _positive(total)',
           'what is too little for this formula is left to the other', '('
           '_squares(mean, batch) * _positive(total))'),
    Excuse('merge_sums', '1.0', ZERO, '(2.0)'),
    Excuse('largest', '1.0', ZERO, '(2.0)'),
    Excuse('_squared_differences', 'edge * x.size(1) + feature[entry]',
           'any number will do that another pair does not have',
           '(edge * x.size(1) - feature[entry])'),
    Excuse('is_saturated', 'x.size(-1)', LOOKED),
    Excuse('is_saturated', 'part >= needed', LOOKED, '(part > needed)'),
    Excuse('is_saturated', """_squared_differences(x.detach(), row[some], \
col[some]) / 2""", LOOKED, '(3)'),
    Excuse('energy_from_neighbors', '1e-2', ENOUGH, '(0.02)'),
    Excuse('energy_from_neighbors',
           'spread + total * _squares(mean, batch)', PART_OF_ITSELF,
           '(total * _squares(mean, batch))'),
    Excuse('is_saturated', 'energy + terms.sum(-1)', LOOKED,
           '(terms.sum(-1))'),
    Excuse('edge_energy', 'weight is not None and weight.requires_grad',
           SPEED, '(weight is not None)'),
    Excuse('', '2**22', SPEED),
    Excuse('is_saturated', 'end < num_edges // 4', LOOKED,
           '(end <= num_edges // 4)'),
    Excuse('edge_energy', FEW, SPEED),
    Excuse('quotient', '256', 'what is rounding is not known so exactly',
           '(257)'),
    Excuse('vanishing', 'dtype == torch.float64',
           'the gate is one long before', '(dtype != torch.float64)'),
    Excuse('vanishing', '746.0', 'larger numbers vanish as well', '(1492.0)'),
    Excuse('vanishing', '104.0', 'larger numbers vanish as well', '(208.0)'),
    Excuse('anisotropic_gate', 'math.sqrt(info.max) / 2',
           'the gate is one long before', '(3)'),
    Excuse('anisotropic_gate', 'math.sqrt(info.max) / 2',
           'the half is there to be safe', '(math.sqrt(info.max))'),
    Excuse('is_saturated', 'part * num_edges >= needed * end',
           'when looking is given up: no proof is no error'),
    Excuse('energy_by_matrix',
           'x.is_cpu and (not _is_much(energy, whole, 0.001))', SPEED,
           '(x.is_cpu or not _is_much(energy, whole, 0.001))'),
    Excuse('edge_energy', 'is_traced() or (weight is not None and '
           'weight.requires_grad) or ' + FEW, SPEED,
           '(is_traced() or (weight is not None and weight.requires_grad))'),
    Excuse('matmul', 'is_traced() or weight.requires_grad or ' + FEW, SPEED,
           '(is_traced() or weight.requires_grad)'),
    Excuse('is_saturated', 'x._nnz() // max(x.size(0), 1)', LOOKED),
    Excuse('energy_by_matrix',
           'x.is_cpu and (not _is_much(energy, whole, 0.001))', ON_DEVICES,
           '(not _is_much(energy, whole, 0.001))'),
    Excuse('energy_by_matrix',
           'x.is_cpu and (not _is_much(energy, whole, 0.001))', SPEED,
           '(x.is_cpu)'),
    Excuse('energy_from_neighbors', 'u.is_cpu and (not is_traced())',
           ON_DEVICES, '(not is_traced())'),
    Excuse('mean_average_distance', 'torch.where(has_neighbor, degree, 1.0)',
           'what is divided by this is not looked at', '(2.0)'),
    Excuse('is_saturated', 'num_edges // 4', SPEED),
    Excuse('is_saturated', 'int(1.1 * end * needed / part) + 1', SPEED),
    Excuse('matmul', FEW, SPEED),
    Excuse('AGCNConv._segment', 'math.isqrt(self.num_hops - 1) + 1',
           'how many steps are taken once more at a time is a matter of '
           'memory alone'),
    Excuse('_sum_over_edges', 'size or 0',
           'without graphs, nothing is left to be summed', '(1)'),
    Excuse('is_saturated', 'begin, end = 0, max(2**12 // max(size, 1), 1)',
           LOOKED),
    Excuse('energy_from_sums',
           'spread + weight * sums[..., 3:].square().sum(-1)', PART_OF_ITSELF,
           '(weight * sums[..., 3:].square().sum(-1))'),
    Excuse('_SymmetricStep.forward',
           'spread + total * (inverse * mean).square().sum()', PART_OF_ITSELF,
           '(total * (inverse * mean).square().sum())'),
    Excuse('is_saturated',
           '_squared_differences(x.detach(), row[some], col[some]) / 2',
           'the exponential of a quarter vanishes beside one as well',
           '(_squared_differences(x.detach(), row[some], col[some]))'),
    Excuse('_is_of_normal_size', '-80',
           'what is not of normal size is scaled, and that is always right',
           '(80)'),
    Excuse('AGCNConv._prepare', 'bound: bool = False', ON_DEVICES),
    Excuse('AGCNConv.forward', 'bound=True', ON_DEVICES),
    Excuse('AGCNConv._make_scaled', """torch.is_grad_enabled() and (
                x.requires_grad or self._weighs_first
                or (self.learn_beta and self.num_hops > 1))""", WHEN_NEEDED),
    Excuse('AGCNConv._make_scaled', "self.energy == 'relative' or "
           'self.learn_beta', WHEN_NEEDED, "(self.energy == 'relative')"),
    Excuse('AGCNConv._make_scaled', "mean_degree is not None and self.energy "
           "== 'relative'", 'it is there for the relative energy',
           "(self.energy == 'relative')"),
    Excuse('AGCNConv._make_scaled', '.unsqueeze(-1)', ONE_DIM, '(1)'),
    Excuse('AGCNConv._make_scaled', 'x.dtype != dtype',
           'long numbers do as well as short ones', '(x.dtype == dtype)'),
    Excuse('AGCNConv._make_graph', "is_fused or self.energy == 'relative'",
           WHEN_NEEDED, "(self.energy == 'relative')"),
    Excuse('AGCNConv._make_graph', "self.energy == 'total' or self.explain or "
           '(not self.normalize)', 'more is summed than is looked at',
           '(self.explain or not self.normalize)'),
    Excuse('AGCNConv._make_graph', 'not self.cached or is_traced()', SPEED,
           '(is_traced())'),
    Excuse('AGCNConv._make_matrix', """self.cached or (row.is_cpu
                                          and torch.is_grad_enabled())""",
           WHEN_NEEDED),
    Excuse('AGCNConv._check_features', 'side or 0',
           'there is a side where there are two numbers', '(side)'),
    Excuse('AGCNConv._is_fused',
           'self.cached or x.is_cpu or is_sparse(edge_index)', ON_DEVICES,
           '(self.cached or x.is_cpu)'),
    Excuse('_is_same', 'new.is_cpu or not unchanged', ON_DEVICES,
           '(new.is_cpu)'),
    Excuse('AGCNConv._make_matrix', 'stable=True',
           'in which order edges between the same nodes are added'),
    Excuse('AGCNConv._segment', 'not self.recompute or not '
           'torch.is_grad_enabled() or is_traced() or self.explain or '
           '(self.momentum is not None)', SPEED, '(not self.recompute or '
           'is_traced() or self.explain or (self.momentum is not None))'),
    Excuse('AGCNConv._diffuse', 'length < self.num_hops', SPEED,
           '(length <= self.num_hops)'),
    Excuse('AGCNConv._diffuse', 'preserve_rng_state=False', SPEED),
    Excuse('AGCNConv._graph', 'not is_fused and inputs[0] is edge_index',
           'on the CPU all values are compared; on devices, tests would see'),
    Excuse('_version', 'value is None or value.is_inference()', ON_DEVICES,
           '(value is None)'),
    Excuse('_is_same', 'new is None or copy is None', 'both are, or neither',
           '(new is None)'),
    Excuse('_is_same', 'new is None or copy is None', 'both are, or neither',
           '(copy is None)'),
    Excuse('_is_same', 'new is None or copy is None', 'both are, or neither',
           '(new is None and copy is None)'),
    Excuse('AGCNConv._make_sample', 'edges.row.is_cpu and (not is_traced())'
           ' and (not self.explain)', ON_DEVICES,
           '(not is_traced() and (not self.explain))'),
    Excuse('AGCNConv._make_sample', 'not is_traced()',
           'edges of weight zero add nothing, there or not', None),
    Excuse('_is_same', 'new.device != copy.device or new.shape != copy.shape',
           ON_DEVICES, '(new.shape != copy.shape)'),
    Excuse('AGCNConv._graph', 'not is_fused',
           'on the CPU all values are compared; on devices, tests would see'),
    Excuse('_is_same', 'new.is_cpu or not unchanged', ON_DEVICES,
           '(not unchanged)'),
    Excuse('_is_same', """old is not None and new.data_ptr() == old.data_ptr()
                     and new.shape == old.shape and version is not None
                     and version == _version(new)""",
           'on the CPU all values are compared; on devices, tests would see'),
]


class Mutant(NamedTuple):
    r"""A change of one place in a file."""

    file: str
    function: str
    digest: str  # of the function
    place: str  # in it
    original: str
    mutant: str
    kind: str
    line: int
    start: int  # bytes
    end: int

    def excuse(self, text: str) -> str:
        r"""Why no test can see it, if there is a reason."""
        content = text.encode()
        for function, piece, reason, mutant in EQUIVALENT:
            if function != self.function or mutant not in (None, self.mutant):
                continue
            start = content.rfind(piece.encode(), 0, self.start + len(
                piece.encode()))
            inside = -1 < start <= self.start and (
                self.end <= start + len(piece.encode()))
            if inside or piece == self.original:
                return reason
        return ''


# Changes #####################################################################

OTHER: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div,
    ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    r"""All simple changes of one node, with their kind."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield 'constant', ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield 'constant', ast.Constant(node.value + 1)
        elif isinstance(node.value, float):
            yield 'constant', ast.Constant(2 * node.value or 1.0)
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        if type(node.op) in OTHER:
            yield 'sign', _with(node, op=OTHER[type(node.op)]())
        if isinstance(node, ast.BinOp):
            yield 'dropped term', node.left
            yield 'dropped term', node.right
        else:
            yield 'dropped term', ast.Pass()
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            ops = [*node.ops[:i], OTHER[type(op)](), *node.ops[i + 1:]]
            yield 'comparison', _with(node, ops=ops)
    elif isinstance(node, ast.BoolOp):
        yield 'comparison', _with(node, op=OTHER[type(node.op)]())
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1:]
            yield 'dropped term', (rest[0] if len(rest) == 1 else
                                   _with(node, values=rest))
    elif isinstance(node, ast.UnaryOp) and isinstance(
            node.op, ast.USub | ast.Not):
        yield 'sign', node.operand


def _with(node: Any, **values: Any) -> Any:
    return type(node)(**{**dict(ast.iter_fields(node)), **values})


def mutants(file: str, text: str) -> list[Mutant]:
    r"""All mutants of a file, but for types, texts and errors."""
    offsets = [0]
    for line in text.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    found = []

    def visit(node: ast.AST, function: str, digest: str,
              first: int) -> None:
        if isinstance(node, ast.Raise | ast.JoinedStr):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f'{function}.{node.name}'.strip('.')
        if isinstance(node, ast.FunctionDef):
            digest = hashlib.sha256(ast.dump(node).encode()).hexdigest()[:8]
            first = node.lineno
        for kind, new in changes(node):
            code = ast.unparse(ast.fix_missing_locations(new))
            start = offsets[node.lineno - 1] + node.col_offset
            end = offsets[node.end_lineno - 1] + node.end_col_offset
            found.append(Mutant(
                file, function, digest,
                f'{node.lineno - first}:{node.col_offset}',
                ast.unparse(node),
                code if isinstance(new, ast.stmt) else f'({code})', kind,
                node.lineno, start, end))
        for name, child in ast.iter_fields(node):
            if name in ['annotation', 'returns', 'decorator_list']:
                continue
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, ast.AST):
                    visit(part, function, digest, first)

    visit(ast.parse(text), '', '', 0)
    return found


def apply(mutant: Mutant, text: str) -> str:
    r"""The file with the change; what follows stays in its lines."""
    content = text.encode()
    lines = b'\n' * content[mutant.start:mutant.end].count(b'\n')
    new = mutant.mutant.encode()
    new = new[:-1] + lines + new[-1:] if new[-1:] == b')' else new + lines
    return (content[:mutant.start] + new + content[mutant.end:]).decode()


def codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    r"""The functions of compiled code, by name and first line."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield (part.co_name, part.co_firstlineno), part
            yield from codes(part)


def swap(text: str, functions: list[FunctionType]) -> bool:
    r"""Gives functions of a file the code they have in another version of
    it. Whether anything is different now: defaults and what stands outside
    of functions are not seen.
    """
    new = dict(codes(compile(text, functions[0].__code__.co_filename,
                             'exec')))
    changed = False
    for function in functions:
        old = function.__code__
        code = new.get((old.co_name, old.co_firstlineno), old)
        if code != old:
            function.__code__ = code
            changed = True
    return changed


# Tests #######################################################################


class Reach:
    r"""Notes which lines of the files each test reaches, and its seconds."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self.paths = {str(folder / file): file for file in files}
        self.found: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        lines: set[tuple[str, int]] = set()

        def look(frame: Any, event: str, _: Any) -> Any:
            file = self.paths.get(frame.f_code.co_filename)
            if file is None:
                return None
            lines.add((file, frame.f_lineno))
            return look

        start = time.process_time()
        sys.settrace(look)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.found[item.nodeid] = dict(
                seconds=round(time.process_time() - start, 3),
                lines=sorted(lines))


class Choice:
    r"""Runs tests in an order, if one is given, and keeps the name of one
    that fails.
    """

    def __init__(self, names: list[str]) -> None:
        self.order = {name: i for i, name in enumerate(names)}
        self.found = ''

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.order:
            items[:] = sorted((i for i in items if i.nodeid in self.order),
                              key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.found = self.found or report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.found = self.found or f'import of {report.nodeid}'


class InPlace(Choice):
    r"""Collects all tests, then hands out a way to run some of them with a
    mutant, in a fork.
    """

    def __init__(self, loop: Callable[[Any], None]) -> None:
        super().__init__([])
        self.loop = loop

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.functions = [o for o in gc.get_objects()
                          if isinstance(o, FunctionType)]
        self.loop(self)
        return True

    def run(self, path: Path, text: str, out: Path, tests: list[str]) -> int:
        functions = [f for f in self.functions
                     if f.__code__.co_filename == str(path)]
        if not swap(text, functions):
            return NOT_IN_PLACE
        items = [self.items[name] for name in tests]
        for item, following in zip(items, [*items[1:], None]):
            item.config.hook.pytest_runtest_protocol(item=item,
                                                     nextitem=following)
            if self.found:
                break
        out.write_text(json.dumps(self.found))
        return 0


def in_a_child(function: Callable[..., int], *args: Any,
               seconds: float = 10**5) -> int:
    r"""The exit code of a function in a process of its own, or less than
    zero if it did not end in so many seconds of processor time.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), -1))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, -1))
    signal.alarm(10 * int(seconds))
    code = 70
    try:
        code = int(function(*args))
    finally:
        os._exit(code)


def run_tests(folder: Path, plugin: Any, tests: list[str], out: Path,
              chosen: str = f'not ({LEFT_OUT})') -> int:
    r"""Runs tests in a copy of the tree, where nothing of the package is
    imported yet, while torch is.
    """
    os.chdir(folder)
    with open(os.devnull, 'w') as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    code = pytest.main(['-x', '-p', 'no:cacheprovider', '-m',
                        'not data and not extensions', '-k', chosen, *tests],
                       plugins=[plugin])
    import torch_agcn
    assert Path(torch_agcn.__file__).is_relative_to(folder)
    out.write_text(json.dumps(plugin.found))
    return int(code)


def reaching(mutant: Mutant, reach: dict[str, Any]) -> list[str]:
    r"""The tests that reach a mutant's line; what runs at the import is
    reached by all that reach its function, or else its file.
    """
    def those(wanted: Any) -> list[str]:
        return [name for name, test in reach.items()
                if test['seconds'] < SLOW and any(
                    file == mutant.file and wanted(line)
                    for file, line in test['lines'])]

    def function_at(line: int) -> bool:
        return functions.get(line) == mutant.function

    functions = FUNCTIONS[mutant.file]
    found = (those(lambda line: line == mutant.line) or those(function_at)
             or those(lambda line: True))
    return sorted(found, key=lambda name: reach[name]['seconds'])


def reach_of(folder: Path, texts: dict[str, str], out: Path,
             path: Path) -> dict[str, Any]:
    r"""Runs all tests as they are, but for those of files of which that is
    known, and returns what each reaches.
    """
    kept = json.loads(path.read_text()) if path.exists() else {}
    found = {}
    for file in TESTS:
        content = [(folder / file).read_text(), *texts.values()]
        digest = hashlib.sha256(''.join(content).encode()).hexdigest()
        if kept.get(file, {}).get('digest') != digest:
            print(f'{file} as it is', file=sys.stderr, flush=True)
            plugin = Reach(folder, list(texts))
            if in_a_child(run_tests, folder, plugin, [file], out):
                raise SystemExit(f'{file} fails, or does not come to an end.')
            kept[file] = dict(digest=digest, tests=json.loads(
                out.read_text()))
            path.write_text(json.dumps(kept))
        found.update(kept[file]['tests'])
    return found


FUNCTIONS: dict[str, dict[int, str]] = {}


def functions_of(text: str) -> dict[int, str]:
    r"""The name of the innermost function or class at each line."""
    out: dict[int, str] = {}

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f'{name}.{child.name}'.strip('.')
                out.update(dict.fromkeys(
                    range(child.lineno, child.end_lineno + 1), inner))
            visit(child, inner)

    visit(ast.parse(text), '')
    return out


# The run #####################################################################


def interval(killed: int, total: int, z: float = 1.96) -> tuple[float, float]:
    r"""Wilson's 95 % interval of a share."""
    p = killed / total
    middle = (p + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(
        p * (1 - p) / total + z**2 / (4 * total**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def key(row: Mutant | dict[str, str]) -> tuple[str, ...]:
    r"""What is the same for the same change of the same function."""
    values = row._asdict() if isinstance(row, Mutant) else row
    return tuple(values[name] for name in COLUMNS[:6])


def show(rows: list[dict[str, str]], totals: dict[str, int]) -> None:
    r"""A table, and what survived."""
    print(f'{"file":34} {"all":>5} {"run":>5} {"killed":>7} {"equivalent":>11}'
          f' {"survived":>9}  share killed of those that can be')
    for file, total in totals.items():
        part = [row['outcome'] for row in rows if row['file'] == file]
        same, lives = part.count('equivalent'), part.count('survived')
        killed = len(part) - same - lives
        if killed + lives:
            low, high = interval(killed, killed + lives)
            print(f'{file:34} {total:5} {len(part):5} {killed:7} {same:11} '
                  f'{lives:9}  {killed / (killed + lives):.1%} '
                  f'({low:.1%} to {high:.1%})')
    for row in rows:
        if row['outcome'] == 'survived':
            print(f'{row["file"]}:{row["line"]} {row["function"]}: '
                  f'{row["original"]}  ->  {row["mutant"]}')


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--files', nargs='+', default=[FUNCTIONAL, CONV])
    parser.add_argument('--sample', type=int, help='mutants of each file '
                        '(default: all)')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', type=Path, default=ROOT / 'tests' /
                        'mutants.csv')
    parser.add_argument('--again', action='store_true',
                        help='try survivors once more, with all tests')
    args = parser.parse_args(argv)
    texts = {file: (ROOT / file).read_text() for file in args.files}
    todo, totals, known = [], {}, {}
    for file, text in texts.items():
        found = mutants(file, text)
        FUNCTIONS[file] = functions_of(text)
        totals[file] = len(found)
        known.update({key(mutant): mutant for mutant in found})
        random.Random(args.seed).shuffle(found)
        todo += found[:args.sample]
    rows = [row for row in read(args.out) if key(row) in known]
    for row in rows:
        reason = known[key(row)].excuse(texts[row['file']])
        if row['outcome'] == 'survived' and reason:
            row.update(outcome='equivalent', test=reason)
    if args.again:
        todo = [known[key(row)] for row in rows
                if row['outcome'] == 'survived']
        rows = [row for row in rows if row['outcome'] != 'survived']
    done = {key(row) for row in rows}
    todo = [mutant for mutant in dict.fromkeys(todo)
            if key(mutant) not in done]

    with tempfile.TemporaryDirectory() as name:
        if todo:
            run(Path(name).resolve(), todo, texts, rows, args.out,
                args.again)
    write(rows, args.out)
    show(rows, totals)
    return int(any(row['outcome'] == 'survived' for row in rows))


def run(folder: Path, todo: list[Mutant], texts: dict[str, str],
        rows: list[dict[str, Any]], path: Path, again: bool) -> None:
    r"""Runs mutants in a copy of the tree and adds their rows."""
    import torch
    import torch_geometric.nn  # noqa: F401
    torch.set_num_threads(1)
    out = folder / 'out.json'
    for name in ['torch_agcn', 'tests', 'benchmarks']:
        shutil.copytree(ROOT / name, folder / name,
                        ignore=shutil.ignore_patterns('__pycache__'))
    for name in ['pyproject.toml', 'README.md']:
        shutil.copy(ROOT / name, folder / name)
    reach = reach_of(folder, texts, out, path.with_suffix('.json'))
    # Where standard error goes to, also where tests have none:
    log = os.fdopen(os.dup(sys.stderr.fileno()), 'w')

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        write(rows, path)
        print(f'{len(rows)} {row["outcome"]} in {row["seconds"]} s: '
              f'{row["function"]}: {row["original"]} -> {row["mutant"]}',
              file=log, flush=True)

    def in_place(tests: InPlace) -> None:
        for mutant in todo:
            row = outcome(mutant, texts, reach, out, partial(
                tests.run, folder / mutant.file,
                apply(mutant, texts[mutant.file]), out))
            if row:
                add(row)

    def in_files(names: list[str]) -> int:
        files = list(dict.fromkeys(name.split('::')[0] for name in names))
        return run_tests(folder, Choice(names), files, out)

    if not again:
        in_a_child(run_tests, folder, InPlace(in_place), TESTS, out)
        rows[:] = read(path)
    done = {key(row) for row in rows}
    for mutant in todo:
        if key(mutant) in done:
            continue
        target = folder / mutant.file
        target.write_text(apply(mutant, texts[mutant.file]))
        row = outcome(mutant, texts, reach, out, in_files)
        if again and row['outcome'] == 'survived':
            in_a_child(run_tests, folder, Choice([]), TESTS, out, LEFT_OUT)
            row['test'] = json.loads(out.read_text())
            row['outcome'] = 'killed' if row['test'] else 'survived'
        add(row)
        target.write_text(texts[mutant.file])


def outcome(mutant: Mutant, texts: dict[str, str], reach: dict[str, Any],
            out: Path, run: Callable[[list[str]], int]) -> Any:
    r"""The row of a mutant by a way to run tests, or nothing if the change
    cannot be made in this way.
    """
    begin = time.monotonic()
    tests = reaching(mutant, reach)
    reason = mutant.excuse(texts[mutant.file])
    if reason:
        result, test = 'equivalent', reason
    elif not tests:
        result, test = 'survived', 'no test gets there'
    else:
        out.unlink(missing_ok=True)
        seconds = sum(reach[name]['seconds'] for name in tests)
        code = in_a_child(run, tests, seconds=2 * seconds + PATIENCE)
        if code == NOT_IN_PLACE:
            return None
        test = json.loads(out.read_text()) if out.exists() else ''
        result = 'killed' if test else 'timeout' if code < 0 else 'survived'
    row = {name: value for name, value in mutant._asdict().items()
           if name in COLUMNS}
    return dict(row, outcome=result, test=test,
                seconds=round(time.monotonic() - begin, 1))


def write(rows: list[dict[str, Any]], path: Path) -> None:
    new = path.with_suffix('.new')
    with new.open('w', newline='') as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
    new.replace(path)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
