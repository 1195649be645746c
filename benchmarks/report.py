r"""All tables, figures and claims as one HTML file that needs nothing else.

It is made from the rows of all experiments alone; ``--readme`` writes the
claims into the README instead, and the tables of experiments that have a
place there.
"""
import argparse
import importlib
import re
import struct
from base64 import b64encode
from collections import Counter
from html import escape
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import pandas as pd

from benchmarks import runner
from benchmarks.results import (
    Claim,
    Table,
    has_section,
    markdown_table,
    write_sections,
    write_whole,
)

EXPERIMENTS = ['table', 'boxplot', 'labels', 'significance', 'tsne',
               'history', 'depth', 'ablation', 'beta', 'speed', 'minibatch',
               'distributed', 'hetero', 'tasks', 'noise', 'bfloat16']
MARKS = {'yes': '✓', 'no': '✗', 'not shown': '?'}
NUMBER = re.compile(r'(\*\*)?[-+−]?\d|–$')  # how a cell of numbers begins
LARGEST_SVG = 300_000  # bytes; a PNG is smaller where there are many points
TEMPLATE = Path(__file__).with_name('report.template.html')


class Section(NamedTuple):
    r"""An experiment, its rows, and what they say."""

    name: str
    module: ModuleType
    rows: pd.DataFrame
    claims: list[Claim]
    command: str

    @property
    def title(self) -> str:
        r"""The first line of the module's docstring."""
        line = (self.module.__doc__ or self.name).strip().splitlines()[0]
        return line.rstrip('.')


def read(quick: bool = False) -> list[Section]:
    r"""All experiments, with the rows of each that belong to it."""
    sections = []
    for name in EXPERIMENTS:
        module = importlib.import_module(f'benchmarks.{name}')
        table = module.TABLE
        if quick:
            table = Table(runner.QUICK / table.path.name, table.own_columns)
        rows = table.read()
        if hasattr(module, 'own_rows'):  # of a table it shares with others
            rows = module.own_rows(rows)
        sections.append(Section(
            name, module, rows, module.claims(rows) if len(rows) else [],
            f'python -m benchmarks {name}{" --quick" * quick}'))
    return sections


# HTML ########################################################################


def page(sections: list[Section], quick: bool = False) -> str:
    r"""The whole file."""
    count = Counter(claim.holds for section in sections
                    for claim in section.claims)
    tally = [f'{_badge(holds)} {count[holds]}' for holds in MARKS]
    if quick:
        tally.append('first looks with few runs, no results')
    return Template(TEMPLATE.read_text(encoding='utf-8')).substitute(
        command=f'python -m benchmarks report{" --quick" * quick}',
        tally=', '.join(tally), summary=''.join(map(_summary, sections)),
        sections=''.join(map(_section, sections)))


def _badge(holds: str) -> str:
    return (f'<span class="badge {holds.replace(" ", "-")}">{MARKS[holds]} '
            f'{escape(holds)}</span>')


def _summary(section: Section) -> str:
    lines = ''.join(
        f'<tr><td><a href="#{section.name}-{i}">{escape(claim.paper)}</a></td>'
        f'<td>{_badge(claim.holds)}</td><td>{escape(claim.measured)}</td></tr>'
        for i, claim in enumerate(section.claims))
    if section.rows.empty:
        lines = f'<tr><td colspan="3">{_missing(section)}</td></tr>'
    return (f'<tbody><tr><th colspan="3" scope="rowgroup">'
            f'<a href="#{section.name}">{escape(section.title)}</a></th></tr>'
            f'{lines}</tbody>')


def _missing(section: Section) -> str:
    return f'Not run yet: <code>{escape(section.command)}</code>'


def _section(section: Section) -> str:
    if section.rows.empty:
        content = f'<p>{_missing(section)}</p>'
    else:
        claims = ''.join(
            f'<div class="claim" id="{section.name}-{i}"><p><b>The paper:</b> '
            f'{escape(claim.paper)}</p><p>{_badge(claim.holds)} '
            f'{escape(claim.measured)}</p></div>'
            for i, claim in enumerate(section.claims))
        tables = ''.join(
            f'<h3>{escape(title)}</h3>{_table(title, frame)}'
            for title, frame in section.module.tables(section.rows).items())
        content = f'{claims}{_figures(section)}{tables}{_source(section)}'
    return (f'<section id="{section.name}"><h2>{escape(section.title)}</h2>'
            f'{content}</section>')


def _table(title: str, frame: pd.DataFrame) -> str:
    lines = [[_text(value) for value in line]
             for line in frame.itertuples(index=False, name=None)]
    kinds = [' class="number"' * all(map(NUMBER.match, column))
             for column in zip(*lines)] or [''] * len(frame.columns)
    head = ''.join(f'<th scope="col"{kind}>{escape(str(name))}</th>'
                   for name, kind in zip(frame.columns, kinds))
    body = ''.join(
        '<tr>' + ''.join(f'<td{kind}>{_bold(text)}</td>'
                         for text, kind in zip(line, kinds)) + '</tr>'
        for line in lines)
    return (f'<div class="scroll" tabindex="0" role="region" aria-label='
            f'"{escape(title)}"><table><thead><tr>{head}</tr></thead><tbody>'
            f'{body}</tbody></table></div>')


def _text(value: Any) -> str:
    if pd.isna(value):
        return '–'
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def _bold(text: str) -> str:
    # As the tables for the README have it:
    return re.sub(r'^\*\*(.+)\*\*$', r'<b>\1</b>', escape(text))


def _figures(section: Section) -> str:
    captions = getattr(section.module, 'CAPTIONS', {})
    out = []
    with TemporaryDirectory() as folder:
        paths = section.module.draw(section.rows, Path(folder))
        for png in [path for path in paths if path.suffix == '.png']:
            text = escape(captions.get(png.stem, png.stem.replace('_', ' ')))
            out.append(f'<figure><div class="scroll" tabindex="0" role='
                       f'"region" aria-label="Figure">{_image(png, text)}'
                       f'</div><figcaption>{text}</figcaption></figure>')
    return ''.join(out)


def _image(png: Path, alt: str) -> str:
    content, kind, svg = png.read_bytes(), 'png', png.with_suffix('.svg')
    # 144 dots of the PNG are an inch, and so are 96 pixels of a page:
    width, height = (n * 2 // 3 for n in struct.unpack('>II', content[16:24]))
    if svg.exists() and svg.stat().st_size <= LARGEST_SVG:
        content, kind = svg.read_bytes(), 'svg+xml'
    # Smaller than this, the text in a figure cannot be read:
    return (f'<img src="data:image/{kind};base64,{b64encode(content).decode()}'
            f'" alt="{alt}" width="{width}" height="{height}" '
            f'style="min-width:{width // 2}px">')


def _source(section: Section) -> str:
    rows = section.rows
    dates = ' to '.join(dict.fromkeys([rows.date.min(), rows.date.max()]))
    text = (f'made {len(rows)} rows of {section.module.TABLE.path.name}, '
            f'{dates}; commits: {", ".join(rows.commit.astype(str).unique())};'
            f' versions: {"; ".join(rows.versions.unique())}')
    return (f'<p class="source"><code>{escape(section.command)}</code> '
            f'{escape(text)}</p>')


# README ######################################################################


def readme(sections: list[Section]) -> str:
    r"""All claims as a table for the README."""
    return markdown_table(pd.DataFrame(
        [[_plain(text) for text in claim] for section in sections
         for claim in section.claims],
        columns=['the paper', 'holds', 'measured here']))


def in_readme(section: Section) -> str:
    r"""The tables of an experiment for the README, or some of them."""
    module = section.module
    tables = getattr(module, 'readme_tables', module.tables)(section.rows)
    return '\n\n'.join(f'{title.removesuffix("?")}:\n\n'
                       f'{markdown_table(frame)}'
                       for title, frame in tables.items())


def _plain(text: str) -> str:
    return escape(' '.join(text.split()), quote=False).replace('|', '\\|')


def main(argv: list[str]) -> None:
    options = argparse.ArgumentParser('python -m benchmarks report')
    options.add_argument('--out', type=Path, default=Path('report.html'),
                         help='the file (default: %(default)s)')
    options.add_argument('--readme', action='store_true', help='write the '
                         'claims and some tables into the README, and nothing '
                         'else')
    options.add_argument('--quick', action='store_true',
                         help=f"of the first looks in '{runner.QUICK}'")
    args = options.parse_args(argv)
    if args.readme and args.quick:
        options.error('first looks are no results for the README: leave out '
                      'one of --readme and --quick')
    sections = read(args.quick)
    if args.readme:
        texts = {'claims': readme(sections)}
        for section in sections:
            # That of Table 1 has more to say:
            if (has_section(section.name) and section.name != 'table'
                    and len(section.rows)):
                texts[section.name] = in_readme(section)
        return write_sections(texts)
    write_whole(args.out, page(sections, args.quick))
    print(args.out)
