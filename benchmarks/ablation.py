r"""What each part of DeepAGCN is worth, switched off one at a time.

All runs share settings, seeds and schedule.
"""
import json
from argparse import Namespace
from collections import namedtuple
from typing import Any

import pandas as pd

from benchmarks import runner, settings
from benchmarks.data import splits_of
from benchmarks.results import RESULTS, Table
from benchmarks.stats import by_seed, compared, gap_text, mean_error, pairs

QUESTION = 'What is each part of DeepAGCN worth?'
METHOD, ALL = 'agcn_deep', 'all parts'
Task = namedtuple('Task', 'method dataset split depth part seed settings')
TABLE = Table(RESULTS / 'ablation.csv', [*settings.COLUMNS, 'depth', 'part'])
PARTS: dict[str, dict[str, Any]] = {
    ALL: {},
    'gate held open': {'beta': 1e30},
    'gate leads from zero': {'residual': False},
    'beta learnt': {'learn_beta': True},
    'no initial residual': {'alpha': 0.0},
    'no identity mapping': {'theta': None},
    'one step per layer': {'num_hops': 1},
}
OPTIONS = dict(datasets=['Cora'], runs=5, fixed={}, choices=dict(
    depths=[2, 16, 64]))
QUICK = dict(runs=1, depths=[2], fixed=dict(epochs=30))
# What is shown for them; rows keep the names they were made with.
LABELS = {part: part for part in PARTS} | {
    'gate leads from zero': 'closed gate gives zero'}
measure = settings.measure


def by_depth(rows: pd.DataFrame) -> dict[str, dict[int, pd.DataFrame]]:
    r"""Accuracies by seed and part, for each data set and depth."""
    return {str(dataset): {int(depth): by_seed(runs, 'part').reindex(
        columns=PARTS).rename(columns=LABELS)
        for depth, runs in found.groupby('depth')}
        for dataset, found in settings.latest(rows, 'depth', 'part').groupby(
            'dataset', sort=False)}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies, and differences to all parts over the same seeds."""
    out = {}
    for dataset, found in by_depth(rows).items():
        parts = [part for part in LABELS.values()
                 if any(wide[part].count() for wide in found.values())]
        columns = {'': parts}
        for depth, wide in found.items():
            columns[f'{depth} layers'] = [mean_error(wide[p]) for p in parts]
            columns[f'{depth} layers, difference'] = [
                gap_text(wide, part, ALL, 1) for part in parts]
        out[f'{dataset}: test accuracy in percent, mean ± standard error '
            f'(runs), and the difference to all parts in points with its 95 '
            f'% interval'] = pd.DataFrame(columns)
    return out


def answer(rows: pd.DataFrame) -> str:
    r"""What is lost without each part, at the greatest depth that shows it."""
    for dataset, found in by_depth(rows).items():
        for depth, wide in sorted(found.items(), reverse=True):
            text = compared(
                f'Test accuracy of DeepAGCN on {dataset} with {depth} layers '
                f'and one part changed, minus that with all parts, in points '
                f'with 95 % intervals: ',
                {part: pairs(wide, part, ALL) for part in wide
                 if part != ALL})
            if text:
                return text
    return ''


def tasks(args: Namespace) -> list[Task]:
    r"""All parts at all depths, with the settings of Table 1."""
    return [Task(METHOD, dataset, splits_of(dataset)[0], depth, part, seed,
                 runner.as_json(**{
                     **json.loads(settings.settings_of(
                         METHOD, dataset, num_layers=depth)),
                     **args.fixed, **change}))
            for seed in range(args.runs) for dataset in args.datasets
            for depth in args.depths for part, change in PARTS.items()]
