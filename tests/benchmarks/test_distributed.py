import json
from contextlib import nullcontext

import pandas as pd
import pytest
import torch
from torch.multiprocessing import ProcessExitedException
from torch_geometric.testing import withPackage

from benchmarks import batches, distributed, runner
from benchmarks.distributed import METHODS, Task
from benchmarks.results import Table

pytestmark = pytest.mark.filterwarnings('ignore:Using .NeighborSampler.',
                                        'ignore:Sparse')
SMALL = dict(epochs=4, killed_at=2, num_hops=2, num_neighbors=[4, 4],
             hidden_channels=8, seeds=100)


def task(method, **changes):
    settings = {**json.loads(distributed.settings_of('Cora')), **SMALL,
                **changes}
    return Task(method, 'Cora', 0, runner.as_json(**settings))


def test_settings():
    ours = json.loads(distributed.settings_of('PubMed'))
    theirs = json.loads(batches.settings_of('agcn', 'PubMed'))
    assert ours['epochs'] * batches.STEPS_PER_EPOCH == theirs['steps']
    assert 0 < ours['killed_at'] < ours['epochs']
    assert {key: value for key, value in ours.items()
            if key not in ['epochs', 'killed_at']}.items() <= theirs.items()


def test_shares():
    nodes = torch.tensor([2, 3, 5, 7, 11])
    shares = [distributed.share_of(nodes, rank, 2).tolist()
              for rank in range(2)]
    assert shares == [[2, 5, 11], [3, 7, 2]]
    assert [distributed.share_of(nodes, rank, 5).tolist()
            for rank in range(5)] == [[2], [3], [5], [7], [11]]
    assert distributed.share_of(nodes, 0, 1).tolist() == nodes.tolist()
    # As many for each, and none forgotten:
    for world in range(1, 8):
        shares = [distributed.share_of(nodes, rank, world)
                  for rank in range(world)]
        assert len({len(share) for share in shares}) == 1
        assert set(torch.cat(shares).tolist()) == set(nodes.tolist())


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_one_process_goes_on_from_its_checkpoint(tmp_path):
    def train(folder, epochs, restarts):
        (tmp_path / folder).mkdir(exist_ok=True)
        distributed.train(0, task('one process', epochs=epochs),
                          str(tmp_path), tmp_path / folder, restarts)
        torch.distributed.destroy_process_group()
        return (torch.load(tmp_path / folder / 'checkpoint.pt'), json.loads(
            (tmp_path / folder / 'result.json').read_text()))

    state, result = train('a', 3, 0)
    assert state['epoch'] == 3 == len(state['losses'])
    assert result['val_losses'].split() == [
        f'{loss:.6g}' for loss in state['losses']]
    assert state['best'] == min(state['losses']) < state['losses'][0]
    assert state['model']['diffusion.running_energy.0.num_batches'] == 9
    # In two parts, and once more with nothing left to do:
    train('b', 2, 0)
    for restarts in [1, 2]:
        other, again = train('b', 3, restarts)
        assert again == {**result, 'restarts': restarts}
        assert other['losses'] == state['losses']
    assert (tmp_path / 'b' / 'epochs').read_text().split() == ['0', '1', '2']


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_a_killed_process_costs_an_epoch_and_nothing_else(tmp_path):
    distributed.load('Cora', root=str(tmp_path))
    rows = {method: distributed.measure(task(method), str(tmp_path))
            for method in ['two processes', 'two, one killed']}
    for row in rows.values():
        assert set(row) == set(distributed.TABLE.own_columns)
    alive, killed = rows.values()
    assert (alive['restarts'], alive['repeated']) == (0, 0)
    assert (killed['restarts'], killed['repeated']) == (1, 1)
    # The epoch that was lost was repeated as it was:
    for key in ['epochs', 'val_losses', 'val_accuracy', 'test_accuracy']:
        assert alive[key] == killed[key]
    losses = [float(loss) for loss in alive['val_losses'].split()]
    assert len(losses) == 4 and losses[-1] < losses[0]


@pytest.mark.parametrize('deaths', [0, 2, 9])
def test_all_start_again_when_one_has_died(deaths, tmp_path, monkeypatch):
    calls = []

    def spawn(function, args, processes, daemon):
        calls.append((args[-1], processes))
        if len(calls) <= deaths:
            raise ProcessExitedException('killed', 1, 1, -9)

    monkeypatch.setattr(distributed, 'spawn', spawn)
    with (pytest.raises(ProcessExitedException) if deaths > 3
          else nullcontext()):
        distributed.launch(task('two processes'), 'data', tmp_path)
    assert calls == [(i, 2) for i in range(min(deaths + 1, 4))]


# What comes of it ############################################################


def rows_of(values):
    return pd.DataFrame([
        dict(method=method, dataset='Cora', seed=seed,
             settings='{"killed_at": 1}', epochs=3,
             repeated=int('killed' in method),
             restarts=int('killed' in method),
             val_losses=f'1.5 1.25 {1 + seed / 10 + len(method) / 1000}',
             val_accuracy=80.0, test_accuracy=accuracy, seconds=9.0)
        for method, accuracies in values.items()
        for seed, accuracy in enumerate(accuracies)])


ROWS = {'one process': [80.0, 81.0], 'two processes': [80.5, 80.9],
        'two, one killed': [81.0, 82.0]}


def test_tables():
    rows = rows_of(ROWS)
    frame, = distributed.tables(rows).values()
    assert frame.values.tolist() == [
        ['Cora', 'one process', '80.5 ± 0.5 (2)', '–', 0],
        # Differences of 0.5 and -0.1, and 12.706 standard errors of 0.3:
        ['Cora', 'two processes', '80.7 ± 0.2 (2)', '+0.20 ± 3.81', 0],
        ['Cora', 'two, one killed', '81.5 ± 0.5 (2)', '+1.00 ± 0.00', 1]]
    assert distributed.answer(rows).endswith(
        'two processes on Cora +0.20 ± 3.81, two, one killed on Cora +1.00 ± '
        '0.00, and a kill changes the loss of an epoch by at most 0.002.')
    assert distributed.answer(rows_of({'two processes': [80.0]})) == ''


def test_tasks(tmp_path):
    args = runner.parse(distributed, [])
    assert args.jobs == 1
    todo = distributed.tasks(args)
    assert len(set(todo)) == len(todo) == 5 * len(METHODS)
    assert [t.seed for t in todo] == sorted(t.seed for t in todo)
    quick = distributed.tasks(runner.parse(distributed, ['--quick']))
    assert {t.dataset for t in quick} == {'Cora'}
    file = Table(tmp_path / 'distributed.csv', distributed.TABLE.own_columns)
    file.append(**{**dict.fromkeys(file.own_columns, 1), **todo[0]._asdict()})

    def measure(task, root):
        raise AssertionError(task)

    assert runner.run_missing(todo[:1], file, measure, 1, 'data') == []
