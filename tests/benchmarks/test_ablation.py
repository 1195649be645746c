import json

import pandas as pd

from benchmarks import ablation, runner


def rows_of(accuracies):
    r"""Rows by depth and part, one for each seed."""
    return pd.DataFrame([
        dict(method='agcn_deep', dataset='Cora', split='public', depth=depth,
             part=part, seed=seed, settings=part, test_accuracy=accuracy)
        for (depth, part), values in accuracies.items()
        for seed, accuracy in enumerate(values)])


def tasks_of(*argv):
    return ablation.tasks(runner.parse(ablation, list(argv)))


def test_a_part_at_a_time():
    tasks = tasks_of('--runs', '2')
    assert len(tasks) == 2 * 3 * len(ablation.PARTS)
    whole = {task.depth: json.loads(task.settings) for task in tasks
             if task.part == ablation.ALL}
    for task in tasks:
        settings = json.loads(task.settings)
        changed = {key: settings[key] for key in settings
                   if settings[key] != whole[task.depth][key]}
        assert changed == ablation.PARTS[task.part]
        assert settings['num_layers'] == task.depth


def test_measure(tmp_path):
    for task in tasks_of('--quick'):
        settings = {**json.loads(task.settings), 'epochs': 2}
        row = ablation.measure(
            task._replace(settings=runner.as_json(**settings)),
            str(tmp_path))
        assert set(row) == set(ablation.TABLE.own_columns)
        assert row['part'] == task.part and row['depth'] == 2
        gates = [float(gate) for gate in row['gates'].split()]
        if task.part in [ablation.ALL, 'gate held open']:
            assert (min(gates) < 1) == (task.part == ablation.ALL)


def test_tables_by_hand():
    rows = rows_of({(2, 'all parts'): [80., 82., 84.],
                    (2, 'gate held open'): [79., 80., 81.],
                    (16, 'all parts'): [85.]})
    frame, = ablation.tables(rows).values()
    # Differences -1, -2 and -3, whose standard error is 3^(-1/2), and the
    # 97.5 % point of Student's t with two degrees of freedom is 4.303.
    assert frame.values.tolist() == [
        ['all parts', '82.0 ± 1.2 (3)', '–', '85.0 (1)', '–'],
        ['gate held open', '80.0 ± 0.6 (3)', '-2.0 ± 2.5', '–', '–']]
    old = rows.assign(settings='old', test_accuracy=0.)
    assert ablation.tables(pd.concat([old, rows]))[
        next(iter(ablation.tables(rows)))].equals(frame)
    assert ablation.answer(rows).startswith(
        'Test accuracy of DeepAGCN on Cora with 2 layers')
    assert ablation.answer(rows).endswith(
        ': no difference shown: gate held open -2.0 ± 2.5.')
