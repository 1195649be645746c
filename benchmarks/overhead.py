r"""What watching a model costs: SmoothnessRecorder on GCN and AGCN.

Each model is trained twice on Cora from the same start, with a recorder and
without, a few epochs of one and then of the other in the same process, on one
thread: ratios of medians of processor time are what counts, for the machine
may be busy with other things. Both must end with the same weights.
"""
import argparse
import time
from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from tqdm import tqdm

from benchmarks.results import RESULTS, Table, provenance
from benchmarks.runner import QUICK, positive
from torch_agcn import AGCN
from torch_agcn.datasets import Planetoid
from torch_agcn.diagnostics import SmoothnessRecorder

TABLE = Table(RESULTS / 'overhead.csv', [
    'model', 'epochs', 'every', 'repeat', 'seconds', 'seconds_with_recorder',
    'records', 'same_weights'])
BOUND = 1.10
# With dropout of the input as in PyG's examples, but for the last, whose
# epochs are shorter.
MODELS: dict[str, tuple[Any, float]] = {
    'GCN': (GCN, 0.5),
    'AGCN paper': (AGCN, 0.5),
    'AGCN relative + residual': (partial(AGCN, energy='relative'), 0.5),
    'GCN, whole input': (GCN, 0.0),
}


class Training:
    r"""PyG's stock loop for citation networks, to be run in parts."""

    def __init__(self, name: str, data: Data, every: int | None) -> None:
        torch.manual_seed(0)
        model, self.p = MODELS[name]
        self.model = model(data.num_features, 16, 2, 7, dropout=0.5,
                           cached=True)
        self.data = data
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01,
                                          weight_decay=5e-4)
        self.recorder = every and SmoothnessRecorder(self.model, every)
        self.epoch = 0
        self.seconds = 0.0

    def run(self, epochs: int) -> None:
        start = time.process_time()
        for _ in range(epochs):
            # Another training has had its turn: back to our own numbers.
            torch.manual_seed(self.epoch)
            self._run_epoch()
            if self.recorder:
                self.recorder.step()
            self.epoch += 1
        self.seconds += time.process_time() - start

    def _run_epoch(self) -> None:
        data, model = self.data, self.model
        model.train()
        self.optimizer.zero_grad()
        out = model(F.dropout(data.x, self.p), data.edge_index)
        F.cross_entropy(out[data.train_mask],
                        data.y[data.train_mask]).backward()
        self.optimizer.step()
        model.eval()
        with torch.no_grad():
            model(data.x, data.edge_index)


def compare(name: str, data: Data, epochs: int, every: int,
            repeat: int) -> dict[str, Any]:
    r"""Trains a model with and without a recorder, in turns."""
    sides = [Training(name, data, None), Training(name, data, every)]
    for i in range(0, epochs, every):
        for side in sides if (i // every + repeat) % 2 else sides[::-1]:
            side.run(min(every, epochs - i))
    plain, watched = sides
    return dict(
        model=name, epochs=epochs, every=every, repeat=repeat,
        seconds=round(plain.seconds, 4),
        seconds_with_recorder=round(watched.seconds, 4),
        records=len(watched.recorder.records),
        same_weights=all(map(torch.equal, plain.model.parameters(),
                             watched.model.parameters())))


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The medians of the latest commit for each model, and their ratio."""
    lines = []
    for (name, every), part in rows.groupby(['model', 'every'], sort=False):
        part = part[part.commit == part.commit.iloc[-1]]
        plain = part.seconds.median()
        watched = part.seconds_with_recorder.median()
        ratio = watched / plain
        lines.append([
            name, every, len(part), f'{plain:.3g} s', f'{watched:.3g} s',
            f'{ratio:.3f}', f'{BOUND:.2f}', 'yes' if ratio <= BOUND else 'no',
            'yes' if part.same_weights.all() else 'no'])
    return pd.DataFrame(lines, columns=[
        'model', 'sampled every', 'repeats', 'without', 'with recorder',
        'ratio', 'bound', 'holds', 'same weights'])


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser('python -m benchmarks overhead')
    parser.add_argument('--epochs', type=positive, default=100)
    parser.add_argument('--every', type=positive, default=10)
    parser.add_argument('--repeats', type=positive, default=5)
    parser.add_argument('--root', default='data', help='where data is kept')
    parser.add_argument('--quick', action='store_true',
                        help=f"20 epochs, once, in '{QUICK}'")
    parser.add_argument('--show', action='store_true',
                        help='only print the table')
    args = parser.parse_args(argv)
    table = TABLE
    if args.quick:
        table = Table(QUICK / TABLE.path.name, TABLE.own_columns)
        args.epochs, args.repeats = 2 * args.every, 1
    if not args.show:
        torch.set_num_threads(1)
        print(provenance()['versions'], 'threads =', torch.get_num_threads())
        data = Planetoid(args.root, 'Cora',
                         transform=T.NormalizeFeatures())[0]
        todo = table.missing([
            dict(model=name, epochs=args.epochs, every=args.every,
                 repeat=repeat)
            for repeat in range(args.repeats) for name in MODELS])
        for name in dict.fromkeys(row['model'] for row in todo):
            compare(name, data, 1, 1, 0)  # a first round that does not count
        for row in tqdm(todo):
            table.append(**compare(row['model'], data, args.epochs,
                                   args.every, row['repeat']))
    rows = table.read()
    if len(rows):
        print(summary(rows).to_string(index=False))
