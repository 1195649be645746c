r"""Checks of user input."""
import math
import os
import sys
from collections.abc import Callable, Iterable
from numbers import Integral, Number, Real
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.typing import OptTensor, SparseTensor

from torch_agcn._tracing import can_look, is_recorded, is_traced

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INDICES = (torch.int64, torch.int32)
FLOWS = ('source_to_target', 'target_to_source')
MOST = 2**31 - 1  # the largest count


def refuse(owner: str, what: str, remedy: str) -> NoReturn:
    raise ValueError(f"'{owner}' got {what}; {remedy}")


def given(name: str, value: Any) -> str:
    r"""Describes an argument in an error message."""
    if isinstance(value, Tensor):
        shape = 'nested' if value.is_nested else list(value.shape)
        return f"'{name}' of shape {shape} and type '{value.dtype}'"
    if value is None or isinstance(value, (Number, str)):
        return f'{name}={value!r}'
    return f"'{name}' of type '{type(value).__name__}'"


# Arguments of all kinds ######################################################


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any, least: int = 0, most: int = MOST) -> bool:
    return (isinstance(value, Integral) and not isinstance(value, bool)
            and least <= int(value) <= most)


def check_whole(owner: str, least: int = 0, **values: Any) -> None:
    for name, value in values.items():
        if not is_whole(value, least):
            is_huge = is_number(value) and value > MOST
            refuse(owner, given(name, value), f'pass a whole number >= {least}'
                   + (f' and <= {MOST}' if is_huge else ''))


def check_number(owner: str, least: float = 0.0,
                 most: float = sys.float_info.max, **values: Any) -> None:
    for name, value in values.items():
        if not is_number(value) or not least <= value <= most:
            refuse(owner, given(name, value), 'pass a finite number >= '
                   f'{least:g}' if most == sys.float_info.max else
                   f'pass a number from {least:g} to {most:g}')


def check_flags(owner: str, **values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, bool):
            refuse(owner, given(name, value), 'pass True or False')


def check_choice(owner: str, choices: Iterable[str], **values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, str) or value not in choices:
            refuse(owner, given(name, value),
                   'pass ' + ' or '.join(map(repr, choices)))


def check_kind(owner: str, kind: Any, remedy: str, **values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, kind):
            refuse(owner, given(name, value), remedy)


def check_mask(owner: str, size: int, **values: Any) -> None:
    for name, value in values.items():
        if (not is_dense(value) or value.dtype != torch.bool
                or value.shape != (size, )):
            refuse(owner, given(name, value), f'pass {size} of type '
                   'torch.bool, one per node (of many splits, one column, '
                   f"e.g. '{name}[:, 0]')")


def check_numbers(owner: str, size: int, end: int = MOST,
                  **values: Any) -> None:
    for name, value in values.items():
        if (not is_dense(value) or value.dtype not in INDICES
                or value.shape != (size, ) or value.is_meta):
            refuse(owner, given(name, value), f'pass {size} whole numbers '
                   '(torch.long)')
        if can_look(value) and size > 0:
            low, high = (int(bound) for bound in value.aminmax())
            if low < 0 or high >= end:
                refuse(owner, f"numbers from {low} to {high} in '{name}'",
                       f'they must lie in [0, {end})')


def check_values(owner: str, **values: Any) -> None:
    for name, value in values.items():
        if getattr(value, 'is_meta', False):
            refuse(owner, f"'{name}' on 'meta', where there are no values",
                   'pass a tensor that has some')


def is_dense(value: Any) -> bool:
    return (isinstance(value, Tensor) and value.layout == torch.strided
            and not value.is_nested)


# Features ####################################################################


def check_floats(owner: str, **values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.dtype not in FLOATS:
            kind = (value.dtype if isinstance(value, Tensor) else
                    type(value).__name__)
            refuse(owner, f"'{name}' of type '{kind}'", 'pass a floating-point'
                   f" tensor, e.g. '{name}.float()'")
        if value.is_nested or (value.layout == torch.sparse_coo
                               and value.dense_dim() > 0):
            refuse(owner, f"'{name}' that is nested or partly sparse",
                   f"pass a dense or a sparse one, e.g. '{name}.to_dense()'")


def check_features(owner: str, x: Any, channels: int = -1,
                   node_dim: int = -2) -> None:
    check_floats(owner, x=x)
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
    check_floats(owner, x_0=x_0)
    if x.shape != x_0.shape or not is_dense(x) or not is_dense(x_0):
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
    if (not is_dense(edge_index) or edge_index.dim() != 2
            or edge_index.size(0) != 2 or edge_index.dtype not in INDICES):
        refuse(owner, given('edge_index', edge_index),
               'pass integers (torch.long) of shape [2, num_edges]')


def check_edge_weight(owner: str, weight: Tensor, num_edges: int) -> None:
    if (not is_dense(weight) or weight.dtype not in FLOATS
            or (weight.dim() != 1
                and (weight.dim() != 2 or weight.size(1) != 1))
            or (not is_recorded() and weight.size(0) != num_edges)):
        refuse(owner, f"{given('edge_weight', weight)} for {num_edges} edges",
               'pass one floating-point number per edge')


def check_matrix(owner: str, adj: Any, edge_weight: OptTensor,
                 sizes: tuple[int, int], flow: str) -> None:
    if edge_weight is not None:
        refuse(owner, "a sparse matrix and 'edge_weight' as well",
               "store the weights as the matrix's values")
    if flow == 'target_to_source':
        refuse(owner, "a sparse matrix and flow='target_to_source'",
               "pass its transpose and flow='source_to_target' instead")
    is_tensor = isinstance(adj, Tensor)
    value = None if is_tensor else adj.storage.value()
    if (adj.dim() != 2 or (is_tensor and adj.dense_dim() > 0)
            or (value is not None and value.dim() > 1)
            or (adj.dtype if is_tensor else adj.dtype()).is_complex):
        refuse(owner, "a sparse matrix as 'edge_index' whose entries are not "
               'one real number each', 'pass one of two dimensions')
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
            refuse(owner, f"an edge weight of {least:g} to {most:g} in "
                   "'edge_weight' or 'edge_index'", 'edges must not count '
                   'less than nothing: pass finite weights >= 0, e.g. '
                   "'edge_weight.abs()'")


def check_batch_size(owner: str, batch_size: Any) -> None:
    if batch_size is not None and not isinstance(batch_size, torch.SymInt):
        check_whole(owner, batch_size=batch_size)


def check_batch(owner: str, batch: Any, batch_size: Any,
                num_nodes: int) -> None:
    check_batch_size(owner, batch_size)
    if (not is_dense(batch) or batch.dim() != 1
            or batch.dtype not in INDICES
            or (not is_recorded() and batch.size(0) != num_nodes)):
        refuse(owner, f"{given('batch', batch)} for {num_nodes} nodes",
               'pass the number of its graph (torch.long) for each node')


def check_graph_numbers(owner: str, batch: Tensor,
                        batch_size: int | None) -> int:
    low, high = (int(bound) for bound in batch.aminmax())
    size = high + 1 if batch_size is None else batch_size
    if batch_size is None and size > batch.numel():
        refuse(owner, f"a graph number {high} in 'batch' of {batch.numel()} "
               'nodes', "number the graphs from 0 on, or pass 'batch_size'")
    if low < 0 or high >= size or size > MOST:
        refuse(owner, f"graph numbers from {low} to {high} in 'batch'",
               f'with batch_size={batch_size} they must lie in [0, '
               f'{min(size, MOST)})')
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
    for name, value in dict(degree=degree, node_weight=node_weight).items():
        if value is None:
            continue
        if (not is_dense(value) or value.dtype not in FLOATS
                or value.dim() != 1 or value.size(0) != num_nodes
                or (can_look(value) and not is_all_finite(value))):
            refuse(owner, f'{given(name, value)} that is not one '
                   'floating-point number that is finite and >= 0 for each '
                   f'of {num_nodes} nodes',
                   "pass what 'torch_agcn.loader.ImportanceWeights' makes of "
                   'the batch')


def is_all_finite(value: Tensor) -> bool:
    r"""Whether all values are finite and non-negative."""
    if value.numel() == 0:
        return True
    least, most = (float(v) for v in value.detach().aminmax())
    return least >= 0 and most < math.inf


# Arguments of layers #########################################################


def check_beta(owner: str, beta: Any, learn_beta: bool) -> None:
    check_number(owner, beta=beta)
    if learn_beta and beta == 0:
        refuse(owner, 'beta=0 and learn_beta=True', 'start from a positive '
               'beta: the learnt one never is zero')


def check_gate(owner: str, energy: Any, beta: Any) -> None:
    check_floats(owner, energy=energy)
    if not is_dense(energy):
        refuse(owner, f"'energy' of layout '{energy.layout}'",
               "pass a dense tensor, e.g. 'energy.to_dense()'")
    if not isinstance(beta, Tensor):
        check_beta(owner, beta, learn_beta=False)
        return
    if not is_dense(beta) or beta.dtype not in (*FLOATS, *INDICES):
        refuse(owner, given('beta', beta), 'pass numbers >= 0')
    if beta.dim() > 0 or not beta.is_cpu:
        check_devices(owner, energy.device, beta=beta)
    if can_look(beta):
        sizes = zip(reversed(beta.shape), reversed(energy.shape))
        if beta.dim() > energy.dim() or any(
                size not in (1, other) for size, other in sizes):
            refuse(owner, f"'beta' of shape {list(beta.shape)} for energies "
                   f'of shape {list(energy.shape)}', 'pass one number, or '
                   'one for each energy')
        if not is_all_finite(beta):
            refuse(owner, f'beta={beta.tolist()}', 'pass finite numbers >= 0')


def check_messages(owner: str, kwargs: dict[str, Any]) -> None:
    aggr = kwargs['aggr']
    if not isinstance(aggr, str) or aggr not in ('add', 'sum'):
        refuse(owner, given('aggr', aggr), "leave it at 'add': the "
               'energy belongs to the sum over neighbors')
    check_choice(owner, FLOWS, flow=kwargs.get('flow', FLOWS[0]))
    check_whole(owner, 1,
                decomposed_layers=kwargs.get('decomposed_layers', 1))
    node_dim = kwargs.get('node_dim', -2)
    if not is_whole(node_dim, -2) or node_dim not in (-2, 0):
        refuse(owner, given('node_dim', node_dim),
               'pass features of shape [*, num_nodes, num_features]')


def check_diffusion(owner: str, layer: Any) -> None:
    for name in ('improved', 'cached', 'normalize', 'add_self_loops',
                 'residual', 'learn_beta', 'recompute'):
        value = getattr(layer, name)
        if not isinstance(value, bool):
            refuse(owner, given(name, value), 'pass True or False, and '
                   "'beta', 'energy' and the like by name")
    check_whole(owner, 1, num_hops=layer.num_hops)
    if not is_number(layer.alpha) or not 0 <= layer.alpha < 1:
        refuse(owner, given('alpha', layer.alpha), 'pass a number in [0, 1)')
    if layer.add_self_loops and not layer.normalize:
        refuse(owner, 'add_self_loops=True and normalize=False',
               'add self-loops to the graph before it is normalized, e.g. '
               "with 'torch_geometric.transforms.GCNNorm'")


def check_sizes(owner: str, in_channels: Any, **sizes: Any) -> None:
    if not is_whole(in_channels, -1):
        refuse(owner, given('in_channels', in_channels), 'pass the number of '
               'features that go in, or -1 to take it from the first ones')
    check_whole(owner, **sizes)


def check_channels(owner: str, layer: Any, bias: Any) -> None:
    check_flags(owner, bias=bias)
    size = layer.in_channels
    if not isinstance(size, tuple):
        check_sizes(owner, size, out_channels=layer.out_channels)
        return
    if len(size) != 2:
        refuse(owner, f'in_channels={size}',
               'pass one number, or those of source and target')
    for side in size:
        check_sizes(owner, side, out_channels=layer.out_channels)
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
    check_number(owner, most=1, momentum=momentum)
    if isinstance(in_channels, tuple):
        refuse(owner, f'in_channels={in_channels} and momentum',
               'leave one of them out: there is no running estimate between '
               'two types of nodes')
    if in_channels < 1 and energy == 'relative':
        refuse(owner, f'in_channels={in_channels} and momentum',
               'pass the number of features: the running estimate has a mean '
               'of each')


def check_one_graph(owner: str, momentum: Any, is_one: bool) -> None:
    check_number(owner, most=1, momentum=momentum)
    if not is_one:
        refuse(owner, f'momentum={momentum}, but not one graph with one set '
               'of features', 'leave it at None: whole graphs have energies '
               'of their own')


def check_identity_mapping(owner: str, channels: Any, theta: Any,
                           layer: Any) -> None:
    check_whole(owner, 1, channels=channels)
    if theta is None and (layer is None or is_whole(layer, 1)):
        return
    if (not is_number(theta) or not 0 < theta <= sys.float_info.max
            or not is_whole(layer, 1)):
        refuse(owner, f"{given('theta', theta)} and "
               f"{given('layer', layer)}", 'pass a '
               'positive theta with the number of the layer from 1 on, or '
               'neither')


def check_model(owner: str, num_layers: Any, dropout: Any, in_channels: Any,
                least: int = 1, **sizes: Any) -> None:
    check_whole(owner, least, num_layers=num_layers)
    check_number(owner, most=1, dropout=dropout)
    check_sizes(owner, in_channels, **sizes)


def check_resolved(owner: str, name: str, value: Any, kwargs: Any,
                   resolve: Callable[..., Any], kind: Any = Callable) -> None:
    if not isinstance(kwargs, (dict, type(None))):
        refuse(owner, given(f'{name}_kwargs', kwargs), 'pass a dictionary')
    try:
        found = resolve(value, **(kwargs or {}))
    except (TypeError, ValueError, RuntimeError) as error:
        refuse(owner, f'{given(name, value)} and {name}_kwargs={kwargs}, of '
               f'which PyG says: {error}', 'pass a name that PyG knows, with '
               'its arguments')
    if found is not None and not isinstance(found, kind):
        refuse(owner, given(name, value), 'pass its name, or a module')


def check_sampled(owner: str, x: Any, edge_index: Any, num_layers: int,
                  **counts: Any) -> None:
    for name, value in counts.items():
        if isinstance(value, (dict, torch.fx.Proxy)):  # by 'to_hetero'
            return
        if (not isinstance(value, list) or not all(map(is_whole, value))
                or len(value) < num_layers - 1):
            refuse(owner, given(name, value), 'pass a list of whole numbers, '
                   "one for each hop, as 'NeighborLoader' makes it")
    check_features(owner, x, node_dim=0)
    check_kinds(owner, edge_index, None)
    if isinstance(edge_index, Tensor):
        check_index(owner, edge_index)
        sizes = x.size(0), edge_index.size(1)
        for (name, value), size in zip(counts.items(), sizes):
            if sum(value) > size:
                refuse(owner, f'{name}={value} for {size}',
                       "pass what 'NeighborLoader' made of this batch")


def check_device_names(owner: str, **names: Any) -> None:
    for name, value in names.items():
        if value is None:
            continue
        try:
            is_known = isinstance(value, (str, torch.device)) and bool(
                torch.empty(0, device=value).numel() == 0)
        except (RuntimeError, AssertionError):  # unknown or missing
            is_known = False
        if not is_known:
            refuse(owner, given(name, value),
                   "pass a device that is there, e.g. 'cpu'")


def count_nodes(owner: str, data: Any) -> int | None:
    try:
        return data.num_nodes
    except (AttributeError, IndexError, RuntimeError, TypeError) as error:
        refuse(owner, f"'data' whose nodes PyG cannot count ({error})",
               'pass one row per node')


def check_dataset(owner: str, root: Any, transform: Any, pre_transform: Any,
                  force_reload: Any) -> None:
    if not isinstance(root, (str, os.PathLike)) or not str(root):
        refuse(owner, given('root', root), 'pass the path of a directory')
    for name, value in dict(transform=transform,
                            pre_transform=pre_transform).items():
        if value is not None and not callable(value):
            refuse(owner, given(name, value), 'pass a function, or None')
    check_flags(owner, force_reload=force_reload)
