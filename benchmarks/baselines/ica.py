r"""ICA: the iterative classification algorithm.

Lu and Getoor, `"Link-Based Classification" <https://cdn.aaai.org/ICML/2003/
ICML03-066.pdf>`_ (2003); Sen et al., `"Collective Classification in Network
Data" <https://doi.org/10.1609/aimag.v29i3.2157>`_ (2008).

1. A local logistic regression on :math:`\mathbf{x}_i` labels every node that
   has no label.
2. A relational one is trained on :math:`[\mathbf{x}_i, \mathbf{c}_i]`, where
   :math:`\mathbf{c}_i` counts the current labels of the neighbours.
3. It relabels the unlabelled nodes one after the other in random order, each
   seeing the labels its neighbours have at that moment, in ten sweeps.
"""
import numpy as np
import scipy.sparse as sp
import torch
from sklearn.linear_model import LogisticRegression
from torch_geometric.data import Data

from benchmarks.training import Run, adjacency, count_classes, to_scipy


def count_labels(A: sp.csr_matrix, label: np.ndarray,
                 num_classes: int) -> np.ndarray:
    """Returns how many neighbours of each node have each label."""
    return A @ np.eye(num_classes)[label]


def sweep(A: sp.csr_matrix, base: np.ndarray, weight: np.ndarray,
          label: np.ndarray, order: np.ndarray,
          proportions: bool = False) -> np.ndarray:
    """Relabels the nodes of ``order`` one after the other.

    Node i takes the arg max of ``base[i] + c_i @ weight.T``: ``base`` is
    what the relational classifier makes of the features, which do not
    change, and ``c_i`` counts the labels of the neighbours, kept up to date
    as they do.
    """
    label = label.copy()
    count = count_labels(A, label, base.shape[1])
    degree = np.maximum(count.sum(axis=1), 1)
    for i in order:
        c = count[i] / degree[i] if proportions else count[i]
        new, old = int((base[i] + weight @ c).argmax()), label[i]
        if new != old:
            neighbours = A.indices[A.indptr[i]:A.indptr[i + 1]]
            count[neighbours, old] -= 1
            count[neighbours, new] += 1
            label[i] = new
    return label


def run(data: Data, seed: int, *, C: float = 1.0, scale: float = 1.0,
        proportions: bool = False, sweeps: int = 10) -> Run:
    """Runs ICA; ``seed`` decides the order of the nodes.

    ``C`` is the inverse regularisation of both classifiers, ``scale`` a
    factor on the features, whose rows sum to one, against the counts, which
    are whole numbers unless ``proportions`` divides them by the degree.
    """
    rng = np.random.default_rng(seed)
    A, X = adjacency(data), to_scipy(data.x) * scale
    train = data.train_mask.numpy()
    y = data.y[data.train_mask].numpy()
    num_classes = count_classes(data.y)

    local = LogisticRegression(C=C, max_iter=1000).fit(X[train], y)
    label = local.predict(X)
    label[train] = y

    def counts() -> np.ndarray:
        c = count_labels(A, label, num_classes)
        total = np.maximum(c.sum(axis=1, keepdims=True), 1)
        return c / total if proportions else c

    relational = LogisticRegression(C=C, max_iter=1000).fit(
        sp.hstack([X[train], counts()[train]]).tocsr(), y)
    W_x, W_c = np.split(relational.coef_, [X.shape[1]], axis=1)
    base = X @ W_x.T + relational.intercept_
    for _ in range(sweeps):
        order = rng.permutation(np.flatnonzero(~train))
        label = sweep(A, base, W_c, label, order, proportions)

    logits = torch.from_numpy(base + counts() @ W_c.T).float()
    return Run(logits.log_softmax(dim=-1), sweeps)
