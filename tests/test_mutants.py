r"""The mutants of ``mutants.py`` are those that it says."""
import importlib.util
import sys
from pathlib import Path

import pytest

if sys.platform == 'win32':
    pytest.skip('no fork', allow_module_level=True)
path = Path(__file__).with_name('mutants.py')
spec = importlib.util.spec_from_file_location('mutants', path)
mutants = importlib.util.module_from_spec(spec)
sys.modules['mutants'] = mutants
spec.loader.exec_module(mutants)

SOURCE = '''\
def gate(s: 'Tensor | None', beta=1.0):
    r"""1 - 2"""
    if s < 0 or beta is None:
        raise ValueError(f'{s + 1}')
    s *= 2
    return 1 - f(-beta * s)  # é
'''


def test_all_mutants_of_a_function():
    found = mutants.mutants('a.py', SOURCE)
    assert {(m.kind, m.original, m.mutant) for m in found} == {
        ('constant', '1.0', '(2.0)'),
        ('comparison', 's < 0 or beta is None', '(s < 0 and beta is None)'),
        ('dropped term', 's < 0 or beta is None', '(beta is None)'),
        ('dropped term', 's < 0 or beta is None', '(s < 0)'),
        ('comparison', 's < 0', '(s <= 0)'),
        ('constant', '0', '(1)'),
        ('comparison', 'beta is None', '(beta is not None)'),
        ('sign', 's *= 2', 's /= 2'),
        ('dropped term', 's *= 2', 'pass'),
        ('constant', '2', '(3)'),
        ('sign', '1 - f(-beta * s)', '(1 + f(-beta * s))'),
        ('dropped term', '1 - f(-beta * s)', '(1)'),
        ('dropped term', '1 - f(-beta * s)', '(f(-beta * s))'),
        ('constant', '1', '(2)'),
        ('sign', '-beta * s', '(-beta / s)'),
        ('dropped term', '-beta * s', '(-beta)'),
        ('dropped term', '-beta * s', '(s)'),
        ('sign', '-beta', '(beta)'),
    }
    assert all(m.function == 'gate' for m in found)
    assert len({mutants.key(m) for m in found}) == len(found) == 18
    for m in found:  # one place, and nothing else
        lines = mutants.apply(m, SOURCE).splitlines()
        different = [i + 1 for i, (a, b) in enumerate(
            zip(lines, SOURCE.splitlines())) if a != b]
        assert different == [m.line]
    minus = next(m for m in found if m.original == '-beta')
    assert '1 - f((beta) * s)  # é' in mutants.apply(minus, SOURCE)
    # Only what stands in the function decides whether it is the same:
    moved = mutants.mutants('a.py', '# more\n' + SOURCE)
    assert [*map(mutants.key, moved)] == [*map(mutants.key, found)]


def test_mutants_in_place(tmp_path):
    text = SOURCE.replace('beta * s', 'beta\n             * s')
    path = tmp_path / 'a.py'
    space = dict(f=abs)
    exec(compile(text, path, 'exec'), space)
    gate, code = space['gate'], space['gate'].__code__
    assert gate(3.0) == 1 - 6
    outcomes = {}
    for m in mutants.mutants('a.py', text):
        changed = mutants.apply(m, text)
        assert changed.count('\n') == text.count('\n')
        gate.__code__ = code
        if mutants.swap(changed, [gate]):
            outcomes[m.original, m.mutant] = gate(3.0) if (
                m.kind != 'comparison' and 'None' not in m.original) else None
    assert outcomes['1 - f(-beta * s)', '(1 + f(-beta * s))'] == 7
    assert outcomes['-beta * s', '(s)'] == -5
    assert outcomes['s *= 2', 'pass'] == -2
    # Defaults are read when the file is, and are left to other ways:
    assert len(outcomes) == 17 and ('1.0', '(2.0)') not in outcomes


def test_tests_that_reach_a_mutant():
    found = mutants.mutants('a.py', SOURCE)
    mutants.FUNCTIONS['a.py'] = mutants.functions_of(SOURCE)
    assert set(mutants.FUNCTIONS['a.py'].values()) == {'gate'}
    reach = {'slow': dict(seconds=9.0, lines=[('a.py', 6)]),
             'late': dict(seconds=2.0, lines=[('a.py', 3), ('a.py', 6)]),
             'soon': dict(seconds=1.0, lines=[('a.py', 6), ('b.py', 3)]),
             'none': dict(seconds=0.1, lines=[('b.py', 6)])}

    def tests_of(original):
        mutant = next(m for m in found if m.original == original)
        return mutants.reaching(mutant, reach)

    assert tests_of('-beta') == ['soon', 'late']
    assert tests_of('s < 0') == ['late']
    assert tests_of('1.0') == ['soon', 'late']  # a default: the function's


def test_interval_by_hand():
    # Wilson's, for 9 of 10 (Newcombe, 1998, has this formula):
    low, high = mutants.interval(9, 10)
    assert (round(low, 4), round(high, 4)) == (0.5958, 0.9821)
    assert mutants.interval(10, 10)[1] == 1


def test_excuses(monkeypatch):
    found = mutants.mutants('a.py', 'def f(x):\n    return g(x + 1) < 2**9\n')
    monkeypatch.setattr(mutants, 'EQUIVALENT', {
        r'f: \w \+ \d -> \([a-z]\)': 'why', r': 2 \*\* \d': 'so'})
    assert {(m.original, m.mutant): m.excuse for m in found} == {
        ('g(x + 1) < 2 ** 9', '(g(x + 1) <= 2 ** 9)'): '',
        ('x + 1', '(x - 1)'): '', ('x + 1', '(x)'): 'why',
        ('x + 1', '(1)'): '', ('1', '(2)'): '',
        # One number, as it were:
        ('2 ** 9', '(2 * 9)'): 'so', ('2 ** 9', '(2)'): 'so',
        ('2 ** 9', '(9)'): 'so'}


def test_excuses_are_up_to_date():
    # A reason for a change that can no longer be made is to be removed.
    found = [m for file in mutants.FILES for m in mutants.mutants(
        file, (mutants.ROOT / file).read_text())]
    used = {m.excuse for m in found}
    assert used == {'', *mutants.EQUIVALENT.values()}
