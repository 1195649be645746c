r"""All results: RESULTS.md, the figures, and one HTML file that needs nothing.

They are made from the rows of all experiments alone. So are two blocks of the
README: what stands between the lines ``<!-- reasons -->`` and
``<!-- /reasons -->``, and between ``<!-- results -->`` and
``<!-- /results -->``.
"""
import argparse
import importlib
import re
import struct
from base64 import b64encode
from collections import Counter
from functools import cached_property
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pandas as pd
from jinja2 import Template
from markupsafe import Markup

from benchmarks import results, runner
from benchmarks.data import CITATION
from benchmarks.results import (
    FIGURES,
    ROOT,
    Claim,
    Table,
    markdown_table,
    write_whole,
)
from benchmarks.settings import METHODS, latest

GROUPS = {
    'Accuracy': ['table', 'significance', 'labels'],
    'Depth and smoothing': ['depth', 'ablation', 'beta', 'history', 'tsne'],
    'Wrong edges and other graphs': ['noise', 'tasks', 'hetero'],
    'Time, memory and scale': ['speed', 'bfloat16', 'minibatch',
                               'distributed']}
MARKS = {'yes': '✓', 'no': '✗', 'not shown': '?'}
NUMBER = re.compile(r'(\*\*)?[-+−]?\d|–$')  # how a cell of numbers begins
LONG = 15  # lines from which on a table is folded
LARGEST_SVG = 300_000  # bytes; a PNG is smaller where there are many points
TEMPLATE = Path(__file__).with_name('report.template.html')
MARKDOWN = ROOT / 'RESULTS.md'
LIMITS = [
    'Width, weight decay and hops of DiffusedMLP are from first experiments '
    'that looked at test accuracies on Cora and CiteSeer; its grid was then '
    'set, and chosen from, by validation alone.',
    'MLP, SemiEmb, GIN and GCN-PN were searched again after first results, '
    'test accuracies among them, had been seen.',
    'While AnisotropicWeights were made, test accuracies of other seeds than '
    'those shown were seen.',
    'Test accuracies of DeepAGCN had been seen before its depth was searched, '
    'and before it was joined with AnisotropicWeights.',
    'DiffusedMLP with one layer and with 256 channels were added, and their '
    'grids set by validation, when the test accuracies of all other rows had '
    'been seen.',
    'Where AGCN (paper) has a large standard deviation, single runs failed: '
    "on CiteSeer's random splits a gate closed for good, and on CIFAR10 "
    'nearly all hidden units of a few networks died, with it as with the GCN '
    'that has its settings.',
    'DiffusedMLP with 256 channels was searched over four settings, and the '
    'GCN with 256 channels has those of the GCN with the long schedule.']
PAPER = [
    'Its equation (9), the two-layer network, propagates once; its layers '
    'propagate each time. AGCN (paper) does the latter, and Table 1 has a row '
    'of the former.',
    'The label rates of Cora and CiteSeer are swapped: Cora has 0.052, '
    'CiteSeer 0.036. CiteSeer has 3,327 nodes in this form.',
    'Baselines are on the fixed split, AGCN is on random ones.',
    'The gate is one number per layer, and hence not anisotropic.',
    'The trace costs O(|E| F), not O(N F²).']
PICTURES = {
    'aggregation': 'What AGCN (paper) aggregates. Left: features, whose '
    'energy sets the gate. Then: by how much the marked node counts each '
    'node in one layer and in two, which is the gate times the normalized '
    'adjacency matrix.',
    'samples': 'Images of CIFAR10 and MNIST, as drawn with seed 0.'}


class Section:
    r"""An experiment, its rows, and what they say."""

    def __init__(self, name: str, quick: bool, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.module: ModuleType = importlib.import_module(
            f'benchmarks.{name}')
        table = self.module.TABLE
        if quick:
            table = Table(runner.QUICK / table.path.name, table.own_columns)
        self.rows = table.read()
        if hasattr(self.module, 'own_rows'):  # of a table it shares
            self.rows = self.module.own_rows(self.rows)
        self.command = f'python -m benchmarks {name}{" --quick" * quick}'
        # The first line of the module's docstring:
        line = (self.module.__doc__ or name).strip().splitlines()[0]
        self.title = line.rstrip('.')

    @cached_property
    def claims(self) -> list[Claim]:
        r"""The verdicts on the paper's claims."""
        return (runner.claims_of(self.module, self.rows)
                if len(self.rows) else [])

    @cached_property
    def answer(self) -> str:
        r"""The answer to the question, in a sentence."""
        return self.module.answer(self.rows) if len(self.rows) else ''

    @cached_property
    def figures(self) -> list[Path]:
        r"""The figures as PNG; each has an SVG beside it."""
        if self.rows.empty:
            return []
        paths = runner.figures_of(self.module, self.rows, self.folder)
        return [path for path in paths if path.suffix == '.png']

    @cached_property
    def tables(self) -> list[tuple[str, pd.DataFrame, bool]]:
        r"""The main tables: title, table, and whether it is folded, as long
        ones but the first are.
        """
        main = getattr(self.module, 'main_tables', self.module.tables)
        found = {title: without_gaps(frame)
                 for title, frame in main(self.rows).items()}
        return [(title, frame, i > 0 and len(frame) > LONG)
                for i, (title, frame) in enumerate(found.items())
                if frame is not None]

    @cached_property
    def more_tables(self) -> dict[str, pd.DataFrame]:
        r"""All other tables."""
        main = tuple(title for title, _, _ in self.tables)
        return {title: frame for title, frame
                in self.module.tables(self.rows).items()
                if not title.endswith(main)}

    def caption(self, figure: Path) -> str:
        r"""What a figure shows."""
        captions = getattr(self.module, 'CAPTIONS', {})
        return captions.get(figure.stem, figure.stem.replace('_', ' '))

    @property
    def source(self) -> str:
        r"""Where its rows are from."""
        rows = self.rows
        dates = ' to '.join(dict.fromkeys([rows.date.min(), rows.date.max()]))
        return (f'made {len(rows)} rows of {self.module.TABLE.path.name}, '
                f'{dates}; commits: {", ".join(rows.commit.unique())}; '
                f'versions: {"; ".join(rows.versions.unique())}')


def read(folder: Path, quick: bool = False) -> list[Section]:
    r"""All experiments; figures go to a folder."""
    return [Section(name, quick, folder)
            for names in GROUPS.values() for name in names]


# HTML ########################################################################


def page(sections: list[Section], quick: bool = False) -> str:
    r"""The whole file."""
    template = Template(TEMPLATE.read_text(encoding='utf-8'),
                        autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return template.render(
        command=f'python -m benchmarks report{" --quick" * quick}',
        quick=quick, marks=MARKS, sections=sections,
        opening=[(section, text, path) for section, text in _reasons(sections)
                 for path in section.figures
                 if path.stem == OPENING[section.name][0]],
        count=Counter(claim.holds for section in sections
                      for claim in section.claims),
        groups={group: own for group, names in GROUPS.items() if (
            own := [s for s in sections if s.name in names])},
        cells=cells, image=image, code=_code)


def cells(frame: pd.DataFrame) -> list[list[tuple[str, bool]]]:
    r"""The lines of a table, its head first: all texts, and whether they are
    in a column of numbers.
    """
    texts = frame.map(_text)
    kinds = [bool(len(texts)) and all(map(NUMBER.match, texts[name]))
             for name in texts]
    return [list(zip(line, kinds))
            for line in [[*texts.columns], *texts.to_numpy()]]


def _text(value: Any) -> str:
    if pd.isna(value):
        return '–'
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def _code(text: str) -> Markup:
    r"""A text with what stands in backticks as code."""
    return Markup(re.sub('`(.+?)`', r'<code>\1</code>', escape(text)))


def image(png: Path) -> tuple[str, int, int]:
    r"""A figure as a URL, its width and its height in pixels."""
    content, kind, svg = png.read_bytes(), 'png', png.with_suffix('.svg')
    # 144 dots of the PNG are an inch, and so are 96 pixels of a page:
    width, height = (n * 2 // 3 for n in struct.unpack('>II', content[16:24]))
    if svg.exists() and svg.stat().st_size <= LARGEST_SVG:
        content, kind = svg.read_bytes(), 'svg+xml'
    return (f'data:image/{kind};base64,{b64encode(content).decode()}', width,
            height)


# Markdown ####################################################################


def markdown(sections: list[Section]) -> str:
    r"""All of RESULTS.md."""
    shown = [section for section in sections if len(section.rows)]
    parts = [f'![{caption}](figures/{name}.png)\n\n{caption}'
             for name, caption in PICTURES.items()]
    for group, names in GROUPS.items():
        own = [section for section in shown if section.name in names]
        parts += [f'## {group}'] * bool(own)
        for section in own:
            parts += _markdown_section(section)
    claims = [[_plain(text) for text in claim]
              for section in shown for claim in section.claims]
    if claims:
        parts += ["## The paper's claims", markdown_table(pd.DataFrame(
            claims, columns=['the paper', 'holds', 'measured here'])),
            'What in the paper does not add up:', _bullets(PAPER)]
    return '\n\n'.join([
        '# Results', 'Made by `python -m benchmarks report` from the rows in '
        '[results](results). Differences are of runs with the same seed: '
        'their mean ± half the width of its 95 % interval. A claim of the '
        'paper holds (yes) or does not (no) where such intervals say so; else '
        'it is not shown. No interval or p-value is corrected for the number '
        'of comparisons.', _contents(parts),
        'How far the rows can be trusted:', _bullets(LIMITS), *parts]) + '\n'


def _bullets(texts: list[str]) -> str:
    return '\n'.join(f'- {text}' for text in texts)


def _contents(parts: list[str]) -> str:
    r"""A link to each heading."""
    lines = []
    for level, title in (part.split(' ', 1) for part in parts
                         if part.startswith('##')):
        anchor = re.sub(r'[^\w -]', '', title.lower()).replace(' ', '-')
        lines.append('  ' * (len(level) - 2) + f'- [{title}](#{anchor})')
    return '\n'.join(lines)


def _markdown_section(section: Section) -> list[str]:
    module, path = section.module, section.module.TABLE.path.name
    parts = [f'### {section.title}', f'*{module.QUESTION}*',
             _plain(section.answer)]
    for title, frame, is_folded in section.tables:
        text = markdown_table(frame.map(lambda value: _plain(_text(value))))
        title = _plain(title)
        parts += ([f'<details><summary>{title}</summary>', text, '</details>']
                  if is_folded else [f'**{title}**', text])
    for figure in section.figures:
        caption = _plain(section.caption(figure))
        parts += [f'![{caption}](figures/{figure.name})', caption]
    parts.append(f'`{section.command}`: {len(section.rows)} rows of '
                 f'[{path}](results/{path}).')
    return list(filter(None, parts))


def without_gaps(frame: pd.DataFrame) -> pd.DataFrame | None:
    r"""A table without columns of which more than half is missing, and
    without lines of which also the first number is, or none if not two cells
    of numbers are left.
    """
    filled = frame.map(_text) != '–'
    values = [name for name in frame if not name.endswith('published')
              and all(NUMBER.match(_text(cell)) for cell in frame[name])]
    kept = [name for name in values if filled[name].mean() >= 0.5]
    if kept:
        filled = filled[(filled[kept].mean(axis=1) >= 0.5)
                        | filled[kept[0]]]
    if values and filled[kept].to_numpy().sum() < 2:
        return None
    return frame.loc[filled.index, [name for name in frame
                                    if name not in values or name in kept]]


def _plain(text: str) -> str:
    text = escape(' '.join(text.split()), quote=False)
    return text.replace('|', '\\|')


# README ######################################################################


def readme_table(sections: list[Section]) -> str:
    r"""At most eight lines: methods on the public splits, and GCN with many
    wrong edges.
    """
    rows = {section.name: section for section in sections}
    lines = []
    found = latest(rows['table'].rows)
    found = found[found.split == 'public']
    groups = dict(iter(found.groupby(['method', 'dataset']).test_accuracy))
    for method in ['gcn', 'gat', 'appnp', 'agcn_paper', 'agcn']:
        lines.append({'': METHODS[method], **{
            d: _mean_std(groups.get((method, d))) for d in CITATION}})
    noise = rows['noise']
    for weighted, label in [(0, 'GCN, random edges +100 %'),
                            (1, 'GCN with AnisotropicWeights, random edges '
                             '+100 %')]:
        wide = {d: noise.module.wide(noise.rows, attack='random', dataset=d)
                for d in CITATION}
        lines.append({'': label, **{
            d: _mean_std(part.get(('gcn', weighted, 1.0)))
            for d, part in wide.items()}})
    frame = without_gaps(pd.DataFrame(lines))
    return '' if frame is None else markdown_table(frame)


def _mean_std(values: pd.Series | None) -> str:
    if values is None or values.count() < 2:
        return '–'
    return f'{values.mean():.1f} ± {values.std():.1f} ({values.count()})'


def readme_reasons(sections: list[Section]) -> str:
    r"""Why to use the package, with a figure each."""
    return '\n'.join(f'- **{title}** {text}'
                     for _, (title, text) in _reasons(sections))


def _reasons(
        sections: list[Section]) -> list[tuple[Section, tuple[str, str]]]:
    own = {section.name: section for section in sections}
    found = [(own[name], reason(own[name]))
             for name, (_, reason) in OPENING.items() if name in own]
    return [(section, text) for section, text in found if text]


def _edges_reason(noise: Section) -> tuple[str, str] | None:
    texts = []
    for dataset in CITATION:
        wide = noise.module.wide(noise.rows, attack='random', dataset=dataset)
        plain, ours = [wide.get(('gcn', w, 1.0)) for w in [0, 1]]
        if plain is not None and ours is not None:
            texts.append(f'{plain.mean():.1f} to {ours.mean():.1f} % on '
                         f'{dataset}')
    return ('Most of what wrong edges cost comes back.', 'With as many random '
            'edges added as there are, `AnisotropicWeights` raises the test '
            f'accuracy of a GCN from {_listed(texts)}. No labels, nothing to '
            f'tune, no cost per epoch.') if texts else None


def _speed_reason(speed: Section) -> tuple[str, str] | None:
    rows = speed.rows
    rows = rows[rows.case == 'layer']
    found = rows.groupby(['malloc', 'variant'])[
        ['milliseconds', 'megabytes']].median()
    sides = [(malloc, name) for malloc in ['default', 'kept']
             for name in ['GCN, edge_index', 'AGCN (paper)']]
    if not set(sides) <= set(found.index):
        return None
    gcn, ours, gcn_kept, kept = (found.loc[side] for side in sides)
    return ('`GCNConv`, several times faster on the CPU.', f'A forward and '
            f'backward pass of `AGCNConv` takes {ours.milliseconds:,.0f} ms '
            f'instead of {gcn.milliseconds:,.0f} on one core, or '
            f'{kept.milliseconds:,.0f} instead of '
            f'{gcn_kept.milliseconds:,.0f} where freed memory is kept, and '
            f'{ours.megabytes:,.0f} MB instead of {gcn.megabytes:,.0f} '
            f'({rows.nodes.iloc[0]:,} nodes, {rows.edges.iloc[0]:,} edges, '
            f'{rows.features.iloc[0]} features). Change one import.')


def _depth_reason(section: Section,
                  depth: int = 32) -> tuple[str, str] | None:
    rows = latest(section.rows, 'depth')
    rows = rows[(rows.dataset == 'Cora') & (rows.depth == depth)]
    found = rows.groupby('method').test_accuracy.mean()
    if not {'agcn_bare', 'appnp_bare'} <= set(found.index):
        return None
    return ('Over-smoothing: see it, and stop it.', '`SmoothnessRecorder` '
            'measures every layer of any PyG model. After '
            f'{depth} steps of propagation without restart on Cora, a '
            f'perceptron has {found["appnp_bare"]:.1f} % test accuracy, and '
            f'{found["agcn_bare"]:.1f} % where the gate of `GatedDiffusion` '
            f'decides when to stop. With a restart, as `APPNP` has one, the '
            f'gate is worth little.')


# What README and page open with: a figure of an experiment, and what to say.
OPENING = {'noise': ('noise', _edges_reason),
           'speed': ('speed_layer', _speed_reason),
           'depth': ('depth_cora', _depth_reason)}


def _listed(texts: list[str]) -> str:
    return ' and '.join(filter(None, [', '.join(texts[:-1]), texts[-1]]))


def fill_block(text: str, name: str, content: str) -> str:
    r"""A text with what stands between the two lines of a block replaced; as
    it is if it has none.
    """
    begin, end = f'<!-- {name} -->', f'<!-- /{name} -->'
    if begin not in text and end not in text:
        return text
    before, *rest = text.split(begin)
    if len(rest) != 1 or rest[0].count(end) != 1 or end in before:
        raise ValueError(f"'README.md' needs one line {begin} and, after it, "
                         f'one {end}, or neither')
    return f'{before}{begin}\n{content}\n{end}{rest[0].split(end)[1]}'


def main(argv: list[str]) -> None:
    options = argparse.ArgumentParser('python -m benchmarks report')
    options.add_argument('--out', type=Path, default=Path('report.html'),
                         help='the HTML file (default: %(default)s)')
    options.add_argument('--quick', action='store_true',
                         help=f"of the first looks in '{runner.QUICK}': the "
                         f'HTML file alone')
    args = options.parse_args(argv)
    with TemporaryDirectory() as folder:
        sections = read(Path(folder) if args.quick else FIGURES, args.quick)
        text = page(sections, args.quick)
    if not args.quick:
        readme = results.README.read_text(encoding='utf-8')
        filled = fill_block(readme, 'reasons', readme_reasons(sections))
        filled = fill_block(filled, 'results', readme_table(sections))
        write_whole(MARKDOWN, markdown(sections))
        print(MARKDOWN)
        if filled != readme:
            write_whole(results.README, filled)
            print(results.README)
    write_whole(args.out, text)
    print(args.out)
