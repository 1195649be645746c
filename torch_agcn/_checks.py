r"""Every refusal of bad input: a ValueError with the owner, what it got, and
the remedy.
"""
import math
from numbers import Integral, Real
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.typing import OptTensor, SparseTensor

from torch_agcn._tracing import can_look, is_recorded, is_traced


def refuse(owner: str, what: str, remedy: str) -> NoReturn:
    r"""Raises the error."""
    raise ValueError(f"'{owner}' got {what}; {remedy}")


def is_number(value: Any) -> bool:
    r"""Whether it is a real number; Python counts booleans among them."""
    return isinstance(value, Real) and not isinstance(value, bool)


# Features ####################################################################


def check_features(owner: str, x: Any, channels: int = -1,
                   node_dim: int = -2) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        refuse(owner, f"'x' of type '{kind}'",
               "pass a floating-point tensor, e.g. 'x.float()'")
    if (x.dim() < 2 or (node_dim == 0 and x.dim() != 2)
            or (channels > 0 and not is_recorded()
                and x.size(-1) != channels)):
        last = channels if channels > 0 else 'num_features'
        refuse(owner, f"'x' of shape {list(x.shape)}",
               f'pass [num_nodes, {last}], or [*, num_nodes, {last}] for many '
               f'features on the same graph')


def check_type(owner: str, dtype: torch.dtype, x: Any,
               name: str = 'x') -> None:
    for side in x if isinstance(x, (tuple, list)) else (x, ):
        if (isinstance(side, Tensor) and side.dtype != dtype
                and side.is_floating_point() and not is_traced()
                and not torch.is_autocast_enabled(side.device.type)):
            refuse(owner, f"'{name}' of type '{side.dtype}' and has weights "
                   f"of type '{dtype}'",
                   f"pass '{name}.to({dtype})', or convert the layer")


def check_devices(owner: str, device: torch.device | None,
                  **inputs: Any) -> None:
    for key, value in inputs.items():
        for part in value if isinstance(value, (tuple, list)) else (value, ):
            if not isinstance(part, (Tensor, SparseTensor)):
                continue
            found = part.device if isinstance(part, Tensor) else part.device()
            device = found if device is None else device
            if found != device and not is_traced():
                refuse(owner, f"'{key}' on '{found}', and other tensors on "
                       f"'{device}'", "move all to one device by 'to'")


def check_widths(owner: str, source: Any, target: Any) -> None:
    for side in (source, target):
        check_features(owner, side)
    size = source.size(-1), target.size(-1)
    if size[0] != size[1]:
        refuse(owner, f'{size[0]} features of sources and {size[1]} of '
               f'targets, which cannot be compared',
               f'make the layer with in_channels={size}, or (-1, -1)')


def check_initial(owner: str, x: Any, x_0: Any) -> None:
    if not isinstance(x_0, Tensor) or not x_0.is_floating_point():
        kind = x_0.dtype if isinstance(x_0, Tensor) else type(x_0).__name__
        refuse(owner, f"'x_0' of type '{kind}'",
               "pass a floating-point tensor, e.g. 'x_0.float()'")
    if x.shape != x_0.shape or any(
            v.layout != torch.strided for v in (x, x_0)):
        refuse(owner, f"'x' of shape {list(x.shape)} and 'x_0' of shape "
               f'{list(x_0.shape)}',
               'pass dense features of the same nodes and channels')


# Graphs ######################################################################


def check_kinds(owner: str, edge_index: Any, edge_weight: Any) -> None:
    if not isinstance(edge_index, (Tensor, SparseTensor)):
        refuse(owner, f"'edge_index' of type '{type(edge_index).__name__}'",
               'pass a tensor of shape [2, num_edges] or a sparse matrix')
    if edge_weight is not None and not isinstance(edge_weight, Tensor):
        refuse(owner, f"'edge_weight' of type '{type(edge_weight).__name__}'",
               "pass a tensor, e.g. 'torch.as_tensor(edge_weight)'")


def check_index(owner: str, edge_index: Tensor) -> None:
    if (edge_index.dim() != 2 or edge_index.size(0) != 2
            or edge_index.dtype not in (torch.int64, torch.int32)):
        refuse(owner, f"'edge_index' of shape {list(edge_index.shape)} and "
               f"type '{edge_index.dtype}'",
               'pass integers (torch.long) of shape [2, num_edges]')


def check_edge_weight(owner: str, weight: Tensor, num_edges: int) -> None:
    if ((weight.dim() != 1 and (weight.dim() != 2 or weight.size(1) != 1))
            or (not is_recorded() and weight.size(0) != num_edges)
            or not weight.is_floating_point()):
        refuse(owner, f"'edge_weight' of shape {list(weight.shape)} and type "
               f"'{weight.dtype}' for {num_edges} edges",
               'pass one floating-point number per edge')


def check_matrix(owner: str, adj: Any, edge_weight: OptTensor,
                 sizes: tuple[int, int], flow: str) -> None:
    if edge_weight is not None:
        refuse(owner, "a sparse matrix and 'edge_weight' as well",
               "store the weights as the matrix's values")
    if flow == 'target_to_source':
        refuse(owner, "a sparse matrix and flow='target_to_source'",
               "pass its transpose and flow='source_to_target' instead")
    size = [adj.size(0), adj.size(1)]
    if size != [sizes[1], sizes[0]]:
        refuse(owner, f'an adjacency matrix of size {size} for '
               f'{_count(sizes)} nodes', (
                   "pass a square one with as many rows as 'x'"
                   if sizes[0] == sizes[1] else 'pass the transposed one, '
                   'with a row for each that receives'))


def check_layout(owner: str, adj: Any) -> NoReturn:
    refuse(owner, f"a sparse matrix of layout '{adj.layout}'",
           "pass the transposed adjacency matrix in CSR, e.g. 'adj.t()' of a "
           "CSC matrix or 'adj.to_sparse_csr()'")


def _count(sizes: tuple[int, int]) -> str:
    return (str(sizes[0]) if sizes[0] == sizes[1] else
            f'{sizes[0]} sending and {sizes[1]} receiving')


def check_edges(owner: str, row: Tensor, col: Tensor, weight: OptTensor,
                sizes: tuple[int, int]) -> None:
    if row.numel() == 0:
        return
    for index, size in [(col, sizes[0]), (row, sizes[1])]:
        low, high = (int(bound) for bound in index.aminmax())
        if low < 0 or high >= size:
            refuse(owner, f'node {low if low < 0 else high} in '
                   f"'edge_index', but 'x' has {_count(sizes)} nodes",
                   f'all node numbers must lie in [0, {size})')
    if weight is not None:
        least, most = (float(v) for v in weight.detach().aminmax())
        if not (least >= 0 and most < math.inf):
            refuse(owner, f'an edge weight of {least:g} to {most:g}',
                   'edges must not count less than nothing: pass finite '
                   "weights >= 0, e.g. 'edge_weight.abs()'")


def check_batch(owner: str, batch: Any, batch_size: Any,
                num_nodes: int) -> None:
    if not isinstance(batch, Tensor) or not (
            batch_size is None
            or isinstance(batch_size, (Integral, torch.SymInt))):
        refuse(owner, f"'batch' of type '{type(batch).__name__}' and "
               f"'batch_size' of type '{type(batch_size).__name__}'",
               'pass a tensor and a whole number')
    if (batch.dim() != 1 or batch.dtype not in (torch.int64, torch.int32)
            or (not is_recorded() and batch.size(0) != num_nodes)):
        refuse(owner, f"'batch' of shape {list(batch.shape)} and type "
               f"'{batch.dtype}' for {num_nodes} nodes",
               'pass the number of its graph (torch.long) for each node')


def check_graph_numbers(owner: str, batch: Tensor,
                        batch_size: int | None) -> int:
    low, high = (int(bound) for bound in batch.aminmax())
    size = high + 1 if batch_size is None else batch_size
    if low < 0 or high >= size:
        refuse(owner, f"graph numbers from {low} to {high} in 'batch'",
               f'with batch_size={batch_size} they must lie in [0, {size})')
    return size


def check_inside(owner: str, batch: Tensor, row: Tensor, col: Tensor) -> None:
    source, target = batch.index_select(0, col), batch.index_select(0, row)
    if not torch.equal(source, target):
        i = int((source != target).nonzero()[0])
        refuse(owner, f'an edge from node {int(col[i])} of graph '
               f'{int(source[i])} to node {int(row[i])} of graph '
               f'{int(target[i])}', "pass the 'batch' that belongs to "
               "'edge_index', where no edge leaves its graph")


def check_sample(owner: str, num_nodes: int, degree: Any, node_weight: Any,
                 is_bipartite: bool, is_batch: bool) -> None:
    if (is_bipartite and (degree is not None or node_weight is not None)) or (
            is_batch and node_weight is not None):
        refuse(owner, "'degree' or 'node_weight' of more than one graph with "
               'one type of nodes', 'leave them out')
    for value in (degree, node_weight):
        if value is not None and (
                not isinstance(value, Tensor) or value.dim() != 1
                or value.size(0) != num_nodes
                or not value.is_floating_point()):
            refuse(owner, "'degree' and 'node_weight' that are not one "
                   f'floating-point number for each of {num_nodes} nodes',
                   "pass what 'torch_agcn.loader.ImportanceWeights' makes of "
                   'the batch')


# Arguments of layers #########################################################


def check_beta(owner: str, beta: Any, learn_beta: bool) -> None:
    if not is_number(beta) or not 0 <= beta < math.inf:
        refuse(owner, f'beta={beta!r}', 'pass a finite number >= 0')
    if learn_beta and beta == 0:
        refuse(owner, 'beta=0 and learn_beta=True', 'start from a positive '
               'beta: the learnt one never is zero')


def check_gate(owner: str, energy: Any, beta: Any) -> None:
    if not isinstance(energy, Tensor) or not energy.is_floating_point():
        refuse(owner, f'energy={energy}', 'pass a floating-point tensor')
    if not isinstance(beta, Tensor):
        check_beta(owner, beta, learn_beta=False)
    elif can_look(beta) and bool((beta < 0).any()):
        refuse(owner, f'beta={beta.tolist()}', 'pass numbers >= 0')


def check_steps(owner: str, steps: Any) -> None:
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 0:
        refuse(owner, f'steps={steps!r}', 'pass a whole number >= 0')


def check_diffusion(owner: str, layer: Any) -> None:
    for name in ('improved', 'cached', 'normalize', 'residual', 'learn_beta'):
        if not isinstance(getattr(layer, name), bool):
            refuse(owner, f'{name}={getattr(layer, name)!r}', 'pass True or '
                   "False, and 'beta', 'energy' and the like by name")
    if layer.energy not in ('total', 'relative'):
        refuse(owner, f"energy='{layer.energy}'",
               "pass 'total' (the paper's) or 'relative'")
    if not isinstance(layer.num_hops, Integral) or layer.num_hops < 1:
        refuse(owner, f'num_hops={layer.num_hops!r}',
               'pass a whole number >= 1')
    if not is_number(layer.alpha) or not 0 <= layer.alpha < 1:
        refuse(owner, f'alpha={layer.alpha!r}', 'pass a number in [0, 1)')
    if layer.add_self_loops and not layer.normalize:
        refuse(owner, 'add_self_loops=True and normalize=False',
               'add self-loops to the graph before it is normalized, e.g. '
               "with 'torch_geometric.transforms.GCNNorm'")
    if layer.aggr not in ('add', 'sum'):
        refuse(owner, f"aggr='{layer.aggr}'", "leave it at 'add': the energy "
               'belongs to the sum over neighbors')
    if layer.node_dim not in (-2, 0):
        refuse(owner, f'node_dim={layer.node_dim}',
               'pass features of shape [*, num_nodes, num_features]')


def check_channels(owner: str, layer: Any) -> None:
    size = layer.out_channels
    if not isinstance(size, Integral) or size < 0:
        refuse(owner, f'out_channels={size!r}',
               'pass the number of features that come out')
    size = layer.in_channels
    if isinstance(size, tuple):
        if len(size) != 2:
            refuse(owner, f'in_channels={size}',
                   'pass one number, or those of source and target')
        if layer.add_self_loops:
            refuse(owner, f'in_channels={size} and add_self_loops=True, but '
                   'no node stands on both sides',
                   "leave it out, or pass one number as 'in_channels'")
        check_bipartite(owner, layer)


def check_bipartite(owner: str, layer: Any, x: Any = None) -> None:
    if layer.num_hops > 1:
        refuse(owner, f'num_hops={layer.num_hops} for a bipartite graph, '
               'where one hop leads to the other side',
               'leave it at 1 and stack layers of both directions instead')
    if layer.flow == 'target_to_source':
        refuse(owner, "flow='target_to_source' for a bipartite graph",
               "pass 'edge_index.flip(0)', 'x' as (source, target) and leave "
               "'flow' at 'source_to_target'")
    if x is not None and (len(x) != 2 or any(side is None for side in x)):
        refuse(owner, "'x' as tuple without the features of both sides",
               'pass (source, target), for the energy needs both')


def check_batches(owner: str, batch: Any) -> None:
    if (not isinstance(batch, (tuple, list)) or len(batch) != 2
            or not all(isinstance(side, Tensor) for side in batch)):
        refuse(owner, "'batch' without that of both sides of a bipartite "
               'graph', 'pass (source, target)')


def check_momentum(owner: str, momentum: Any, in_channels: Any,
                   energy: str) -> None:
    if not is_number(momentum) or not 0 <= momentum <= 1:
        refuse(owner, f'momentum={momentum!r}', 'pass a number in [0, 1]')
    if not isinstance(in_channels, int):
        refuse(owner, f'in_channels={in_channels} and momentum',
               'leave one of them out: there is no running estimate between '
               'two types of nodes')
    if in_channels < 1 and energy == 'relative':
        refuse(owner, f'in_channels={in_channels} and momentum',
               'pass the number of features: the running estimate has a mean '
               'of each')


def check_one_graph(owner: str, momentum: float, is_one: bool) -> None:
    if not is_one:
        refuse(owner, f'momentum={momentum}, but not one graph with one set '
               'of features', 'leave it at None: whole graphs have energies '
               'of their own')


def check_identity_mapping(owner: str, channels: Any, theta: Any,
                           layer: Any) -> None:
    if not isinstance(channels, Integral) or channels < 1:
        refuse(owner, f'channels={channels!r}', 'pass the number of features '
               'that go in and come out')
    if theta is None:
        return
    if (not is_number(theta) or not 0 < theta < math.inf
            or not isinstance(layer, Integral) or layer < 1):
        refuse(owner, f'theta={theta!r} and layer={layer!r}', 'pass a '
               'positive theta with the number of the layer from 1 on, or '
               'neither')


def check_num_layers(owner: str, num_layers: Any, least: int = 1) -> None:
    if not isinstance(num_layers, Integral) or num_layers < least:
        refuse(owner, f'num_layers={num_layers!r}', f'pass at least {least}')
