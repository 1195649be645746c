r"""Tables, figures and claims from the rows of all cases."""
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import linregress, t

from benchmarks.results import Claim
from benchmarks.speed.cases import (
    CASES,
    CSR,
    EDGES,
    HALF_OPEN,
    LEAVES_CACHE,
    ORDER,
    PAPER,
    RELATIVE,
    SPARSE,
)
from benchmarks.speed.graphs import Size
from benchmarks.speed.measure import Case
from benchmarks.stats import Gap, paired

QUESTION = 'How fast is it, and how much memory does it take?'
AXES = ['nodes', 'edges', 'features']
UNITS = {'time': ('milliseconds', 'ms'), 'memory': ('megabytes', 'MB')}
FITTED = 4  # sizes, where all of them are not
# The paper's O(|E| F + N F^2) in time, and O(N F + F^2) in memory, as
# exponents; and by how much a measured one may be above.
PAPERS = {'time': dict(zip(AXES, [1, 1, 2])),
          'memory': dict(zip(AXES, [1, 0, 2]))}
TOLERANCE = 0.1
AGCNS = [PAPER, HALF_OPEN, RELATIVE]
LOOKS = {EDGES: 'GCN', CSR: 'GCN-PN', SPARSE: 'GCNII', PAPER: 'AGCN (paper)',
         HALF_OPEN: 'JK-Net', RELATIVE: 'DiffusedMLP'}
CAPTIONS = {
    'speed_layer': 'Processor time of forward and backward of one layer, and '
    'of a product alone: 200,000 nodes, 2 million directed edges, 64 '
    'features. Medians, with the C library as it is and after keep_memory().',
    'speed_scaling': 'A training step of two layers on one power-law graph '
    'with 20 directed edges for each node: processor time, and the peak of '
    'memory above graph and features. Right of the grey line, features do '
    'not fit into a cache of 32 MB; the exponents in the legend are those '
    'there.',
    'speed_complexity': 'Processor time of forward and backward of one '
    'layer, medians. In the legends: the exponent for the four largest '
    'sizes, with its standard error.',
}


# Numbers #####################################################################


def of_case(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    r"""The rows of the latest commit that has any of a case."""
    part = rows[rows.case == name]
    return part[part.commit == part.commit.iloc[-1]] if len(part) else part


def along(part: pd.DataFrame, axis: str, case: Case) -> pd.DataFrame:
    r"""The rows that differ in one size alone: those with the most sizes."""
    if case.split:
        return part if axis == 'edges' else part[:0]
    others = [name for name in AXES if name != axis]
    groups = [group for _, group in part.groupby(others)]
    found = max(groups, key=lambda group: group[axis].nunique(),
                default=part)
    return found if found[axis].nunique() > 2 else part[:0]


def medians(part: pd.DataFrame, axis: str,
            measured: str) -> dict[str, pd.Series]:
    r"""Medians by size for each variant."""
    part = part[part.measured == measured]
    return {str(variant): own.groupby(axis)[UNITS[measured][0]].median()
            for variant, own in part.groupby('variant', sort=False)}


def exponent(series: pd.Series,
             split: int | None = None) -> tuple[float, float]:
    r"""The slope of the logarithms, from a size on or of the largest ones,
    and its standard error; NaN if there are too few.
    """
    series = series[series > 0].sort_index()
    series = (series[series.index >= split] if split else
              series.iloc[-FITTED:])
    if len(series) < 3:
        return math.nan, math.nan
    if series.nunique() == 1:
        return 0.0, 0.0
    fit = linregress(np.log(series.index.to_numpy(float)),
                     np.log(series.to_numpy(float)))
    return float(fit.slope), float(fit.stderr)


def slopes(part: pd.DataFrame, axis: str, variant: str,
           split: int | None = None) -> pd.Series:
    r"""The exponent of time in each repeat."""
    own = part[(part.measured == 'time') & (part.variant == variant)]
    return pd.Series({repeat: exponent(group.groupby(
        axis).milliseconds.median(), split)[0]
        for repeat, group in own.groupby('repeat')}, dtype=float).dropna()


# Tables ######################################################################


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""What was measured, case by case."""
    out = {}
    for name, case in CASES.items():
        part = of_case(rows, name)
        if part.empty:
            continue
        if len(part[AXES].drop_duplicates()) > 4:
            out.update(growth(name, case, part))
        else:
            fixed = [f'{part[key].iloc[0]:,} {key}' for key in AXES
                     if part[key].nunique() == 1]
            out[f'{name}: {case.question} ({", ".join(fixed)})' if fixed else
                f'{name}: {case.question}'] = side_by_side(case, part)
        if name == 'order':
            out[f'{name}: After how many calls has ReorderNodes paid?'] = (
                paid_back(part))
    return out


def side_by_side(case: Case, part: pd.DataFrame) -> pd.DataFrame:
    r"""A line for each variant on each size."""
    lines = []
    varying = [key for key in Size._fields if part[key].nunique() > 1]
    keys = ['measured', 'variant', 'malloc']
    for size, own in part.groupby(list(Size._fields), sort=False):
        found = {
            **own.groupby(keys).milliseconds.median().dropna(),
            **own.groupby(keys).megabytes.median().dropna()}
        named = dict(zip(Size._fields, size))
        for variant in dict.fromkeys(own.variant):
            line = {key: named[key] if key == 'graph' else f'{named[key]:,}'
                    for key in varying}
            line['variant'] = variant
            for measured, (_, unit) in UNITS.items():
                for malloc in case.malloc:
                    name = unit if len(case.malloc) == 1 else (
                        f'{unit}, {malloc}')
                    value = found.get((measured, variant, malloc))
                    if set(part.measured) >= {measured}:
                        line[name] = _number(value)
                other = found.get((measured, case.reference(variant),
                                   case.malloc[-1]))
                if measured == 'time' and case.beside:
                    line[case.beside] = _ratio(value, other)
            lines.append(line)
    return pd.DataFrame(lines)


def growth(name: str, case: Case,
           part: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""A line for each variant and a column for each size, and exponents."""
    out = {}
    for axis in AXES:
        line_of = along(part, axis, case)
        for measured, (_, unit) in UNITS.items():
            found = medians(line_of, axis, measured)
            sizes = sorted({size for own in found.values()
                            for size in own.index})
            lines = []
            for variant, own in found.items():
                line = {unit: variant, **{
                    f'{size:,} {axis}': _number(own.get(size))
                    for size in sizes}}
                if case.split and measured == 'time':
                    line['exponent in the cache'] = _fit(exponent(
                        own[own.index < case.split]))
                lines.append({**line, 'exponent': _fit(exponent(
                    own, case.split))})
            if lines:
                out[f'{name}: {measured.capitalize()} against {axis}'] = (
                    pd.DataFrame(lines))
    return out


def paid_back(part: pd.DataFrame) -> pd.DataFrame:
    r"""How many calls save what ReorderNodes takes."""
    lines = []
    for graph, own in part.groupby('graph', sort=False):
        found = own.groupby('variant').milliseconds.median()
        line = {'graph': graph}
        for name in ORDER:
            after = f'{name}, reordered'
            if {'ReorderNodes', name, after} <= set(found.index):
                saved = found[name] - found[after]
                line[name] = 'never' if saved <= 0 else str(
                    math.ceil(found['ReorderNodes'] / saved))
        lines.append(line)
    return pd.DataFrame(lines).fillna('–')


def answer(rows: pd.DataFrame) -> str:
    r"""A layer beside GCNConv, in time and memory."""
    part = of_case(rows, 'layer')
    texts = []
    for measured, (column, _) in UNITS.items():
        own = part[(part.measured == measured) & (part.malloc == 'kept')]
        found = own.groupby('variant')[column].median()
        if {PAPER, RELATIVE, EDGES} <= set(found.index):
            texts.append(f'{found[PAPER] / found[EDGES]:.2f} and '
                         f'{found[RELATIVE] / found[EDGES]:.2f} times the '
                         f'{measured}')
    return (f'One layer of {PAPER} and of {RELATIVE} takes '
            + ', and '.join(texts) + f' of {EDGES}.' if texts else '')


def main_tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""The cases that are shown beside the figures."""
    return {title.split(': ', 1)[1]: frame
            for title, frame in tables(rows).items()
            if title.split(':')[0] in ['layer', 'order', 'scaling']}


def _number(value: float | None) -> str:
    if value is None or value != value:
        return '–'
    return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


def _ratio(value: float | None, other: float | None) -> str:
    return '–' if value is None or other is None else f'{value / other:.2f}'


def _fit(fit: tuple[float, float]) -> str:
    return '–' if fit[0] != fit[0] else '{:.2f} ± {:.2f}'.format(*fit)


# Claims ######################################################################


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""Those of the paper's paragraph on complexity."""
    part, big = (of_case(rows, name) for name in ['complexity', 'scaling'])
    found = []
    if len(part):
        found += [_formula(part, 'time', 'O(|E| F + N F^2)'),
                  _formula(part, 'memory', 'O(N F + F^2)'), _trace(part)]
    if len(big):
        found.append(_one_big_graph(big))
    return found


def verdict(gaps: list[Gap | None]) -> str:
    r"""What the 95 % intervals of exponents above a claim say: no if one is
    above it as a whole, yes if none reaches above it.
    """
    found = [gap for gap in gaps if gap is not None and gap.mean == gap.mean]
    if len(found) < len(gaps) or not gaps:
        return 'not shown'
    if any(gap.mean - gap.half > TOLERANCE for gap in found):
        return 'no'
    return ('yes' if all(gap.mean + gap.half <= TOLERANCE for gap in found)
            else 'not shown')


def above_gcn(part: pd.DataFrame, axis: str, name: str, gcn: str,
              bound: float, split: int | None = None) -> Gap | None:
    r"""The exponent of time above a bound, or above that of GCN if this is
    larger: what the machine does to GCN is not the fault of AGCN.
    """
    ours, other = (slopes(part, axis, v, split) for v in [name, gcn])
    return paired(ours, other.clip(lower=bound))


def above(fit: tuple[float, float], bound: float) -> Gap:
    r"""An exponent above a bound."""
    return Gap(fit[0] - bound, float(t.ppf(0.975, FITTED - 2)) * fit[1])


def _formula(part: pd.DataFrame, measured: str, formula: str) -> Claim:
    gaps: list[Gap | None] = []
    texts = []
    for axis in AXES:
        own = along(part, axis, CASES['complexity'])
        bound = PAPERS[measured][axis]
        found = medians(own, axis, measured)
        fits = {name: exponent(found[name]) for name in [EDGES, *AGCNS]
                if name in found and len(found[name]) > 2}
        gaps += [None if not {name, EDGES} <= set(fits) else
                 above(fits[name], bound) if measured == 'memory' else
                 above_gcn(own, axis, name, EDGES, bound) for name in AGCNS]
        if set(fits) >= {EDGES, *AGCNS}:
            powers = [fits[name][0] for name in AGCNS]
            ratios = [found[name].iloc[-1] / found[EDGES].iloc[-1]
                      for name in AGCNS]
            texts.append(
                f'{axis} {min(powers):.2f} to {max(powers):.2f} (paper: '
                f'{bound}; GCN: {fits[EDGES][0]:.2f}; {min(ratios):.2f} to '
                f'{max(ratios):.2f} times the {measured} of GCN at the '
                f'largest)')
    return Claim(
        f'AGCN needs {formula} in {measured}, the same as GCN.',
        verdict(gaps), f'Exponents of AGCN in three settings: '
        f'{"; ".join(texts)}.' if texts else 'Not enough sizes yet.')


def _trace(part: pd.DataFrame) -> Claim:
    r"""What the paper's energy costs: the time with a gate half open beyond
    that with a saturated one, which needs a few edges only.
    """
    fits = {}
    for axis in AXES:
        found = medians(along(part, axis, CASES['complexity']), axis, 'time')
        if {PAPER, HALF_OPEN} <= set(found):
            fits[axis] = exponent(found[HALF_OPEN] - found[PAPER])
    fits = {axis: fit for axis, fit in fits.items() if fit[0] == fit[0]}
    holds = 'not shown'
    if set(fits) == set(AXES):
        # It would be independent of the edges, and not proportional to them;
        # what is in between may be noise.
        gap = above(fits['edges'], 0)
        holds = ('no' if gap.mean - gap.half > TOLERANCE else
                 'yes' if gap.mean + gap.half < 1 - TOLERANCE else holds)
    text = ', '.join(f'{axis} {_fit(fit)}' for axis, fit in fits.items())
    return Claim(
        'The trace, and with it the nonlinearity of AGCN, costs O(N F^2).',
        holds, f'Exponents of the time that a gate which is half open takes '
        f'beyond a saturated one: {text}; O(N F^2) would be 1, 0 and 2, and '
        f'a sum over all edges and loops, O((|E| + N) F), at most 1, 1 and '
        f'1.' if fits else 'Not enough sizes yet.')


def _one_big_graph(part: pd.DataFrame) -> Claim:
    time, memory = (medians(part, 'edges', m) for m in UNITS)
    most = part.edges.max()
    forms = [v for v in [EDGES, CSR, SPARSE] if most in time.get(v, [])
             and most in memory.get(v, [])]
    gcn = min(forms, key=lambda name: time[name][most], default='')
    gaps: list[Gap | None] = []
    texts = []
    for name in [PAPER, RELATIVE, gcn]:
        if not gcn or most not in time.get(name, []) or (
                most not in memory.get(name, [])):
            gaps.append(None)
            continue
        fits = [exponent(found[name], LEAVES_CACHE)
                for found in [time, memory]]
        gaps += [] if name == gcn else [above(fits[1], 1), above_gcn(
            part, 'edges', name, gcn, 1, LEAVES_CACHE)]
        texts.append(
            f'{name}: exponents {_fit(fits[0])} and {_fit(fits[1])}, '
            f'{time[name][most] / time[gcn][most]:.2f} and '
            f'{memory[name][most] / memory[gcn][most]:.2f} times what the '
            f'fastest form of GCN needs')
    return Claim(
        'AGCN has the same time and memory complexity as GCN. (one big '
        'graph)', verdict(gaps), f'Time and memory against edges, up to '
        f'{most:,}, where features do not fit into the cache: '
        f'{"; ".join(texts)}.' if texts else 'Not enough sizes yet.')


# Figures #####################################################################


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""The figures of the cases that have rows."""
    paths = []
    for name, picture in [('layer', _draw_layer), ('scaling', _draw_scaling),
                          ('complexity', _draw_complexity)]:
        part = of_case(rows, name)
        if len(part):
            paths += picture(part, folder)
    return paths


def _draw_layer(part: pd.DataFrame, folder: Path) -> list[Path]:
    from benchmarks.plots import plt, save
    part = part[part.measured == 'time']
    found = part.groupby(['variant', 'malloc']).milliseconds.median()
    names = list(dict.fromkeys(part.variant))[::-1]
    figure, panel = plt.subplots(figsize=(7, 0.42 * len(names) + 1))
    for malloc, color, shift in [('default', '#bbbbbb', 0.2),
                                 ('kept', '#0072b2', -0.2)]:
        bars = panel.barh(
            [i + shift for i in range(len(names))],
            [found.get((name, malloc), math.nan) for name in names], 0.4,
            color=color, label=malloc)
        panel.bar_label(bars, fmt=lambda v: _number(v), padding=2, fontsize=7)
    panel.set_yticks(range(len(names)), names)
    panel.set(xlabel='processor time (ms)', xscale='log')
    panel.grid(axis='y', visible=False)
    panel.legend(loc='lower right', bbox_to_anchor=(1, 1), ncols=2,
                 title='malloc', fontsize=8)
    return save(figure, folder, 'speed_layer')


def _lines(panel: Any, part: pd.DataFrame, axis: str, measured: str,
           split: int | None = None) -> None:
    r"""A line for each variant, with its exponent in the legend."""
    from matplotlib.ticker import EngFormatter

    from benchmarks.plots import STYLES
    for name, found in medians(part, axis, measured).items():
        found = found[found > 0]
        if found.empty:
            continue
        fit = exponent(found, split)
        text = name if fit[0] != fit[0] else f'{name}: {_fit(fit)}'
        panel.plot(found, label=text, markersize=4, **STYLES[LOOKS[name]])
    panel.set_xlabel(axis)
    if panel.lines:
        panel.set(xscale='log', yscale='log')
        panel.xaxis.set_major_formatter(EngFormatter(sep=''))
        panel.tick_params(axis='x', which='minor', labelbottom=False)
        panel.legend(loc='upper center', bbox_to_anchor=(0.5, -0.16),
                     fontsize=7, handlelength=3, title='exponent',
                     title_fontsize=7)


def _draw_scaling(part: pd.DataFrame, folder: Path) -> list[Path]:
    from benchmarks.plots import plt, save
    figure, axes = plt.subplots(1, 2, figsize=(8, 4.6))
    for panel, measured, label in zip(axes, UNITS, [
            'processor time of a step (ms)', 'peak of memory (MB)']):
        _lines(panel, part, 'edges', measured, LEAVES_CACHE)
        panel.set_ylabel(label)
    axes[0].axvline(LEAVES_CACHE, color='grey', linewidth=0.8)
    return save(figure, folder, 'speed_scaling')


def _draw_complexity(part: pd.DataFrame, folder: Path) -> list[Path]:
    from benchmarks.plots import plt, save
    figure, axes = plt.subplots(1, 3, sharey=True, figsize=(10, 4.4))
    for panel, axis in zip(axes, AXES):
        own = along(part, axis, CASES['complexity'])
        _lines(panel, own, axis, 'time')
        if len(own):
            panel.set_title(', '.join(
                f'{own[other].iloc[0]:,} {other}' for other in AXES
                if other != axis), fontsize=9)
    axes[0].set_ylabel('processor time (ms)')
    return save(figure, folder, 'speed_complexity')
