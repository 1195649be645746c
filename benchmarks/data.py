r"""The data sets of the benchmarks, with splits that a seed decides."""
from functools import lru_cache
from pathlib import Path

import torch
import torch_geometric.transforms as T
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

CITATION = ['Cora', 'CiteSeer', 'PubMed']
IMAGES = ['MNIST', 'CIFAR10', 'Digits']
DATASETS = CITATION + IMAGES
# Neighbors are of other classes; the last two are scored by the ROC curve.
HETEROPHILOUS = ['texas', 'wisconsin', 'cornell', 'actor', 'minesweeper',
                 'tolokers']
BY_CURVE = ['minesweeper', 'tolokers']
SPLITS = ['public', 'random']


def splits_of(name: str) -> list[str]:
    r"""The splits a data set has: images have no public one."""
    return SPLITS if name in CITATION else ['random']


def load(name: str, split: str = 'public', seed: int = 0,
         root: str = 'data') -> Data:
    r"""A graph with masks; bags of words are a sparse matrix."""
    if name not in DATASETS or split not in splits_of(name):
        raise ValueError(f"There is no split '{split}' of '{name}'; use one "
                         f"of {DATASETS}, and 'random' for images")
    draw_of = seed if name in IMAGES else 0  # images too are drawn
    data = _graph(name, draw_of, root).clone()
    if split == 'random':
        order = torch.randperm(
            data.num_nodes, generator=torch.Generator().manual_seed(seed))
        draw = draw_per_class if name in CITATION else draw_share
        parts = draw(data.y, order)
        for key, nodes in zip(['train', 'val', 'test'], parts):
            mask = torch.zeros(data.num_nodes, dtype=torch.bool)
            mask[nodes] = True
            data[f'{key}_mask'] = mask
    return data


def draw_per_class(y: Tensor, order: Tensor, train: int = 20, val: int = 500,
                   test: int = 1000) -> tuple[Tensor, Tensor, Tensor]:
    r"""The first nodes of each class to train on, then a number of others."""
    rank, _ = _rank(y, order)
    rest = order[rank >= train]
    return order[rank < train], rest[:val], rest[val:val + test]


def draw_share(y: Tensor, order: Tensor, train: float = 0.3,
               val: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    r"""300, 100 and 600 of the 1,000 images of a class."""
    rank, size = _rank(y, order)
    a, b = (train * size).round(), ((train + val) * size).round()
    return (order[rank < a], order[(rank >= a) & (rank < b)],
            order[rank >= b])


def _rank(y: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    r"""The place of each node of an order in its class, and the class size."""
    rank, size = torch.zeros_like(order), torch.zeros_like(order)
    for c in y.unique():
        of_class = y[order] == c
        size[of_class] = of_class.sum()
        rank[of_class] = torch.arange(int(of_class.sum()))
    return rank, size


@lru_cache(maxsize=1)
def _graph(name: str, seed: int, root: str) -> Data:
    if name in CITATION:
        from torch_agcn.datasets import Planetoid
        data = Planetoid(root, name, transform=T.NormalizeFeatures())[0]
        data.num_nodes = data.x.size(0)
        data.x = data.x.to_sparse().coalesce()
        return data
    from torch_agcn.datasets import ImageGraph
    return ImageGraph(root, name, k=8, seed=seed)[0]


def load_heterophilous(name: str, seed: int = 0, root: str = 'data') -> Data:
    r"""A graph of PyG's whose neighbors are of other classes, with one of its
    ten splits.
    """
    from torch_geometric.datasets import (
        Actor,
        HeterophilousGraphDataset,
        WebKB,
    )
    folder = str(Path(root) / 'heterophilous')
    if name == 'actor':
        data = Actor(f'{folder}/actor')[0]
    else:
        data = (HeterophilousGraphDataset if name in BY_CURVE else WebKB)(
            folder, name)[0]
    edges = to_undirected(remove_self_loops(data.edge_index)[0])
    out = Data(x=data.x.float(), y=data.y, edge_index=edges,
               num_nodes=data.num_nodes)
    for key in ['train_mask', 'val_mask', 'test_mask']:
        out[key] = data[key][:, seed % 10].bool()
    return out


def score(name: str, out: Tensor, y: Tensor) -> float:
    r"""The accuracy of logits, or the area under the ROC curve, in percent."""
    if name in BY_CURVE:
        from sklearn.metrics import roc_auc_score
        value = roc_auc_score(y, out.softmax(dim=-1)[:, 1])
    else:
        value = (out.argmax(dim=-1) == y).double().mean()
    return round(100 * float(value), 3)
