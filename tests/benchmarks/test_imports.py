import ast
from pathlib import Path

import benchmarks

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
