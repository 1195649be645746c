r"""GCN-Jaccard: a GCN on a graph without edges between unlike nodes.

Wu et al., `"Adversarial Examples on Graph Data: Deep Insights into Attack and
Defense" <https://arxiv.org/abs/1903.01610>`_ (2019): before training, an edge
is dropped if the Jaccard similarity of its ends' words is below a threshold. A
word counts if its feature is not zero, whatever its value. The rest is
:mod:`benchmarks.baselines.gcn`, with dropout before both layers and weight
decay on the first, where DeepRobust's network has dropout before the second
alone and weight decay on both. Two nodes without a word have no similarity,
and lose their edge; DeepRobust divides by zero there.
"""
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from benchmarks.baselines import gcn
from benchmarks.training import Run, to_scipy

CHUNK = 20000  # edges, of which as many rows are in memory


def row_products(X: sp.csr_matrix, row: np.ndarray,
                 col: np.ndarray) -> np.ndarray:
    r"""The inner product of the features of both ends of each edge."""
    parts = [slice(i, i + CHUNK) for i in range(0, max(len(row), 1), CHUNK)]
    return np.concatenate([np.asarray(X[row[part]].multiply(
        X[col[part]]).sum(axis=1)).ravel() for part in parts])


def jaccard(X: sp.csr_matrix, row: np.ndarray,
            col: np.ndarray) -> np.ndarray:
    r"""The Jaccard similarity of both ends of each edge."""
    X = (X != 0).astype(np.float64)
    size = np.asarray(X.sum(axis=1)).ravel()
    both = row_products(X, row, col)
    return both / np.maximum(size[row] + size[col] - both, 1)


def prune(data: Data, threshold: float) -> Data:
    r"""The graph without edges of a similarity below the threshold.

    It depends on the features and not on edges alone, so it is not for
    :meth:`benchmarks.training.remember`; it takes part of a second.
    """
    similarity = jaccard(to_scipy(data.x), *data.edge_index.numpy())
    return data.edge_subgraph(torch.from_numpy(similarity >= threshold))


def run(data: Data, seed: int, *, threshold: float = 0.01,
        **settings: Any) -> Run:
    r"""Drops edges, then trains the GCN with the settings it has."""
    pruned = prune(data, threshold)
    out = gcn.run(pruned, seed, **settings)
    out.extra['kept'] = pruned.num_edges / max(data.num_edges, 1)
    return out
