r"""Training and validation loss per epoch of GCN and AGCN.

All train for the same number of epochs, without early stopping and with the
settings from before any search, for a search that likes more dropout would
raise the training loss of just one of them. The training loss is the one that
is minimised, with dropout; the validation loss is without. GCN and AGCN with
the paper's formula are the same network but for the gate. The recommended
AGCN is another one: wider, deeper, and with more weight decay.
"""
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import runner, table
from benchmarks.data import DATASETS, load, splits_of
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.table import Task

TABLE = Table(RESULTS / 'history.csv', [
    *Task._fields, 'train_losses', 'val_losses', 'seconds'])
LABELS = {'gcn': 'GCN', 'agcn_paper': 'AGCN, paper',
          'agcn': 'AGCN, recommended'}
VARIANTS = ['agcn_paper', 'agcn']
ROUNDING = 1.5e-4  # losses are kept to five digits
CAPTIONS = {'history': 'Cross-entropy in each epoch: means over the seeds, '
            'and bands of a standard deviation.'}


# Runs ########################################################################


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains one network and returns its losses."""
    data = load(task.dataset, task.split, task.seed, root)
    start = time.perf_counter()
    run = table.run_of(task.method)(data, task.seed,
                                    **json.loads(task.settings))
    seconds = time.perf_counter() - start
    train_losses, val_losses = [' '.join(f'{loss:.5g}' for loss in column)
                                for column in zip(*run.losses)]
    return {**task._asdict(), 'train_losses': train_losses,
            'val_losses': val_losses, 'seconds': round(seconds, 2)}


# What came of them ###########################################################


def curves(rows: pd.DataFrame, column: str) -> dict[tuple[str, str], Any]:
    r"""The losses of each data set and method, a row per seed."""
    rows = table.latest(rows).sort_values('seed')
    groups = {key: np.array([text.split() for text in part], dtype=float)
              for key, part in rows.groupby(['dataset', 'method'])[column]}
    return {(d, m): groups[d, m] for d in DATASETS for m in LABELS
            if (d, m) in groups}


def gaps(rows: pd.DataFrame, column: str, ours: Any, base: Any = 'gcn',
         by: str = 'method') -> dict[str, tuple[float, float, int]]:
    r"""A number's mean difference between two methods, seed by seed, with
    half of its 95 % interval and the number of seeds, for each data set with
    two seeds or more.
    """
    from scipy.stats import t
    out = {}
    for dataset, part in rows.groupby('dataset', sort=False):
        wide = part.pivot(index='seed', columns=by, values=column)
        if ours not in wide or base not in wide:
            continue
        gap = (wide[ours] - wide[base]).dropna()
        n = len(gap)
        if n > 1:
            out[str(dataset)] = (float(gap.mean()), float(
                t.ppf(0.975, n - 1) * gap.sem()), n)
    return out


def verdict(gaps: list[tuple[float, float, int]], sign: int,
            rounding: float = 0.0) -> str:
    r"""Whether all differences have a sign, and are sure to."""
    if any(sign * gap <= rounding for gap, _, _ in gaps):
        return 'no'
    sure = bool(gaps) and all(sign * gap > half for gap, half, _ in gaps)
    return 'yes' if sure else 'not shown'


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""The curves in numbers."""
    losses, val_losses = (curves(rows, name)
                          for name in ['train_losses', 'val_losses'])
    lines = []
    for (dataset, method), loss in losses.items():
        val = val_losses[dataset, method]
        lines.append([dataset, LABELS[method], len(loss), loss.shape[1],
                      *(f'{v.mean():.4f} ± {v.std():.4f}' for v in [
                          loss.mean(1), loss[:, -1], val.min(1), val[:, -1]]),
                      f'{np.median(val.argmin(1) + 1):.0f}'])
    return {'Cross-entropy (nats), mean ± standard deviation over the seeds':
            pd.DataFrame(lines, columns=[
                'data', 'method', 'seeds', 'epochs', 'training, all epochs',
                'training, last', 'validation, lowest', 'validation, last',
                'epoch of the lowest'])}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""A row of two panels for each data set."""
    from benchmarks.plots import STYLES, plt, save
    kinds = {'training': curves(rows, 'train_losses'),
             'validation': curves(rows, 'val_losses')}
    datasets = list(dict.fromkeys(d for d, _ in kinds['training']))
    figure, axes = plt.subplots(
        len(datasets), 2, sharey='row', squeeze=False,
        figsize=(9, 3.6 * len(datasets)))
    for line, dataset in zip(axes, datasets):
        for axis, (kind, found) in zip(line, kinds.items()):
            for method, label in LABELS.items():
                if (dataset, method) not in found:
                    continue
                loss = found[dataset, method]
                style = {**STYLES[label], 'marker': None}
                if method == 'gcn':  # visible where curves coincide
                    style.update(linewidth=5, linestyle='-', alpha=0.45)
                mean, std = loss.mean(0), loss.std(0)
                epoch = np.arange(1, len(mean) + 1)
                axis.plot(epoch, mean, label=label, **style)
                axis.fill_between(epoch, mean - std, mean + std, alpha=0.15,
                                  color=style['color'], linewidth=0)
            axis.set(title=f'{dataset}: {kind} loss', xlabel='epoch')
        line[0].set_ylabel('cross-entropy (nats)')
        line[0].legend(loc='upper right', handlelength=3)
    return save(figure, folder, 'history')


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper's, of its formula and of ours."""
    rows = table.latest(rows)
    losses = curves(rows, 'train_losses')
    rows = rows.assign(mean_loss=[
        np.mean([float(v) for v in text.split()])
        for text in rows.train_losses])
    out = []
    for method in VARIANTS:
        found = gaps(rows, 'mean_loss', method)
        text = '; '.join(_sentence(dataset, gap, losses[dataset, method],
                                   losses[dataset, 'gcn'])
                         for dataset, gap in found.items())
        out.append(Claim(
            f'AGCN yields lower training loss values than GCN. '
            f'({LABELS[method]})',
            verdict(list(found.values()), -1, ROUNDING),
            f'Training loss minus that of GCN, the mean of all epochs with '
            f'its 95 % interval: {text}.' if text
            else 'Not two seeds of both yet.'))
    return out


def _sentence(dataset: str, gap: tuple[float, float, int], ours: Any,
              gcn: Any) -> str:
    mean = round(gap[0], 4) + 0.0  # no minus before zero
    text = (f'{dataset} {mean:+.4f} ± {gap[1]:.4f} ({gap[2]} seeds), in '
            f'the last epoch {ours[:, -1].mean():.4f} beside '
            f'{gcn[:, -1].mean():.4f}')
    if ours.shape == gcn.shape and abs(ours - gcn).max() <= ROUNDING:
        text += ('; it is the loss of GCN to all digits kept, in every epoch '
                 'of every seed')
    return text


def main(argv: list[str]) -> None:
    options = runner.parser('history', ['Cora'], runs=5)
    options.add_argument('--epochs', type=runner.positive, default=200)
    args = options.parse_args(argv)
    if args.quick:
        args.runs, args.datasets = min(args.runs, 2), args.datasets[:1]
    tasks = [
        Task(method, dataset, splits_of(dataset)[0], seed, table.settings_of(
            method, dataset, epochs=args.epochs, patience=args.epochs))
        for seed in range(args.runs) for dataset in args.datasets
        for method in LABELS]
    runner.conclude(sys.modules[__name__], tasks, args)
