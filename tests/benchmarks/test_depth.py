import json

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

pytest.importorskip('matplotlib')
from benchmarks import depth, runner
from benchmarks import settings as harness
from benchmarks.baselines import agcn, gcn
from benchmarks.results import provenance

DEPTH = 5


@pytest.fixture
def graph(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(30) % 3
    x = (torch.rand(30, 9, generator=generator) < 0.2).float()
    x[torch.arange(30), y] = 1
    path = torch.stack([torch.arange(29), torch.arange(1, 30)])
    role = torch.arange(30) // 10
    data = Data(x=x.to_sparse().coalesce(), y=y, num_nodes=30,
                edge_index=to_undirected(path), train_mask=role == 0,
                val_mask=role == 1, test_mask=role == 2)
    monkeypatch.setattr(harness, 'load', lambda *_: data)
    return data


def rows_of(accuracies, **columns):
    r"""Rows by method and depth, with a number for each layer."""
    rows = []
    for (method, layers), values in accuracies.items():
        for seed, accuracy in enumerate(values):
            numbers = ' '.join(str(0.5**i + seed) for i in range(layers))
            rows.append(dict(
                method=method, dataset='Cora', split='public', depth=layers,
                seed=seed, settings='{}', epochs=10, test_accuracy=accuracy,
                seconds=2.0, gates=numbers if 'agcn' in method else np.nan,
                dirichlet_energies=numbers, relative_energies=numbers,
                val_accuracy=50.0, average_distances=numbers, **columns))
    return pd.DataFrame(rows)


# Runs ########################################################################


@pytest.mark.parametrize('method', list(depth.METHODS))
def test_measure(graph, method):
    settings = json.loads(depth.settings_of(method, 'Cora', DEPTH))
    task = depth.Task(method, 'Cora', 'public', DEPTH, 1,
                      runner.as_json(**{**settings, 'epochs': 3}))
    row = depth.measure(task, 'data')
    assert {*row, *provenance()} == set(depth.TABLE.columns)
    assert {key: row[key] for key in task._fields} == task._asdict()
    assert row['epochs'] == 3
    # DeepAGCN makes 16 steps or more, in equal parts.
    steps = -(-16 // DEPTH) * DEPTH if method == 'agcn_deep' else DEPTH
    for column in depth.MEASURES:  # JK-Net has a last convolution
        assert len(row[column].split()) in [steps, steps + (
            method == 'jknet')]
    gates = [float(gate) for gate in row['gates'].split()]
    assert len(gates) == (method[:4] in ['agcn', 'appn']) * steps
    if method in ['appnp', 'appnp_bare']:
        assert gates == [1] * DEPTH
    # The same network as in Table 1, up to rounding:
    plain = harness.measure(harness.Task(method, 'Cora', 'public', 1,
                                         task.settings), 'data')
    assert row['val_loss'] == pytest.approx(plain['val_loss'], abs=2e-5)
    assert row['test_accuracy'] == plain['test_accuracy']


def test_outputs_of_layers(graph, dense):
    model = gcn.Net(9, 4, 3, 0.5, num_layers=3)
    outs = depth.outputs(model, graph)
    P, h = dense(30, graph.edge_index).P.float(), graph.x.to_dense()
    for out, conv in zip(outs, [model.conv1, *model.convs], strict=True):
        h = P @ h @ conv.lin.weight.t() + conv.bias
        assert torch.allclose(out, h, atol=1e-6)
        h = h.relu()
    assert not any(m._forward_hooks for m in model.modules())


def test_outputs_of_hops(graph, dense):
    model = agcn.Hops(9, 4, 3, 0.5, beta=50.0, energy='relative',
                      residual=True, num_hops=4, alpha=0.1).double()
    graph.x = graph.x.to_dense().double()
    outs = depth.outputs(model, graph)
    h = model.lins[1](model.lins[0](graph.x).relu())
    for hops, out in enumerate(outs, start=1):
        expected = dense(30, graph.edge_index).layer(
            h, torch.eye(3).double(), 0.0, 50.0, 'relative', True, hops, 0.1)
        assert torch.allclose(out, expected)
    assert hops == model.diffusion.num_hops == 4


def test_measured_numbers(graph, monkeypatch):
    # On a path of 30 nodes: a slope, and a constant.
    outs = [torch.arange(30.)[:, None], torch.ones(30, 2)]
    monkeypatch.setattr(depth, 'outputs', lambda *_: outs)
    row = depth.measure(depth.Task(
        'gcn', 'Cora', 'public', 2, 0,
        depth.settings_of('gcn', 'Cora', 2, quick=True)), 'data')
    assert row['dirichlet_energies'] == '29 0'
    # Node 0 is the zero vector, at a distance of one from its neighbor.
    assert row['average_distances'] == '0.05 0'
    # v^2 is (2, 3, ..., 3, 2) / 88, and P 1 differs from 1 at four nodes:
    a, b = 0.5 + 6**-0.5, 2 / 3 + 6**-0.5  # P 1 at the ends and next to them
    spread = 30 - (2 * 2**0.5 + 28 * 3**0.5)**2 / 88
    rough = 2 * (1 - a) + 2 * (1 - b)
    relative = [float(v) for v in row['relative_energies'].split()]
    assert relative[1] == pytest.approx(rough / spread, rel=1e-3)


# Settings ####################################################################


def test_settings(tmp_path, monkeypatch):
    def settings(method, layers, key):
        return json.loads(depth.settings_of(method, 'Cora', layers))[key]

    assert settings('gcn', 8, 'num_layers') == 8
    assert settings('gcnii', 8, 'num_layers') == 8
    assert settings('agcn', 8, 'num_hops') == 8
    assert settings('gcn', 2, 'epochs') == settings('gcn', 64, 'epochs') == 200
    own = json.loads(harness.settings_of('gcn_pn', 'Cora'))['epochs']
    assert [settings('gcn_pn', d, 'epochs') for d in [2, 4, 8, 16, 64]] == [
        min(own, most) for most in [1600, 800, 400, 200, 200]]
    for method in ['gcnii', 'agcn', 'appnp']:  # as long as it takes
        assert settings(method, 64, 'epochs') == json.loads(
            harness.settings_of(method, 'Cora'))['epochs'] > 200
    assert settings('appnp', 64, 'num_hops') == 64
    assert settings('gcn', 2, 'patience') == 100
    assert [settings('agcn_paper', 8, key) for key in [
        'head', 'energy', 'residual']] == ['conv', 'total', False]

    # GCN differs from AGCN (paper) in the gate alone, and so do those of hops
    # from each other, and in the restart:
    for depths in [2, 64]:
        gcn, paper, gated, held_open, bare, both = (
            json.loads(depth.settings_of(method, 'Cora', depths))
            for method in ['gcn', 'agcn_paper', *depth.OF_HOPS])
        assert gcn.items() <= paper.items()
        assert held_open == {**gated, 'beta': 1e30}
        assert bare == {**gated, 'alpha': 0}
        assert both == {**gated, 'alpha': 0, 'beta': 1e30}

    # What was chosen for Table 1 holds here:
    monkeypatch.setattr(harness, 'SETTINGS', tmp_path)
    (tmp_path / 'gcn_pn.yaml').write_text(yaml.safe_dump(
        {'fixed': {'all': {'p': 0.4}}, 'chosen': {'Cora': {'lr': 0.3}}}))
    assert settings('gcn_pn', 8, 'p') == 0.4
    assert settings('gcn_pn', 8, 'lr') == 0.3


def test_tasks():
    tasks = depth.tasks(runner.parse(depth, ['--runs', '2']))
    assert len(set(tasks)) == len(tasks) == 2 * 11 * 7
    assert [task.seed for task in tasks] == [0] * 77 + [1] * 77
    tasks = depth.tasks(runner.parse(depth, ['--quick', '--methods', 'gcn']))
    assert [task.depth for task in tasks] == [2, 4, 6, 16]
    assert {json.loads(task.settings)['epochs'] for task in tasks} == {30}


# What comes of it ############################################################


def test_per_layer():
    rows = pd.DataFrame({'a': ['1 0.5 0', '3 0.5 1'], 'b': [np.nan] * 2,
                         'c': ['0 1 0 1 2 4'] * 2, 'depth': 3})
    assert depth.per_layer(rows, 'a').tolist() == [2, 0.5, 0.5]
    assert depth.per_layer(rows, 'b').tolist() == []
    assert depth.per_layer(rows, 'c').tolist() == [0.5, 0.5, 3]  # two steps


def test_tables_and_figures(tmp_path):
    rows = rows_of({('gcn', 2): [80.0, 82.0], ('gcn', 6): [50.0],
                    ('gcn', 16): [20.0], ('agcn', 2): [81.0],
                    ('agcn', 6): [82.0], ('agcn', 16): [83.0],
                    ('gcnii', 2): [81.0], ('gcnii', 6): [82.0],
                    ('gcnii', 16): [83.0]})
    # Other settings before do not count, at their depth alone:
    old = rows_of({('gcn', 2): [10.0]}).assign(settings='{"p": 0}')
    rows = pd.concat([old, rows], ignore_index=True)
    accuracy, last = depth.tables(rows).values()
    assert accuracy.values.tolist()[::2] == [
        ['GCN', '81.0 ± 1.0 (2)', '50.0 (1)', '20.0 (1)'],
        ['DiffusedMLP', '81.0 (1)', '82.0 (1)', '83.0 (1)']]
    assert last['gate'].tolist() == ['–', '–', '1 … 3.05e-05']
    assert last['relative energy'].tolist() == ['1 … 3.05e-05'] * 3
    paths = depth.draw(rows, tmp_path)
    assert [path.name for path in paths] == [
        'depth_cora.png', 'depth_cora.svg', 'depth_layers_cora.png',
        'depth_layers_cora.svg']
    assert all(path.stat().st_size > 1000 for path in paths)
    shown = [method for methods in depth.PANELS.values() for method in methods]
    assert sorted(shown) == sorted(depth.METHODS)
    assert max(map(len, [*depth.PANELS.values(), depth.LAYERS])) <= 5
    # A data set with little is not shown:
    assert depth.tables(rows[rows.method != 'gcn']) == {}
    assert depth.draw(rows[rows.depth < 6], tmp_path) == []


def test_claims():
    def verdicts(accuracies):
        return [claim.holds for claim in depth.claims(rows_of(accuracies))]

    names = [('gcn', 4), ('gcn', 6), ('agcn_paper', 2), ('agcn_paper', 6),
             ('agcn_paper', 64)]

    def case(*values, spread=0.1):
        return {name: [value - spread, value, value + spread * (i + 1)]
                for i, (name, value) in enumerate(zip(names, values))}

    assert verdicts(case(80, 60, 82, 80.5, 79)) == ['yes'] * 3
    assert verdicts(case(80, 78, 82, 77, 20)) == ['no'] * 3
    # Intervals that reach across the claim show nothing:
    assert verdicts(case(80, 75, 82, 79.5, 77)) == ['not shown'] * 3
    assert verdicts(case(80, 60, 82, 80, 79, spread=9)) == ['not shown'] * 3
    assert verdicts({('agcn', 2): [80]}) == ['not shown'] * 3
    assert verdicts({('gcn', 2): [80]}) == ['not shown'] * 3
    other = rows_of({('gcn', 4): [80]}).assign(dataset='PubMed')
    assert {claim.holds for claim in depth.claims(other)} == {'not shown'}

    found = depth.claims(rows_of({
        ('gcn', 4): [79, 81], ('gcn', 6): [50, 52],
        ('agcn_paper', 2): [82, 82], ('agcn_paper', 6): [30, 30],
        ('agcn_paper', 16): [40, 40]}))
    assert '+29.0 ± 0.0 points' in found[0].measured
    assert 'with 6 layers, its worst depth, minus with 2: -52.0 ± 0.0' in (
        found[1].measured)
    assert found[2].measured.endswith('at each depth, has 30.0 ± 0.0 (2).')

    # Validation chooses between two values of beta:
    both = pd.concat([
        rows_of({('agcn_paper', 6): [30, 30]}).assign(val_accuracy=40.0),
        rows_of({('agcn_five', 6): [20, 22]}).assign(val_accuracy=41.0)])
    assert depth.claims(both)[2].measured.endswith(' has 21.0 ± 1.0 (2).')


def test_answer():
    found = depth.answer(rows_of({
        ('agcn', 2): [80, 81], ('agcn', 64): [82, 84],
        ('appnp', 64): [81, 83], ('gcn', 64): [20, 22]}))
    assert found == (
        'Test accuracy on Cora with the most layers or hops (their number): '
        'GCN 21.0 % (64), DiffusedMLP 83.0 % (64), APPNP 82.0 % (64); the '
        'gate of DiffusedMLP is worth, in points: +1.0 ± 0.0 with restart.')
    assert depth.answer(rows_of({('gcn', 2): [80]}).assign(
        dataset='PubMed')) == ''
