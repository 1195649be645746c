import math

import pandas as pd
import pytest
import torch

from benchmarks import cost, plots, runner
from benchmarks.cost import (
    GCN,
    HALF_OPEN,
    METHODS,
    RELATIVE,
    SATURATED,
    Task,
)


def rows_of(time, memory=lambda N, E, F: N * F + F**2, methods=METHODS):
    r"""Rows from laws of time, by method or of all, and memory."""
    rows = []
    for axis, sizes in cost.SIZES.items():
        for size in cost.product(*sizes.values()):
            for method in methods:
                law = time[method] if isinstance(time, dict) else time
                rows.append({**Task(method, cost.DATASET, axis, *size,
                                    0)._asdict(),
                             'milliseconds': law(*size),
                             'megabytes': memory(*size)})
    return pd.DataFrame(rows)


def paper(N, E, F):
    return E * F + N * F**2


def test_peak_by_hand():
    kept = torch.empty(2**20)  # was there before

    def run():
        a = torch.empty(2**18)  # a megabyte
        b = torch.empty(2**19)
        del b
        c = torch.empty(2**17)
        return a, c, kept[:10]

    assert cost.peak(run) == 3.0
    assert cost.peak(lambda: None) == 0


def test_exponent_by_hand():
    sizes = [1, 2, 4, 8, 16, 32]
    law = pd.Series([3 * n**1.5 for n in sizes], index=sizes)
    assert cost.exponent(law) == pytest.approx((1.5, 0), abs=1e-6)
    # Of the four largest sizes, in whatever order:
    bent = law.copy()
    bent[1] = bent[2] = 100.
    assert cost.exponent(bent[::-1]) == pytest.approx((1.5, 0), abs=1e-6)
    assert cost.exponent(law * 0 + 5) == (0, 0)
    assert all(map(math.isnan, cost.exponent(law[:2])))
    # Logarithms 0, 1, 0 at -1, 0, 1 (in powers of e): no slope, and an error
    # of sqrt((2 / 3) / 1 / 2).
    hill = pd.Series([1, math.e, 1], index=[1, math.e, math.e**2])
    assert cost.exponent(hill) == pytest.approx((0, (1 / 3)**0.5))


def test_gates_of_the_layers():
    x, edge_index = cost.problem(200, 2000, 16)
    gate = {method: float(cost.layer(method, x, edge_index).gate(
        x, edge_index)) for method in [SATURATED, HALF_OPEN, RELATIVE]}
    assert gate[SATURATED] == 1
    assert gate[HALF_OPEN] == pytest.approx(1 - math.exp(-0.7), rel=1e-4)
    assert 0 < gate[RELATIVE] <= 1


def test_measured_memory():
    def megabytes(method, nodes, edges):
        row = cost.measure(Task(method, cost.DATASET, 'nodes', nodes, edges,
                                16, 0), 'nowhere')
        assert set(row) == set(cost.TABLE.own_columns)
        assert row['milliseconds'] > 0
        return row['megabytes']

    few, many = (megabytes(SATURATED, 4000, edges)
                 for edges in [40_000, 80_000])
    # No tensor has a row of features for each edge; to compare the graph that
    # is kept takes two whole numbers each:
    assert many - few <= 40_000 * 2 * 8 / 2**20
    # Outputs, their gradients and what lies between:
    assert few >= 2 * 4000 * 16 * 4 / 2**20
    assert megabytes(SATURATED, 8000, 40_000) == pytest.approx(2 * few,
                                                               rel=0.05)
    few, many = (megabytes(GCN, 4000, edges) for edges in [40_000, 80_000])
    assert many - few >= 40_000 * 16 * 4 / 2**20


def test_claims_where_the_paper_is_right():
    time = dict.fromkeys(METHODS, paper)
    time[HALF_OPEN] = lambda N, E, F: paper(N, E, F) + N * F**2
    assert [claim.holds for claim in cost.claims(rows_of(time))] == [
        'yes'] * 3


def test_claims_where_it_is_not():
    time = {method: lambda N, E, F: N**1.5 * F for method in METHODS}
    time[HALF_OPEN] = lambda N, E, F: N**1.5 * F + (E + N) * F
    rows = rows_of(time, memory=lambda N, E, F: E * F)
    speed, memory, trace = cost.claims(rows)
    assert speed.holds == memory.holds == trace.holds == 'no'
    assert 'nodes 1.50 to 1.50 (paper: 1; GCN: 1.50' in speed.measured
    assert 'edges 1.00 to 1.00 (paper: 0; GCN: 1.00; 1.00 to 1.00 ' in (
        memory.measured)
    assert 'features 1.00 ± 0.00' in trace.measured
    # The trace alone: edges from 200,000 on and 5,000 nodes.
    found = cost.exponent(cost.trace(rows)['edges'])
    assert found[0] == pytest.approx(0.99, abs=0.01)


def test_claims_need_sizes():
    rows = rows_of(paper)
    few = rows[(rows['axis'] != 'edges') | (rows.edges < 200_000)]
    for claim in [*cost.claims(few), *cost.claims(rows[:1]),
                  *cost.claims(rows[rows.method == GCN])]:
        assert claim.holds == 'not shown'


def test_tables_and_figures(tmp_path, monkeypatch):
    figures = {}

    def keep(figure, folder, name):
        figures[name] = figure
        return []

    monkeypatch.setattr(plots, 'save', keep)
    rows = rows_of(lambda N, E, F: 1e-6 * E * F)
    rows = pd.concat([rows, rows.assign(
        repeat=1, milliseconds=3 * rows.milliseconds)])
    time, memory = cost.tables(rows).values()
    # Medians of a number and three times as much:
    assert time.iloc[0].tolist() == [
        'GCN', '0.00 ± 0.00', '25.6', '1.00 ± 0.00', '204.8', '1.00 ± 0.00',
        '204.8']
    assert len(time) == len(memory) == len(METHODS)
    cost.draw(rows, tmp_path)
    assert set(figures) == set(cost.CAPTIONS)
    for panel, axis in zip(figures['cost_time'].axes, cost.AXES):
        assert panel.get_xlabel() == axis
        assert [line.get_label() for line in panel.lines] == [
            f'{m}: {float(axis != "nodes"):.2f} ± 0.00' for m in METHODS]
        assert panel.lines[0].get_xdata().tolist() == cost.SIZES[axis][axis]
    for figure in figures.values():
        plots.plt.close(figure)


def test_main(monkeypatch):
    seen = []
    monkeypatch.setattr(runner, 'conclude',
                        lambda module, *more: seen.append(more))
    cost.main(['--jobs', '7', '--runs', '2'])
    tasks, args = seen[0]
    assert args.jobs == 1
    assert len(set(tasks)) == len(tasks) == 2 * 19 * len(METHODS)
    assert [task.repeat for task in tasks] == sorted(t.repeat for t in tasks)
    assert [task.method for task in tasks[:6]] == [*METHODS, GCN]
    assert tasks[0] == Task(GCN, cost.DATASET, 'nodes', 20_000, 200_000, 64, 0)
