r"""Training and validation loss per epoch of GCN and AGCN.

All train for 200 epochs, without early stopping and with the settings from
before any search, for a search that likes more dropout would raise the
training loss of just one of them. The training loss is the one that is
minimised, with dropout; the validation loss is without. GCN and AGCN (paper)
are the same network but for the gate. DiffusedMLP is another one: wider,
deeper, and with more weight decay.
"""
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.results import RESULTS, Claim, Table
from benchmarks.settings import METHODS, Task, latest, run, settings_of
from benchmarks.stats import Gap, by_seed, pairs, sentence, verdict

QUESTION = 'Does AGCN train to a lower loss than GCN?'
TABLE = Table(RESULTS / 'history.csv', [
    *Task._fields, 'train_losses', 'val_losses', 'seconds'])
DATASET = 'Cora'
OPTIONS = dict(datasets=[DATASET], of=[DATASET])
QUICK = dict(runs=2)
LABELS = {method: METHODS[method] for method in ['gcn', 'agcn_paper', 'agcn']}
ROUNDING = 1.5e-4  # losses are kept to five digits
CAPTIONS = {'history': 'Cross-entropy in each epoch: means over the seeds, '
            'and bands of a standard deviation. GCN is drawn wide, so that '
            'a line upon it is seen.'}


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains one network and returns its losses."""
    row, _, out = run(task, root)
    train_losses, val_losses = [' '.join(f'{loss:.5g}' for loss in column)
                                for column in zip(*out.losses)]
    return {**task._asdict(), 'train_losses': train_losses,
            'val_losses': val_losses, 'seconds': row['seconds']}


def curves(rows: pd.DataFrame, column: str) -> dict[str, Any]:
    r"""The losses of each method, a row per seed."""
    rows = latest(rows).sort_values('seed')
    return {method: np.array([text.split() for text in rows[column][
        rows.method == method]], dtype=float)
        for method in LABELS if (rows.method == method).any()}


def gap(rows: pd.DataFrame, method: str) -> Gap | None:
    r"""GCN's training loss minus a method's, the mean of all epochs."""
    rows = latest(rows)
    rows = rows.assign(loss=[np.mean(np.array(text.split(), dtype=float))
                             for text in rows.train_losses])
    return pairs(by_seed(rows, values='loss'), 'gcn', method)


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""The curves in numbers."""
    val = curves(rows, 'val_losses')
    lines = [[LABELS[m], len(loss), *(f'{v.mean():.4f} ± {v.std():.4f}' for v
             in [loss.mean(1), loss[:, -1], val[m].min(1)])]
             for m, loss in curves(rows, 'train_losses').items()]
    return {f'{DATASET}: cross-entropy (nats), mean ± standard deviation over '
            f'the seeds': pd.DataFrame(lines, columns=[
                '', 'seeds', 'training, all epochs', 'training, last',
                'validation, lowest'])}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""A panel for each loss."""
    from benchmarks import plots
    figure, axes = plots.panels(2, 4.5, 3.6, 0.0, sharey=True)
    for axis, kind in zip(axes, ['training', 'validation']):
        column = 'train_losses' if kind == 'training' else 'val_losses'
        for method, found in curves(rows, column).items():
            # GCN's is wide, to be seen where curves coincide:
            style = dict(linewidth=5, linestyle='-', alpha=0.45)
            plots.band(axis, found, LABELS[method],
                       **style if method == 'gcn' else {})
        axis.set(title=f'{DATASET}: {kind} loss', xlabel='epoch')
    axes[0].set_ylabel('cross-entropy (nats)')
    axes[0].legend(loc='upper right', handlelength=3)
    return plots.save(figure, folder, 'history')


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper's."""
    found, text = gap(rows, 'agcn_paper'), 'Not two seeds of both yet.'
    if found:
        losses = curves(rows, 'train_losses')
        a, b = losses['gcn'], losses['agcn_paper']
        text = (f"GCN's loss minus that of AGCN (paper), mean of all epochs, "
                f'95 % interval: {DATASET} {found.text(4)}')
        if a.shape == b.shape:
            text += f'; no loss differs by more than {abs(a - b).max():.1g}'
        text += '.'
    return [Claim('AGCN yields lower training loss values than GCN.',
                  verdict([found], ROUNDING), text)]


def answer(rows: pd.DataFrame) -> str:
    r"""The differences to GCN."""
    return sentence(
        f"Training loss minus GCN's on {DATASET}, the mean of all epochs "
        f'(less is better): ',
        {LABELS[m]: Gap(-found.mean, found.half).text(4)
         for m in ['agcn_paper', 'agcn'] if (found := gap(rows, m))})


def tasks(args: Namespace) -> list[Task]:
    r"""All networks, with the settings from before any search."""
    return [Task(method, DATASET, 'public', seed, settings_of(
        method, DATASET, epochs=200, patience=200))
        for seed in range(args.runs) for method in LABELS]
