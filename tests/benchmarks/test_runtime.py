import pandas as pd
import pytest
import torch
from torch_geometric.nn import GCNConv

from benchmarks import runtime
from benchmarks.results import Table
from benchmarks.runtime import GCN, GCN_COMPILED, HALF_OPEN, PAPER, RELATIVE

SMALL = dict(nodes=60, edges=400, features=8)


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path / 'runtime.csv', runtime.TABLE.own_columns)


@pytest.fixture(autouse=True)
def not_compiled(monkeypatch):
    monkeypatch.setattr(torch, 'compile', lambda conv: conv)


def test_compiled_gcn_gets_sorted_normalized_edges(monkeypatch):
    x, edge_index = runtime.problem(**SMALL)
    seen = []

    def keep(conv):
        conv.register_forward_hook(lambda *call: seen.append(call))
        return conv

    monkeypatch.setattr(torch, 'compile', keep)
    run, = runtime.compiled(x, edge_index).values()
    run()
    assert len(seen) == 2  # the first call compiles it
    conv, (_, edges, weight), out = seen[-1]
    assert (edges[1].diff() >= 0).all() and weight.numel() == edges.size(1)
    expected = GCNConv(8, 8)
    expected.load_state_dict(conv.state_dict())
    assert torch.allclose(out, expected(x, edge_index), atol=1e-6)
    assert x.grad is not None and conv.bias.grad is not None


def test_no_compiler(monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError('No working C++ compiler found\nin the path')

    monkeypatch.setattr(torch, 'compile', lambda conv: fail)
    monkeypatch.setattr(runtime, 'step', lambda conv, *_: conv)
    assert runtime.compiled(*runtime.problem(**SMALL)) == {}
    assert capsys.readouterr().out.endswith('No working C++ compiler found\n')


def test_times(table):
    runtime.layer(table, 2, **SMALL)
    runtime.forward(table, 'small', 3, 5, 4, **SMALL)
    runtime.hops(table, 2, **SMALL)
    rows = table.read()
    assert (rows.milliseconds > 0).all() and rows.tensors.isna().all()
    layer, small, hops = (set(rows[rows.case == case].variant)
                          for case in ['layer', 'small', 'hops'])
    assert {GCN, GCN_COMPILED, PAPER, HALF_OPEN, RELATIVE} <= layer
    assert small == {GCN, PAPER, RELATIVE}
    assert hops == {'APPNP', 'GatedDiffusion'}
    assert (rows.case == 'small').sum() == 3 * 3


def test_tensors_by_hand():
    class Twice(torch.nn.Module):
        def forward(self, x, edge_index):
            assert edge_index is None
            return (x * 3).exp()  # two forward

    x = torch.rand(400, 100, requires_grad=True)
    # The exponential's gradient and the product's, backward:
    assert runtime.count_tensors(Twice(), x, None) == dict(forward=2,
                                                           backward=2)
    assert x.grad is None


def test_tensors(table):
    runtime.tensors(table, nodes=3000, edges=9000, features=64)
    rows = table.read()
    found = dict(zip(rows.variant, rows.tensors))
    assert len(found) == len(rows) == 8
    # The product and its output in both directions at least:
    assert all(2 <= number <= 15 for number in found.values())
    assert set(found) == {bound.variant for bound in runtime.BOUNDS
                          if bound.case == 'tensors'}
    runtime.tensors(table, nodes=3000, edges=9000, features=64)
    assert len(table.read()) == 8


def test_summary():
    def row(case, variant, value, commit='new', column='milliseconds',
            edges=0):
        return {'case': case, 'variant': variant, 'commit': commit,
                'edges': edges, 'milliseconds': None, 'megabytes': None,
                'tensors': None, column: value}

    forward = f'{RELATIVE}, cached, forward'
    rows = pd.DataFrame([
        row('layer', PAPER, 99.0, 'old'),
        *(row('layer', PAPER, v) for v in [1.0, 17.0, 90.0]),
        row('layer', GCN, 100.0), row('layer', RELATIVE, 23.0),
        row('memory', RELATIVE, 30.0, column='megabytes'),
        row('memory', GCN, 40.0, column='megabytes'),
        row('tensors', forward, 4, column='tensors'),
        row('tensors', f'{PAPER}, forward', 2, column='tensors'),
        row('hops', 'GatedDiffusion', 1.0), row('hops', 'APPNP', 4.0),
        row('scaling', RELATIVE, 1.0, edges=10),
        row('scaling', RELATIVE, 2.5, edges=20)])
    assert runtime.summary(rows).values.tolist() == [
        ['layer', PAPER, '17 ms', GCN, '100 ms', '0.17', '0.17', 'yes'],
        ['layer', RELATIVE, '23 ms', GCN, '100 ms', '0.23', '0.22', 'no'],
        ['hops', 'GatedDiffusion', '1 ms', 'APPNP', '4 ms', '0.25', '–', '–'],
        ['tensors', forward, '4', '–', '–', '4', '3', 'no'],
        ['tensors', f'{PAPER}, forward', '2', '–', '–', '2', '–', '–'],
        ['memory', RELATIVE, '30 MB', GCN, '40 MB', '0.75', '0.50', 'no'],
        ['doubling the edges', RELATIVE, '2.5 ms at 20', 'half the edges',
         '1 ms', '2.50 at most', '2.30', 'no']]


def test_main(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    ran = []
    monkeypatch.setattr(runtime, 'jobs', lambda table, repeats, scale, root: {
        name: lambda name=name: ran.append((name, repeats, scale))
        for name in ['layer', 'small']})
    monkeypatch.setattr(runtime, 'write_readme', lambda *_: ran.append('md'))
    runtime.main(['--quick'])
    assert ran == [('layer', 3, 10), ('small', 3, 10)]
    ran.clear()
    runtime.main(['--show'])
    assert ran == ['md'] and 'holds' in capsys.readouterr().out


def test_cases_have_bounds():
    cases = list(runtime.jobs(runtime.TABLE, 1, 1, ''))
    assert len(cases) == 10 and len(set(cases)) == 10
    rows = runtime.TABLE.read()
    assert set(rows.case) <= {b.case for b in runtime.BOUNDS} | {'scaling'}
