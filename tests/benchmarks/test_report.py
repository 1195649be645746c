import sys
from html.parser import HTMLParser
from types import ModuleType

import pandas as pd
import pytest

from benchmarks import plots, report, results, runner
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
        for size, label in [(4, 'small'), (40, 'wide')]:
            figure, axis = plots.plt.subplots(figsize=(size, 3))
            axis.plot(rows.value)
            paths += plots.save(figure, folder, f'{name}_{label}')
        return paths

    module.draw = draw
    module.CAPTIONS = {f'{name}_small': 'A "small" <figure>'}
    return module


@pytest.fixture
def place(tmp_path, monkeypatch):
    r"""Two experiments: one with rows and one without."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, 'GROUPS', {'First': ['one'],
                                           'Second': ['two']})
    monkeypatch.setattr(report, 'OPENING', {
        'one': ('one_small', lambda section: (
            'It is good.', f'`Yes` & in {len(section.rows)} rows.'))})
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


class Page(HTMLParser):
    r"""All tags, and the text between them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open = [], '', []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ['meta', 'img']:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag  # all are closed, in order

    def handle_data(self, data):
        if 'style' not in self.open:
            self.text += data

    def of(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def check(page):
    r"""What holds for any report."""
    assert not page.open
    anchors = [a['href'] for a in page.of('a')]
    ids = [attrs['id'] for _, attrs in page.tags if 'id' in attrs]
    assert anchors and len(set(ids)) == len(ids)
    assert all(a[0] == '#' and a[1:] in ids for a in anchors)
    for _, attrs in page.tags:
        assert attrs.get('src', 'data:').startswith('data:')
        assert not set(attrs) & {'srcset', 'action', 'onload', 'background'}
    assert not page.of('script') and not page.of('link')
    assert not page.of('iframe')
    for image in page.of('img'):
        assert image['alt'] and int(image['width']) > int(image['height']) > 0
    tables = page.of('table')
    assert page.of('meta')[1]['name'] == 'viewport' and tables


def test_page(place):
    report.main([])
    text = (place / 'report.html').read_text(encoding='utf-8')
    assert 'url(' not in text and '@import' not in text
    page = Page(text)
    check(page)
    # The opening, then the section:
    assert [image['alt'] for image in page.of('img')] == [
        'A "small" <figure>', 'A "small" <figure>', 'one wide']
    assert page.text.count('It is good') == 1
    assert page.text.count('Yes & in 2 rows.') == 2
    assert '<p><code>Yes</code> &amp; in 2 rows.</p>' in text
    assert page.text.count('Is it <so>?') == 2
    for claim in CLAIMS:  # above, and in its section
        assert page.text.count(claim.paper) == 2
        assert page.text.count(claim.measured) == 2
    assert page.text.count('✗ no') == 3 and '? not shown 1' in page.text
    assert '<b>wins' not in text and '<td><script>' not in text
    assert '<td><b>81.5 ± 0.7</b></td>' in text and '<td>–</td>' in text
    assert '<td class="number">1.235</td><td class="number">3</td>' in text
    assert '<td class="number">–</td><td class="number">4</td>' in text
    assert 'python -m benchmarks one' in page.text
    assert ('2 rows of one.csv, 2026-01-02 to 2026-03-04; commits: abc1, '
            'abc2; versions: torch=2') in page.text
    assert page.text.count('Not run yet: python -m benchmarks two') == 1

    before = text
    report.main(['--out', 'folder/again.html'])
    assert (place / 'folder/again.html').read_text(encoding='utf-8') == before


def test_large_figures_are_png(place, monkeypatch):
    monkeypatch.setattr(report, 'LARGEST_SVG', 100)
    report.main([])
    for image in Page((place / 'report.html').read_text()).of('img'):
        assert image['src'].startswith('data:image/png;base64,iVBOR')


def test_quick(place, monkeypatch):
    monkeypatch.setattr(runner, 'QUICK', place / 'quick')
    for i in range(3):
        Table(place / 'quick' / 'two.csv', ['value']).append(value=i)
    report.main(['--quick'])
    text = Page((place / 'report.html').read_text()).text
    assert 'Not run yet: python -m benchmarks one --quick' in text
    assert '3 rows of two.csv' in text and 'no results' in text
    # First looks are no results:
    assert not (place / 'RESULTS.md').exists()
    assert not (place / 'figures').exists()


def test_markdown(place):
    report.main([])
    text = (place / 'RESULTS.md').read_text(encoding='utf-8')
    assert ("- [First](#first)\n  - [A title & more](#a-title--more)\n"
            "- [The paper's claims](#the-papers-claims)\n") in text
    assert '## First\n\n### A title & more\n\n*Is it <so>?*\n\n' in text
    assert '\n\nYes &amp; in 2 rows.\n\n**Much &lt;i&gt;**\n\n' in text
    assert '![A "small" &lt;figure&gt;](figures/one_small.png)' in text
    assert (place / 'figures' / 'one_small.png').exists()
    assert ('`python -m benchmarks one`: 2 rows of '
            '[one.csv](results/one.csv).') in text
    assert 'Second' not in text  # which has no rows
    assert f"""
## The paper's claims

| the paper | holds | measured here |
| --- | --- | --- |
| AGCN &lt;b&gt;wins&lt;/b&gt; &amp; "more" | yes | a \\| b &lt; 1 |
| It is fast. | no | Twice the time. |
| It is deep. | not shown | {'x' * 300} |

What in the paper does not add up:

- """ in text
    assert results.README.read_text() == 'Nothing is generated here.'


def test_long_tables_are_folded(place, monkeypatch):
    monkeypatch.setattr(report, 'LONG', 1)
    report.main([])
    markdown = (place / 'RESULTS.md').read_text(encoding='utf-8')
    assert '**Much &lt;i&gt;**' in markdown  # the first never is
    assert '<details><summary>Numbers</summary>\n\n| x | n |' in markdown
    page = (place / 'report.html').read_text(encoding='utf-8')
    assert '<details open>\n<summary>Much &lt;i&gt;</summary>' in page
    assert '<details>\n<summary>Numbers</summary>' in page

    # Tables beside the main ones are in the page alone, and folded:
    one = sys.modules['benchmarks.one']
    one.main_tables = lambda rows: {'Much <i>': one.tables(rows)['Much <i>']}
    monkeypatch.setattr(report, 'LONG', 9)
    report.main([])
    assert 'Numbers' not in (place / 'RESULTS.md').read_text(encoding='utf-8')
    page = (place / 'report.html').read_text(encoding='utf-8')
    assert page.count('<details>\n<summary>Numbers</summary>') == 1


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
    sections = [report.Section(name, False, None)
                for name in ['table', 'noise', 'speed', 'depth']]
    text = (report.ROOT.parent / 'README.md').read_text(encoding='utf-8')
    for name, content in [('reasons', report.readme_reasons(sections)),
                          ('results', report.readme_table(sections))]:
        assert report.fill_block(text, name, content) == text


def test_the_table_of_the_readme():
    table, noise = (report.Section(name, False, None)
                    for name in ['table', 'noise'])
    text = report.readme_table([table, noise])
    lines = text.splitlines()
    assert lines[0] == '|  | Cora | CiteSeer | PubMed |'
    assert 4 < len(lines) <= 2 + 8 and '–' not in text
    assert any(line.startswith('| GCN with AnisotropicWeights')
               for line in lines)


@pytest.mark.parametrize('content', ['', 'value,date,commit,versions\n'])
def test_a_table_without_rows(place, content):
    (place / 'two.csv').write_text(content)
    report.main([])
    text = Page((place / 'report.html').read_text(encoding='utf-8')).text
    assert text.count('Not run yet: python -m benchmarks two') == 1
    assert (place / 'two.csv').read_text() == content


def test_a_table_of_something_else(place):
    (place / 'two.csv').write_text('name;price\napple;1,5\n')
    with pytest.raises(SystemExit, match=r"two.csv' is of another version"):
        report.main([])
    assert not (place / 'report.html').exists()


def test_a_report_that_cannot_be_written(place):
    with pytest.raises(SystemExit, match='cannot be written'):
        report.main(['--out', str(place)])


def test_experiments_of_the_repository(tmp_path, monkeypatch):
    # On no rows at all, each is there with its command.
    monkeypatch.setattr(runner, 'QUICK', tmp_path)
    sections = report.read(tmp_path, quick=True)
    page = Page(report.page(sections, quick=True))
    check(page)
    names = [name for group in report.GROUPS.values() for name in group]
    assert len(names) == len(set(names)) == len(sections)
    for section in sections:
        assert f'Not run yet: {section.command}' in page.text
        assert section.module.QUESTION.endswith('?')
        assert section.answer == ''
    assert set(report.OPENING) <= set(names)
