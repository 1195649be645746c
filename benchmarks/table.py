r"""Table 1: all methods on all data sets, measured beside published.

APPNP is DiffusedMLP with its gate held open and a search of its own;
``DiffusedMLP, gate open`` has the settings of DiffusedMLP.
"""
import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import runner
from benchmarks.data import CITATION, DATASETS, IMAGES, SPLITS, splits_of
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.settings import (
    COLUMNS,
    METHODS,
    Task,
    gates_of,
    is_repeated,
    latest,
    measure,
    published,
    read_settings,
    settings_of,
)
from benchmarks.stats import Gap, by_seed, compared, interval, pairs, verdict

QUESTION = ('How accurate are all methods on all data sets, beside what was '
            'published?')
TABLE = Table(RESULTS / 'table.csv', COLUMNS)
CHECKS = Table(RESULTS / 'checks.csv', COLUMNS)
FAR = 1.5  # points from a published figure that want an explanation
OURS = ['agcn_paper', 'agcn_literal', 'agcn', 'agcn_weighted', 'agcn_deep',
        'agcn_deep_weighted']
TITLES = {'public': 'Public split', 'random': 'Random splits'}
CAPTIONS = {
    f'table_{name}': f'{title}: mean test accuracy with its standard '
    f'deviation, beside what the paper prints.' for name, title in [
        *TITLES.items(), ('images', 'Images, random splits')]}


# Tables ######################################################################


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""A table for each split: measured beside published."""
    rows = latest(rows)
    out = {}
    for split in SPLITS:
        for kind, datasets in [('citation networks', CITATION),
                               ('images', IMAGES)]:
            part = rows[(rows.split == split) & rows.dataset.isin(datasets)]
            if len(part):
                out[f'{TITLES[split]}, {kind}: test accuracy in percent, mean '
                    f'± standard deviation (runs)'] = _frame(part, split)
    far = deviations(rows, CHECKS.read())
    if len(far):
        out[f'Where the public split gives more than {FAR} points more or '
            f'less than published, and why; checked: accuracy without what '
            f'may be the reason (runs)'] = far
    return out


def _frame(rows: pd.DataFrame, split: str) -> pd.DataFrame:
    datasets = [d for d in DATASETS if (rows.dataset == d).any()]
    groups = dict(iter(rows.groupby(['method', 'dataset'])))
    mean = rows.groupby(['method', 'dataset']).test_accuracy.mean()
    best = mean.groupby('dataset').max()
    printed, lines = published(), []
    for method in [m for m in METHODS if (rows.method == m).any()]:
        line, seconds = {'': METHODS[method]}, []
        for dataset in datasets:
            part, text, spent = groups.get((method, dataset)), '–', '–'
            if part is not None:
                if is_repeated(method, split, 1):
                    part = part[:1]
                text = _cell(part.test_accuracy)
                if mean[method, dataset] == best[dataset]:
                    text = f'**{text}**'
                spent = f'{part.seconds.median():.1f}'
            line[f'{dataset}, measured'] = text
            line[f'{dataset}, published'] = str(
                printed.get((method, dataset), '–'))
            seconds.append(spent)
        line['seconds per run, in this order'] = ' / '.join(seconds)
        lines.append(line)
    return pd.DataFrame(lines)


def _cell(values: pd.Series) -> str:
    if len(values) == 1:
        return f'{values.mean():.1f}'
    return f'{values.mean():.1f} ± {values.std():.1f} ({len(values)})'


def gaps(rows: pd.DataFrame, ours: str, other: str,
         split: str) -> dict[str, Gap]:
    r"""A method minus another, seed by seed, on each data set that has
    both.
    """
    rows, out = latest(rows), {}
    for dataset in DATASETS:
        wide = by_seed(rows[(rows.dataset == dataset)
                            & (rows.split == split)])
        gap = pairs(wide, ours, other)
        if gap is not None:
            out[dataset] = gap
    return out


def best_of_ours(rows: pd.DataFrame, dataset: str, split: str) -> str | None:
    r"""The one of our methods that validation prefers."""
    rows = latest(rows)
    part = rows[(rows.dataset == dataset) & (rows.split == split)
                & rows.method.isin(OURS)]
    if part.empty:
        return None
    return str(part.groupby('method').val_accuracy.mean().idxmax())


def answer(rows: pd.DataFrame) -> str:
    r"""The best of ours beside a tuned GCN."""
    found = {}
    for dataset in DATASETS:
        split = splits_of(dataset)[0]
        best = best_of_ours(rows, dataset, split)
        gap = best and gaps(rows, best, 'gcn', split).get(dataset)
        if gap:
            found[f'{dataset} ({METHODS[best]})'] = gap
    return compared('Test accuracy of the one of our methods that validation '
                    'prefers, minus that of a tuned GCN, in points with 95 % '
                    'intervals: ', found)


# What is far from published ##################################################


def far_means(rows: pd.DataFrame) -> dict[tuple[str, str], float]:
    r"""All means on the public split that are more than ``FAR`` from what was
    published.
    """
    rows, printed = latest(rows), published()
    mean = rows[rows.split == 'public'].groupby(
        ['method', 'dataset']).test_accuracy.mean()
    keys = [(m, d) for m in METHODS for d in DATASETS
            if (m, d) in mean and (m, d) in printed]
    return {key: mean[key] for key in keys
            if abs(mean[key] - printed[key]) > FAR}


def deviations(rows: pd.DataFrame, checks: pd.DataFrame) -> pd.DataFrame:
    r"""What is far from published, the explanation, and what was measured
    without what is named there.
    """
    printed, lines = published(), []
    why = {c['method']: c for c in read_settings('checks').get('checks', [])}
    for (method, dataset), mean in far_means(rows).items():
        check, found = why.get(method, {}), '–'
        if 'change' in check:
            part = checks[(checks.method == method)
                          & (checks.dataset == dataset)
                          & (checks.settings
                             == check_settings(check, dataset))]
            if len(part):
                found = f'{part.test_accuracy.mean():.1f} ({len(part)})'
        lines.append({
            '': METHODS[method], 'data': dataset, 'measured': f'{mean:.1f}',
            'published': str(printed[method, dataset]), 'checked': found,
            'why': why_of(check, found != '–')})
    return pd.DataFrame(lines)


def why_of(check: dict[str, Any], is_checked: bool) -> str:
    r"""The explanation, with what was checked only if it was."""
    text = check.get('why', 'not explained')
    return text if is_checked else text.split('; checked')[0]


def check_settings(check: dict[str, Any], dataset: str) -> str:
    r"""The chosen settings of a method with the change of a check."""
    return runner.as_json(**{
        **json.loads(settings_of(check['method'], dataset)),
        **check['change']})


def run_checks(args: argparse.Namespace) -> None:
    r"""Tries the explanations of what is far from published."""
    far = far_means(TABLE.read())
    tasks = [Task(check['method'], dataset, 'public', seed,
                  check_settings(check, dataset))
             for seed in range(args.runs) for dataset in args.datasets
             for check in read_settings('checks')['checks']
             if 'change' in check and (check['method'], dataset) in far]
    failed = runner.run_missing(tasks, CHECKS, measure, args.jobs, args.root)
    print(deviations(TABLE.read(), CHECKS.read()).to_string(index=False))
    runner.report(failed)


# Claims and the figure #######################################################


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""What the paper says of its Table 1."""
    rows = latest(rows)
    return [_reaches(rows), *[
        _outperforms(rows, other, split)
        for split in SPLITS[::-1] for other in ['gcn_equal', 'gcn']],
        _gate_acts(rows)]


def _reaches(rows: pd.DataFrame) -> Claim:
    printed = {d: value for (m, d), value in published().items()
               if m == 'agcn_paper'}
    rows = rows[(rows.method == 'agcn_paper') & (rows.split == 'random')]
    found = {d: rows[rows.dataset == d].test_accuracy for d in printed}
    text = ', '.join(f'{d} {values.mean():.1f} of {printed[d]}'
                     for d, values in found.items() if len(values))
    return Claim(
        'AGCN reaches 83.0, 71.8 and 79.5 % on Cora, CiteSeer and PubMed, '
        '93.1 on MNIST and 70.0 on CIFAR10.',
        verdict(interval(values, printed[d]) for d, values in found.items()),
        f'AGCN (paper) on random splits: {text}.' if text else 'Not run yet.')


def _outperforms(rows: pd.DataFrame, other: str, split: str) -> Claim:
    found = gaps(rows, 'agcn_paper', other, split)
    wanted = dict.fromkeys([*CITATION, *found])
    text = ', '.join(f'{d} {gap}' for d, gap in found.items())
    name = 'equal settings' if other == 'gcn_equal' else 'a tuned GCN'
    return Claim(
        f'AGCN outperforms GCN on all data sets. ({name}, {split} splits)',
        verdict(found.get(dataset) for dataset in wanted),
        f'AGCN (paper) minus {METHODS[other]}, 95 % interval: {text}.'
        if text else 'Not two seeds of both yet.')


def _gate_acts(rows: pd.DataFrame) -> Claim:
    gates = gates_of(rows[rows.method == 'agcn_paper'])
    is_open = gates.map(lambda values: min(values) == 1)
    return Claim(
        'The gate acts: it reduces smoothing where features are smooth.',
        'not shown' if gates.empty else 'no' if is_open.mean() > 0.5
        else 'yes', f'All gates are exactly 1 in {is_open.sum()} of '
        f'{len(gates)} trained networks of AGCN (paper), which makes them '
        f'GCNs.')


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Measured accuracies beside published ones, a figure for each split,
    and one of images.
    """
    rows, paths = latest(rows), []
    for name, split, datasets in [
            *[(split, split, CITATION) for split in SPLITS],
            ('images', 'random', IMAGES)]:
        part = rows[(rows.split == split) & rows.dataset.isin(datasets)]
        if len(part):
            paths += _draw(part, folder, f'table_{name}')
    return paths


def _draw(rows: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    from benchmarks import plots
    printed = published()
    datasets = [d for d in DATASETS if (rows.dataset == d).any()]
    methods = [m for m in METHODS if (rows.method == m).any()]
    figure, axes = plots.panels(len(datasets), 2.4, 1.4 + 0.27 * len(methods),
                                2.8, sharey=True)
    for axis, dataset in zip(axes, datasets):
        groups = dict(iter(rows[rows.dataset == dataset].groupby(
            'method').test_accuracy))
        for label, style, own in [
                ('measured', dict(color='#555555', marker='s'),
                 [m for m in groups if m not in OURS]),
                ('measured, ours', dict(color='#0072b2', marker='D'),
                 [m for m in groups if m in OURS])]:
            axis.errorbar([groups[m].mean() for m in own],
                          [methods.index(m) for m in own],
                          xerr=[groups[m].std() for m in own],
                          linestyle='none', markersize=6, label=label,
                          **style)
        found = [m for m in methods if (m, dataset) in printed]
        axis.plot([printed[m, dataset] for m in found],
                  [methods.index(m) for m in found], linestyle='none',
                  marker='o', markersize=8, markerfacecolor='none',
                  color='#d55e00', label='published')
        axis.set(title=dataset, xlabel='test accuracy (%)')
        plots.few_ticks(axis)
    axes[0].set_yticks(range(len(methods)), [METHODS[m] for m in methods])
    axes[0].set_ylim(len(methods) - 0.5, -0.5)
    plots.legend_below(figure)
    return plots.save(figure, folder, name)


def main(argv: list[str]) -> None:
    options = runner.parser('table', CITATION,
                            choices=dict(methods=list(METHODS)))
    options.add_argument('--splits', nargs='+', choices=SPLITS,
                         help='(default: public where there is one)')
    options.add_argument('--checks', action='store_true', help='try what '
                         'explains figures far from published ones')
    args = options.parse_args(argv)
    if args.quick and args.checks:
        options.error('--quick is a first look at the table itself: leave '
                      '--checks out')
    if args.checks:
        return run_checks(args)
    if args.quick:
        args.datasets, args.runs = args.datasets[:1], 1
    # By seeds first: a table of few runs is there before long.
    tasks = [Task(method, dataset, split, seed, settings_of(method, dataset))
             for seed in range(args.runs) for dataset in args.datasets
             for split in args.splits or splits_of(dataset)[:1]
             if split in splits_of(dataset)
             for method in args.methods
             if not is_repeated(method, split, seed)]
    runner.run_and_report(sys.modules[__name__], tasks, args)
