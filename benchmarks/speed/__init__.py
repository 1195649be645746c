r"""Speed: time and memory beside PyG and torch, case by case.

A case is a question (``--help`` names them all). Every case and size runs in a
fresh process on one thread; its variants take turns there, after a first round
that does not count. Times are those of the processor, and medians. Memory is
measured in processes of its own, one for each variant: the peak of resident
memory above graph and features, in five calls. For ``complexity`` and
``recompute`` it is the sum of all tensors at its peak.

``malloc`` says how freed memory is treated: ``default`` is the C library as it
is, which hands large tensors back to the system; ``kept`` is after
:meth:`torch_agcn.keep_memory`; ``tcmalloc`` is with this library preloaded.
"""
import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t

from benchmarks import runner
from benchmarks.results import FIGURES, Claim
from benchmarks.speed.cases import (
    CASES,
    COMPLEXITY,
    CSR,
    EDGES,
    HALF_OPEN,
    LEAVES_CACHE,
    PAPER,
    RELATIVE,
    SPARSE,
)
from benchmarks.speed.graphs import Size
from benchmarks.speed.measure import TABLE, Case, run_missing
from benchmarks.stats import decide

QUESTION = 'How fast is it, and how much memory does it take?'
AXES = ['nodes', 'edges', 'features']
UNITS = {'time': ('milliseconds', 'ms'), 'memory': ('megabytes', 'MB')}
MALLOC_NAMES = {'default': 'default', 'kept': 'keep_memory()',
                'tcmalloc': 'tcmalloc'}
FITTED = 4  # the largest sizes, where there is no such split
# The exponents of the paper's O(|E| F + N F^2) and O(N F + F^2):
PAPERS = {'time': dict(zip(AXES, [1, 1, 2])),
          'memory': dict(zip(AXES, [1, 0, 2]))}
ROUNDING = 1e-3  # exponents are compared as printed, with two digits
CAPTIONS = {
    'speed_complexity': 'Processor time of a forward and backward pass of one '
    'layer against one size, with the other two fixed. Medians.'}


# Numbers #####################################################################


class Fit(NamedTuple):
    r"""An exponent, and half of its 95 % interval."""

    slope: float
    half: float

    def __str__(self) -> str:
        return f'{self.slope:.2f} ± {self.half:.2f}'


def of_case(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    r"""The rows of the latest commit that has any of a case."""
    part = rows[(rows.case == name)
                & rows.variant.isin(list(CASES[name].variants))
                & rows.graph.isin([s.graph for s in CASES[name].sizes])]
    return part[part.commit == part.commit.iloc[-1]] if len(part) else part


def along(part: pd.DataFrame, axis: str) -> pd.DataFrame:
    r"""The rows that differ in one size alone: those with the most sizes."""
    groups = [group for _, group in part.groupby(
        [name for name in AXES if name != axis])]
    found = max(groups, key=lambda group: group[axis].nunique(),
                default=part)
    return found if found[axis].nunique() > 2 else part[:0]


def values(part: pd.DataFrame, axis: str, measured: str) -> pd.DataFrame:
    r"""All that was measured, by size and repeat, a column per variant."""
    part = part[part.measured == measured]
    return part.pivot(index=[axis, 'repeat'], columns='variant',
                      values=UNITS[measured][0])[part.variant.unique()]


def medians(wide: pd.DataFrame) -> pd.DataFrame:
    r"""One line for each size."""
    return wide.groupby(level=0).median()


def exponent(series: pd.Series, split: int | None = None) -> Fit | None:
    r"""The slope of the logarithms of all values, from a size on or of the
    largest sizes, if there are three. Each repeat has a level of its own.
    """
    series = series[series > 0].sort_index()
    sizes = series.index.unique(0)
    sizes = sizes[sizes >= split] if split else sizes[-FITTED:]
    if len(sizes) < 3:
        return None
    series = series.loc[sizes]
    logs = np.log(pd.DataFrame({
        'x': series.index.get_level_values(0), 'y': series.to_numpy()},
        series.index, dtype=float))
    repeats = logs.groupby(level=1)
    x, y = (logs - repeats.transform('mean')).to_numpy().T
    slope, free = float(x @ y / (x @ x)), len(x) - repeats.ngroups - 1
    error = math.sqrt(((y - slope * x)**2).sum() / free / (x @ x))
    return Fit(slope, float(t.ppf(0.975, free)) * error)


# Tables ######################################################################


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""What was measured, case by case; of ``complexity`` the figure and the
    claims say it all.
    """
    out = {}
    for name, case in CASES.items():
        part = of_case(rows, name)
        if name == 'scaling':
            out.update(growth(part))
        elif name != 'complexity' and len(part):
            fixed = ', '.join(f'{part[key].iloc[0]:,} {key}' for key in AXES
                              if part[key].nunique() == 1)
            out[f'{name}: {case.question}' + f' ({fixed})' * bool(fixed)] = (
                side_by_side(case, part))
    return out


def side_by_side(case: Case, part: pd.DataFrame) -> pd.DataFrame:
    r"""A line for each variant on each size."""
    wide = part.assign(value=part.milliseconds.fillna(part.megabytes))
    wide = wide.pivot_table('value', [*Size._fields, 'variant'],
                            ['measured', 'malloc'], 'median', sort=False)
    out = wide.index.to_frame(index=False)
    out[AXES] = out[AXES].map('{:,}'.format)
    empty = pd.Series(math.nan, wide.index)
    for measured in part.measured.unique():
        for malloc in case.malloc:
            unit = UNITS[measured][1] + f', {MALLOC_NAMES[malloc]}' * (
                len(case.malloc) > 1)
            out[unit] = [*map(_number, wide.get((measured, malloc), empty))]
        if measured == 'time':
            kept = wide.get(('time', 'kept'), empty)
            out[case.beside] = [
                _number(ms / kept.get((*size, case.reference(name)), math.nan),
                        '.2f') for (*size, name), ms in kept.items()]
    return out.drop(columns=[key for key in Size._fields
                             if part[key].nunique() == 1])


def growth(part: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""A line for each variant and a column for each number of edges, and
    exponents.
    """
    out = {}
    for measured, (_, unit) in UNITS.items():
        wide = values(part, 'edges', measured)
        frame = medians(wide).T.map(_number)
        frame.columns = [f'{edges:,} edges' for edges in frame]
        if measured == 'time':
            small = wide.query(f'edges < {LEAVES_CACHE}')
            frame['exponent in the cache'] = [
                str(exponent(small[name]) or '–') for name in wide]
        frame['exponent'] = [str(exponent(wide[name], LEAVES_CACHE) or '–')
                             for name in wide]
        if len(frame):
            out[f'scaling: {measured.capitalize()} against edges, and the '
                f'exponent of a fitted power'] = (
                    frame.rename_axis(unit).reset_index())
    return out


def answer(rows: pd.DataFrame) -> str:
    r"""A layer beside GCNConv, in time and memory."""
    part = of_case(rows, 'layer')
    part = part[part.malloc == 'kept']
    found = part.groupby('variant')[['milliseconds', 'megabytes']].median()
    if not {PAPER, RELATIVE, EDGES} <= set(found.index):
        return ''
    times = found / found.loc[EDGES]
    texts = [f'{times.milliseconds[name]:.2f} times the time and '
             f'{times.megabytes[name]:.2f} times the memory with {name}'
             for name in [PAPER, RELATIVE]]
    return ('A forward and backward pass of a layer takes, beside GCNConv on '
            f'an edge_index and after keep_memory(), {" and ".join(texts)}.')


def main_tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""The cases that are shown beside the figures."""
    return {title.split(': ', 1)[1]: frame
            for title, frame in tables(rows).items()
            if title.split(':')[0] in ['layer', 'order', 'scaling']}


def _number(value: float | None, form: str = '.3g') -> str:
    if value is None or value != value:
        return '–'
    return f'{value:,.0f}' if value >= 100 else f'{value:{form}}'


# Claims ######################################################################


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""Those of the paper's paragraph on complexity."""
    part, big = (of_case(rows, name) for name in ['complexity', 'scaling'])
    return [*([_formula(part, 'time', 'O(|E| F + N F^2)'),
               _formula(part, 'memory', 'O(N F + F^2)'), _trace(part)]
              if len(part) else []),
            *([_one_big_graph(big)] if len(big) else [])]


def below(ours: Fit | None, gcn: Fit | None,
          bound: float) -> tuple[float, float] | None:
    r"""By how much an exponent, as printed, is below the upper end of that of
    GCN in the same run, or below that of the paper's formula where this is
    larger: the ends of its 95 % interval.
    """
    if ours is None or gcn is None:
        return None
    most = max(bound, gcn.slope + gcn.half)
    return (round(most, 2) - round(ours.slope + ours.half, 2),
            round(most, 2) - round(ours.slope - ours.half, 2))


def _formula(part: pd.DataFrame, measured: str, formula: str) -> Claim:
    found, texts = [], []
    for axis, bound in PAPERS[measured].items():
        wide = values(along(part, axis), axis, measured)
        gcn, *fits = (exponent(wide[name]) if name in wide else None
                      for name in COMPLEXITY)
        found += [below(fit, gcn, bound) for fit in fits]
        if gcn and all(fits):
            texts.append(f'{axis} {", ".join(map(str, fits))} (GCN {gcn}, '
                         f'paper {bound})')
    return Claim(
        f'AGCN needs {formula} in {measured}, as GCN does.',
        decide(found, -ROUNDING), f"Beside the larger of the paper's exponent "
        f"and GCN's in the same run. Exponents of "
        f'{"; ".join(COMPLEXITY[1:])}: {"; ".join(texts)}.' if texts else
        'Not enough sizes yet.')


def _trace(part: pd.DataFrame) -> Claim:
    r"""What the paper's energy costs: the time with a gate half open beyond
    that with a saturated one, which needs a few edges only.
    """
    fits = {}
    for axis in AXES:
        wide = values(along(part, axis), axis, 'time')
        fits[axis] = (exponent(wide[HALF_OPEN] - wide[PAPER])
                      if {PAPER, HALF_OPEN} <= set(wide) else None)
    holds, edges = 'not shown', fits['edges']
    if edges and all(fits.values()):
        # It would be independent of the edges, and not proportional to them.
        holds = ('no' if edges.slope - edges.half > 0.01 else
                 'yes' if edges.slope + edges.half < 1 else holds)
    text = ', '.join(f'{axis} {fit}' for axis, fit in fits.items() if fit)
    return Claim(
        'The trace, and with it the nonlinearity of AGCN, costs O(N F^2).',
        holds, f'Exponents of the time that a gate which is half open takes '
        f'beyond a saturated one: {text}; O(N F^2) would be 1, 0 and 2, and '
        f'a sum over all edges and loops, O((|E| + N) F), at most 1, 1 and '
        f'1.' if text else 'Not enough sizes yet.')


def _one_big_graph(part: pd.DataFrame) -> Claim:
    most, found, texts = part.edges.max(), [], []
    for measured in UNITS:
        wide = values(part, 'edges', measured)
        middle = medians(wide).T.get(most, pd.Series(dtype=float)).dropna()
        gcn = min([name for name in [EDGES, CSR, SPARSE] if name in middle],
                  key=middle.__getitem__, default='')
        fits = {name: exponent(wide[name], LEAVES_CACHE)
                for name in middle.index}
        for name in [PAPER, RELATIVE]:
            ours, other = fits.get(name), fits.get(gcn)
            found.append(below(ours, other, 1))
            if ours and other:
                texts.append(f'{measured} of {name} {ours}, {gcn} {other} '
                             f'({middle[name] / middle[gcn]:.2f} times as '
                             f'much)')
    return Claim(
        'AGCN has the same time and memory complexity as GCN. (one big '
        'graph)', decide(found, -ROUNDING), f'Exponents against edges up to '
        f'{most:,}, beside the best form of GCN, where features do not fit '
        f'into the cache: {"; ".join(texts)}.' if texts else
        'Not enough sizes yet.')


# Figures #####################################################################


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""The time of a layer against each size."""
    # Not where memory is measured:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator

    from benchmarks import plots
    part = of_case(rows, 'complexity')
    if part.empty:
        return []
    figure, axes = plots.panels(3, 3.4, 4.0, 0.6, sharey=True)
    for panel, axis in zip(axes, AXES):
        own = along(part, axis)
        wide = medians(values(own, axis, 'time'))
        for variant in wide:
            style = plots.style_of(variant)
            if variant == HALF_OPEN:  # beside AGCN (paper)
                style = {**style, 'linestyle': ':', 'markerfacecolor': 'white'}
            panel.plot(wide[variant].dropna(), label=variant, **style)
        panel.set_xlabel(axis)
        if len(wide):
            panel.set_title(', '.join(
                f'{own[other].iloc[0]:,} {other}' for other in AXES
                if other != axis), fontsize=12)
            panel.set(xscale='log', yscale='log')
            panel.minorticks_off()
            panel.yaxis.set_major_formatter(FuncFormatter(
                lambda value, _: f'{value:,.10g}'))
            panel.xaxis.set_major_formatter(EngFormatter(sep=''))
            if wide.index.max() < 100 * wide.index.min():
                panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0].set_ylabel('time of a layer (ms)')
    plots.legend_below(figure)
    return plots.save(figure, folder, 'speed_complexity')


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        'python -m benchmarks speed',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='\n'.join(f'  {name:12} {case.question}'
                         for name, case in CASES.items()))
    parser.add_argument('cases', nargs='*', metavar='CASE',
                        help='(default: all)')
    parser.add_argument('--quick', action='store_true',
                        help=f"small graphs, in '{runner.QUICK}'")
    parser.add_argument('--show', action='store_true',
                        help='only print and draw what is there')
    args = parser.parse_args(argv)
    for name in args.cases:
        if name not in CASES:
            parser.error(f"there is no case '{name}'; there are "
                         f'{", ".join(CASES)}')
    table = runner.table_of(TABLE, args)
    cases = {name: case.quick() if args.quick else case
             for name, case in CASES.items()
             if name in (args.cases or CASES)}
    failed = [] if args.show else run_missing(cases, table)
    runner.show(sys.modules[__name__], table.read(),
                runner.QUICK if args.quick else FIGURES)
    runner.report(failed)
