import ast
import pkgutil
from pathlib import Path

import benchmarks
from benchmarks.__main__ import PARTS

ROOT = Path(benchmarks.__file__).parent


def imported(path):
    r"""The full names of all that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.ImportFrom):
            yield from (f'{node.module}.{name.name}' for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_public_names_only():
    files = [*ROOT.rglob('*.py'), *Path(__file__).parent.rglob('*.py')]
    assert len(files) > 80
    private = {(path.name, name) for path in files for name in imported(path)
               if name.startswith('torch_agcn') and '._' in name}
    assert not private


def test_experiments_do_not_import_each_other():
    names = {module.name for module in pkgutil.iter_modules(
        benchmarks.__path__)} - PARTS
    assert {'table', 'depth', 'speed', 'report', 'verify'} <= names
    for name in names - {'report', 'verify'}:  # which are of all experiments
        paths = [ROOT / f'{name}.py', *(ROOT / name).rglob('*.py')]
        others = {f'benchmarks.{other}' for other in names - {name}}
        found = {other for path in paths if path.exists()
                 for full in imported(path) for other in others
                 if full == other or full.startswith(f'{other}.')}
        assert not found, f'{name} imports {found}'
