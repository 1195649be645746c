r"""Training and validation loss per epoch of GCN and AGCN.

All train for the same number of epochs, without early stopping and with the
settings from before any search, for a search that likes more dropout would
raise the training loss of just one of them. The training loss is the one that
is minimised, with dropout; the validation loss is without. GCN and AGCN
(paper) are the same network but for the gate. DiffusedMLP is another one:
wider, deeper, and with more weight decay.
"""
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import runner
from benchmarks.data import DATASETS, load, splits_of
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.settings import METHODS, Task, latest, run_of, settings_of
from benchmarks.stats import Gap, by_seed, pairs, verdict

QUESTION = 'Does AGCN train to a lower loss than GCN?'
TABLE = Table(RESULTS / 'history.csv', [
    *Task._fields, 'train_losses', 'val_losses', 'seconds'])
LABELS = {method: METHODS[method] for method in ['gcn', 'agcn_paper', 'agcn']}
ROUNDING = 1.5e-4  # losses are kept to five digits
CAPTIONS = {'history': 'Cross-entropy in each epoch: means over the seeds, '
            'and bands of a standard deviation.'}


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains one network and returns its losses."""
    data = load(task.dataset, task.split, task.seed, root)
    start = time.perf_counter()
    run = run_of(task.method)(data, task.seed, **json.loads(task.settings))
    seconds = time.perf_counter() - start
    train_losses, val_losses = [' '.join(f'{loss:.5g}' for loss in column)
                                for column in zip(*run.losses)]
    return {**task._asdict(), 'train_losses': train_losses,
            'val_losses': val_losses, 'seconds': round(seconds, 2)}


def curves(rows: pd.DataFrame, column: str) -> dict[tuple[str, str], Any]:
    r"""The losses of each data set and method, a row per seed."""
    rows = latest(rows).sort_values('seed')
    groups = {key: np.array([text.split() for text in part], dtype=float)
              for key, part in rows.groupby(['dataset', 'method'])[column]}
    return {(d, m): groups[d, m] for d in DATASETS for m in LABELS
            if (d, m) in groups}


def gaps(rows: pd.DataFrame, method: str) -> dict[str, Gap]:
    r"""GCN's training loss minus a method's, the mean of all epochs."""
    rows = latest(rows)
    rows = rows.assign(loss=[np.mean(np.array(text.split(), dtype=float))
                             for text in rows.train_losses])
    found = {str(d): pairs(by_seed(part, values='loss'), 'gcn', method)
             for d, part in rows.groupby('dataset', sort=False)}
    return {dataset: gap for dataset, gap in found.items() if gap}


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
    r"""A figure of two panels for each data set."""
    from benchmarks import plots
    kinds = {'training': curves(rows, 'train_losses'),
             'validation': curves(rows, 'val_losses')}
    datasets = list(dict.fromkeys(d for d, _ in kinds['training']))
    figure, axes = plots.plt.subplots(
        len(datasets), 2, sharey='row', squeeze=False,
        figsize=(9, 3.6 * len(datasets)))
    for line, dataset in zip(axes, datasets):
        for axis, (kind, found) in zip(line, kinds.items()):
            for method in [m for m in LABELS if (dataset, m) in found]:
                wide = dict(linewidth=5, linestyle='-', alpha=0.45)
                plots.band(axis, found[dataset, method], LABELS[method],
                           # visible where curves coincide:
                           **wide if method == 'gcn' else {})
            axis.set(title=f'{dataset}: {kind} loss', xlabel='epoch')
        line[0].set_ylabel('cross-entropy (nats)')
        line[0].legend(loc='upper right', handlelength=3)
    return plots.save(figure, folder, 'history')


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper's."""
    found = gaps(rows, 'agcn_paper')
    text = ', '.join(f'{d} {gap.text(4)}' for d, gap in found.items())
    losses = curves(rows, 'train_losses')
    same = all(losses[d, 'gcn'].shape == losses[d, 'agcn_paper'].shape
               and abs(losses[d, 'gcn'] - losses[d, 'agcn_paper']).max()
               <= ROUNDING for d in found)
    end = ('; the losses are equal to all digits kept, in every epoch'
           if same else '')
    return [Claim(
        'AGCN yields lower training loss values than GCN.',
        verdict(found.values(), ROUNDING),
        f"GCN's loss minus that of AGCN (paper), mean of all epochs, 95 % "
        f'interval: {text}{end}.' if text else 'Not two seeds of both yet.')]


def answer(rows: pd.DataFrame) -> str:
    r"""The differences to GCN."""
    texts = [f'{LABELS[method]} {Gap(-gap.mean, gap.half).text(4)} on '
             f'{dataset}' for method in list(LABELS)[1:]
             for dataset, gap in gaps(rows, method).items()]
    return ("Training loss minus GCN's, the mean of all epochs: "
            + ', '.join(texts) + '.' if texts else '')


def main(argv: list[str]) -> None:
    options = runner.parser('history', ['Cora'], runs=5)
    options.add_argument('--epochs', type=runner.positive, default=200)
    args = options.parse_args(argv)
    if args.quick:
        args.runs, args.datasets = min(args.runs, 2), args.datasets[:1]
    tasks = [
        Task(method, dataset, splits_of(dataset)[0], seed, settings_of(
            method, dataset, epochs=args.epochs, patience=args.epochs))
        for seed in range(args.runs) for dataset in args.datasets
        for method in LABELS]
    runner.run_and_report(sys.modules[__name__], tasks, args)
