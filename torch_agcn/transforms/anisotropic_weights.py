from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.data.storage import EdgeStorage
from torch_geometric.transforms import BaseTransform
from torch_geometric.typing import SparseTensor
from torch_geometric.utils.sparse import set_sparse_value

from torch_agcn import _checks
from torch_agcn.functional import anisotropic_weights


@functional_transform('anisotropic_weights')
class AnisotropicWeights(BaseTransform):
    r"""Sets :obj:`data.edge_weight` to the
    :meth:`~torch_agcn.functional.anisotropic_weights` (functional name:
    :obj:`anisotropic_weights`). In heterogeneous graphs, only edges between
    nodes of one type are changed.

    Args:
        steps (int, optional): How often neighborhoods are summed.
            (default: :obj:`2`)
        threshold (float, optional): If given, edges of lower probability are
            dropped, and no weights are set, *e.g.*, for
            :class:`~torch_geometric.nn.conv.GATConv`. (default: :obj:`None`)

    Example:
        >>> from torch_geometric.data import Data
        >>> x = torch.eye(2).repeat_interleave(5, dim=0)
        >>> clique = torch.combinations(torch.arange(5)).t()
        >>> edge_index = torch.cat([clique, clique + 5,
        ...                         torch.tensor([[0], [9]])], dim=1)
        >>> data = Data(x=x, edge_index=edge_index)
        >>> AnisotropicWeights()(data).edge_weight[-3:]  # The last is wrong.
        tensor([0.9600, 0.9600, 0.0000])
        >>> AnisotropicWeights(threshold=0.5)(data)
        Data(x=[10, 2], edge_index=[2, 20])
    """

    def __init__(self, steps: int = 2,
                 threshold: float | None = None) -> None:
        name = self.__class__.__name__
        _checks.check_whole(name, steps=steps)
        if threshold is not None:
            _checks.check_number(name, most=1, threshold=threshold)
        self.steps = steps
        self.threshold = threshold

    def forward(self, data: Data | HeteroData) -> Data | HeteroData:
        if not isinstance(data, (Data, HeteroData)):
            _checks.refuse(self.__class__.__name__,
                           f"data of type '{type(data).__name__}'",
                           "pass a 'Data' or 'HeteroData' object")
        for store in data.edge_stores:
            nodes: Any = data
            if isinstance(data, HeteroData):
                source, _, target = store._key
                if source != target:
                    continue
                nodes = data[source]
            self._apply(store, nodes)
        return data

    def _apply(self, store: EdgeStorage, nodes: Any) -> None:
        x, batch = getattr(nodes, 'x', None), getattr(nodes, 'batch', None)
        adj = store.get('adj_t', store.get('edge_index'))
        if x is None or adj is None:
            _checks.refuse(self.__class__.__name__, "data without 'x' or "
                           "'edge_index'", 'pass features and a graph')
        if 'adj_t' not in store:
            _checks.check_kinds(self.__class__.__name__, adj, None)
            _checks.check_index(self.__class__.__name__, adj)
        if 'adj_t' in store:
            self._apply_to_matrix(store, x, batch)
        elif self.threshold is None:
            store.edge_weight = anisotropic_weights(
                x, adj, store.get('edge_weight'), self.steps, batch)
        else:
            given = store.get('edge_weight')
            weight = anisotropic_weights(x, adj, given, self.steps, batch)
            self._drop(store, weight >= self.threshold * (
                1.0 if given is None else given.view(-1)))

    def _drop(self, store: EdgeStorage, keep: Tensor) -> None:
        some = keep.nonzero().view(-1)
        keys = [key for key in store if store.is_edge_attr(key)
                and not key.startswith('edge_label')]  # for link prediction
        for key in keys:
            value = store[key]
            if isinstance(value, Tensor):
                dim = store._parent().__cat_dim__(key, value, store)
                store[key] = value.index_select(dim, some)
            elif isinstance(value, np.ndarray):
                store[key] = value[some.cpu().numpy()]
            elif isinstance(value, (list, tuple)):
                store[key] = type(value)(value[i] for i in some.tolist())

    def _apply_to_matrix(self, store: EdgeStorage, x: Any,
                         batch: Any) -> None:
        if self.threshold is not None:
            _checks.refuse(self.__class__.__name__, "'adj_t' and a threshold",
                           "drop edges before 'ToSparseTensor'")
        adj = store.adj_t
        weight = anisotropic_weights(x, adj, None, self.steps, batch)
        if isinstance(adj, SparseTensor):
            store.adj_t = adj.set_value(weight, layout='coo')
        else:
            adj = adj.coalesce() if adj.layout == torch.sparse_coo else adj
            store.adj_t = set_sparse_value(adj, weight)

    def __repr__(self) -> str:
        return (f'{self.__class__.__name__}(steps={self.steps}, '
                f'threshold={self.threshold})')
