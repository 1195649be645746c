import json
import math

import pandas as pd
import pytest
import torch
import torch_geometric.typing
from torch_geometric.utils import (
    contains_self_loops,
    is_undirected,
    to_dense_adj,
)

from benchmarks import plots, runner, scale
from benchmarks.cost import RELATIVE, SATURATED
from benchmarks.scale import (
    AGCNS,
    LEARNT,
    METHODS,
    OUT_OF_MEMORY,
    PRODUCT,
    Task,
    power_law_graph,
)

CSR, SPARSE = 'GCN, torch CSR', 'GCN, SparseTensor'


def rows_of(time, memory=lambda method, E: 1e-4 * E, failed=()):
    r"""Rows from laws of time and memory."""
    rows = []
    for name, N in scale.DATASETS.items():
        E = scale.DEGREE * N
        for method in METHODS:
            row = {**Task(method, name, N, E, scale.LIMIT, 0)._asdict(),
                   **dict.fromkeys(scale.SEEN), 'outcome': 'trained'}
            if (method, E) in failed:
                row['outcome'] = OUT_OF_MEMORY
            elif method == PRODUCT:
                row.update(copy_gb_per_s=20., gathered_gb_per_s=15.,
                           least_gb_per_s=5., milliseconds=1.)
            else:
                row.update(milliseconds=time(method, E),
                           megabytes=memory(method, E))
            rows.append(row)
    return pd.DataFrame(rows).astype(dict.fromkeys(scale.SEEN[2:], float))


# Graphs ######################################################################


@pytest.mark.parametrize('num_nodes,num_edges', [
    (2, 0), (5, 10), (30, 120), (500, 10_000), (3000, 6000)])
def test_power_law_graph_is_simple(num_nodes, num_edges):
    edge_index = power_law_graph(num_nodes, num_edges)
    assert edge_index.dtype == torch.long
    assert edge_index.shape == (2, num_edges)
    assert is_undirected(edge_index, num_nodes=num_nodes)
    assert not contains_self_loops(edge_index)
    key = edge_index[0] * num_nodes + edge_index[1]
    assert (key.diff() > 0).all()  # sorted, and none twice
    if num_edges:
        assert 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes


@pytest.mark.parametrize('gamma', [2.2, 2.5, 3.0])
def test_power_law_exponent(gamma):
    edge_index = power_law_graph(50_000, 1_000_000, gamma)
    degree = torch.bincount(edge_index[0], minlength=50_000).double()
    # The estimate of largest likelihood, from the mean degree on: above, the
    # chances that make degrees of ranks matter little.
    tail = degree[degree >= 30]
    found = 1 + tail.numel() / float((tail / 29.5).log().sum())
    assert found == pytest.approx(gamma, abs=0.12)
    # The largest is about the root of all edges:
    assert 0.8 <= degree.max() / 1_000_000**0.5 <= 1.5


def test_power_law_graph_by_seed():
    first, again, other = (power_law_graph(200, 1000, seed=seed)
                           for seed in [3, 3, 4])
    assert first.equal(again)
    assert not first.equal(other)
    # Hubs are anywhere, not first:
    degree = torch.bincount(power_law_graph(20_000, 200_000)[0])
    halves = degree[:10_000].sum() / degree.sum()
    assert halves == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize('num_edges', [3, 60])
def test_no_such_graph(num_edges):
    with pytest.raises(ValueError, match='pass an even number'):
        power_law_graph(10, num_edges)


# Runs ########################################################################


def test_methods_compute_the_same():
    # Forms of GCN do, and AGCN with a saturated gate is GCN.
    edge_index = power_law_graph(60, 400)
    x = torch.randn(60, scale.FEATURES)
    torch.manual_seed(0)
    state = scale.network('GCN, edge_index').state_dict()
    outs = {}
    for method in ['GCN, edge_index', CSR, SPARSE, SATURATED]:
        if (method == SPARSE
                and not torch_geometric.typing.WITH_TORCH_SPARSE):
            continue
        model = scale.network(method)
        model.load_state_dict(state)
        outs[method] = model(x, scale.adjacency(method, edge_index, 60))
    for out in outs.values():
        assert torch.allclose(out, outs['GCN, edge_index'], atol=1e-4)
    dense = to_dense_adj(edge_index, max_num_nodes=60)[0]
    assert dense.equal(dense.t())


def test_settings_of_the_networks():
    learnt = scale.network(LEARNT)
    assert all(conv.learn_beta and conv.cached for conv in learnt.convs)
    relative = scale.network(RELATIVE)
    assert all(conv.energy == 'relative' and conv.residual
               for conv in relative.convs)
    assert scale.network('GAT').convs[0].heads == 8


@pytest.mark.parametrize('method', [CSR, 'GAT', *AGCNS])
def test_training_lowers_the_loss(method, monkeypatch):
    monkeypatch.setattr(scale, 'STEPS', 12)
    times, losses = scale.train(method, 200, 2000, seed=0)
    assert len(times) == len(losses) == 13
    assert losses[0] == pytest.approx(math.log(scale.CLASSES), abs=0.4)
    assert losses[-1] < losses[0] - 0.05


def test_enough_is_enough(monkeypatch):
    monkeypatch.setattr(scale, 'ENOUGH', 1e-9)
    monkeypatch.setattr(scale, 'STEPS', 5)
    times, _ = scale.train(SATURATED, 100, 1000, seed=0)
    assert len(times) == 1 + 1  # the first does not count


def test_bandwidth_by_hand(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(scale.time, 'perf_counter', lambda: next(clock))
    monkeypatch.setattr(scale, 'STEPS', 1)
    monkeypatch.setattr(scale, 'COPIED', 10**7)
    times, found = scale.bandwidth(1000, 8000, seed=0)
    assert times == [1, 1]  # seconds
    matrix = 8 * 8000 + 4 * 1000
    assert found == {
        'copy_gb_per_s': 2 * 4 * 0.01,
        'gathered_gb_per_s': round(1e-9 * (
            matrix + 4 * 64 * (8000 + 1000)), 3),
        'least_gb_per_s': round(1e-9 * (matrix + 2 * 4 * 64 * 1000), 3)}


def test_memory():
    # 40,000 rows of 64 features take 10 MB: features, what two layers make of
    # them, and gradients.
    task = Task(SATURATED, 'x', 40_000, 80_000, 1000, 0)
    row = scale.measure(task, 'nowhere')
    assert row['outcome'] == 'trained'
    assert 40 <= row['megabytes'] <= 120
    row = scale.measure(task._replace(limit=20), 'nowhere')
    assert set(row) == set(scale.TABLE.own_columns)
    assert row['outcome'] == OUT_OF_MEMORY
    assert row['milliseconds'] is None and row['megabytes'] is None


@pytest.fixture
def work(monkeypatch, capsys):
    r"""What a process says of a task, without a process and a limit."""
    for name in ['_end_with_parent', '_limit_memory']:
        monkeypatch.setattr(scale, name, lambda *args: None)

    def run(method, nodes, edges):
        scale.work(Task(method, 'x', nodes, edges, 1000, 0), 1000)
        return json.loads(capsys.readouterr().out)

    return run


def test_work(work, monkeypatch):
    seen = work(SATURATED, 400, 800)
    assert set(seen) == set(scale.SEEN)
    assert seen['outcome'] == 'trained' and seen['milliseconds'] > 0
    assert seen['last_loss'] < seen['first_loss']
    monkeypatch.setattr(scale, 'COPIED', 10**6)
    seen = work(PRODUCT, 2000, 4000)
    assert seen['outcome'] == 'measured' and seen['megabytes'] is None
    assert seen['gathered_gb_per_s'] > seen['least_gb_per_s'] > 0


def test_work_fails_by_errors_of_ours(work, monkeypatch):
    def fail(*args):
        raise errors.pop()

    monkeypatch.setattr(scale, 'train', fail)
    errors = [RuntimeError('sizes do not match'), MemoryError(),
              RuntimeError("can't allocate memory: x")]
    for _ in range(2):
        assert work(SATURATED, 10, 20)['outcome'] == OUT_OF_MEMORY
    with pytest.raises(RuntimeError, match='do not match'):
        work(SATURATED, 10, 20)


def test_out_of_memory_of_a_busy_machine(monkeypatch):
    monkeypatch.setattr(scale, '_kilobytes', lambda file, key: 2**21)

    class Done:
        returncode, stderr = 0, ''
        stdout = json.dumps({'outcome': OUT_OF_MEMORY})

    seen = []
    monkeypatch.setattr(scale.subprocess, 'run',
                        lambda args, **kwargs: seen.append(args) or Done)
    task = Task(SATURATED, 'x', 10, 20, 2000, 0)
    with pytest.raises(RuntimeError, match='1024 MB to spare and not 2000'):
        scale.measure(task, 'nowhere')
    assert seen[0][-1].endswith(', 1024)')
    row = scale.measure(task._replace(limit=1000), 'nowhere')
    assert row['outcome'] == OUT_OF_MEMORY
    Done.returncode, Done.stderr = 1, 'an error of ours'
    with pytest.raises(RuntimeError, match='ended with 1: an error of ours'):
        scale.measure(task, 'nowhere')


# What came of them ###########################################################


def times(method, E):
    factor = {CSR: 2, SPARSE: 2 if E > 3e6 else 1, SATURATED: 0.5, LEARNT: 3,
              RELATIVE: 1}.get(method, 10)
    return factor * E * (E**0.2 if method == RELATIVE else 1)


def test_bounds_by_hand():
    rows = rows_of(times, memory=lambda method, E: {
        CSR: 1, SPARSE: 4, SATURATED: 1, LEARNT: 0.5}.get(method, 2) * E)
    # The fastest form is another one at the smallest size; of two that take
    # as long, the first:
    assert list(scale.fastest(rows).values()) == [SPARSE, *[CSR] * 4]
    assert scale.ratios(rows, SATURATED, 'milliseconds').tolist() == (
        pytest.approx([0.5, *[0.25] * 4]))
    _, _, bounds, _ = scale.tables(rows).values()
    lines = bounds.iloc[:, 1:].values.tolist()
    assert lines[:6] == [
        [SATURATED, '0.25 to 0.50', '1.00', 'yes'],
        [SATURATED, '0.25 to 1.00', '1.00', 'yes'],
        [SATURATED, '1.00', '1.10', 'yes'],
        [LEARNT, '1.50 to 3.00', '1.00', 'no'],
        [LEARNT, '0.12 to 0.50', '1.00', 'yes'],
        [LEARNT, '1.00', '1.10', 'yes']]
    assert lines[-1] == [RELATIVE, '1.20', '1.10', 'no']


def test_tables_say_what_was_out_of_memory():
    most = scale.DEGREE * max(scale.DATASETS.values())
    rows = rows_of(times, failed=[('GAT', most), (SPARSE, most)])
    rows = rows[~((rows.method == CSR) & (rows.edges == most))]
    time, memory, _, shares = scale.tables(rows).values()
    assert list(time.columns[1:3]) == ['2,500,000 edges', '5,000,000 edges']
    last = dict(zip(time.method, time.iloc[:, -1]))
    assert last['GAT'] == last[SPARSE] == OUT_OF_MEMORY
    assert last[CSR] == '–'
    assert last[SATURATED] == f'{1e-3 * 0.5 * most:.3g}'
    assert dict(zip(memory.method, memory.iloc[:, 1]))[CSR] == (
        f'{250 / 1024:.3g}')
    assert shares.iloc[0].tolist() == ['2,500,000', '20', '15', '0.75', '5',
                                       '0.25']


def test_claims():
    most = scale.DEGREE * max(scale.DATASETS.values())
    claim, = scale.claims(rows_of(times, failed=[('GAT', most)]))
    assert claim.holds == 'no'  # by an exponent of 1.2
    assert ('gate saturated: exponents 1.00 and 1.00, 0.25 and 1.00 times '
            'what the fastest form of GCN needs at 40,000,000 edges') in (
                claim.measured)
    assert 'GAT needed more than 20 GB from 40,000,000 edges' in claim.measured
    assert 'GCN, torch CSR itself: 1.00 and 1.00.' in claim.measured
    assert '15 GB/s, 75 % of what a copy moves' in claim.measured
    claim, = scale.claims(rows_of(lambda method, E: E))
    assert claim.holds == 'yes'
    claim, = scale.claims(rows_of(lambda method, E: E,
                                  memory=lambda method, E: E**1.2))
    assert claim.holds == 'no'


def test_claims_need_sizes():
    rows = rows_of(times)
    for few in [rows[rows.edges < 6e6], rows[:1], rows[rows.method == PRODUCT],
                rows[rows.method.isin(AGCNS)]]:
        claim, = scale.claims(few)
        assert claim.holds == 'not shown'
        assert claim.measured.startswith('Not enough sizes yet.')
        assert len(scale.tables(few)) == 4


def test_figure(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, 'save', lambda figure, folder, name:
                        figures.append((name, figure)) or [])
    most = scale.DEGREE * max(scale.DATASETS.values())
    scale.draw(rows_of(times, failed=[('GAT', most)]), tmp_path)
    (name, figure), = figures
    assert {name} == set(scale.CAPTIONS)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert set(lines) == {f'{method}: {1.2 if method == RELATIVE else 1:.2f}'
                          for method in METHODS[:-1]}
    assert len(lines['GAT: 1.00'].get_xdata()) == 4  # of five sizes
    assert lines[f'{CSR}: 1.00'].get_ydata()[0] == pytest.approx(
        1e-3 * 2 * 2.5e6)
    scale.draw(rows_of(times)[:1], tmp_path)  # of few rows
    for _, figure in figures:
        plots.plt.close(figure)


def test_main(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(runner, 'conclude',
                        lambda module, *more: seen.append(more))
    monkeypatch.setattr(torch_geometric.typing, 'WITH_TORCH_SPARSE', True)
    scale.main(['--runs', '2', '--jobs', '7', '--datasets', '2M', '125k'])
    tasks, args = seen.pop()
    assert args.jobs == 1
    assert len(set(tasks)) == len(tasks) == 2 * 2 * len(METHODS)
    assert tasks[0] == Task(METHODS[0], '2M', 2_000_000, 40_000_000, 20480, 0)
    assert [task.seed for task in tasks] == sorted(t.seed for t in tasks)
    monkeypatch.setattr(torch_geometric.typing, 'WITH_TORCH_SPARSE', False)
    scale.main(['--quick'])
    tasks, _ = seen.pop()
    assert {task.nodes for task in tasks} == set(scale.QUICK.values())
    assert SPARSE not in {task.method for task in tasks}
    assert 'make test-extensions' in capsys.readouterr().out
