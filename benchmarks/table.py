r"""Table 1: all methods on all data sets, measured beside published.

APPNP is DiffusedMLP with its gate held open and a search of its own; a row
that ends with ``gate open`` has the settings of the row below it.
"""
import argparse
import json
import sys
from typing import Any

import pandas as pd

from benchmarks import runner, settings
from benchmarks.data import CITATION, DATASETS, IMAGES, SPLITS, splits_of
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.settings import COLUMNS, METHODS, Task, latest, settings_of
from benchmarks.stats import (
    Gap,
    by_seed,
    compared,
    interval,
    mean_std,
    pairs,
    sentence,
    verdict,
)

QUESTION = ('How accurate are all methods on all data sets, beside what was '
            'published?')
TABLE = Table(RESULTS / 'table.csv', COLUMNS)
CHECKS = Table(RESULTS / 'checks.csv', COLUMNS)
FAR = 1.5  # points from a published figure that want an explanation
OURS = ['agcn_paper', 'agcn_literal', 'agcn', 'agcn_weighted', 'agcn_linear',
        'agcn_wide', 'agcn_deep', 'agcn_deep_weighted']
GCNS = ['gcn', 'gcn_long', 'gcn_wide']
# What gates are judged by: the same with a gate that is always open.
OPEN = {'agcn_paper': 'gcn_equal', **{method.removesuffix('_open'): method
                                      for method in METHODS
                                      if method.endswith('_open')}}
TITLES = {'public': 'Public split', 'random': 'Random splits'}
measure = settings.measure


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
    for kind, datasets in [('citation networks', CITATION),
                           ('images', IMAGES)]:
        worth = gates_worth(rows, datasets)
        if len(worth):
            out[f'What gates are worth, {kind}: test accuracy minus that with '
                f'the gate always open and all else equal, in points with 95 '
                f'% intervals'] = worth
    far = deviations(rows, CHECKS.read())
    if len(far):
        out[f'Where the public split gives more than {FAR} points more or '
            f'less than published, and why; checked: accuracy without what '
            f'may be the reason (runs)'] = far
    found = schedules(rows)
    if len(found):
        out["How long training goes on: all have one schedule, but GCN and "
            "AGCN (paper), which have the paper's, and methods that have "
            "their authors'"] = found
    return out


def schedules(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The methods that have the same number of epochs and patience."""
    out: dict[tuple[int, int], dict[str, str]] = {}
    for method, text in zip(rows.method, rows.settings):
        own = json.loads(text)
        if 'patience' in own and method in METHODS:
            out.setdefault((own['epochs'], own['patience']), {})[
                method] = METHODS[method]
    return pd.DataFrame([
        [epochs, patience, '; '.join(found[m] for m in METHODS if m in found)]
        for (epochs, patience), found in sorted(out.items())],
        columns=['epochs at most', 'stop after epochs without a lower '
                 'validation loss', 'methods'])


def _frame(rows: pd.DataFrame, split: str) -> pd.DataFrame:
    rows = rows[[not settings.is_repeated(method, split, seed)
                 for method, seed in zip(rows.method, rows.seed)]]
    groups = rows.groupby(['method', 'dataset'])
    mean, seconds = groups.test_accuracy.mean(), groups.seconds.median()
    best, printed = mean.groupby('dataset').max(), settings.published()
    datasets, lines = [d for d in DATASETS if d in best], []
    for method in [m for m in METHODS if m in mean]:
        line: dict[str, Any] = {'': METHODS[method]}
        for dataset in datasets:
            text, key = '–', (method, dataset)
            if key in mean:
                values = groups.get_group(key).test_accuracy
                text = mean_std(values).removesuffix(' (1)')
                if mean[key] == best[dataset]:
                    text = f'**{text}**'
            line[f'{dataset}, measured'] = text
            line[f'{dataset}, published'] = str(printed.get(key, '–'))
        line['seconds per run, in this order'] = ' / '.join(
            f'{seconds[method, d]:.1f}' if (method, d) in mean else '–'
            for d in datasets)
        lines.append(line)
    return pd.DataFrame(lines)


def gaps(rows: pd.DataFrame, ours: str, other: str,
         split: str) -> dict[str, Gap]:
    r"""A method minus another, seed by seed, on each data set that has
    both.
    """
    rows = latest(rows)
    parts = {d: by_seed(rows[(rows.dataset == d) & (rows.split == split)])
             for d in DATASETS}
    return {d: gap for d, wide in parts.items()
            if (gap := pairs(wide, ours, other))}


def gates_worth(rows: pd.DataFrame, datasets: list[str]) -> pd.DataFrame:
    r"""A line for each method whose gate was held open, and each split."""
    lines = []
    for split in SPLITS:
        for ours, other in OPEN.items():
            found = gaps(rows, ours, other, split)
            if set(found) & set(datasets):
                lines.append({'': METHODS[ours], 'splits': split, **{
                    d: str(found.get(d, '–')) for d in datasets}})
    return pd.DataFrame(lines)


def best_of(methods: list[str], rows: pd.DataFrame, dataset: str,
            split: str) -> str | None:
    r"""The one of some methods that validation prefers."""
    rows = latest(rows)
    part = rows[(rows.dataset == dataset) & (rows.split == split)
                & rows.method.isin(methods)]
    if part.empty:
        return None
    return str(part.groupby('method').val_accuracy.mean().idxmax())


def answer(rows: pd.DataFrame) -> str:
    r"""The best of ours beside the best GCN."""
    found = {}
    for dataset in DATASETS:
        split = splits_of(dataset)[0]
        ours, gcn = (best_of(methods, rows, dataset, split)
                     for methods in [OURS, GCNS])
        gap = ours and gcn and gaps(rows, ours, gcn, split).get(dataset)
        if gap:
            found[f'{dataset} ({METHODS[ours]} minus {METHODS[gcn]})'] = gap
    return compared('Test accuracy of the one of our methods that validation '
                    'prefers, minus that of the GCN that it prefers, in '
                    'points with 95 % intervals: ', found)


# What is far from published ##################################################


def far_means(rows: pd.DataFrame) -> dict[tuple[str, str], float]:
    r"""All means on the public split that are more than ``FAR`` from what was
    published.
    """
    rows, printed = latest(rows), settings.published()
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
    printed, lines = settings.published(), []
    every = {check['method']: check for check in checks_of_project()}
    for (method, dataset), mean in far_means(rows).items():
        check, found = every.get(method, {}), '–'
        why = check.get('why', 'not explained')
        if 'change' in check:
            part = checks[(checks.dataset == dataset) & (
                checks.method == method) & (
                checks.settings == check_settings(check, dataset))]
            if len(part):
                found = f'{part.test_accuracy.mean():.1f} ({len(part)})'
        lines.append({
            '': METHODS[method], 'data': dataset, 'measured': f'{mean:.1f}',
            'published': str(printed[method, dataset]), 'checked': found,
            'why': why.split('; checked')[0] if found == '–' else why})
    return pd.DataFrame(lines)


def checks_of_project() -> list[dict[str, Any]]:
    r"""Explanations by method, and the change of settings that tries them."""
    return settings.read_settings('checks').get('checks', [])


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
             for check in checks_of_project()
             if 'change' in check and (check['method'], dataset) in far]
    failed = runner.run_missing(tasks, CHECKS, measure, args.jobs, args.root)
    print(deviations(TABLE.read(), CHECKS.read()).to_string(index=False))
    runner.report(failed)


# Claims ######################################################################


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""What the paper says of its Table 1."""
    rows = latest(rows)
    return [_reaches(rows), *[
        _outperforms(rows, other, split)
        for split in SPLITS[::-1] for other in ['gcn_equal', 'gcn']],
        _gate_acts(rows)]


def _reaches(rows: pd.DataFrame) -> Claim:
    printed = {d: value for (m, d), value in settings.published().items()
               if m == 'agcn_paper'}
    rows = rows[(rows.method == 'agcn_paper') & (rows.split == 'random')]
    found = {d: rows[rows.dataset == d].test_accuracy for d in printed}
    return Claim(
        'AGCN reaches 83.0, 71.8 and 79.5 % on Cora, CiteSeer and PubMed, '
        '93.1 on MNIST and 70.0 on CIFAR10.',
        verdict(interval(values, printed[d]) for d, values in found.items()),
        sentence('AGCN (paper) on random splits: ', {
            d: f'{values.mean():.1f} of {printed[d]}'
            for d, values in found.items() if len(values)})
        or 'Not run yet.')


def _outperforms(rows: pd.DataFrame, other: str, split: str) -> Claim:
    found = gaps(rows, 'agcn_paper', other, split)
    name = 'equal settings' if other == 'gcn_equal' else 'a tuned GCN'
    return Claim(
        f'AGCN outperforms GCN on all data sets. ({name}, {split} splits)',
        verdict(map(found.get, {*CITATION, *found})), sentence(
            f'AGCN (paper) minus {METHODS[other]}, 95 % interval: ', found)
        or 'Not two seeds of both yet.')


def _gate_acts(rows: pd.DataFrame) -> Claim:
    gates = settings.gates_of(rows[rows.method == 'agcn_paper'])
    is_open = gates.map(lambda values: min(values) == 1)
    return Claim(
        'The gate acts: it reduces smoothing where features are smooth.',
        'not shown' if gates.empty else 'no' if is_open.mean() > 0.5
        else 'yes', f'All gates are exactly 1 in {is_open.sum()} of '
        f'{len(gates)} trained networks of AGCN (paper), which makes them '
        f'GCNs.')


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
             if not settings.is_repeated(method, split, seed)]
    runner.run_and_report(sys.modules[__name__], tasks, args)
