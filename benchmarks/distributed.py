r"""More than one process: the same accuracy, also if one of them is killed.

The DiffusedMLP of :mod:`benchmarks.minibatch` is trained by PyTorch's
``DistributedDataParallel``, with a ``NeighborLoader`` in each process for its
share of the training nodes, and energies that are averaged over batches and
processes. One process, two that share its batches, and two of which one is
killed amid an epoch are compared.

This file is also the program that ``torchrun`` starts, on one machine::

    torchrun --nproc-per-node 2 --max-restarts 3 benchmarks/distributed.py

or, with the same command on each of them, on two to four machines that share a
folder::

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    torchrun --nnodes 2:4 --nproc-per-node 8 --max-restarts 3 \
        --rdzv-backend c10d --rdzv-endpoint HOST:29400 --rdzv-id agcn \
        benchmarks/distributed.py --folder SHARED/FOLDER

where ``HOST`` is one of them, and the variable has processes meet anew after
each restart, and not where those before them did. NCCL is used where there
are GPUs, otherwise gloo. After each epoch, the first process writes a
checkpoint to the folder, and keeps the one before. When a process ends,
``torchrun`` starts all of them again, and they go on from there, in whatever
number they are; so does the same command. A folder belongs to one command at a
time; data may be shared.
"""
import argparse
import gc
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

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
from torch_geometric.utils import index_to_mask

from benchmarks import batches, runner, settings
from benchmarks.data import CITATION, load
from benchmarks.results import RESULTS, Claim, Table, keep_memory
from benchmarks.stats import Gap, paired
from torch_agcn.loader import ImportanceWeights, MixedBatchSampler

QUESTION = 'Is accuracy the same with more processes, and after a kill?'
TABLE = Table(RESULTS / 'distributed.csv', [
    'method', 'dataset', 'seed', 'settings', 'epochs', 'repeated', 'restarts',
    'val_losses', 'val_accuracy', 'test_accuracy', 'seconds'])
# Processes, and which of them is killed:
METHODS: dict[str, tuple[int, int | None]] = {
    'one process': (1, None), 'two processes': (2, None),
    'two, one killed': (2, 1)}
PATIENCE = 1800  # seconds, for all that may go wrong between processes
# Seconds, for a lock to vanish: on NFS, that of a machine that died stays for
# a minute and a half.
LOCK_PATIENCE = 100
STYLES = {'one process': dict(color='#555555', linestyle='--'),
          'two processes': dict(color='#0072b2', linestyle='-'),
          'two, one killed': dict(color='#d55e00', linestyle=':')}
CAPTIONS = {'distributed': 'Validation loss in each epoch, means over the '
            'seeds and bands of a standard deviation. The dotted line is the '
            'epoch in which a process is killed; what comes after it starts '
            'from the checkpoint before.'}


class Task(NamedTuple):
    r"""One run. ``settings`` are all of them, as JSON."""

    method: str
    dataset: str
    seed: int
    settings: str


def settings_of(dataset: str, quick: bool = False) -> str:
    r"""Those of mini-batches in one process, with neighbors alone."""
    names = ['head', 'beta', 'alpha', 'energy', 'residual', 'num_hops',
             'hidden_channels', 'p', 'lr', 'weight_decay', 'momentum', 'seeds',
             'num_neighbors']
    known = json.loads(batches.settings_of('agcn', dataset))
    epochs = 8 if quick else known['steps'] // batches.STEPS_PER_EPOCH
    return runner.as_json(**{name: known[name] for name in names},
                          epochs=epochs, killed_at=epochs // 2)


# A process of torchrun #######################################################


def meet() -> None:
    r"""Starts the process group, after a restart as well.

    By default, torchrun keeps one store for all restarts, and where processes
    that were killed could be reached still stands there: who looks before it
    is written anew waits for them forever. On one machine all know how often
    they were restarted, and leave word under this number. On many, each
    machine counts for itself.
    """
    backend = 'nccl' if torch.cuda.is_available() else 'gloo'
    known = os.environ
    if known.get('TORCHELASTIC_USE_AGENT_STORE') != 'True':
        dist.init_process_group(backend)
        return
    if int(known['GROUP_WORLD_SIZE']) > 1:
        if int(known['TORCHELASTIC_MAX_RESTARTS']) > 0:
            raise ValueError(
                "'distributed.py' got more than one machine and restarts, "
                'after which they may wait for each other forever; set '
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for 'torchrun' on all "
                'of them')
        dist.init_process_group(backend)
        return
    store = dist.TCPStore(known['MASTER_ADDR'], int(known['MASTER_PORT']),
                          is_master=False)
    dist.init_process_group(
        backend, rank=int(known['RANK']), world_size=int(known['WORLD_SIZE']),
        store=dist.PrefixStore(known['TORCHELASTIC_RESTART_COUNT'], store))


def share_of(nodes: Tensor, rank: int, world: int) -> Tensor:
    r"""As many nodes for each process: where they do not divide, some have
    two, for all must take as many steps.
    """
    count = -(-nodes.numel() // world)
    return nodes[torch.arange(rank, count * world, world) % nodes.numel()]


def claim(folder: Path) -> Any:
    r"""Holds the folder as long as what is returned stays open: two jobs would
    write one checkpoint.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    lock = (folder / 'lock').open('a')
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                lock.close()
                raise ValueError(
                    f"'{folder}' is in use by another job; pass another "
                    f"'--folder', or wait for its end") from None
            time.sleep(0.1)


def save(state: dict[str, Any], path: Path) -> None:
    r"""Writes a file that is whole or not there, and keeps the one before."""
    part = path.with_suffix('.part')
    with part.open('wb') as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # or else a crash may leave an empty file
    if path.exists():
        os.replace(path, path.with_suffix('.before'))
    os.replace(part, path)


def read(path: Path) -> dict[str, Any] | None:
    r"""The latest checkpoint that can be read."""
    for file in [path, path.with_suffix('.before')]:
        if not file.exists():
            continue
        content = BytesIO(file.read_bytes())
        try:
            return torch.load(content, map_location='cpu', weights_only=True)
        except Exception as error:  # of any kind, depending on what is broken
            print(f"'{file}' is broken and left out: {error}", flush=True)
            os.replace(file, file.with_suffix('.broken'))
    return None


def restore(path: Path) -> dict[str, Any] | None:
    r"""The checkpoint of the first process, for all."""
    found = [read(path) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    return found[0]


def load_in_turn(dataset: str, root: str) -> Data:
    r"""A graph, made ready by the first process of each machine."""
    is_first = int(os.environ['LOCAL_RANK']) == 0
    if not is_first:
        dist.barrier()
    data = RemoveSelfLoops()(load(dataset, root=root))
    if is_first:
        dist.barrier()
    return data


def batches_of(data: Data, rank: int, world: int, seeds: int,
               num_neighbors: list[int]) -> Any:
    r"""The loader of a process: all together have the batches of one."""
    from torch_geometric.loader import NeighborLoader
    given = data.train_mask.nonzero().view(-1)
    nodes = share_of(given, rank, world)
    part = data.clone()
    part.x = data.x.to_dense()
    part.train_mask = index_to_mask(nodes, data.num_nodes)
    batch_size = batch_size_of(given.numel(), world)
    if seeds // world <= batch_size:
        most = max((n for n in range(1, world)
                    if seeds // n > batch_size_of(given.numel(), n)),
                   default=0)
        fewer = f'start at most {most}, or ' if most else ''
        raise ValueError(
            f"'distributed.py' got {world} processes, which share seeds="
            f"{seeds} in each step; {fewer}pass '--settings' with at least "
            f'{world * (batch_size + 1)} seeds')
    return NeighborLoader(part, num_neighbors, batch_sampler=MixedBatchSampler(
        nodes, data.num_nodes, batch_size, seeds // world - batch_size))


def batch_size_of(num_nodes: int, world: int) -> int:
    r"""The training nodes in a batch of one of many processes."""
    share = math.ceil(num_nodes / world)
    return math.ceil(share / batches.STEPS_PER_EPOCH)


def work(args: argparse.Namespace) -> None:
    r"""One of many processes, from the beginning to the end."""
    torch.set_num_threads(1)
    meet()
    lock = claim(Path(args.folder)) if dist.get_rank() == 0 else None
    train(args)
    if lock is not None:
        lock.close()
    # What is left of the model must go before the group does: if it were the
    # last to hold the group, its threads and this one could wait for each
    # other at the end (torch 2.13).
    gc.collect()
    dist.destroy_process_group()


def resume(path: Path, run: list[Any], model: torch.nn.Module,
           optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    r"""Goes back to the last epoch that was saved, if there is one."""
    state = restore(path)
    if state is None:
        state = dict(epoch=0, best=float('inf'), losses=[], run=run)
    found = state.get('run') if isinstance(state, dict) else type(state)
    if found != run:
        raise ValueError(f"'{path}' is of another run ({found}); pass another "
                         f"'--folder', or remove it")
    if 'model' in state:
        model.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
    return state


def note(state: dict[str, Any], epoch: int, loss: float,
         model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    r"""Adds what came of an epoch, and the best network so far."""
    state['losses'].append(loss)
    state.update(epoch=epoch, model=model.state_dict(),
                 optimizer=optimizer.state_dict())
    if loss < state['best']:
        state.update(best=loss, best_model={
            key: value.clone() for key, value in model.state_dict().items()})


def train(args: argparse.Namespace) -> None:
    r"""Trains, and writes what came of it."""
    own = json.loads(args.settings)
    killed_at, epochs, momentum, lr, weight_decay, seeds, num_neighbors = (
        own.pop(key) for key in [
            'killed_at', 'epochs', 'momentum', 'lr', 'weight_decay', 'seeds',
            'num_neighbors'])
    rank, world = dist.get_rank(), dist.get_world_size()
    restarts = int(os.environ['TORCHELASTIC_RESTART_COUNT'])
    device = torch.device('cpu')
    if torch.cuda.is_available():
        device = torch.device('cuda', int(os.environ['LOCAL_RANK']))
        torch.cuda.set_device(device)

    data = load_in_turn(args.dataset, args.root)
    loader = batches_of(data, rank, world, seeds, num_neighbors)
    weights = ImportanceWeights(loader)
    torch.manual_seed(args.seed)
    model = batches.make_model(data, momentum=momentum, **own)
    model.to(device)
    optimizer = batches.make_optimizer(model, lr, weight_decay)
    path = Path(args.folder) / 'checkpoint.pt'
    state = resume(path, [args.dataset, args.seed, args.settings], model,
                   optimizer)
    parallel = DistributedDataParallel(model)
    data = data.to(device)

    for epoch in range(state['epoch'], epochs):
        if rank == 0:
            with (Path(args.folder) / 'epochs').open('a') as file:
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
        note(state, epoch + 1, loss, model, optimizer)
        save(state, path)
        print(f'epoch {epoch + 1} of {epochs}: validation loss {loss:.4f}',
              flush=True)

    if rank == 0:
        if 'best_model' not in state:
            raise ValueError(
                "'distributed.py' got no validation loss that is finite; "
                "pass '--settings' with a lower 'lr', and another '--folder'")
        model.load_state_dict(state['best_model'])
        result = dict(
            epochs=epochs, restarts=restarts, val_losses=state['losses'],
            **accuracies(model, data))
        (Path(args.folder) / 'result.json').write_text(json.dumps(result))
        print(f"test accuracy {result['test_accuracy']:.1f} %, after "
              f'{restarts} restarts', flush=True)


def accuracies(model: torch.nn.Module, data: Data) -> dict[str, float]:
    r"""Of validation and test, in percent."""
    hit = 100 * (logits_of(model, data).argmax(-1) == data.y).double()
    return {f'{key}_accuracy': round(float(hit[data[f'{key}_mask']].mean()), 3)
            for key in ['val', 'test']}


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
        '--settings', task.settings,
        '--kill', str(-1 if killed is None else killed)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL,
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
            'repeated': sum(n - 1 for n in Counter(begun).values())}


def gaps(rows: pd.DataFrame) -> dict[tuple[str, str], Gap | None]:
    r"""Accuracies minus those of one process."""
    groups = {key: part.set_index('seed').test_accuracy for key, part in
              settings.latest(rows).groupby(['dataset', 'method'], sort=False)}
    empty = pd.Series(dtype=float)
    return {key: None if key[1] == 'one process' else paired(
        values, groups.get((key[0], 'one process'), empty))
        for key, values in groups.items()}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies beside one process's, and what a kill cost."""
    lines, found = [], gaps(rows)
    groups = dict(iter(settings.latest(rows).groupby(['dataset', 'method'])))
    for (dataset, method), gap in found.items():
        part = groups[dataset, method]
        values = part.test_accuracy
        std = f' ± {values.std():.1f}' if len(values) > 1 else ''
        lines.append([dataset, method,
                      f'{values.mean():.1f}{std} ({len(values)})',
                      '–' if gap is None else gap.text(2),
                      f'{part.restarts.max():.0f}',
                      f'{part.repeated.max():.0f}',
                      f'{part.seconds.median():.1f}'])
    out = {'Test accuracy (%)': pd.DataFrame(lines, columns=[
        'data', '', 'mean ± std (runs)', 'minus one process, 95 % interval',
        'restarts at most', 'epochs repeated at most', 'seconds'])}
    same = equal_after_kill(settings.latest(rows))
    if len(same):
        out['Losses of all epochs, with and without a kill'] = same
    return out


def equal_after_kill(rows: pd.DataFrame) -> pd.DataFrame:
    r"""How far a killed run is from the same one that was let live."""
    keys = ['dataset', 'seed']
    wide = rows.pivot(index=keys, columns='method', values='val_losses')
    if not {'two processes', 'two, one killed'} <= set(wide.columns):
        return pd.DataFrame()
    lines = []
    for (dataset, seed), row in wide.dropna().iterrows():
        a, b = (np.array(row[method].split(), dtype=float)
                for method in ['two processes', 'two, one killed'])
        lines.append([dataset, seed, f'{np.abs(a - b).max():.2g}'])
    return pd.DataFrame(lines, columns=[
        'data', 'seed', 'largest difference of validation losses'])


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Validation losses, a panel for each data set."""
    from benchmarks import plots
    rows = settings.latest(rows)
    datasets = list(dict.fromkeys(rows.dataset))
    figure, axes = plots.panels(len(datasets), 4.4, 3.6, 2.2)
    for axis, dataset in zip(axes, datasets):
        part = rows[rows.dataset == dataset]
        for method, style in STYLES.items():
            group = part[part.method == method]
            if len(group):
                plots.band(axis, np.array(
                    [text.split() for text in group.val_losses], dtype=float),
                    method, linewidth=2, **style)
        if (part.method == 'two, one killed').any():
            at = json.loads(part.settings.iloc[-1])['killed_at'] + 1
            axis.axvline(at, color='black', linestyle=':', linewidth=1)
        axis.set(title=dataset, xlabel='epoch')
    axes[0].set_ylabel('validation loss (nats)')
    plots.legend_right(axes[-1])
    return plots.save(figure, folder, 'distributed')


def answer(rows: pd.DataFrame) -> str:
    r"""What more processes and a kill cost."""
    texts = [f'{method} on {dataset} {gap.text(2)}'
             for (dataset, method), gap in gaps(rows).items() if gap]
    return ('Test accuracy minus that of one process, with 95 % intervals: '
            + ', '.join(texts) + '.' if texts else '')


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper claims nothing here."""
    return []


def main(argv: list[str]) -> None:
    options = runner.parser('distributed', ['PubMed'], runs=5, of=CITATION)
    options.set_defaults(jobs=1)  # each has processes of its own
    args = options.parse_args(argv)
    if args.quick:
        args.runs = 1
        if args.datasets == ['PubMed']:
            args.datasets = ['Cora']  # comes with the package
    tasks = [Task(method, dataset, seed, settings_of(dataset, args.quick))
             for seed in range(args.runs) for dataset in args.datasets
             for method in METHODS]
    runner.run_and_report(sys.modules[__name__], tasks, args)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    r"""The options of the program that torchrun starts."""
    options = argparse.ArgumentParser('torchrun benchmarks/distributed.py')
    options.add_argument('--dataset', default='Cora', choices=CITATION)
    options.add_argument('--root', default='data',
                         help='where data is kept')
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
