r"""Co-training and self-training from the `"Deeper Insights into Graph
Convolutional Networks for Semi-Supervised Learning"
<https://arxiv.org/abs/1801.07606>`_ paper, which add confident nodes to the
training set.

.. code-block:: python

    size = expansion_size(data.edge_index, data.y, data.train_mask)
    more = co_training(data.edge_index, data.y, data.train_mask, size,
                       exclude=data.val_mask | data.test_mask)
    loss = F.cross_entropy(out[more.train_mask],
                           more.pseudo_y[more.train_mask])

Of :obj:`y`, only :obj:`y[train_mask]` is read.

.. warning::
    Without :obj:`exclude`, test nodes may be added, as in the paper. Measure
    accuracy by :obj:`y`, not by :obj:`pseudo_y`.
"""
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import Adj, OptTensor

from torch_agcn import _checks
from torch_agcn._edges import to_edges

__all__ = [
    'Expansion',
    'co_training',
    'expansion_size',
    'intersection',
    'partially_absorbing_walk',
    'self_training',
    'union',
]

# Steps of conjugate gradients before the matrix is factorised instead, which
# is faster on graphs of large diameter.
MAX_STEPS = 1000
# The most scores (16 GB) without an explicit number of classes.
MAX_SCORES = 2**31
# The number of classes that is allowed even with fewer nodes.
MAX_CLASSES = 2**20


class Expansion(NamedTuple):
    r"""An expanded training set.

    Args:
        train_mask (torch.Tensor): The labelled and the added nodes.
        pseudo_y (torch.Tensor): The labels to train on, :obj:`-1` outside of
            :obj:`train_mask`.

    Example:
        >>> more = Expansion(torch.tensor([True, True, False]),
        ...                  torch.tensor([0, 1, -1]))
        >>> more.pseudo_y[more.train_mask]
        tensor([0, 1])
    """

    train_mask: Tensor
    pseudo_y: Tensor


def expansion_size(
    edge_index: Adj,
    y: Tensor,
    train_mask: Tensor,
    num_layers: int = 2,
    factor: int = 3,
    num_classes: int | None = None,
) -> Tensor:
    r"""The number of nodes to add for each class

    .. math::
        t_c = \left\lfloor 3 \eta \frac{n_c}{\sum_k n_k} \right\rfloor
        \quad \textrm{with} \quad \eta = \frac{N}{\bar{d}^{\,\tau}},

    where :math:`n_c` denotes the number of labels of class :math:`c` and
    :math:`\bar{d}` the mean degree.

    Args:
        edge_index (torch.Tensor or SparseTensor): The edge indices or the
            adjacency matrix. Self-loops and weights do not count.
        y (torch.Tensor): The labels.
        train_mask (torch.Tensor): The labelled nodes.
        num_layers (int, optional): The number of layers :math:`\tau` of the
            model. (default: :obj:`2`)
        factor (int, optional): The factor of :math:`\eta`. (default: :obj:`3`)
        num_classes (int, optional): The number of classes. By default, the
            largest label plus one. (default: :obj:`None`)

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> y = torch.tensor([0, 1, 1])
        >>> expansion_size(edge_index, y, y >= 0)
        tensor([1, 3])
    """
    owner = 'expansion_size'
    num_classes = _num_classes(_check_labels(y, train_mask, owner),
                               num_classes, y.numel(), owner)
    _checks.check_whole(owner, num_layers=num_layers, factor=factor)
    if num_layers > 1000:
        _checks.refuse(owner, f'num_layers={num_layers}', 'pass 1000 at most')
    _checks.check_values(owner, edge_index=edge_index)
    N = y.numel()
    edges = to_edges(owner, edge_index, None, (N, N), torch.double)
    E = int((edges.row != edges.col).sum())
    if E == 0:
        raise ValueError(f"'{owner}' got a graph without edges; say yourself "
                         f'how many nodes are to be added for each class')
    count = torch.bincount(y[train_mask], minlength=num_classes)
    # Integers avoid rounding errors, and the bound avoids overflow.
    above = factor * N**(num_layers + 1)
    below = E**num_layers * int(count.sum())
    return torch.tensor([min(above * n // below, N) for n in count.tolist()],
                        device=y.device)


def partially_absorbing_walk(
    edge_index: Adj,
    y: Tensor,
    train_mask: Tensor,
    edge_weight: OptTensor = None,
    alpha: float = 1e-6,
    num_classes: int | None = None,
) -> Tensor:
    r"""The scores

    .. math::
        \mathbf{p}_c = \sum_{j \textrm{ labelled } c} \mathbf{P}_{:, j} \quad
        \textrm{with} \quad \mathbf{P} = {(\mathbf{D} - \mathbf{A} + \alpha
        \mathbf{I})}^{-1},

    of shape :obj:`[N, num_classes]`. Requires :obj:`scipy` and an undirected
    graph.

    Args:
        edge_index, y, train_mask, num_classes: As in :meth:`expansion_size`.
        edge_weight (torch.Tensor, optional): The edge weights.
            (default: :obj:`None`)
        alpha (float, optional): The absorption rate :math:`\alpha`: node
            :math:`i` absorbs a walk with probability
            :math:`\alpha / (\alpha + d_i)`. (default: :obj:`1e-6`)

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> y = torch.tensor([0, -1])
        >>> partially_absorbing_walk(edge_index, y, y >= 0, alpha=1.0)
        tensor([[0.6667],
                [0.3333]], dtype=torch.float64)
    """
    owner = 'partially_absorbing_walk'
    try:
        import scipy.sparse as sp
    except ImportError as error:
        raise ImportError(f"'{owner}' requires 'pip install scipy'") from error
    num_classes = _num_classes(_check_labels(y, train_mask, owner),
                               num_classes, y.numel(), owner)
    if not _checks.is_number(alpha) or not 0 < alpha < math.inf:
        raise ValueError(f"'{owner}' got alpha={alpha}; pass a finite number "
                         f'above zero, e.g. 1e-6')
    _checks.check_values(owner, edge_index=edge_index,
                         edge_weight=edge_weight)
    N = y.numel()
    row, col, weight = to_edges(owner, edge_index, edge_weight, (N, N),
                                torch.double).weighted(torch.double)
    edges = torch.stack([row, col])[:, row != col].cpu().numpy()
    weight = weight.detach()[row != col].cpu()
    A = sp.csr_matrix((weight.numpy(), edges), shape=(N, N))
    if abs(A - A.T).max() > 1e-6 * A.max():
        raise ValueError(f"'{owner}' got a directed graph; make it undirected "
                         f"by 'torch_geometric.utils.to_undirected'")
    known = train_mask.cpu().nonzero().flatten()
    B = torch.zeros(N, num_classes, dtype=torch.double)
    B[known, y.cpu()[known]] = 1.0
    return torch.from_numpy(_solve(A, alpha, B.numpy())).to(y.device)


def _solve(A: Any, alpha: float, B: Any) -> Any:
    r"""Solves :math:`(\mathbf{D} - \mathbf{A} + \alpha \mathbf{I}) \mathbf{X}
    = \mathbf{B}`.
    """
    import numpy as np
    import scipy.sparse as sp
    from scipy.sparse.csgraph import connected_components
    from scipy.sparse.linalg import cg, splu

    A = (A + A.T) / 2  # exactly symmetric
    A.eliminate_zeros()
    _, component = connected_components(A, directed=False)
    N = len(component)
    belongs = sp.csr_matrix((np.ones(N), (component, np.arange(N))))
    size = np.bincount(component)

    def mean(X: Any) -> Any:
        return (belongs @ X / size[:, None])[component]

    # Constants on a component have the eigenvalue alpha. Without them, the
    # condition of the system does not depend on alpha.
    constant = mean(B)
    B = B - constant
    diagonal = A @ np.ones(N) + alpha
    matrix = (sp.diags(diagonal) - A).tocsr()
    X = np.empty_like(B)
    factors = None
    for c in range(B.shape[1]):
        if factors is None:
            X[:, c], failed = cg(matrix, B[:, c], rtol=1e-12,
                                 maxiter=MAX_STEPS, M=sp.diags(1 / diagonal))
            if failed:
                factors = splu(matrix.tocsc(), permc_spec='MMD_AT_PLUS_A',
                               diag_pivot_thresh=0.0,
                               options=dict(SymmetricMode=True))
        if factors is not None:
            X[:, c] = factors.solve(B[:, c])
    X -= mean(X)
    # Keeps nine digits of the largest entry. Multiples of a power of two are
    # exact.
    largest = np.zeros(len(size))
    np.maximum.at(largest, component, abs(X).max(axis=1))
    unit = 2.0**(np.frexp(largest)[1] - 33)[component, None]
    X = np.round(X / unit) * unit
    # Far from the labels a score may be less than the unit.
    return np.where(constant > 0, np.maximum(X + constant / alpha, 0.0), 0.0)


def co_training(
    edge_index: Adj,
    y: Tensor,
    train_mask: Tensor,
    num_added: Tensor | Sequence[int] | int,
    edge_weight: OptTensor = None,
    alpha: float = 1e-6,
    *,
    exclude: OptTensor = None,
) -> Expansion:
    r"""Adds the nodes with the highest scores of
    :meth:`partially_absorbing_walk` for each class. A node chosen for two
    classes gets the one with the higher score; ties go to the lower index.

    Args:
        edge_index, y, train_mask, edge_weight, alpha: As in
            :meth:`partially_absorbing_walk`.
        num_added (torch.Tensor or list or int): The largest number of nodes to
            add, per class (see :meth:`expansion_size`) or one for all.
        exclude (torch.Tensor, optional): Nodes never to add, as a mask or
            indices. (default: :obj:`None`)

    :rtype: :class:`Expansion`

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        >>> y = torch.tensor([0, -1, -1, 1])
        >>> co_training(path, y, y >= 0, num_added=1).pseudo_y
        tensor([0, 0, 1, 1])
    """
    owner = 'co_training'
    known = _check_labels(y, train_mask, owner)
    if not isinstance(num_added, (list, tuple)) and (
            getattr(num_added, 'ndim', 0) == 0):  # one for all classes
        known = _num_classes(known, None, y.numel(), owner)
    num_added = _check_num_added(num_added, known, None, owner)
    score = partially_absorbing_walk(edge_index, y, train_mask, edge_weight,
                                     alpha, num_added.numel())
    return _expand(score, y, train_mask, num_added, exclude, owner)


def self_training(
    logits: Tensor,
    y: Tensor,
    train_mask: Tensor,
    num_added: Tensor | Sequence[int] | int,
    *,
    exclude: OptTensor = None,
) -> Expansion:
    r"""Adds, of the nodes predicted as each class, those of the highest
    probability.

    Args:
        logits (torch.Tensor): The outputs of a trained model, of shape
            :obj:`[N, num_classes]`, as logits or log-probabilities.
        y, train_mask, num_added, exclude: As in :meth:`co_training`.

    :rtype: :class:`Expansion`

    Example:
        >>> logits = torch.tensor([[9., 0.], [3., 0.], [2., 0.], [0., 1.]])
        >>> y = torch.tensor([1, -1, -1, -1])
        >>> self_training(logits, y, y >= 0, num_added=1).pseudo_y
        tensor([ 1,  0, -1,  1])
    """
    owner = 'self_training'
    known = _check_labels(y, train_mask, owner)
    _checks.check_floats(owner, logits=logits)
    _checks.check_devices(owner, y.device, logits=logits)
    if (not _checks.is_dense(logits) or logits.dim() != 2
            or logits.size(0) != y.numel()
            or logits.size(1) < known):
        raise ValueError(f"'{owner}' got 'logits' of shape "
                         f'{list(logits.shape)}; pass a row for each of the '
                         f'{y.numel()} nodes and a column for each of the '
                         f'{known} classes or more')
    if not bool((logits < math.inf).all()):
        raise ValueError(f"'{owner}' got 'logits' with NaN or inf; lower the "
                         f'learning rate, say, and train again')
    num_added = _check_num_added(num_added, known, logits.size(1), owner)
    # In single precision, confident nodes would tie at 1.0.
    confidence, label = logits.detach().double().softmax(dim=-1).max(dim=-1)
    score = torch.zeros_like(logits, dtype=torch.double)
    score.scatter_(1, label[:, None], confidence[:, None])
    return _expand(score, y, train_mask, num_added, exclude, owner)


def union(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
) -> Expansion:
    r"""The nodes of either expansion, except those whose labels differ.

    Args:
        first, second (Expansion): The expansions.

    Example:
        >>> y = torch.tensor([0, 0, 1, -1])
        >>> other = torch.tensor([0, 1, -1, 1])
        >>> union((y >= 0, y), (other >= 0, other)).pseudo_y
        tensor([ 0, -1,  1,  1])
    """
    mask, y, other_mask, other_y = _check_pairs(first, second, 'union')
    conflict = mask & other_mask & (y != other_y)
    return _only(torch.where(mask, y, other_y),
                 (mask | other_mask) & ~conflict)


def intersection(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
) -> Expansion:
    r"""The nodes of both expansions whose labels agree.

    Args:
        first, second (Expansion): The expansions.

    Example:
        >>> y = torch.tensor([0, 0, 1, -1])
        >>> other = torch.tensor([0, 1, -1, 1])
        >>> intersection((y >= 0, y), (other >= 0, other)).pseudo_y
        tensor([ 0, -1, -1, -1])
    """
    mask, y, other_mask, other_y = _check_pairs(first, second, 'intersection')
    return _only(y, mask & other_mask & (y == other_y))


def _expand(score: Tensor, y: Tensor, train_mask: Tensor, num_added: Tensor,
            exclude: OptTensor, owner: str) -> Expansion:
    r"""Adds the nodes with the highest positive scores of each column."""
    free = ~train_mask
    if exclude is not None:
        free = free & ~_check_nodes(exclude, y, owner)
    score = torch.where(free[:, None], score, 0.0)
    order = score.argsort(dim=0, descending=True, stable=True)
    claim = torch.zeros_like(score)
    for c, t in enumerate(num_added.tolist()):
        nodes = order[:t, c]
        claim[nodes, c] = score[nodes, c]
    highest, label = claim.max(dim=-1)  # the first of equal ones
    added = highest > 0
    return _only(torch.where(added, label, y), train_mask | added)


def _only(y: Tensor, train_mask: Tensor) -> Expansion:
    return Expansion(train_mask, y.masked_fill(~train_mask, -1))


# Checks ######################################################################


def _check_labels(y: Tensor, train_mask: Tensor, owner: str) -> int:
    r"""Returns the largest label plus one."""
    _checks.check_values(owner, y=y)
    if not _checks.is_dense(y) or y.dim() != 1 or y.dtype != torch.long:
        _checks.refuse(owner, _checks.given('y', y), 'pass one number of '
                       'type torch.long per node')
    _checks.check_mask(owner, y.numel(), train_mask=train_mask)
    _checks.check_devices(owner, y.device, train_mask=train_mask)
    labels = y[train_mask]
    if labels.numel() == 0 or int(labels.min()) < 0:
        raise ValueError(f"'{owner}' needs a 'train_mask' with one node at "
                         f'least, and with labels from 0 on; leave out nodes '
                         f'whose label is negative')
    return int(labels.max()) + 1


def _num_classes(known: int, num_classes: int | None, num_nodes: int,
                 owner: str) -> int:
    if num_classes is None and known > min(num_nodes, MAX_SCORES // num_nodes):
        raise ValueError(f"'{owner}' got a label {known - 1} for {num_nodes} "
                         f'nodes; number the classes from 0 on, e.g. by '
                         f"'y.unique(return_inverse=True)', or say how many "
                         f"there are by 'num_classes' or the length of "
                         f"'num_added'")
    if num_classes is not None:
        _checks.check_whole(owner, num_classes=num_classes)
    if num_classes is not None and num_classes < known:
        raise ValueError(f"'{owner}' got num_classes={num_classes}, but there "
                         f'is a label {known - 1}; pass {known} at least')
    if num_classes is not None and num_classes > max(num_nodes, MAX_CLASSES):
        raise ValueError(f"'{owner}' got num_classes={num_classes} for "
                         f'{num_nodes} nodes; number the classes from 0 on, '
                         f"e.g. by 'y.unique(return_inverse=True)'")
    return known if num_classes is None else num_classes


def _check_nodes(nodes: Tensor, y: Tensor, owner: str) -> Tensor:
    r"""Returns a mask."""
    if getattr(nodes, 'dtype', None) == torch.bool:
        _checks.check_mask(owner, y.numel(), exclude=nodes)
        _checks.check_devices(owner, y.device, exclude=nodes)
        return nodes
    if not _checks.is_dense(nodes) or nodes.dim() != 1:
        _checks.refuse(owner, _checks.given('exclude', nodes),
                       'pass a mask, or numbers of nodes (torch.long)')
    _checks.check_numbers(owner, nodes.numel(), y.numel(), exclude=nodes)
    _checks.check_devices(owner, y.device, exclude=nodes)
    if nodes.numel() == y.numel() > 2 and int(nodes.max()) < 2:
        _checks.refuse(owner, _checks.given('exclude', nodes) + ' with zeros '
                       'and ones', "pass a mask of type torch.bool, e.g. by "
                       "'exclude.bool()'")
    return torch.zeros_like(y, dtype=torch.bool).index_fill(0, nodes.long(),
                                                            True)


def _check_num_added(num_added: Tensor | Sequence[int] | int, least: int,
                     most: int | None, owner: str) -> Tensor:
    r"""Returns one number per class."""
    given: Any = num_added
    if isinstance(given, Tensor):
        given = given.tolist() if _checks.is_dense(given) and (
            not given.is_meta) else None
    elif hasattr(given, 'tolist'):  # of NumPy
        given = given.tolist()
    if not isinstance(given, (list, tuple)):
        given = [given] * (most or least)
    if not least <= len(given) <= (most or len(given)) or not all(
            map(_checks.is_whole, given)):
        raise ValueError(f"'{owner}' got num_added={num_added} for {least} "
                         f'classes; pass a whole number >= 0 for each, e.g. '
                         f"by 'expansion_size', or one for all")
    return torch.tensor(given)


def _check_pairs(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor],
                 owner: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    for pair in (first, second):
        if not isinstance(pair, tuple) or len(pair) != 2:
            _checks.refuse(owner, f"'first' or 'second' of type "
                           f"'{type(pair).__name__}'", "pass pairs of "
                           "'train_mask' and 'y'")
        _check_labels(pair[1], pair[0], owner)
    _checks.check_devices(owner, None, first=first, second=second)
    if first[1].shape != second[1].shape:
        raise ValueError(f"'{owner}' got expansions of {first[1].numel()} and "
                         f'{second[1].numel()} nodes; pass two of one graph')
    return *first, *second
