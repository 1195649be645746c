r"""More than one process: what they, and a kill, do to accuracy.

The DiffusedMLP of :mod:`benchmarks.minibatch` is trained by PyTorch's
``DistributedDataParallel``: by one process, by two that share its batches, and
by two of which one is killed amid an epoch. This file is also the program that
``torchrun`` starts, on one machine or on many that share a folder::

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 2:4 \
        --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d \
        --rdzv-endpoint HOST:29400 --rdzv-id agcn \
        benchmarks/distributed.py --folder SHARED/FOLDER

Each epoch ends with a checkpoint. After a process has died, ``torchrun``
starts all again, and they go on from there; so does the same command.
"""
import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import time
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

if not __package__:  # a script: modules are found beside its folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.transforms import RemoveSelfLoops

from benchmarks import batches, runner, settings
from benchmarks.batches import STEPS_PER_EPOCH, Task
from benchmarks.data import CITATION, load
from benchmarks.results import RESULTS, Table, keep_memory, write_whole
from benchmarks.stats import by_seed, gap_text, mean_error, sentence
from torch_agcn.loader import ImportanceWeights

QUESTION = 'What do more processes, and a kill, do to accuracy?'
TABLE = Table(RESULTS / 'distributed.csv', [
    *Task._fields, 'epochs', 'repeated', 'restarts', 'val_losses',
    'val_accuracy', 'test_accuracy', 'seconds'])
ONE, TWO, KILLED = 'one process', 'two processes', 'two, one killed'
# Processes, and which of them is killed:
METHODS = {ONE: (1, -1), TWO: (2, -1), KILLED: (2, 1)}
# Each run has processes of its own, hence one job:
OPTIONS = dict(datasets=['PubMed'], runs=5, of=CITATION, jobs=1)
QUICK = dict(datasets=['Cora'], runs=1)
PATIENCE = 1800  # seconds, for all that may go wrong between processes


def settings_of(dataset: str, quick: bool = False) -> str:
    r"""Those of mini-batches in one process."""
    own = json.loads(batches.settings_of('agcn', dataset))
    epochs = own.pop('steps') // STEPS_PER_EPOCH
    own.pop('looked_at')
    epochs = 8 if quick else epochs
    return runner.as_json(**own, epochs=epochs, killed_at=epochs // 2)


# A process of torchrun #######################################################


def meet() -> None:
    r"""Starts the process group, after a restart as well.

    By default, torchrun keeps one store for all restarts, and processes that
    were killed still have their addresses there: who reads them waits forever.
    """
    is_shared = os.environ.get('TORCHELASTIC_USE_AGENT_STORE') == 'True'
    if is_shared and int(os.environ['TORCHELASTIC_MAX_RESTARTS']) > 0:
        raise ValueError(
            "'distributed.py' got restarts, after which processes may wait "
            'for each other forever; set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 '
            "for 'torchrun' on all machines")
    dist.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')


def share_of(nodes: Tensor, rank: int, world: int) -> Tensor:
    r"""As many nodes for each process: where they do not divide, some have
    two, for all must take as many steps.
    """
    count = -(-nodes.numel() // world)
    return nodes[torch.arange(rank, count * world, world) % nodes.numel()]


def save(state: dict[str, Any], path: Path) -> None:
    r"""Writes a checkpoint, which is whole or not there."""
    content = BytesIO()
    torch.save(state, content)
    write_whole(path, content.getvalue())


def resume(path: Path, run: list[Any], model: torch.nn.Module,
           optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    r"""Goes back to the last epoch that was saved, if there is one: to what
    the first process finds, for all.
    """
    state: dict[str, Any] = dict(epoch=0, best=float('inf'), losses=[],
                                 run=run)
    if dist.get_rank() == 0 and path.exists():
        state = torch.load(path, map_location='cpu', weights_only=True)
    shared = [state]
    dist.broadcast_object_list(shared)
    state = shared[0]
    found = state.get('run') if isinstance(state, dict) else type(state)
    if found != run:
        raise ValueError(f"'{path}' is of another run ({found}); pass another "
                         f"'--folder', or remove it")
    if 'model' in state:
        model.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
    return state


def batches_of(data: Data, rank: int, world: int, seeds: int,
               num_neighbors: list[int]) -> Any:
    r"""The loader of a process: all together have the batches of one."""
    nodes = share_of(data.train_mask.nonzero().view(-1), rank, world)
    size = -(-nodes.numel() // STEPS_PER_EPOCH)
    if seeds // world <= size:
        raise ValueError(
            f"'distributed.py' got {world} processes, which share seeds="
            f"{seeds} in each step; pass '--settings' with at least "
            f'{world * (size + 1)} seeds, or start fewer')
    return batches.make_loader(data, nodes, seeds // world, num_neighbors)


def work(args: argparse.Namespace) -> None:
    r"""One of many processes, from the beginning to the end."""
    torch.set_num_threads(1)
    meet()
    train(args)
    # What is left of the model must go before the group does: if it were the
    # last to hold the group, its threads and this one could wait for each
    # other at the end (torch 2.13).
    gc.collect()
    dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    r"""Trains, and writes what came of it."""
    own = json.loads(args.settings)
    killed_at, epochs, lr, weight_decay, seeds, num_neighbors = (
        own.pop(key) for key in ['killed_at', 'epochs', 'lr', 'weight_decay',
                                 'seeds', 'num_neighbors'])
    rank, folder = dist.get_rank(), Path(args.folder)
    restarts = int(os.environ['TORCHELASTIC_RESTART_COUNT'])
    device = torch.device('cpu')
    if torch.cuda.is_available():
        device = torch.device('cuda', int(os.environ['LOCAL_RANK']))
        torch.cuda.set_device(device)

    data = RemoveSelfLoops()(load(args.dataset, root=args.root))
    loader = batches_of(data, rank, dist.get_world_size(), seeds,
                        num_neighbors)
    weights = ImportanceWeights(loader)
    torch.manual_seed(args.seed)
    model = batches.make_model(data, **own).to(device)
    optimizer = batches.make_optimizer(model, lr, weight_decay)
    state = resume(folder / 'checkpoint.pt',
                   [args.dataset, args.seed, args.settings], model, optimizer)
    parallel = DistributedDataParallel(model)
    data = data.to(device)

    for epoch in range(state['epoch'], epochs):
        if rank == 0:
            with (folder / 'epochs').open('a') as file:
                file.write(f'{epoch}\n')
        # Chance depends on nothing but this, so that an epoch that is
        # repeated is the same.
        torch.manual_seed((args.seed * 10_000 + epoch) * 10_000 + rank)
        parallel.train()
        for batch in loader:
            batch = batch.to(device)
            optimizer.zero_grad()
            out = parallel(batch.x, batch.edge_index, **weights(batch))
            batches.loss_of(out, batch).backward()
            if args.kill == rank and epoch == killed_at and restarts == 0:
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
        save(state, folder / 'checkpoint.pt')
        print(f'epoch {epoch + 1} of {epochs}: validation loss {loss:.4f}',
              flush=True)

    if rank > 0:
        return
    if 'best_model' not in state:
        raise ValueError(
            "'distributed.py' got no validation loss that is finite; pass "
            "'--settings' with a lower 'lr', and another '--folder'")
    model.load_state_dict(state['best_model'])
    result = dict(epochs=epochs, restarts=restarts, val_losses=state['losses'],
                  **batches.accuracies(logits_of(model, data), data))
    (folder / 'result.json').write_text(json.dumps(result))
    print(f"test accuracy {result['test_accuracy']:.1f} %, after {restarts} "
          f'restarts', flush=True)


@torch.no_grad()
def logits_of(model: Any, data: Data) -> Tensor:
    r"""The outputs on the whole graph, with the running estimate."""
    return model.eval()(data.x, data.edge_index)


# The experiment ##############################################################


def launch(task: Task, folder: str, root: str) -> None:
    r"""Starts this file by torchrun on this machine."""
    processes, killed = METHODS[task.method]
    command = [
        sys.executable, '-m', 'torch.distributed.run', '--standalone',
        f'--nproc-per-node={processes}', '--max-restarts=3', __file__,
        '--folder', folder, '--root', str(Path(root).resolve()),
        '--dataset', task.dataset, '--seed', str(task.seed),
        '--settings', task.settings, '--kill', str(killed)]
    env = {**os.environ, 'TORCH_DISABLE_SHARE_RDZV_TCP_STORE': '1'}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env,
                          stderr=subprocess.PIPE, text=True) as process:
        try:
            _, error = process.communicate(timeout=PATIENCE)
        finally:
            process.terminate()  # and with it all that it started
    if process.returncode != 0:
        raise RuntimeError(f"'torchrun' ended with {process.returncode}: "
                           f'{error[-2000:]}')


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains in processes of their own."""
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        launch(task, folder, root)
        result = json.loads((Path(folder) / 'result.json').read_text())
        begun = (Path(folder) / 'epochs').read_text().split()
    seconds = time.perf_counter() - start
    result['val_losses'] = ' '.join(f'{v:.6g}' for v in result['val_losses'])
    return {**task._asdict(), **result, 'seconds': round(seconds, 2),
            'repeated': len(begun) - len(set(begun))}


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
            most = abs(alive - killed).max(initial=0)
            found['and a kill changes'] = (
                f'the loss of an epoch by at most {most:.2g}' if most else
                'no loss of an epoch')
    return sentence('Test accuracy minus that of one process, in points with '
                    '95 % intervals: ', found)


def tasks(args: argparse.Namespace) -> list[Task]:
    r"""All numbers of processes."""
    return [Task(method, dataset, seed, settings_of(dataset, args.quick))
            for seed in range(args.runs) for dataset in args.datasets
            for method in METHODS]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    r"""The options of the program that torchrun starts."""
    options = argparse.ArgumentParser('torchrun benchmarks/distributed.py')
    options.add_argument('--dataset', default='Cora', choices=CITATION)
    options.add_argument('--root', default='data', help='where data is kept')
    options.add_argument('--folder', default=str(runner.QUICK / 'distributed'),
                         help='where checkpoints are kept, and looked for')
    options.add_argument('--seed', type=int, default=0)
    options.add_argument('--settings', help='all settings, as JSON')
    options.add_argument('--kill', type=int, default=-1, metavar='RANK',
                         help='a process that kills itself, to see that '
                         'training goes on')
    args = options.parse_args(argv)
    args.settings = args.settings or settings_of(args.dataset)
    if 'RANK' not in os.environ:
        options.error("start it by 'torchrun --nproc-per-node 2 "
                      "benchmarks/distributed.py', or 'python -m benchmarks "
                      "distributed'")
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    return args


if __name__ == '__main__':
    keep_memory()
    work(parse())
