import sys
from types import ModuleType

import pandas as pd
import pytest

from benchmarks import plots, report, results
from benchmarks.results import Claim, Table

CLAIMS = [Claim('AGCN <b>wins</b> & "more"', 'yes', 'a | b < 1'),
          Claim('It is\nfast.', 'no', 'Twice the time.'),
          Claim('It is deep.', 'not shown', 'x' * 300)]


def experiment(name, table, title='A title & more.'):
    r"""A module as those that the report shows."""
    module = ModuleType(f'benchmarks.{name}', f'{title}\n\nMore.')
    module.TABLE = table
    module.QUESTION = 'Is it <so>?'
    module.answer = lambda rows: f'Yes & in {len(rows)} rows.'
    module.claims = lambda rows: CLAIMS
    module.tables = lambda rows: {'Much <i>': pd.DataFrame({
        f'a column with a long name, {i}': ['**81.5 ± 0.7**', '<script>', None]
        for i in range(20)}), 'Numbers': pd.DataFrame({
            'x': [1.23456789, float('nan')], 'n': [3, 4]})}

    def draw(rows, folder):
        paths = []
        for size, label in [(4, 'small'), (9, 'wide')]:
            figure, axis = plots.plt.subplots(figsize=(size, 3))
            axis.plot(rows.value)
            paths += plots.save(figure, folder, f'{name}_{label}')
        return paths

    module.draw = draw
    module.CAPTIONS = {f'{name}_small': 'A "small" <figure>',
                       f'{name}_wide': 'A wide one'}
    return module


@pytest.fixture
def place(tmp_path, monkeypatch):
    r"""Two experiments: one with rows and one without."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, 'GROUPS', {'First': ['one'],
                                           'Second': ['two']})
    monkeypatch.setattr(report, 'FIGURES', tmp_path / 'figures')
    monkeypatch.setattr(report, 'MARKDOWN', tmp_path / 'RESULTS.md')
    monkeypatch.setattr(results, 'README', tmp_path / 'README.md')
    monkeypatch.setattr(report, 'readme_table', lambda sections: '| a |')
    monkeypatch.setattr(report, 'readme_reasons', lambda sections: '- b')
    results.README.write_text('Nothing is generated here.')
    for name in ['one', 'two']:
        table = Table(tmp_path / f'{name}.csv', ['value'])
        monkeypatch.setitem(sys.modules, f'benchmarks.{name}',
                            experiment(name, table))
    one = sys.modules['benchmarks.one'].TABLE
    for date, commit in [('2026-01-02', 'abc1'), ('2026-03-04', 'abc2')]:
        monkeypatch.setattr(results, 'provenance', lambda date=date, commit=(
            commit): dict(date=date, commit=commit, versions='torch=2'))
        one.append(value=1.0)
    return tmp_path


def test_markdown(place):
    report.main([])
    text = (place / 'RESULTS.md').read_text(encoding='utf-8')
    assert '## First\n\n### A title & more\n\n*Is it <so>?*\n\n' in text
    assert '\n\nYes &amp; in 2 rows.\n\n**Much &lt;i&gt;**\n\n' in text
    assert '![A "small" &lt;figure&gt;](figures/one_small.png)' in text
    assert (place / 'figures' / 'one_small.png').exists()
    assert text.count('one_wide.') == 1  # as PNG; the SVG is beside it
    assert '| **81.5 ± 0.7** |' in text and '| &lt;script&gt; |' in text
    assert '| 1.235 | 3 |\n| – | 4 |' in text
    assert ('`python -m benchmarks one`: 2 rows of '
            '[one.csv](results/one.csv).') in text
    assert 'Second' not in text  # which has no rows
    assert text.endswith(f"""
## The paper's claims

| the paper | holds | measured here |
| --- | --- | --- |
| AGCN &lt;b&gt;wins&lt;/b&gt; &amp; "more" | yes | a \\| b &lt; 1 |
| It is fast. | no | Twice the time. |
| It is deep. | not shown | {'x' * 300} |
""")
    assert results.README.read_text() == 'Nothing is generated here.'
    report.main([])
    assert (place / 'RESULTS.md').read_text(encoding='utf-8') == text


def test_long_tables_are_folded(place, monkeypatch):
    monkeypatch.setattr(report, 'LONG', 1)
    report.main([])
    text = (place / 'RESULTS.md').read_text(encoding='utf-8')
    assert '**Much &lt;i&gt;**' in text  # the first never is
    assert '<details><summary>Numbers</summary>\n\n| x | n |' in text


def test_tables_beside_the_main_ones_are_left_out(place):
    one = sys.modules['benchmarks.one']
    one.main_tables = lambda rows: {'Much <i>': one.tables(rows)['Much <i>']}
    report.main([])
    text = (place / 'RESULTS.md').read_text(encoding='utf-8')
    assert 'Much' in text and 'Numbers' not in text


def test_tables_without_gaps():
    def shown(**columns):
        frame = report.without_gaps(pd.DataFrame(columns))
        return None if frame is None else frame.to_dict('list')

    full = dict(name=['a', 'b'], x=['1', '**2**'])
    assert shown(**full) == full
    # A column with less than half of its cells, and then such a line:
    assert shown(name=['a', 'b', 'c'], x=['1', '2', '–'], y=['–', '–', '3'],
                 z=['4', '5', '–']) == dict(
                     name=['a', 'b'], x=['1', '2'], z=['4', '5'])
    # What was published is so for some only:
    some = {'name': ['a', 'b', 'c'], 'x': ['1', '2', '3'],
            'x, published': ['–', '–', '2']}
    assert shown(**some) == some
    assert shown(name=['a'], x=['1']) is None  # a single cell
    assert shown(name=['a', 'b'], x=['–', '–']) is None
    words = dict(name=['a'], why=['so'])
    assert shown(**words) == words


@pytest.mark.parametrize('text, message', [
    ('<!-- results -->', 'needs one line'),
    ('<!-- /results -->', 'needs one line'),
    ('<!-- /results --><!-- results -->', 'needs one line'),
    ('<!-- results --><!-- results --><!-- /results -->', 'needs one line'),
])
def test_a_readme_with_wrong_lines_is_left_alone(place, text, message):
    results.README.write_text(text)
    with pytest.raises(ValueError, match=message):
        report.main([])
    assert results.README.read_text() == text
    assert not (place / 'RESULTS.md').exists()


def test_the_blocks_of_the_readme(place):
    results.README.write_text('<!-- reasons -->\n<!-- /reasons -->\na\n'
                              '<!-- results -->\nold\n'
                              '<!-- /results -->\nb\n')
    report.main([])
    assert results.README.read_text() == (
        '<!-- reasons -->\n- b\n<!-- /reasons -->\na\n'
        '<!-- results -->\n| a |\n<!-- /results -->\nb\n')


def test_the_readme_is_that_of_the_rows():
    sections = report.read()
    text = (report.ROOT.parent / 'README.md').read_text(encoding='utf-8')
    table = report.readme_table(sections)
    for name, content in [('reasons', report.readme_reasons(sections)),
                          ('results', table)]:
        assert report.fill_block(text, name, content) == text
    lines = table.splitlines()
    assert lines[0] == '|  | Cora | CiteSeer | PubMed |'
    assert 4 < len(lines) <= 2 + 8 and '–' not in table
    assert any(line.startswith('| GCN with AnisotropicWeights')
               for line in lines)


@pytest.mark.parametrize('content', ['', 'value,date,commit,versions\n'])
def test_a_table_without_rows(place, content):
    (place / 'two.csv').write_text(content)
    report.main([])
    text = (place / 'RESULTS.md').read_text(encoding='utf-8')
    assert 'benchmarks one' in text and 'benchmarks two' not in text
    assert (place / 'two.csv').read_text() == content


def test_a_table_of_something_else(place):
    (place / 'two.csv').write_text('name;price\napple;1,5\n')
    with pytest.raises(SystemExit, match=r"two.csv' is of another version"):
        report.main([])
    assert not (place / 'RESULTS.md').exists()


def test_a_report_that_cannot_be_written(place):
    (place / 'RESULTS.md').mkdir()
    with pytest.raises(SystemExit, match='cannot be written'):
        report.main([])


def test_experiments_of_the_repository():
    names = [name for group in report.GROUPS.values() for name in group]
    assert len(names) == len(set(names))
    for name in names:
        module = report.importlib.import_module(f'benchmarks.{name}')
        assert module.QUESTION.endswith('?')
