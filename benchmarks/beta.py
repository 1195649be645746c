r"""Test accuracy and gates against beta, for the paper's energy and for ours.

All other settings are those of Table 1. AGCN (paper) has all of the paper's
grid, 0, 0.1, ..., 5, ten values of it with ten seeds at least, and smaller
values, down to where its gate moves: it depends on :math:`\beta s^2`, and the
energy :math:`s` of the features of a whole graph is in the hundreds or
thousands.
"""
import json
import math
from argparse import Namespace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import runner, settings
from benchmarks.data import CITATION, load
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.settings import COLUMNS, Task, gates_of, settings_of
from benchmarks.stats import by_seed, mean_error, pairs, verdict
from torch_agcn.functional import dirichlet_energy

QUESTION = 'What does beta do to accuracy and to the gates?'
TABLE = Table(RESULTS / 'beta.csv', [*COLUMNS, 'beta', 'input_energy'])
LABELS = {method: settings.METHODS[method]
          for method in ['agcn_paper', 'agcn']}
GATES = {'agcn_paper': ['layer 1', 'layer 2'],
         'agcn': ['first hop', 'last hop']}
GRID = [i / 10 for i in range(51)]  # the paper's
BELOW = [1e-10, 1e-9, 1e-8, 3e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4,
         1e-3, 1e-2]
BETAS = {'agcn_paper': GRID + BELOW, 'agcn': [
    0.5, 1.5, 5.0, 15.0, 50.0, 150.0, 500.0, 1500.0, 5000.0]}
TEN = [0.0, 0.1, 0.2, 0.4, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0]
DATASET, BEST = 'PubMed', 0.4  # the paper's
OPTIONS = dict(datasets=[DATASET], runs=3, of=CITATION, betas=BETAS)
QUICK = dict(datasets=['Cora'], runs=1, betas={
    'agcn_paper': [0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 0.4, 5.0],
    'agcn': [5.0, 500.0]})
CAPTIONS = {
    f'beta_{dataset}_public'.lower(): 'Mean test accuracy with its standard '
    'error, and gates after training, for beta > 0. From the dotted line on, '
    'the gate of AGCN (paper) on the input features is exactly 1 in single '
    'precision.'
    for dataset in CITATION}


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""A run of Table 1 with a beta of its own."""
    data = load(task.dataset, task.split, task.seed, root)
    energy = float(dirichlet_energy(data.x, data.edge_index))
    return {**settings.measure(task, root), 'input_energy': f'{energy:.5g}',
            'beta': json.loads(task.settings)['beta']}


def saturation(energy: float) -> float:
    r"""The beta from which :math:`1 - \exp(-\beta s^2)` rounds to one,
    whose lower neighbor is :math:`1 - 2^{-24}` in single precision.
    """
    return 25 * math.log(2) / energy**2


# What came of the runs #######################################################


def latest(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows with the settings that were used last, and their gates."""
    rows = settings.latest(rows[rows.split == 'public'], 'beta')
    gates = gates_of(rows)
    return rows.assign(first_gate=gates.str[0],
                       last_gate=gates.str[-1]).sort_values('beta')


def shared(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows of the seeds that most values of beta have: means over other
    seeds would differ where beta does nothing.
    """
    of = rows.groupby(['dataset', 'method', 'seed']).beta.transform('nunique')
    most = of.groupby([rows.dataset, rows.method]).transform('max')
    return rows[of == most]


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""A table for each data set and energy, and one of the values of beta
    that have more seeds than the others.
    """
    out = {}
    for (dataset, method), part in latest(rows).groupby(['dataset', 'method']):
        same = shared(part)
        runs = part.groupby('beta').seed.transform('nunique')
        for kind, found in [('', same), (', more seeds', part[
                runs > same.seed.nunique()])]:
            if len(found):
                out[f'{dataset}, {LABELS[method]}{kind}: test accuracy in '
                    f'percent, mean ± standard error (runs), and gates'] = (
                        _table(found, GATES[method]))
    return out


def _table(rows: pd.DataFrame, places: list[str]) -> pd.DataFrame:
    r"""Values of beta one after the other with the same cells are one line."""
    found = [(f'{beta:g}', [
        mean_error(runs.test_accuracy),
        *(f'{runs[name].mean():.3g}' for name in [
            'first_gate', 'last_gate'])])
        for beta, runs in rows.groupby('beta')]
    lines = []
    for cells, same in groupby(found, lambda line: line[1]):
        betas = [beta for beta, _ in same]
        lines.append([' … '.join(dict.fromkeys([betas[0], betas[-1]])),
                      *cells])
    return pd.DataFrame(lines, columns=['beta', 'accuracy', *(
        f'gate, {place}' for place in places)])


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""For each data set, accuracies above and gates below."""
    from benchmarks import plots
    paths, rows = [], shared(latest(rows))
    # The grid between these ten is too fine to be seen:
    rows = rows[(rows.beta > 0) & (rows.beta.isin(TEN) | (
        rows.method != 'agcn_paper') | ~rows.beta.isin(GRID))]
    for dataset, part in rows.groupby('dataset'):
        figure, (top, bottom) = plots.plt.subplots(
            2, sharex=True, figsize=(8, 6.4), height_ratios=[3, 2])
        for axis in [top, bottom]:
            axis.axvspan(GRID[1], GRID[-1], color='black', alpha=0.1,
                         linewidth=0, label="the paper's grid")
            axis.axvline(saturation(part.input_energy.mean()), color='black',
                         linestyle=':', label='from here on, its gate is 1')
        for method, runs in part.groupby('method', sort=False):
            label, groups = LABELS[method], runs.groupby('beta')
            plots.error_line(top, groups.groups, [
                group.test_accuracy for _, group in groups], label)
            for name, place, style in zip(
                    ['first_gate', 'last_gate'], GATES[method],
                    [{}, dict(alpha=0.6, markerfacecolor='white')]):
                bottom.plot(groups[name].mean(), label=f'{label}, {place}',
                            **{**plots.style_of(label), **style})
        top.set(xscale='log', ylabel='test accuracy (%)', title=dataset)
        bottom.set(xlabel='beta', ylabel='gate after training')
        top.legend(loc='lower right')
        bottom.legend(*[part[2:] for part in
                        bottom.get_legend_handles_labels()], loc='center')
        paths += plots.save(figure, folder, f'beta_{dataset}_public'.lower())
    return paths


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper's, of its energy on its grid."""
    rows = latest(rows)
    wide = by_seed(rows[(rows.dataset == DATASET) & rows.beta.isin(GRID[1:])
                        & (rows.method == 'agcn_paper')], 'beta')
    gaps = {beta: pairs(wide, BEST, beta) for beta in wide if beta != BEST}
    means = [gap.mean for gap in gaps.values() if gap]
    if not means:
        text = f'beta = {BEST} and another are not run yet with two seeds.'
    elif any(means):
        text = (f'{wide[BEST].mean():.2f} % at {BEST} (public split); minus '
                f'that at {len(gaps)} other non-zero values of the grid: '
                f'{min(means):+.2f} to {max(means):+.2f}.')
    else:
        text = (f'All {len(wide.columns)} non-zero values of the grid give '
                f'the same accuracy in every seed, {wide[BEST].mean():.2f} % '
                f'in the mean (public split): the gates are one.')
    return [Claim(f'beta = {BEST} yields the best accuracy on {DATASET}.',
                  verdict(gaps.values()), text)]


def answer(rows: pd.DataFrame) -> str:
    r"""How far accuracies lie apart."""
    texts, rows = [], shared(latest(rows))
    rows = rows[rows.beta.isin(GRID[1:]) | (rows.method == 'agcn')]
    for (dataset, method), part in rows.groupby(['dataset', 'method']):
        means = part.groupby('beta').test_accuracy.mean()
        if len(means) > 1:
            ends = dict.fromkeys(f'{f(means):.1f}' for f in [min, max])
            texts.append(f'{" to ".join(ends)} % with {LABELS[method]} on '
                         f'{dataset}')
    return ('Mean test accuracies over all values of beta (of AGCN (paper): '
            "over the paper's, without 0): " + ', '.join(texts) + '.'
            if texts else '')


def tasks(args: Namespace) -> list[Task]:
    r"""All values of beta, ten of the paper's with ten seeds at least."""
    most = args.runs if args.quick else max(args.runs, 10)
    return [Task(method, dataset, 'public', seed, runner.as_json(
        **json.loads(settings_of(method, dataset)) | {'beta': beta}))
        for seed in range(most) for dataset in args.datasets
        for method, values in args.betas.items() for beta in values
        if seed < args.runs or (method == 'agcn_paper' and beta in TEN)]
