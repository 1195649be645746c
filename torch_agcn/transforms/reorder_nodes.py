from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform
from torch_geometric.typing import SparseTensor

from torch_agcn import _checks


@functional_transform('reorder_nodes')
class ReorderNodes(BaseTransform):
    r"""Renumbers nodes by the reverse Cuthill-McKee algorithm, such that
    neighbors are close in memory (functional name: :obj:`reorder_nodes`).
    Layers get faster on graphs with a geometry, *e.g.*, k-NN graphs, grids and
    road networks. Requires :obj:`scipy`.

    Node and edge attributes are permuted, attributes with :obj:`index` in
    their name renumbered, and edges sorted by target. :obj:`data.n_id` holds
    the former node indices: :obj:`out[data.n_id.argsort()]` is in the former
    order.

    Example:
        >>> from torch_geometric.data import Data
        >>> path = torch.tensor([[0, 3, 1], [3, 1, 2]])  # 0, 3, 1, 2
        >>> data = ReorderNodes()(Data(x=torch.eye(4), edge_index=path))
        >>> data.n_id
        tensor([2, 1, 3, 0])
        >>> data.edge_index
        tensor([[1, 2, 3],
                [0, 1, 2]])
    """

    def forward(self, data: Data) -> Data:
        name = self.__class__.__name__
        if isinstance(data, HeteroData) or not isinstance(data, Data):
            _checks.refuse(name, f"data of type '{type(data).__name__}'",
                           "pass a 'Data' object with nodes of one type")
        num_nodes = _checks.count_nodes(name, data)
        if num_nodes is None or not ('edge_index' in data or 'adj_t' in data):
            _checks.refuse(name, "data without nodes, 'edge_index' or "
                           "'adj_t'", 'pass a graph')
        _check_graph(name, data, num_nodes)
        edges = _by_target(data, num_nodes)
        n_id = _order(edges, getattr(data, 'batch', None))
        edges = edges[n_id.numpy()]
        found = data.to_dict()
        keys = [key for key in found if isinstance(
            found[key], (Tensor, SparseTensor))]
        of_nodes = [key for key in keys if data.is_node_attr(key)]
        of_edges = [key for key in keys if data.is_edge_attr(key)]
        for key in of_nodes:
            if found[key].layout not in (torch.strided, torch.sparse_coo):
                _checks.refuse(name, f"'{key}' of layout "
                               f"'{found[key].layout}'", 'pass a dense or a '
                               f"COO tensor, e.g. '{key}.to_sparse_coo()'")
        graph = found['edge_index' if 'edge_index' in found else 'adj_t']
        n_id = n_id.to(graph.device() if isinstance(graph, SparseTensor)
                       else graph.device)
        place = torch.empty_like(n_id)
        place[n_id] = torch.arange(num_nodes, device=n_id.device)
        order = torch.from_numpy(edges.data).to(n_id)  # also to its dtype
        for key in keys:
            if key == 'adj_t':
                data.adj_t = _permuted(data.adj_t, n_id, place)
            elif key == 'edge_index':
                source, degree = (torch.from_numpy(values).to(n_id.device)
                                  for values in [edges.indices,
                                                 np.diff(edges.indptr)])
                data.edge_index = torch.stack([
                    place[source], torch.repeat_interleave(degree)])
            elif key in of_nodes + of_edges:
                data[key] = data[key].index_select(
                    data.__cat_dim__(key, data[key]),
                    n_id if key in of_nodes else order)
            elif 'index' in key and not data[key].is_floating_point():
                data[key] = place[data[key]]
        if 'n_id' not in of_nodes:  # else it was permuted
            data.n_id = n_id
        return data


def _check_graph(name: str, data: Data, num_nodes: int) -> None:
    batch = getattr(data, 'batch', None)
    if batch is not None:
        _checks.check_batch(name, batch, None, num_nodes)
        _checks.check_values(name, batch=batch)
        if num_nodes > 0:
            _checks.check_graph_numbers(name, batch, None)
    if 'edge_index' in data:
        _checks.check_kinds(name, data.edge_index, None)
        _checks.check_index(name, data.edge_index)
        _checks.check_devices(name, None, edge_index=data.edge_index,
                              batch=batch)
        _checks.check_values(name, edge_index=data.edge_index)
        _checks.check_edges(name, data.edge_index[1], data.edge_index[0],
                            None, (num_nodes, num_nodes))
    else:
        _checks.check_kinds(name, data.adj_t, None)
        _checks.check_matrix(name, data.adj_t, None, (num_nodes, num_nodes),
                             _checks.FLOWS[0])


def _by_target(data: Data, num_nodes: int) -> Any:
    r"""The edges as a SciPy matrix of targets, sources and edge indices."""
    try:
        import scipy.sparse as sp
    except ImportError as error:
        raise ImportError("'ReorderNodes' requires 'scipy': run 'pip install "
                          "scipy'") from error
    if 'edge_index' in data:
        source, target = data.edge_index.cpu().numpy()
    elif isinstance(data.adj_t, SparseTensor):
        target, source = (v.cpu().numpy() for v in data.adj_t.coo()[:2])
    else:
        target, source = data.adj_t.to_sparse_coo().coalesce().indices().cpu(
            ).numpy()
    # The conversion from one row per edge to one column per target is a
    # counting sort:
    count = len(target)
    sort = sp.csr_matrix((np.ones(count, bool), target, np.arange(count + 1)),
                         shape=(count, num_nodes)).tocsc()
    return sp.csr_matrix((sort.indices, source[sort.indices], sort.indptr),
                         shape=(num_nodes, num_nodes))


def _order(edges: Any, batch: Tensor | None) -> Tensor:
    r"""The former index of each node."""
    import scipy.sparse as sp
    num_nodes = edges.shape[0]
    pattern = sp.csr_matrix((np.ones(edges.nnz, bool), edges.indices,
                             edges.indptr), shape=edges.shape)
    # The order ignores directions. If in- and out-degrees are equal, the graph
    # is most likely undirected already.
    out_degree = np.bincount(edges.indices, minlength=num_nodes)
    if not np.array_equal(out_degree, np.diff(edges.indptr)):
        pattern = pattern + pattern.T
    perm = (sp.csgraph.reverse_cuthill_mckee(pattern, symmetric_mode=True)
            if num_nodes > 0 else np.empty(0))
    out = torch.from_numpy(perm.astype(np.int64))
    return out if batch is None else out[batch.cpu()[out].argsort(stable=True)]


def _permuted(adj: Any, n_id: Tensor, place: Tensor) -> Any:
    if isinstance(adj, SparseTensor):
        return adj.permute(n_id)
    layout, adj = adj.layout, adj.to_sparse_coo().coalesce()
    out = torch.sparse_coo_tensor(place[adj.indices()], adj.values(),
                                  adj.shape).coalesce()
    return out if layout == torch.sparse_coo else out.to_sparse(layout=layout)
