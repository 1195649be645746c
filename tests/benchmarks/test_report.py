import shutil
import subprocess
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
BROWSER = next(filter(None, map(shutil.which, [
    'chromium', 'chromium-browser', 'google-chrome'])), None)


def experiment(name, table, title='A title & more.'):
    r"""A module as those that the report shows."""
    module = ModuleType(f'benchmarks.{name}', f'{title}\n\nMore.')
    module.TABLE = table
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
    monkeypatch.setattr(report, 'EXPERIMENTS', ['one', 'two'])
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
    assert len(page.of('img')) == 2
    assert [image['alt'] for image in page.of('img')] == [
        'A "small" <figure>', 'one wide']
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
    assert page.text.count('Not run yet: python -m benchmarks two') == 2

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
    with pytest.raises(SystemExit):
        report.main(['--quick', '--readme'])


def test_readme(place, monkeypatch):
    readme = place / 'README.md'
    readme.write_text('a\n<!-- claims -->\n<!-- /claims -->\nb\n')
    monkeypatch.setattr(results, 'README', readme)
    report.main(['--readme'])
    assert readme.read_text().splitlines() == [
        'a', '<!-- claims -->',
        '| the paper | holds | measured here |', '| --- | --- | --- |',
        '| AGCN &lt;b&gt;wins&lt;/b&gt; &amp; "more" | yes '
        '| a \\| b &lt; 1 |',
        '| It is fast. | no | Twice the time. |',
        f'| It is deep. | not shown | {"x" * 300} |', '<!-- /claims -->', 'b']
    assert not (place / 'report.html').exists()


def test_readme_with_a_wrong_marker_is_left_alone(place, monkeypatch):
    readme = place / 'README.md'
    text = '<!-- claims -->\nold\n<!-- /claims -->\n<!-- one -->\n'
    readme.write_text(text)
    monkeypatch.setattr(results, 'README', readme)
    monkeypatch.setattr(sys.modules['benchmarks.one'], 'tables',
                        lambda rows: {})
    with pytest.raises(ValueError, match="no section 'one'"):
        report.main(['--readme'])
    assert readme.read_text() == text


@pytest.mark.parametrize('content', ['', 'value,date,commit,versions\n'])
def test_a_table_without_rows(place, content):
    (place / 'two.csv').write_text(content)
    report.main([])
    text = Page((place / 'report.html').read_text(encoding='utf-8')).text
    assert text.count('Not run yet: python -m benchmarks two') == 2
    assert (place / 'two.csv').read_text() == content


@pytest.mark.parametrize('argv', [[], ['--readme']])
def test_a_table_of_something_else(place, argv):
    (place / 'two.csv').write_text('name;price\napple;1,5\n')
    with pytest.raises(SystemExit, match=r"two.csv' is of another version"):
        report.main(argv)
    assert not (place / 'report.html').exists()


def test_a_report_that_cannot_be_written(place):
    with pytest.raises(SystemExit, match='cannot be written'):
        report.main(['--out', str(place)])


def test_tables_with_a_place_in_the_readme(place, monkeypatch):
    readme = place / 'README.md'
    readme.write_text(''.join(f'<!-- {name} -->\n<!-- /{name} -->\n'
                              for name in ['claims', 'one', 'two']))
    monkeypatch.setattr(results, 'README', readme)
    monkeypatch.setattr(
        sys.modules['benchmarks.one'], 'tables',
        lambda rows: {'Rows': pd.DataFrame({'n': [len(rows)]})})
    report.main(['--readme'])
    # Of the second, there are no rows.
    assert readme.read_text().endswith(
        '<!-- one -->\nRows:\n\n| n |\n| --- |\n| 2 |\n<!-- /one -->\n'
        '<!-- two -->\n<!-- /two -->\n')


def test_experiments_of_the_repository(tmp_path, monkeypatch):
    # On no rows at all, each is there with its command.
    monkeypatch.setattr(runner, 'QUICK', tmp_path)
    sections = report.read(quick=True)
    assert [section.name for section in sections] == report.EXPERIMENTS
    page = Page(report.page(sections, quick=True))
    check(page)
    for name in report.EXPERIMENTS:
        assert f'Not run yet: python -m benchmarks {name} --quick' in page.text


@pytest.mark.skipif(BROWSER is None, reason='needs Chromium')
@pytest.mark.parametrize('width', [390, 1280])
def test_fits_the_window(place, width):
    report.main([])
    text = (place / 'report.html').read_text(encoding='utf-8')
    # A frame of that width, as windows have a least width; the page says how
    # wide it is, for which its policy has to allow a script.
    assert "default-src 'none'" in text
    text = text.replace("default-src 'none'", "script-src 'unsafe-inline'")
    script = ("<script>onload = () => parent.postMessage(["
              "document.documentElement.scrollWidth, innerWidth,"
              "document.images.length, [...document.images].filter("
              "i => i.complete && i.naturalWidth).length,"
              "[...document.querySelectorAll('.scroll')].filter("
              "e => e.scrollWidth > e.clientWidth).length], '*')</script>")
    (place / 'report.html').write_text(text.replace('</body>',
                                                    f'{script}</body>'))
    (place / 'frame.html').write_text(
        '<!DOCTYPE html><body><script>onmessage = e => document.body'
        '.append(`measured ${e.data}.`)</script><iframe src="report.html" '
        f'style="border:0" width="{width}" height="800"></iframe>')
    out = subprocess.run(
        [BROWSER, '--headless', '--no-sandbox', '--disable-gpu',
         '--no-first-run', '--disable-background-networking',
         '--disable-component-update', '--disable-sync',
         f'--user-data-dir={place / "profile"}', '--dump-dom',
         '--virtual-time-budget=10000', '--window-size=1400,900',
         (place / 'frame.html').as_uri()],
        capture_output=True, text=True, timeout=120, check=True).stdout
    measured = out.split('measured ')[-1].split('.')[0]
    page, window, images, loaded, scrolling = map(int, measured.split(','))
    assert window == width and page <= window
    assert images == loaded == 2
    # The wide table and figure scroll in boxes of their own:
    assert scrolling == 2
