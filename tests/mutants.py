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
import re
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
FILES = [f'torch_agcn/{name}.py' for name in (
    'functional', '_cache', '_checks', '_edges', '_energy', '_graph',
    '_groups', '_repr', '_spmm', '_tracing', 'nn/conv/agcn_conv',
    'nn/conv/agcn2_conv', 'nn/conv/gated_diffusion', 'nn/conv/running_energy')]
TESTS = [*(f'tests/test_{name}.py' for name in (
    'functional', 'energy', 'cache', 'minibatch', 'fuzz')), *sorted(
        str(path.relative_to(ROOT)) for folder in ('conv', 'models')
        for path in (ROOT / 'tests' / 'nn' / folder).glob('test_*.py'))]
COLUMNS = ['file', 'function', 'digest', 'place', 'original', 'mutant', 'kind',
           'line', 'outcome', 'test', 'seconds']
# What compiles takes longer than all other tests together, and what starts
# processes sees no change in memory; only survivors that are tried again have
# to pass these too:
LEFT_OUT = 'compile or export or processes'
SLOW = 5.0  # seconds of a test that is left out as well
PATIENCE = 60  # seconds of processor time on top for those that do not end
MEMORY = 2**33
NOT_IN_PLACE = 9  # the exit code for what has to be changed in the file

# Why no test can see some kinds of changes, by a pattern of
# "function: original -> mutant". Anything else has to be seen.
EQUIVALENT = {
    r': 2(\.0)? \*\* |[<>]=? 2(\.0)? \*\* (-)?\d+ ->':
        'a size from which another way is quicker, and as right',
    r'is_saturated: (.*num_edges // 4|1\.1 |4 )->':
        'how many edges are looked at: no proof means that all are summed',
}


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

    @property
    def excuse(self) -> str:
        r"""Why no test can see it, if there is a reason."""
        change = f'{self.function}: {self.original} -> {self.mutant}'
        return next((reason for pattern, reason in EQUIVALENT.items()
                     if re.search(pattern, change)), '')


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
        if isinstance(node, ast.Raise | ast.JoinedStr) or (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).endswith('refuse')):
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
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and (
                isinstance(node.left, ast.Constant)):
            return  # 2**9 is one number.
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
    r"""The tests that reach a mutant's line, or else its function; what is in
    none runs at the import, and is reached by all that reach its file.
    """
    def those(wanted: Any) -> list[str]:
        return [name for name, test in reach.items()
                if test['seconds'] < SLOW and any(
                    file == mutant.file and wanted(line)
                    for file, line in test['lines'])]

    def function_at(line: int) -> bool:
        return functions.get(line) == mutant.function

    functions = FUNCTIONS[mutant.file]
    found = those(lambda line: line == mutant.line) or those(
        function_at if mutant.digest else lambda line: True)
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
    for file, total in [*totals.items(), ('', sum(totals.values()))]:
        part = [row['outcome'] for row in rows if file in ('', row['file'])]
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
    parser.add_argument('--files', nargs='+', default=FILES)
    parser.add_argument('--sample', type=int, help='how many, by chance '
                        '(default: all)')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', type=Path, default=ROOT / 'tests' /
                        'mutants.csv')
    parser.add_argument('--again', action='store_true',
                        help='try survivors once more, with all tests')
    args = parser.parse_args(argv)
    texts = {file: (ROOT / file).read_text() for file in args.files}
    totals, known = {}, {}
    for file, text in texts.items():
        found = mutants(file, text)
        FUNCTIONS[file] = functions_of(text)
        totals[file] = len(found)
        known.update({key(mutant): mutant for mutant in found})
    todo = list(known.values())
    random.Random(args.seed).shuffle(todo)
    todo = todo[:args.sample]
    rows = [row for row in read(args.out) if key(row) in known]
    for row in rows:
        reason = known[key(row)].excuse
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
    reason = mutant.excuse
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
