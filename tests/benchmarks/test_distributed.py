import json
import signal
import socket
import subprocess
import sys

import pandas as pd
import pytest
import torch
from torch_geometric.data import Data
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


def test_a_checkpoint_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / 'checkpoint.pt'
    distributed.save(dict(epoch=1), path)

    def broken(state, file):
        file.write(b'half')
        raise OSError('no space')

    with monkeypatch.context() as patch:
        patch.setattr(torch, 'save', broken)
        with pytest.raises(OSError, match='no space'):
            distributed.save(dict(epoch=2), path)
    assert torch.load(path) == dict(epoch=1)


@pytest.mark.parametrize('state', [
    {}, [], [1], 3, torch.ones(2), {'epoch': 1}, {'run': None}])
def test_a_checkpoint_of_another_program(state, monkeypatch, tmp_path):
    monkeypatch.setattr(distributed.dist, 'get_rank', lambda: 0)
    monkeypatch.setattr(distributed.dist, 'broadcast_object_list', list)
    torch.save(state, tmp_path / 'checkpoint.pt')
    with pytest.raises(ValueError, match='another run'):
        distributed.resume(tmp_path / 'checkpoint.pt', ['Cora'], None, None)


@pytest.mark.parametrize('seeds, world, remedy', [
    (60, 30, 'at least 90 seeds, or start fewer'),
    (5, 2, 'at least 50 seeds')])
def test_too_many_processes(seeds, world, remedy):
    # 140 training nodes in three steps: one process takes 47 at a time.
    data = Data(x=torch.zeros(1000, 1), num_nodes=1000,
                train_mask=torch.arange(1000) < 140,
                edge_index=torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match=remedy):
        distributed.batches_of(data, 0, world, seeds, [2])


def test_it_says_how_to_be_started(monkeypatch, capsys):
    monkeypatch.delenv('RANK', raising=False)
    with pytest.raises(SystemExit):
        distributed.parse([])
    assert 'torchrun --nproc-per-node 2' in capsys.readouterr().err


@pytest.fixture
def alone(monkeypatch):
    r"""The environment of a single process of torchrun."""
    with socket.socket() as free:
        free.bind(('localhost', 0))
        port = free.getsockname()[1]
    for key, value in dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1,
                           MASTER_ADDR='localhost', MASTER_PORT=port,
                           TORCHELASTIC_RESTART_COUNT=0).items():
        monkeypatch.setenv(key, str(value))


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_one_process_and_its_checkpoints(alone, tmp_path):
    def work(folder, epochs, seed=0):
        (tmp_path / folder).mkdir(exist_ok=True)
        distributed.work(distributed.parse([
            '--folder', str(tmp_path / folder), '--root', str(tmp_path),
            '--seed', str(seed), '--settings',
            task('one process', epochs=epochs).settings]))
        state = torch.load(tmp_path / folder / 'checkpoint.pt')
        return state, json.loads((tmp_path / folder / 'result.json')
                                 .read_text())

    state, result = work('a', 3)
    assert state['epoch'] == 3 == len(state['losses'])
    assert state['losses'] == result['val_losses']
    assert state['best'] == min(state['losses']) < state['losses'][0]
    assert state['model']['diffusion.running_energy.0.num_batches'] == 9
    # Where it ends, the same command has nothing more to do:
    again, other = work('a', 3)
    assert other == result and again['losses'] == state['losses']
    assert (tmp_path / 'a' / 'epochs').read_text().split() == ['0', '1', '2']
    with pytest.raises(ValueError, match='another run'):
        work('a', 3, seed=1)
    torch.distributed.destroy_process_group()


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_losses_that_are_not_finite(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, 'logits_of', lambda model, data: (
        torch.full((data.num_nodes, 7), float('nan'))))
    with pytest.raises(ValueError, match="lower 'lr', and another '--folder"):
        distributed.work(distributed.parse([
            '--folder', str(tmp_path), '--root', str(tmp_path), '--settings',
            task('one process', epochs=1).settings]))
    torch.distributed.destroy_process_group()


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_fewer_processes_go_on(alone, tmp_path):
    # Two processes, until one is killed in the third epoch; then one.
    distributed.load('Cora', root=str(tmp_path))
    settings = task('two processes').settings
    options = ['--folder', str(tmp_path), '--root', str(tmp_path),
               '--settings', settings]
    out = subprocess.run([
        sys.executable, '-m', 'torch.distributed.run', '--standalone',
        '--nproc-per-node=2', '--max-restarts=0', distributed.__file__,
        *options, '--kill', '1'], capture_output=True, text=True)
    path = tmp_path / 'checkpoint.pt'
    before = torch.load(path)
    assert out.returncode != 0 and before['epoch'] == 2, out.stderr
    distributed.work(distributed.parse(options))
    after = torch.load(path)
    assert after['epoch'] == 4 == len(after['losses'])
    assert after['losses'][:2] == before['losses']
    assert (tmp_path / 'epochs').read_text().split() == list('01223')


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


def test_what_went_wrong_is_told(tmp_path, monkeypatch):
    commands = []

    def failing(command, **kwargs):
        commands.append(command)
        code = "import sys; sys.exit('no such thing')"
        return popen([sys.executable, '-c', code], **kwargs)

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, 'Popen', failing)
    for method in METHODS:
        with pytest.raises(RuntimeError, match='1: no such thing'):
            distributed.launch(task(method), 'here', str(tmp_path))
    ways = [(c[4], c[c.index('--kill') + 1]) for c in commands]
    assert ways == [('--nproc-per-node=1', '-1'), ('--nproc-per-node=2', '-1'),
                    ('--nproc-per-node=2', '1')]
    assert all('--max-restarts=3' in command for command in commands)


def test_no_one_is_waited_for_forever(tmp_path, monkeypatch):
    popen, started = subprocess.Popen, []

    def hanging(command, **kwargs):
        code = 'import time; time.sleep(60)'
        started.append(popen([sys.executable, '-c', code], **kwargs))
        return started[0]

    monkeypatch.setattr(subprocess, 'Popen', hanging)
    monkeypatch.setattr(distributed, 'PATIENCE', 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        distributed.launch(task('one process'), 'here', str(tmp_path))
    assert started[0].returncode == -signal.SIGTERM


def test_processes_must_meet_anew(alone, monkeypatch):
    monkeypatch.setenv('TORCHELASTIC_USE_AGENT_STORE', 'True')
    monkeypatch.setenv('TORCHELASTIC_MAX_RESTARTS', '3')
    with pytest.raises(ValueError, match='SHARE_RDZV_TCP_STORE=1'):
        distributed.meet()


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
