import pandas as pd
import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.utils import to_dense_adj

from benchmarks import compile as experiment
from benchmarks import plots, runner
from benchmarks.compile import METHODS, MODES, SETS, Graphs, Task
from benchmarks.cost import RELATIVE, SATURATED
from benchmarks.scale import AGCNS, LEARNT


@pytest.fixture
def tiny(monkeypatch):
    r"""Sets that take no time."""
    for name, of in {'tiny': Graphs(120, 200, 6, 4),
                     'batched': Graphs(10, 20, 4, 2, in_batch=20),
                     'kept': Graphs(200, 200, 4, 1, cached=True)}.items():
        monkeypatch.setitem(SETS, name, of)
    experiment.graphs.cache_clear()


def rows_of(time):
    r"""Rows from times by data set, method and mode."""
    rows = []
    for name in SETS:
        for method in METHODS:
            for mode in MODES:
                forward, training = time(name, method, mode)
                rows.append({
                    **Task(method, name, mode, 3, 0)._asdict(),
                    'forward_ms': forward, 'training_ms': training,
                    'first_seconds': 2.0, 'test_accuracy': 50.0,
                    'compilations': 2 * (mode == 'compiled')})
    return pd.DataFrame(rows)


def times(name, method, mode):
    forward = {'GCN': 1.0, SATURATED: 1.1, LEARNT: 2.0}.get(method, 0.5)
    if name == 'small' and method == SATURATED:
        forward *= 1.1
    if name == 'static':
        forward *= 10 * (1 if method == 'GCN' else 7)
    factor = 1.0 if mode == 'eager' else 3.0 if method == RELATIVE else 0.25
    return factor * forward, 2 * factor * forward


def test_labels_by_hand():
    data = experiment.graph(50, 6, seed=1)
    A = to_dense_adj(data.edge_index, max_num_nodes=50)[0] + torch.eye(50)
    expected = (A @ data.x[:, :experiment.CLASSES]).argmax(dim=1)
    assert data.y.equal(expected)
    assert data.num_edges == 300


def test_graphs_to_run_on_are_others(tiny):
    train, test = experiment.graphs('tiny', 0)
    sizes = [data.num_nodes for data in train + test]
    assert len(set(sizes)) == len(sizes) == 8
    assert min(sizes) == 120 and max(sizes) == 200
    other, _ = experiment.graphs('tiny', 1)
    assert not train[0].x[0].equal(other[0].x[0])
    train, test = experiment.graphs('batched', 0)
    assert all(isinstance(data, Batch) and data.num_graphs == 20
               for data in train + test)
    assert sum(data.num_nodes for data in train + test) == sum(
        torch.linspace(10, 20, 80).long().tolist())
    train, test = experiment.graphs('kept', 0)
    assert train[0] is test[0]


def test_each_graph_of_a_batch_has_its_gate(tiny):
    data = experiment.graphs('batched', 0)[0][0]
    for method in AGCNS:
        conv = experiment.layer(method, cached=False)
        gate = conv.gate(**experiment.arguments(method, data))
        assert gate.shape == (20, )
        alone = data.get_example(2)
        assert gate[2] == pytest.approx(float(conv.gate(
            alone.x, alone.edge_index)), abs=1e-5)
    assert set(experiment.arguments('GCN', data)) == {'x', 'edge_index'}


@pytest.mark.parametrize('dataset', ['tiny', 'batched', 'kept'])
@pytest.mark.parametrize('method', ['GCN', SATURATED])
def test_measure_eager(tiny, dataset, method):
    row = experiment.measure(Task(method, dataset, 'eager', 30, 0), 'nowhere')
    assert set(row) == set(experiment.TABLE.own_columns)
    assert row['training_ms'] > row['forward_ms'] > 0
    assert row['compilations'] == 0
    # One of eight is right by chance, with an error of 2 % at most:
    assert row['test_accuracy'] > 20


def test_measure_compiled(tiny, monkeypatch):
    # Graphs as they are handed to inductor, but run without it:
    from torch._dynamo import testing
    monkeypatch.setattr(testing, 'CompileCounterWithBackend',
                        lambda _: testing.CompileCounter())
    rows = {mode: experiment.measure(Task(RELATIVE, 'tiny', mode, 2, 0),
                                     'nowhere') for mode in MODES}
    # Once for training and once for running, whatever the size:
    assert rows['compiled']['compilations'] == 2
    assert rows['compiled']['test_accuracy'] == pytest.approx(
        rows['eager']['test_accuracy'], abs=3)


def test_bounds_by_hand():
    rows = rows_of(times)
    assert experiment.beside_gcn(rows, SATURATED) == pytest.approx(
        {'small': 1.21, 'medium': 1.1, 'large': 1.1, 'batches': 1.1})
    modes = (RELATIVE, 'compiled'), (RELATIVE, 'eager')
    assert experiment.ratios(rows, 'training_ms', *modes) == dict.fromkeys(
        SETS, 3.0)
    # Of each seed, not of medians:
    slow = rows.assign(seed=1, training_ms=[9., 18.] * (len(rows) // 2))
    fast = slow.assign(seed=2, training_ms=[1., 2.] * (len(rows) // 2))
    three = pd.concat([rows, slow, fast])
    assert experiment.ratios(three, 'training_ms', *modes) == dict.fromkeys(
        SETS, 2.0)
    table = experiment.tables(rows)['Bounds'].values.tolist()
    assert table[:2] == [
        ['forward over GCN', SATURATED, '1.10 to 1.21', 'small', '1.15',
         'no'],
        ['forward over GCN', LEARNT, '2.00 to 2.00', 'small', '1.15', 'no']]
    assert table[2][-1] == 'yes'
    assert ['compilations', LEARNT, '2 to 2', 'small', '4', 'yes'] in table
    assert [line[-1] for line in table if line[1] == RELATIVE] == [
        'yes', 'no', 'no', 'yes']


def test_tables_of_medians_and_of_few_rows():
    rows = rows_of(times)
    rows = pd.concat([rows, rows, rows.assign(forward_ms=1e9)])
    forward = experiment.tables(rows)['Processor time of a forward (ms)']
    assert forward.columns.tolist() == ['method', 'mode', *SETS]
    assert forward.iloc[0].tolist() == ['GCN', 'eager', *['1'] * 4, '10']
    assert experiment.claims(rows) == []
    few = experiment.tables(rows[:1])
    assert few['Bounds'].empty
    assert few['Processor time of a forward (ms)'].small.tolist() == [
        '1', *['–'] * 7]


def test_figure(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, 'save', lambda figure, folder, name:
                        figures.append((name, figure)) or [])
    rows = rows_of(times)
    experiment.draw(rows, tmp_path)
    experiment.draw(rows[:1], tmp_path)
    (name, figure), _ = figures
    assert {name} == set(experiment.CAPTIONS)
    bars = [patch.get_height() for patch in figure.axes[0].patches]
    # Five sets for each of eight bars, as multiples of the first:
    assert bars[:5] == [1] * 5 and bars[5:10] == [0.25] * 5
    assert bars[10:15] == pytest.approx([1.21, 1.1, 1.1, 1.1, 7.7])
    for _, figure in figures:
        plots.plt.close(figure)


def test_main(monkeypatch):
    seen = []
    monkeypatch.setattr(runner, 'conclude',
                        lambda module, *more: seen.append(more))
    experiment.main(['--runs', '2', '--jobs', '5', '--datasets', 'small'])
    tasks, args = seen.pop()
    assert args.jobs == 1
    assert len(set(tasks)) == len(tasks) == 2 * len(METHODS) * len(MODES)
    assert [task.seed for task in tasks] == sorted(t.seed for t in tasks)
    # Those to be compared are next to each other:
    assert [task.mode for task in tasks[:4]] == MODES + MODES
    assert [task.method for task in tasks[:8:2]] == METHODS
    experiment.main(['--quick'])
    tasks, _ = seen.pop()
    assert {task.dataset for task in tasks} == set(experiment.QUICK_SETS)
    assert {task.rounds for task in tasks} == {experiment.QUICK_ROUNDS}
