r"""One big graph: time and memory of full-batch training beside PyG.

Networks of two layers are trained on power-law graphs of up to 2 million
nodes and 40 million directed edges, 64 features wide: ``GCN`` in each form of
a graph that PyG's ``GCNConv`` takes, ``GAT``, and ``AGCN`` in three settings.

Each run is a process of its own, one at a time, on all cores. It may use
20 GB: one that needs more is a row that says so. Time is the median of a few
training steps after a first one, which also makes the graph that is kept.
Memory is the largest that the system gave the process, from an empty one (in
which a tiny network has been trained) to its last step: graph, features and
all. Large tensors are on huge pages, for all methods alike: with small ones
the system needs as long to hand out memory as a layer to fill it. Limits and
memory are those that Linux tells: it runs nowhere else.

How far the product of matrix and features is from what the memory can do is
told by a large tensor that is copied in turn with it. Two counts of the
product's bytes stand beside that: all rows that it gathers, one for each
edge, of which those of well-known nodes are found in the cache, and what it
has to move at least, each row but once.
"""
import gc
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
import torch_geometric.typing
from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import GAT, GCN
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import to_torch_csr_tensor

from benchmarks import cost, runner
from benchmarks.cost import RELATIVE, SATURATED, exponent
from benchmarks.results import RESULTS, ROOT, Claim, Table
from benchmarks.runtime import OURS
from benchmarks.sparse import row_pointer, weighted_sum
from torch_agcn import AGCN

# Power-law graphs by their number of nodes:
DATASETS = {'125k': 125_000, '250k': 250_000, '500k': 500_000,
            '1M': 1_000_000, '2M': 2_000_000}
QUICK = {'4k': 4_000, '16k': 16_000}
DEGREE = 20  # directed edges for each node
FEATURES, CLASSES = 64, 16
LIMIT = 20 * 1024  # megabytes
STEPS = 3  # that are timed, if they take less than this in all:
ENOUGH = 20.0  # seconds
COPIED = 2**26  # numbers at least, more than caches hold
GCNS = ['GCN, edge_index', 'GCN, torch CSR', 'GCN, SparseTensor']
LEARNT = 'AGCN, beta learnt'  # needs the energy, saturated or not
AGCNS = [SATURATED, LEARNT, RELATIVE]
SETTINGS: dict[str, dict[str, Any]] = {
    SATURATED: {}, LEARNT: dict(learn_beta=True), RELATIVE: OURS}
PRODUCT = 'product'
METHODS = [*GCNS, 'GAT', *AGCNS, PRODUCT]
LOOKS = {**cost.LOOKS, LEARNT: 'JK-Net', 'GCN, edge_index': 'GCN',
         'GCN, torch CSR': 'GCN-PN', 'GCN, SparseTensor': 'GCNII'}
OUT_OF_MEMORY = 'out of memory'
# What we set ourselves, beside the fastest form of GCN:
TIME_BOUND, MEMORY_BOUND, EXPONENT_BOUND = 1.0, 1.0, 1.1
CAPTIONS = {
    'scale': 'Two layers trained on one power-law graph with 20 directed '
    'edges for each node: time of a step, and largest memory, graph and '
    'features among it. A line that ends early ran out of memory at the next '
    'size. In the legends: the exponent against edges for the four largest '
    'sizes.',
}


class Task(NamedTuple):
    r"""One method on one graph."""

    method: str
    dataset: str
    nodes: int
    edges: int
    limit: int
    seed: int


SEEN = ['threads', 'outcome', 'first_seconds', 'milliseconds', 'megabytes',
        'first_loss', 'last_loss', 'copy_gb_per_s', 'gathered_gb_per_s',
        'least_gb_per_s']
TABLE = Table(RESULTS / 'scale.csv', [*Task._fields, *SEEN, 'seconds'])
# How torch, its libraries and Python say that there is no memory:
ALLOCATION_ERRORS = ["can't allocate memory", 'not enough memory',
                     'bad_alloc']


# Graphs ######################################################################


def power_law_graph(num_nodes: int, num_edges: int, gamma: float = 2.5,
                    seed: int = 0) -> Tensor:
    r"""An undirected graph with :obj:`num_edges` directed edges, sorted, none
    twice and no loops, in which the number of nodes of degree :math:`k` falls
    as :math:`k^{-\gamma}`, with :math:`\gamma > 2`.

    Each edge joins two nodes that are drawn with a probability of
    :math:`r^{-a}`, where :math:`r` is the rank of a node and :math:`a = 1 /
    (\gamma - 1)`. The first ranks are left out: from a degree of about
    :math:`\sqrt{|\mathcal{E}|}` on, most edges of two such nodes would stand
    there already. Numbers of nodes tell nothing of their ranks.
    """
    wanted = num_edges // 2
    if num_edges % 2 or 4 * wanted > num_nodes * (num_nodes - 1):
        raise ValueError(f'There is no power-law graph of {num_nodes} nodes '
                         f'with {num_edges} directed edges; pass an even '
                         f'number, of at most half of all pairs')
    generator = torch.Generator().manual_seed(seed)
    a = 1 / (gamma - 1)
    # Rank r has degree (1 - a) |E| / N (r / N)^-a, and the first the root:
    first = num_nodes * ((1 - a) * num_edges**0.5 / num_nodes)**(1 / a)
    low = (first / (num_nodes + first))**(1 - a)
    pairs = torch.empty(0, dtype=torch.long)
    while pairs.numel() < wanted:
        missing = wanted - pairs.numel()
        # The inverse of the ranks' distribution, (r / N)^(1 - a):
        ends = torch.rand(2, missing + missing // 16 + 8, dtype=torch.double,
                          generator=generator)
        ends.mul_(1 - low).add_(low).pow_(1 / (1 - a))
        ends = ends.mul_(num_nodes + first).sub_(first).long()
        a_end, b_end = ends.clamp_(0, num_nodes - 1)
        keys = (torch.minimum(a_end, b_end) * num_nodes
                + torch.maximum(a_end, b_end))
        pairs = torch.cat([pairs, keys[a_end != b_end]]).unique()
    # Those too many are any, not the last:
    if pairs.numel() > wanted:
        pairs = pairs[torch.randperm(pairs.numel(), generator=generator)]
        pairs = pairs[:wanted]
    names = torch.randperm(num_nodes, generator=generator)
    row, col = names[pairs // num_nodes], names[pairs % num_nodes]
    pairs = torch.cat([row * num_nodes + col, col * num_nodes + row])
    del row, col
    pairs = pairs.sort().values
    return torch.stack([pairs // num_nodes, pairs % num_nodes])


def adjacency(method: str, edge_index: Tensor, num_nodes: int) -> Any:
    r"""The graph in the form that a method takes."""
    size = num_nodes, num_nodes
    if method == 'GCN, torch CSR':
        return to_torch_csr_tensor(edge_index, size=size)
    if method == 'GCN, SparseTensor':
        return SparseTensor.from_edge_index(edge_index, sparse_sizes=size,
                                            is_sorted=True)
    return edge_index


def network(method: str) -> Module:
    r"""Two layers of a method."""
    size = FEATURES, FEATURES, 2, CLASSES
    if method in GCNS:
        return GCN(*size, cached=True)
    if method == 'GAT':
        return GAT(*size, heads=8)
    return AGCN(*size, cached=True, **SETTINGS[method])


# Runs ########################################################################


def train(method: str, nodes: int, edges: int,
          seed: int) -> tuple[list[float], list[float]]:
    r"""Trains a network, and returns times in seconds and losses of steps."""
    adj = adjacency(method, power_law_graph(nodes, edges, seed=seed), nodes)
    torch.manual_seed(seed)
    x = torch.randn(nodes, FEATURES)
    y = x[:, :CLASSES].argmax(dim=1)
    model = network(method)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    gc.collect()
    runner.reset_peak()
    times: list[float] = []
    losses: list[float] = []
    while len(times) <= STEPS and sum(times[1:]) < ENOUGH:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, adj), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        del loss
        times.append(time.perf_counter() - start)
    return times, losses


def bandwidth(nodes: int, edges: int,
              seed: int) -> tuple[list[float], dict[str, float]]:
    r"""Times of products in seconds, and the bytes that they and copies of a
    large tensor moved, in GB/s.
    """
    row, col = power_law_graph(nodes, edges, seed=seed)
    value = torch.rand(edges)
    rowptr, col = row_pointer(row, nodes).int(), col.int()
    del row
    x = torch.randn(nodes, FEATURES)
    source = torch.ones(max(nodes * FEATURES, COPIED))
    target = torch.zeros_like(source)
    times: list[float] = []
    copies: list[float] = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        target.copy_(source)
        copies.append(time.perf_counter() - start)
        start = time.perf_counter()
        weighted_sum(rowptr, col, value, x)
        times.append(time.perf_counter() - start)
    matrix = 8 * edges + 4 * nodes  # 4 bytes for each number
    rows = 4 * FEATURES * nodes
    least = matrix + 2 * rows
    gathered = matrix + rows + 4 * FEATURES * edges
    seconds = 1e9 * median(times[1:])
    return times, {
        'copy_gb_per_s': round(
            8e-9 * source.numel() / median(copies[1:]), 3),
        'gathered_gb_per_s': round(gathered / seconds, 3),
        'least_gb_per_s': round(least / seconds, 3)}


def work(task: Task, limit: int) -> None:
    r"""What the process of a run does; prints its results as JSON."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    seen: dict[str, Any] = dict.fromkeys(SEEN)
    seen.update(outcome='trained', threads=torch.get_num_threads())
    sizes = task.nodes, task.edges, task.seed
    try:
        if task.method == PRODUCT:
            times, found = bandwidth(*sizes)
            seen.update(found, outcome='measured')
        else:
            train(task.method, 100, 1000, 0)  # loads what is loaded late
            gc.collect()
            runner.reset_peak()
            before = runner.peak_mb()
            _limit_memory(limit)
            times, losses = train(task.method, *sizes)
            seen.update(megabytes=runner.peak_mb() - before,
                        first_loss=round(losses[0], 4),
                        last_loss=round(losses[-1], 4))
        seen.update(first_seconds=round(times[0], 3),
                    milliseconds=round(1000 * median(times[1:]), 2))
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(
                text in str(error) for text in ALLOCATION_ERRORS):
            raise
        seen['outcome'] = OUT_OF_MEMORY
    print(json.dumps(seen))


def _end_with_parent() -> None:
    # A parent that was killed cannot end it.
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _kilobytes(file: str, key: str) -> int:
    return int(Path(file).read_text().split(f'{key}:')[1].split()[0])


def _limit_memory(megabytes: int) -> None:
    # Of memory to write to: of mere addresses torch needs many more.
    now = _kilobytes('/proc/self/status', 'VmData') * 2**10
    resource.setrlimit(resource.RLIMIT_DATA, (
        now + megabytes * 2**20, resource.RLIM_INFINITY))


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Runs a task in a process of its own, which is refused more memory
    than it may use or the machine can spare.
    """
    begin = time.perf_counter()
    spare = _kilobytes('/proc/meminfo', 'MemAvailable') // 2**10 - 1024
    limit = min(task.limit, spare)
    # All cores, where the runner has one for each process; torch takes the
    # least of what its libraries are told.
    cores = dict.fromkeys(['OMP_NUM_THREADS', 'MKL_NUM_THREADS',
                           'OPENBLAS_NUM_THREADS'], str(os.cpu_count() or 1))
    env = {**os.environ, **cores, 'THP_MEM_ALLOC_ENABLE': '1',
           # What is freed goes back to the system and does not count:
           'MALLOC_MMAP_THRESHOLD_': str(2**20)}
    env.pop('MALLOC_TRIM_THRESHOLD_', None)
    code = ('import warnings; warnings.simplefilter("ignore"); '
            'from benchmarks import scale; '
            f'scale.work(scale.Task(*{tuple(task)!r}), {limit})')
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT.parent,
                          env=env, capture_output=True, text=True,
                          check=False)
    if done.returncode:
        raise RuntimeError(f'The process of the run ended with '
                           f'{done.returncode}: {done.stderr[-2000:]}')
    seen = json.loads(done.stdout.splitlines()[-1])
    if seen['outcome'] == OUT_OF_MEMORY and limit < task.limit:
        raise RuntimeError(f'The machine had {limit} MB to spare and not '
                           f'{task.limit}, which did not do; end other '
                           f'programs and run the same command again')
    return {**task._asdict(), **seen,
            'seconds': round(time.perf_counter() - begin, 2)}


# What came of them ###########################################################


def medians(rows: pd.DataFrame, value: str) -> dict[str, pd.Series]:
    r"""Medians by the number of edges, for each method that has any."""
    rows = rows[rows[value].notna()]
    return {method: part.groupby('edges')[value].median()
            for method in METHODS
            if len(part := rows[rows.method == method])}


def fastest(rows: pd.DataFrame) -> dict[int, str]:
    r"""The form of GCN that took the least time, by the number of edges."""
    found = medians(rows, 'milliseconds')
    times = pd.DataFrame({name: found[name] for name in GCNS
                          if name in found})
    return {} if times.empty else times.idxmin(axis=1).to_dict()


def ratios(rows: pd.DataFrame, method: str, value: str) -> pd.Series:
    r"""A method's time or memory over that of the fastest form of GCN, by
    the number of edges.
    """
    found = medians(rows, value)
    own = found.get(method, pd.Series(dtype=float))
    return pd.Series({edges: own[edges] / found[form][edges]
                      for edges, form in fastest(rows).items()
                      if edges in own.index}, dtype=float)


def slope(rows: pd.DataFrame, method: str, value: str) -> float:
    r"""The exponent of time or memory against edges, or NaN."""
    found = medians(rows, value)
    return exponent(found[method])[0] if method in found else float('nan')


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Time and memory by size, the bounds, and the share of the bandwidth
    of memory.
    """
    edges = sorted(rows.edges.unique())
    out = {}
    for value, title, unit in [
            ('milliseconds', 'Time of a training step', 1e-3),
            ('megabytes', 'Largest memory', 2**-10)]:
        found, lines = medians(rows, value), []
        for method in METHODS[:-1]:
            part = rows[rows.method == method]
            failed = set(part[part.outcome == OUT_OF_MEMORY].edges)
            own = found.get(method, {})
            lines.append([method, *(
                f'{unit * own[size]:.3g}' if size in own else
                OUT_OF_MEMORY if size in failed else '–' for size in edges)])
        name = f'{title} ({"s" if unit == 1e-3 else "GB"})'
        out[name] = pd.DataFrame(lines, columns=[
            'method', *(f'{size:,} edges' for size in edges)])
    out['Bounds, beside the fastest form of GCN at each size'] = (
        pd.DataFrame(_bounds(rows), columns=['', 'method', 'measured',
                                             'bound', 'holds']))
    out['The product, and a copy of a large tensor'] = pd.DataFrame(
        [[f'{size:,}', *(f'{v:.3g}' for v in line)]
         for size, line in shares(rows).iterrows()],
        columns=['edges', 'copy (GB/s)', 'product, gathered (GB/s)',
                 'as a share', 'product, at least (GB/s)', 'as a share '])
    return out


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    r"""What copy and product moved, and the latter as a share, by edges."""
    part = rows[rows.method == PRODUCT].groupby('edges')[
        ['copy_gb_per_s', 'gathered_gb_per_s', 'least_gb_per_s']].median()
    copy, gathered, least = (part[name] for name in part)
    return pd.DataFrame({'copy': copy, 'gathered': gathered,
                         'gathered_share': gathered / copy, 'least': least,
                         'least_share': least / copy})


def _bounds(rows: pd.DataFrame) -> list[list[str]]:
    lines = []
    for method in AGCNS:
        for value, name, bound in [
                ('milliseconds', 'time', TIME_BOUND),
                ('megabytes', 'memory', MEMORY_BOUND)]:
            found = ratios(rows, method, value)
            if len(found):
                lines.append([name, method, f'{found.min():.2f} to '
                              f'{found.max():.2f}', f'{bound:.2f}',
                              'yes' if found.max() <= bound else 'no'])
        found = slope(rows, method, 'milliseconds')
        if found == found:
            lines.append(['exponent of time', method, f'{found:.2f}',
                          f'{EXPONENT_BOUND:.2f}',
                          'yes' if found <= EXPONENT_BOUND else 'no'])
    return lines


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Time and memory against edges."""
    from matplotlib.ticker import EngFormatter

    from benchmarks.plots import STYLES, plt, save
    figure, axes = plt.subplots(1, 2, figsize=(9, 5.2))
    for panel, value, unit, label in [
            (axes[0], 'milliseconds', 1e-3, 'time of a training step (s)'),
            (axes[1], 'megabytes', 2**-10, 'largest memory (GB)')]:
        for method, found in medians(rows, value).items():
            if method == PRODUCT:
                continue
            power = slope(rows, method, value)
            text = method if power != power else f'{method}: {power:.2f}'
            panel.plot(unit * found, label=text, markersize=5,
                       **STYLES[LOOKS.get(method, method)])
        panel.set(xscale='log', yscale='log', xlabel='directed edges',
                  ylabel=label)
        panel.set_xticks(sorted(rows.edges.unique()))
        panel.xaxis.set_major_formatter(EngFormatter(sep=''))
        panel.yaxis.set_major_formatter('{x:g}')
        panel.tick_params(axis='x', which='minor', bottom=False,
                          labelbottom=False)
        panel.legend(loc='upper center', bbox_to_anchor=(0.5, -0.14),
                     handlelength=3, title='exponent')
    limit = rows.limit.max() / 2**10
    axes[1].axhline(limit, color='black', linewidth=0.8)
    axes[1].annotate('allowed', (0.01, limit), xytext=(0, 3),
                     xycoords=('axes fraction', 'data'),
                     textcoords='offset points')
    return save(figure, folder, 'scale')


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""That of the paper's paragraph on complexity, on one big graph."""
    texts, verdicts = [], []
    for method in AGCNS:
        powers = [slope(rows, method, value)
                  for value in ['milliseconds', 'megabytes']]
        found = [ratios(rows, method, value)
                 for value in ['milliseconds', 'megabytes']]
        if powers[0] != powers[0] or found[0].empty:
            verdicts.append('not shown')
            continue
        verdicts.append('yes' if max(powers) <= EXPONENT_BOUND else 'no')
        texts.append('{}: exponents {:.2f} and {:.2f}, {:.2f} and {:.2f} '
                     'times what the fastest form of GCN needs at {:,} '
                     'edges'.format(method.removeprefix('AGCN, '), *powers,
                                    *(v.iloc[-1] for v in found),
                                    found[0].index[-1]))
    holds = next((v for v in ['not shown', 'no'] if v in verdicts), 'yes')
    form = list(fastest(rows).values())[-1:]
    texts += [f'{name} itself: ' + ' and '.join(
        f'{slope(rows, name, value):.2f}'
        for value in ['milliseconds', 'megabytes']) for name in form if texts]
    text = f'Time and memory against edges: {"; ".join(texts)}.'
    if not texts:
        text = 'Not enough sizes yet.'
    failed = rows[rows.outcome == OUT_OF_MEMORY]
    for method, part in failed.groupby('method', sort=False):
        text += (f' {method} needed more than {part.limit.max() // 2**10} GB '
                 f'from {part.edges.min():,} edges on.')
    for edges, line in shares(rows).iloc[-1:].iterrows():
        text += (f' At {edges:,} edges, the product gathers '
                 f'{line.gathered:.3g} GB/s, {100 * line.gathered_share:.0f} '
                 f'% of what a copy moves in the same process.')
    return [Claim('AGCN has the same time and memory complexity as GCN. (one '
                  'big graph)', holds, text)]


def main(argv: list[str]) -> None:
    options = runner.parser('scale', list(DATASETS), runs=1,
                            of=list(DATASETS))
    args = options.parse_args(argv)
    args.jobs = 1  # a run has all cores and most of the memory
    sizes = {name: DATASETS[name] for name in args.datasets}
    if args.quick:
        args.runs, sizes = 1, QUICK
    methods = METHODS
    if not torch_geometric.typing.WITH_TORCH_SPARSE:
        print("No GCN on SparseTensor without 'torch_sparse': "
              "'make test-extensions' builds it")
        methods = [m for m in METHODS if m != 'GCN, SparseTensor']
    tasks = [Task(method, name, nodes, DEGREE * nodes, LIMIT, seed)
             for seed in range(args.runs) for name, nodes in sizes.items()
             for method in methods]
    runner.conclude(sys.modules[__name__], tasks, args)
