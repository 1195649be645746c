r"""More than one process: the same accuracy, also if one of them is killed.

The DiffusedMLP of :mod:`benchmarks.minibatch` is trained by PyTorch's
``DistributedDataParallel``: by one process, by two that share its batches, and
by two of which one is killed amid an epoch. Each epoch ends with a checkpoint.
After a process has died, all are started again, and go on from there.
"""
import argparse
import gc
import json
import os
import signal
import time
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing import (
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.transforms import RemoveSelfLoops

from benchmarks import batches, runner, settings
from benchmarks.batches import STEPS_PER_EPOCH, Task
from benchmarks.data import CITATION, load
from benchmarks.results import RESULTS, Table, keep_memory
from benchmarks.stats import by_seed, gap_text, mean_error, sentence
from torch_agcn.loader import ImportanceWeights

QUESTION = 'Is accuracy the same with more processes, and after a kill?'
TABLE = Table(RESULTS / 'distributed.csv', [
    *Task._fields, 'epochs', 'repeated', 'restarts', 'val_losses',
    'val_accuracy', 'test_accuracy', 'seconds'])
ONE, TWO, KILLED = 'one process', 'two processes', 'two, one killed'
# Processes, and which of them is killed:
METHODS = {ONE: (1, -1), TWO: (2, -1), KILLED: (2, 1)}
RESTARTS = 3  # at most
# Each run has processes of its own, hence one job:
OPTIONS = dict(datasets=['PubMed'], runs=5, of=CITATION, jobs=1)
QUICK = dict(datasets=['Cora'], runs=1)


def settings_of(dataset: str, quick: bool = False) -> str:
    r"""Those of mini-batches in one process."""
    own = json.loads(batches.settings_of('agcn', dataset))
    epochs = own.pop('steps') // STEPS_PER_EPOCH
    own.pop('looked_at')
    epochs = 8 if quick else epochs
    return runner.as_json(**own, epochs=epochs, killed_at=epochs // 2)


# Runs ########################################################################


def share_of(nodes: Tensor, rank: int, world: int) -> Tensor:
    r"""As many nodes for each process: where they do not divide, some have
    two, for all must take as many steps.
    """
    return nodes[list(DistributedSampler(nodes, world, rank, shuffle=False))]


def work(rank: int, *args: Any) -> None:
    r"""One of many processes, from the beginning to the end."""
    keep_memory()
    torch.set_num_threads(1)
    train(rank, *args)
    # What is left of the model must go before the group does: if it were the
    # last to hold the group, its threads and this one could wait for each
    # other at the end (torch 2.13).
    gc.collect()
    dist.destroy_process_group()


def train(rank: int, task: Task, root: str, folder: Path,
          restarts: int) -> None:
    r"""Trains from the last checkpoint on, and writes one after each epoch."""
    own = json.loads(task.settings)
    killed_at, epochs, lr, weight_decay, seeds, num_neighbors = (
        own.pop(key) for key in ['killed_at', 'epochs', 'lr', 'weight_decay',
                                 'seeds', 'num_neighbors'])
    world, killed = METHODS[task.method]
    dist.init_process_group('gloo', f'file://{folder}/store_{restarts}',
                            rank=rank, world_size=world)
    data = RemoveSelfLoops()(load(task.dataset, root=root))
    nodes = share_of(data.train_mask.nonzero().view(-1), rank, world)
    loader = batches.make_loader(data, nodes, seeds // world, num_neighbors)
    weights = ImportanceWeights(loader)
    torch.manual_seed(task.seed)
    model = batches.make_model(data, **own)
    optimizer = batches.make_optimizer(model, lr, weight_decay)
    path = folder / 'checkpoint.pt'
    state = dict(epoch=0, best=float('inf'), losses=[])
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
    parallel = DistributedDataParallel(model)

    for epoch in range(state['epoch'], epochs):
        if rank == 0:
            with (folder / 'epochs').open('a') as file:
                file.write(f'{epoch}\n')
        # Chance depends on nothing but this, so that an epoch that is
        # repeated is the same.
        torch.manual_seed((task.seed * 10_000 + epoch) * 10_000 + rank)
        parallel.train()
        for batch in loader:
            optimizer.zero_grad()
            out = parallel(batch.x, batch.edge_index, **weights(batch))
            batches.loss_of(out, batch).backward()
            if rank == killed and epoch == killed_at and restarts == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
        if rank > 0:
            continue
        loss = float(F.cross_entropy(logits_of(model, data)[data.val_mask],
                                     data.y[data.val_mask]))
        state['losses'].append(loss)
        state.update(epoch=epoch + 1, model=model.state_dict(),
                     optimizer=optimizer.state_dict())
        if loss < state['best']:
            state.update(best=loss, best_model=deepcopy(model.state_dict()))
        torch.save(state, path.with_suffix('.part'))
        path.with_suffix('.part').replace(path)  # whole or not there

    if rank == 0:
        model.load_state_dict(state['best_model'])
        (folder / 'result.json').write_text(json.dumps(dict(
            epochs=epochs, restarts=restarts, val_losses=' '.join(
                f'{loss:.6g}' for loss in state['losses']),
            **batches.accuracies(logits_of(model, data), data))))


@torch.no_grad()
def logits_of(model: Any, data: Data) -> Tensor:
    r"""The outputs on the whole graph, with the running estimate."""
    return model.eval()(data.x, data.edge_index)


def launch(task: Task, root: str, folder: Path) -> None:
    r"""Trains in processes of their own, and starts all again when one has
    died.
    """
    for restarts in range(RESTARTS + 1):
        try:
            return spawn(work, (task, root, folder, restarts),
                         METHODS[task.method][0], daemon=True)
        except (ProcessExitedException, ProcessRaisedException):
            if restarts == RESTARTS:
                raise


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains, and counts the epochs that were begun more than once."""
    start = time.perf_counter()
    with TemporaryDirectory() as name:
        folder = Path(name)
        launch(task, root, folder)
        result = json.loads((folder / 'result.json').read_text())
        begun = (folder / 'epochs').read_text().split()
    return {**task._asdict(), **result,
            'repeated': len(begun) - len(set(begun)),
            'seconds': round(time.perf_counter() - start, 2)}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies beside one process's, and what a kill cost."""
    lines = []
    for dataset, part in settings.latest(rows).groupby('dataset'):
        wide = by_seed(part)
        repeated = part.groupby('method').repeated.max()
        lines += [[dataset, method, mean_error(wide[method]),
                   gap_text(wide, method, ONE), repeated[method]]
                  for method in METHODS if method in wide]
    return {'Test accuracy (%), mean ± standard error (runs)': pd.DataFrame(
        lines, columns=['data', '', 'accuracy', 'minus one process, 95 % '
                        'interval', 'epochs repeated at most'])}


def answer(rows: pd.DataFrame) -> str:
    r"""What more processes and a kill cost."""
    found: dict[str, str] = {}
    for dataset, part in settings.latest(rows).groupby('dataset'):
        wide = by_seed(part)
        found.update({f'{method} on {dataset}': gap_text(wide, method, ONE)
                      for method in wide})
        losses = by_seed(part, values='val_losses')
        if {TWO, KILLED} <= set(losses):
            alive, killed = (np.array([text.split() for text in column], float)
                             for _, column in losses[[TWO, KILLED]].dropna(
                             ).items())
            found['and a kill changes the loss of an epoch by at most'] = (
                f'{abs(alive - killed).max(initial=0):.2g}')
    return sentence('Test accuracy minus that of one process, in points with '
                    '95 % intervals: ', found)


def tasks(args: argparse.Namespace) -> list[Task]:
    r"""All numbers of processes."""
    return [Task(method, dataset, seed, settings_of(dataset, args.quick))
            for seed in range(args.runs) for dataset in args.datasets
            for method in METHODS]
