r"""The report in a real browser: it opens, fits and leads where it says.

``make test-browser`` runs this; it wants Chromium (Debian: ``chromium``).
"""
import json
import shutil
import subprocess

import pytest

from benchmarks import report, results

BROWSER = next(filter(None, map(shutil.which, [
    'chromium', 'chromium-browser', 'google-chrome'])), None)
# What a reader does: looks at all figures, follows every link, and folds and
# unfolds every table.
READER = """
const seen = {
  page: document.documentElement.scrollWidth, window: innerWidth,
  images: document.images.length,
  loaded: [...document.images].filter(
    i => i.complete && i.naturalWidth).length,
  first: [...document.querySelectorAll('#opening figure img')].length,
  background: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color, links: 0, lost: [],
  reasons: document.querySelectorAll('#opening h3').length,
  tables: 0, stuck: 0, hidden: 0,
  narrow: [...document.querySelectorAll('.scroll')].filter(
    e => e.getBoundingClientRect().right > innerWidth + 1).length,
};
document.documentElement.style.scrollBehavior = 'auto';
for (const link of document.querySelectorAll('a')) {
  link.click();
  const id = link.getAttribute('href').slice(1);
  const target = document.getElementById(id);
  const top = target && target.getBoundingClientRect().top;
  const bottom = document.documentElement.scrollHeight - innerHeight;
  seen.links += 1;
  if (location.hash.slice(1) !== id || !target
      || (Math.abs(top) > 2 && Math.abs(scrollY - bottom) > 2))
    seen.lost.push(id);
}
for (const summary of document.querySelectorAll('summary')) {
  const fold = summary.parentElement, before = fold.open;
  seen.tables += 1;
  summary.click();
  if (fold.open === before) seen.stuck += 1;
  fold.open = true;
  if (!fold.querySelector('td').offsetHeight) seen.hidden += 1;
}
parent.postMessage(JSON.stringify(seen), '*');
"""


@pytest.fixture(scope='module')
def page(tmp_path_factory):
    r"""The report on the rows of the repository."""
    if BROWSER is None:
        pytest.fail("There is no browser: 'apt-get install chromium'")
    folder = tmp_path_factory.mktemp('report')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, 'FIGURES', folder / 'figures')
        patch.setattr(report, 'MARKDOWN', folder / 'RESULTS.md')
        patch.setattr(results, 'README', folder / 'README.md')
        results.README.write_text('')
        report.main(['--out', str(folder / 'report.html')])
    text = (folder / 'report.html').read_text(encoding='utf-8')
    # The page allows no script, and the reader is one:
    assert "default-src 'none'" in text
    text = text.replace("default-src 'none'", "script-src 'unsafe-inline'")
    (folder / 'read.html').write_text(text.replace(
        '</body>', f'<script>onload = () => {{{READER}}}</script></body>'))
    return folder


def read(page, width, *options):
    r"""What the reader saw in a window of a width."""
    # In a frame, as windows have a least width:
    (page / 'frame.html').write_text(
        '<!DOCTYPE html><body><script>onmessage = e => document.body.append('
        '`<<${e.data}>>`)</script><iframe src="read.html" style="border:0" '
        f'width="{width}" height="800"></iframe>')
    out = subprocess.run(
        [BROWSER, '--headless', '--no-sandbox', '--disable-gpu',
         '--no-first-run', '--disable-background-networking',
         '--disable-component-update', '--disable-sync',
         f'--user-data-dir={page / "profile"}', '--dump-dom',
         '--virtual-time-budget=20000', '--window-size=1400,900', *options,
         (page / 'frame.html').as_uri()],
        capture_output=True, text=True, timeout=300, check=True).stdout
    text = out.split('&lt;&lt;')[-1].split('&gt;&gt;')[0]
    return json.loads(text)


@pytest.mark.parametrize('width', [390, 1280])
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_a_reader(page, width, scheme):
    seen = read(page, width, *['--force-dark-mode',
                               '--blink-settings=preferredColorScheme=0'][
                                   :2 * (scheme == 'dark')])
    assert seen['window'] == width and seen['page'] <= width
    assert seen['narrow'] == 0
    assert seen['images'] == seen['loaded'] > 20 and seen['first'] == 3
    assert seen['reasons'] == 3
    assert seen['links'] > 40 and seen['lost'] == []
    assert seen['tables'] > 40 and seen['stuck'] == seen['hidden'] == 0
    light, dark = 'rgb(255, 255, 255)', 'rgb(22, 24, 28)'
    assert seen['background'] == (dark if scheme == 'dark' else light)
    assert seen['ink'] != seen['background']
