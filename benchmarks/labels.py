r"""Co-training, self-training, union and intersection with very few labels.

As in Li, Han and Wu (2018), a rate of all nodes has a label, drawn anew for
each seed until each class has one at least, and nothing else has: 1,000 others
are for the test, and none for validation.

One row is five trainings that start from the same weights: with the labels as
they are, and with those added by the four ways of
:mod:`torch_agcn.label_expansion`. As there, no node is excluded: nodes of the
test set may be added, by a label that was guessed, and the test is by the true
ones. All methods add as many nodes, by the formula for two layers.

AGCN (paper) and DiffusedMLP are compared with a GCN that has the paper's
hyper-parameters, as AGCN (paper) has, so that its difference is owed to the
gate alone. Beside them stands a GCN as it was tuned for Table 1, with more
labels and a stop by validation: here it is often the worse GCN. All train for
200 epochs, as in Li, Han and Wu. They do not stop by the loss of nodes for
validation, for with so few labels it is no guide: at 0.5 % it can rise from
the first epochs on while the accuracy rises too, and what is kept then is a
network that has learnt nothing.
"""
import json
import time
from argparse import Namespace
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from benchmarks import runner, settings
from benchmarks.data import CITATION, load
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.stats import Gap, interval, most, verdict
from torch_agcn.label_expansion import (
    Expansion,
    co_training,
    expansion_size,
    intersection,
    self_training,
    union,
)

QUESTION = 'Is AGCN better than GCN with very few labels?'
METHODS = {'gcn': 'GCN', 'agcn_paper': 'AGCN (paper)',
           'gcn_long': 'GCN, tuned', 'agcn': 'DiffusedMLP'}
PAIRS = [('agcn_paper', 'gcn'), ('agcn', 'gcn')]
# Percent of all nodes: the figure's, and those of Table 1's splits.
RATES = {'Cora': [0.5, 2.0, 4.0, 5.2], 'CiteSeer': [0.5, 2.0, 3.6, 4.0],
         'PubMed': [0.03, 0.05, 0.1, 0.3]}
OPTIONS = dict(datasets=CITATION, of=CITATION, rates=RATES, epochs=200)
QUICK = dict(datasets=['Cora'], runs=2, rates={'Cora': [0.5]}, epochs=80)
WAYS = ['co_training', 'self_training', 'union', 'intersection']
ALL = ['none', *WAYS]
TABLE = Table(RESULTS / 'labels.csv', [
    'method', 'dataset', 'rate', 'seed', 'settings', 'labels',
    *[f'accuracy_{way}' for way in ALL], *[f'added_{way}' for way in WAYS],
    *[f'purity_{way}' for way in WAYS], 'seconds'])
CAPTIONS = {
    f'labels_{name.lower()}': f'{name}: test accuracy minus that of a '
    f'GCN with the same labels, with 95 % intervals, by the way labels were '
    f'added and by the share of nodes that had one before.'
    for name in CITATION}


class Task(NamedTuple):
    r"""Five trainings. ``rate`` is in percent, ``settings`` are JSON."""

    method: str
    dataset: str
    rate: float
    seed: int
    settings: str


# Runs ########################################################################


def draw_rate(y: Tensor, rate: float, seed: int,
              test: int = 1000) -> tuple[Tensor, Tensor]:
    r"""Masks of a rate of all nodes, in percent, with a node of each class at
    least, and of a number of others.
    """
    labels, classes = int(y.numel() * rate / 100), y.unique().numel()
    if labels < classes:
        raise ValueError(f'{rate} % of {y.numel()} nodes are {labels} for '
                         f'{classes} classes; take a higher rate')
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(y.numel(), generator=generator)
        if y[order[:labels]].unique().numel() == classes:
            break
    masks = torch.zeros(2, y.numel(), dtype=torch.bool)
    masks[0, order[:labels]] = True
    masks[1, order[labels:labels + test]] = True
    return masks[0], masks[1]


def expansions(data: Data, logits: Tensor) -> dict[str, Expansion]:
    r"""The labels by each way; ``logits`` are of a first training."""
    known = data.y, data.train_mask
    size = expansion_size(data.edge_index, *known)
    walk = co_training(data.edge_index, *known, size)
    own = self_training(logits, *known, size)
    return {'co_training': walk, 'self_training': own,
            'union': union(walk, own), 'intersection': intersection(walk, own)}


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains with each set of labels and returns the row."""
    data = load(task.dataset, root=root)
    data.train_mask, data.test_mask = draw_rate(data.y, task.rate, task.seed)
    run, own = settings.run_of(task.method), json.loads(task.settings)
    row: dict[str, Any] = {**task._asdict(),
                           'labels': int(data.train_mask.sum())}

    def train(way: str, labels: Expansion) -> Tensor:
        given = copy(data)
        given.train_mask, given.y = labels
        logits = run(given, task.seed, **own).logits
        if bool(logits.isnan().any()):
            raise ValueError(f"'{task.method}' returned NaN")
        hit = (logits.argmax(dim=-1) == data.y)[data.test_mask]
        row[f'accuracy_{way}'] = round(100 * float(hit.double().mean()), 3)
        return logits

    start = time.perf_counter()
    logits = train('none', Expansion(data.train_mask, data.y))
    for way, labels in expansions(data, logits).items():
        train(way, labels)
        added = labels.train_mask & ~data.train_mask
        right = (labels.pseudo_y == data.y)[added].double()
        row[f'added_{way}'] = right.numel()
        row[f'purity_{way}'] = round(100 * float(right.mean()), 2)
    row['seconds'] = round(time.perf_counter() - start, 2)
    return row


# Tables ######################################################################


def differences(rows: pd.DataFrame, ours: str, other: str) -> pd.DataFrame:
    r"""By how much a method is better than another with the same labels to
    begin with: a line for each data set, rate and seed, a column for each way.
    """
    rows = settings.latest(rows, 'rate').set_index(['dataset', 'rate', 'seed'])
    rows = rows.rename(columns={f'accuracy_{way}': way for way in ALL})
    return (rows.loc[rows.method == ours, ALL]
            - rows.loc[rows.method == other, ALL])


def gaps(rows: pd.DataFrame, ours: str,
         other: str) -> dict[tuple[str, float, str], Gap]:
    r"""The means of these differences by data set, rate and way."""
    found = {(*key, way): interval(part[way]) for key, part in differences(
        rows, ours, other).groupby(level=[0, 1]) for way in ALL}
    return {key: gap for key, gap in found.items() if gap is not None}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Differences and accuracies."""
    accuracy, difference = [], []
    groups = dict(iter(settings.latest(rows, 'rate').groupby(
        ['dataset', 'rate', 'method'])))
    found = {ours: gaps(rows, ours, other) for ours, other in PAIRS}
    order = [(d, r, m) for d in CITATION for r in RATES[d] for m in METHODS]
    for dataset, rate, method in [key for key in order if key in groups]:
        part = groups[dataset, rate, method]
        head = {'data': dataset, 'labelled': f'{rate:g} %',
                'method': METHODS[method]}
        values = part[[f'accuracy_{way}' for way in ALL]]
        accuracy.append({
            **head, 'labels': part.labels.iloc[0], 'runs': len(part),
            **{_name(way): f'{m:.1f} ± {error:.1f}' for way, m, error
               in zip(ALL, values.mean(), values.sem())}})
        own = found.get(method, {})
        if (dataset, rate, 'none') in own:
            difference.append({**head, **{
                _name(way): str(own[dataset, rate, way]) for way in ALL}})
    out = {'Test accuracy minus that of GCN with the same labels, in points '
           'with 95 % intervals': difference,
           'Test accuracy (%) by the way labels were added, mean ± standard '
           'error': accuracy}
    return {title: pd.DataFrame(lines) for title, lines in out.items()
            if lines}


def _name(way: str) -> str:
    return 'none added' if way == 'none' else way.replace('_', '-')


# The figure ##################################################################


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""A figure of differences for each data set, a panel for each rate."""
    from benchmarks import plots
    found = {ours: gaps(rows, ours, other) for ours, other in PAIRS}
    paths = []
    for dataset in CITATION:
        rates = [rate for rate in RATES[dataset] if any(
            (dataset, rate, 'none') in own for own in found.values())]
        if not rates:
            continue
        figure, axes = plots.panels(len(rates), 2.6, 3.6, sharey=True,
                                    sharex=True)
        for axis, rate in zip(axes, rates):
            axis.axvline(0, color='black', linewidth=1)
            for i, (ours, own) in enumerate(found.items()):
                shown = [own[dataset, rate, way] for way in ALL
                         if (dataset, rate, way) in own]
                axis.errorbar(
                    [gap.mean for gap in shown],
                    [y + 0.3 * i - 0.15 for y in range(len(shown))],
                    xerr=[gap.half for gap in shown], capsize=3,
                    label=METHODS[ours] if shown else None, **{
                        **plots.style_of(METHODS[ours]),
                        'linestyle': 'none'})
            axis.set(title=f'{dataset}, {rate:g} % labelled',
                     xlabel='minus GCN (points)')
            plots.few_ticks(axis)
        left, right = axes[0].get_xlim()
        axes[0].set_xlim(min(left, -2), max(right, 2))
        axes[0].set_yticks(range(len(ALL)), map(_name, ALL))
        axes[0].set_ylim(len(ALL) - 0.5, -0.5)
        plots.legend_below(figure)
        paths += plots.save(figure, folder, f'labels_{dataset.lower()}')
    return paths


# Claims ######################################################################


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper's three, with added labels."""
    found = gaps(rows, 'agcn_paper', 'gcn')
    own = {key: gap for key, gap in found.items() if key[2] != 'none'}
    above = sum(gap.is_above for gap in own.values())
    below = sum(gap.mean + gap.half <= 0 for gap in own.values())
    small = _small_sizes(rows)
    std = settings.latest(rows[rows.method == 'agcn_paper'], 'rate').groupby(
        ['dataset', 'rate'])[[f'accuracy_{way}' for way in WAYS]].std()
    # Half of the improvement minus the deviation, for what is much smaller:
    much = [Gap(gap.mean / 2 - std.loc[(d, rate), f'accuracy_{way}'],
                gap.half / 2) for (d, rate, way), gap in own.items()]
    smaller = sum(gap.is_above for gap in much)
    larger = sum(gap.mean + gap.half <= 0 for gap in much)
    return [
        Claim('With added labels, AGCN outperforms GCN in most cases.',
              most(own.values()),
              f'AGCN (paper) is above GCN in {above} of {len(own)} cells '
              '(data set, rate and way) by the 95 % interval, and not above '
              f'it in {below}.'),
        Claim('With added labels, AGCN outperforms GCN particularly at small '
              'training sizes, on all data sets.', verdict(small.values()),
              'The difference at the lowest rate minus that at the highest: '
              + ', '.join(f'{d} {gap}' for d, gap in small.items() if gap)
              + '.' if any(small.values()) else 'Not known yet.'),
        Claim('With added labels, standard deviations are much smaller than '
              'the improvements.', most(much),
              f'The standard deviation over the draws is less than half of '
              f'the improvement, by its 95 % interval, in {smaller} of '
              f'{len(much)} cells, and is not in {larger}.')]


def _small_sizes(rows: pd.DataFrame) -> dict[str, Gap | None]:
    r"""By how much more AGCN is better than GCN at the lowest rate than at the
    highest, the mean of all ways.
    """
    gain, out = differences(rows, 'agcn_paper', 'gcn')[WAYS].mean(axis=1), {}
    for dataset in [d for d in CITATION if (rows.dataset == d).any()]:
        wide = gain[dataset].unstack('rate').dropna(axis=1, how='all')
        if wide.shape[1] > 1:  # rates go up
            out[dataset] = interval(wide.iloc[:, 0] - wide.iloc[:, -1])
    return out


def answer(rows: pd.DataFrame) -> str:
    r"""In how many cells."""
    texts = []
    for ours, other in PAIRS:
        own = gaps(rows, ours, other).values()
        above = sum(gap.is_above for gap in own)
        below = sum(gap.mean + gap.half < 0 for gap in own)
        if own:
            texts.append(f'{METHODS[ours]} is better than {METHODS[other]} in '
                         f'{above} of {len(own)} cells (data set, rate and '
                         f'way) by the 95 % interval, and worse in {below}')
    return ('; '.join(texts) + '; one in forty each way would be chance. All '
            'train for 200 epochs, without validation.' if texts else '')


def settings_of(method: str, dataset: str, epochs: int = 200) -> str:
    r"""Those of Table 1; those of the paper for its pair."""
    own = json.loads(settings.settings_of(
        'gcn_equal' if method == 'gcn' else method, dataset))
    return runner.as_json(**{**own, 'epochs': epochs, 'patience': 0})


def tasks(args: Namespace) -> list[Task]:
    r"""All methods at all rates."""
    return [Task(method, dataset, rate, seed,
                 settings_of(method, dataset, args.epochs))
            for seed in range(args.runs) for dataset in args.datasets
            for rate in args.rates[dataset] for method in METHODS]
