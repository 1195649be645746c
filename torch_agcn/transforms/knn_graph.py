import math

import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import to_undirected

from torch_agcn import _checks

# The most entries (128 MB in single precision) and rows of a block of bounds.
# With more rows, batches of small graphs are mostly masked pairs.
BLOCK_SIZE = 2**25
BLOCK_ROWS = 1024
# The most entries of a block in double precision (8 MB).
PART_SIZE = 2**20
# Candidates beyond k. More of them make the second pass rarer, and the first
# one slower.
NUM_SPARE = 7
# Columns of which `_smallest` takes the minimum first.
GROUP_SIZE = 16
# On the CPU, pyg-lib searches a tree, which is slow in many dimensions.
MAX_TREE_CHANNELS = 16


@functional_transform('agcn_knn_graph')
class KNNGraph(BaseTransform):
    r"""Creates a k-NN graph as :class:`torch_geometric.transforms.KNNGraph`
    does, but does not require :obj:`pyg-lib` (functional name:
    :obj:`agcn_knn_graph`).

    Args:
        k (int, optional): The number of neighbors. (default: :obj:`6`)
        loop (bool, optional): If :obj:`True`, the graph will contain
            self-loops, which count as neighbors. (default: :obj:`False`)
        force_undirected (bool, optional): If set to :obj:`True`, new edges
            will be undirected. (default: :obj:`False`)
        flow (str, optional): The flow direction (:obj:`"source_to_target"` or
            :obj:`"target_to_source"`). (default: :obj:`"source_to_target"`)
        cosine (bool, optional): If :obj:`True`, will use the cosine distance.
            (default: :obj:`False`)
        num_workers (int, optional): Number of workers of :obj:`pyg-lib`.
            (default: :obj:`1`)
        attr (str, optional): The attribute to compare, :obj:`"pos"` or
            :obj:`"x"`. (default: :obj:`"pos"`)

    Example:
        >>> from torch_geometric.data import Data
        >>> data = Data(pos=torch.tensor([[0.0], [1.0], [3.0]]))
        >>> KNNGraph(k=1, force_undirected=True)(data).edge_index
        tensor([[0, 1, 1, 2],
                [1, 0, 2, 1]])
    """

    def __init__(
        self,
        k: int = 6,
        loop: bool = False,
        force_undirected: bool = False,
        flow: str = 'source_to_target',
        cosine: bool = False,
        num_workers: int = 1,
        attr: str = 'pos',
    ) -> None:
        _check_arguments('KNNGraph', k, flow, loop, cosine, num_workers)
        _checks.check_flags('KNNGraph', force_undirected=force_undirected)
        _checks.check_choice('KNNGraph', ('pos', 'x'), attr=attr)
        self.k = k
        self.loop = loop
        self.force_undirected = force_undirected
        self.flow = flow
        self.cosine = cosine
        self.num_workers = num_workers
        self.attr = attr

    def forward(self, data: Data) -> Data:
        _checks.check_kind('KNNGraph', Data, "pass a 'Data' object",
                           data=data)
        x = getattr(data, self.attr, None)
        if x is None:
            raise ValueError(f"'KNNGraph' needs 'data.{self.attr}', which is "
                             f"missing in {data}; set it, or choose another "
                             f"attribute by 'attr'")

        edge_index = knn_graph(
            x,
            self.k,
            data.batch,
            loop=self.loop,
            flow=self.flow,
            cosine=self.cosine,
            num_workers=self.num_workers,
        )

        if self.force_undirected:
            edge_index = to_undirected(edge_index, num_nodes=data.num_nodes)

        data.edge_index = edge_index
        data.edge_attr = None

        return data

    def __repr__(self) -> str:
        return f'{self.__class__.__name__}(k={self.k})'


@torch.no_grad()
def knn_graph(
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = 'source_to_target',
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    r"""The edges of :meth:`torch_geometric.nn.knn_graph`, by an exact search
    in memory linear in the number of nodes, or by :obj:`pyg-lib` where
    installed and faster. The exact search sorts edges by node, distance and
    index.

    Args:
        x (torch.Tensor): The node features.
        k (int): The number of neighbors.
        batch (torch.Tensor, optional): The batch vector.
            (default: :obj:`None`)
        loop, flow, cosine, num_workers (optional): As in :class:`KNNGraph`.

    Example:
        >>> knn_graph(torch.tensor([[0.0], [1.0], [3.0]]), k=1)
        tensor([[1, 0, 1],
                [0, 1, 2]])
    """
    _check_arguments('knn_graph', k, flow, loop, cosine, num_workers)
    x, batch = _check_points(x, batch)

    if batch is not None and (batch.diff() < 0).any():
        perm = batch.argsort(stable=True)
        edge_index = perm[knn_graph(x[perm], k, batch[perm], loop, flow,
                                    cosine, num_workers)]
        node = edge_index[1 if flow == 'source_to_target' else 0]
        return edge_index[:, node.argsort(stable=True)]

    if x.size(0) == 0:
        return torch.empty(2, 0, dtype=torch.long, device=x.device)

    is_tree_fast = x.size(1) <= MAX_TREE_CHANNELS and not cosine
    if torch_geometric.typing.WITH_KNN and (x.is_cuda or is_tree_fast):
        node, neighbor = torch_geometric.nn.knn_graph(
            x, k, batch, loop, 'target_to_source', cosine, num_workers)
        # PyG finds k + 1 neighbors and removes the node itself. If a duplicate
        # took its place, one neighbor is too many:
        keep = _rank(node, x.size(0)) < k
        node, neighbor = node[keep], neighbor[keep]
    else:
        # Apple's GPUs have no double precision:
        points = x.cpu() if x.device.type == 'mps' else x
        graph = batch if batch is None else batch.to(points.device)
        with torch.autocast(points.device.type, enabled=False):
            index = _Search(points, int(k) + (not loop), graph, cosine)()
        index = index.to(x.device)[:, 0 if loop else 1:]
        node, rank = (index >= 0).nonzero(as_tuple=True)
        neighbor = index[node, rank]

    if flow == 'source_to_target':
        return torch.stack([neighbor, node])
    return torch.stack([node, neighbor])


def _check_arguments(name: str, k: int, flow: str, loop: bool, cosine: bool,
                     num_workers: int) -> None:
    _checks.check_whole(name, 1, k=k, num_workers=num_workers)
    _checks.check_choice(name, _checks.FLOWS, flow=flow)
    _checks.check_flags(name, loop=loop, cosine=cosine)


def _check_points(
    x: Tensor,
    batch: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    name = 'knn_graph'
    _checks.check_floats(name, x=x)
    _checks.check_values(name, x=x, batch=batch)
    if x.layout != torch.strided or x.dim() == 0:
        _checks.refuse(name, f"'x' of shape {list(x.shape)} and layout "
                       f"'{x.layout}'", 'pass one row per node, e.g. '
                       "'x.to_dense()' of a sparse tensor")
    # The sum needs no mask in memory, but may overflow:
    if not x.sum().isfinite() and not x.isfinite().all():
        raise ValueError(f"'knn_graph' compares finite numbers (got "
                         f"{int((~x.isfinite()).sum())} NaN or infinite "
                         f"entries); replace them, e.g., by "
                         f"'x.nan_to_num()'")
    x = x.reshape(x.size(0), math.prod(x.shape[1:]))
    if batch is None:
        return x, None
    _checks.check_batch(name, batch, None, x.size(0))
    _checks.check_numbers(name, x.size(0), batch=batch)
    return x, batch.to(x.device)


class _Search:
    r"""Finds the :obj:`k` nearest points of each node, exactly."""

    def __init__(
        self,
        x: Tensor,
        k: int,
        batch: Tensor | None,
        cosine: bool,
    ) -> None:
        if x.size(1) == 0:
            x = x.new_zeros(x.size(0), 1)
        x = _normalize(x) if cosine else x
        # The resolution of distances, so that normalized multiples of a vector
        # are at equal distances.
        self.step = 2.**-46 if cosine else 0.
        # A power of two brings all squares into the range of single
        # precision, and changes no digit:
        top = max(abs(float(value)) for value in x.aminmax())
        if not 1e-9 < top < 1e9:
            x = x.double() * 2.**-max(math.frexp(top)[1], -1000)
        self.x = x

        # The nodes of a graph are those from 'first' up to 'last'.
        if batch is None:
            batch = torch.zeros_like(x[:, 0], dtype=torch.long)
        self.first = torch.searchsorted(batch, batch)
        self.last = torch.searchsorted(batch, batch, right=True)
        self.is_batch = bool(self.first[-1] > 0)

        self.max_nodes = int((self.last - self.first).max())
        self.k = min(k, self.max_nodes)
        self.num_candidates = self.k + NUM_SPARE
        # With many channels, bounds in single precision are too wide:
        self.dtype = _matmul_dtype()
        if self.error(self.dtype) > 0.01:
            self.dtype = torch.double
        self.points: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def __call__(self) -> Tensor:
        # [N, k], itself first, and -1 where a graph has no more nodes.
        out = []
        size = max(1, min(BLOCK_SIZE // self.max_nodes, BLOCK_ROWS))
        for row in torch.arange(self.x.size(0)).to(self.x.device).split(size):
            start, stop = int(self.first[row[0]]), int(self.last[row[-1]])
            stop = max(stop, start + self.num_candidates)
            stop = stop + (start - stop) % GROUP_SIZE
            out.append(self.by_bounds(row, slice(start, stop)))
        return torch.cat(out)

    def by_bounds(self, row: Tensor, col: slice) -> Tensor:
        # The points of the smallest lower bounds are the neighbors if none of
        # their intervals overlap.
        dtype, k = self.dtype, self.k
        lower = self.lower_bound(dtype, row, col)
        lower, index = _smallest(lower, self.num_candidates)
        index = index + col.start

        norm = self.points_and_norm(dtype)[1]
        error = self.error(dtype)
        width = norm[row, None] + norm[index[:, :k]]
        width = width * (2 * error / (1 - error))
        upper = lower[:, :k].double() + width + self.margin(dtype)
        following = lower[:, 1:k + 1]
        is_sure = (upper < following) | following.isinf()

        i = (~is_sure.all(1)).nonzero().view(-1)
        index = index.masked_fill(lower.isinf(), -1)
        out = index[:, :k]
        if i.numel() > 0:
            out[i] = self.among_candidates(row[i], col, index[i], lower[i])
        return out

    def among_candidates(
        self,
        row: Tensor,
        col: slice,
        index: Tensor,
        lower: Tensor,
    ) -> Tensor:
        # If some overlap, sorts the candidates by distance. None is missing if
        # the lower bounds of all others exceed the k-th distance. A stable
        # sort of sorted indices breaks ties by the lower index.
        index = index.sort(dim=1).values
        distance = self.distance(row, index)
        distance = distance.masked_fill(index < 0, math.inf)
        distance, perm = distance.sort(dim=1, stable=True)
        out = index.gather(1, perm)[:, :self.k]

        distance, lower = distance[:, self.k - 1], lower[:, -1]
        is_sure = lower > self.limit(self.dtype, row, distance)
        rest = (~(is_sure | lower.isinf())).nonzero().view(-1)
        size = max(1, BLOCK_SIZE // 8 // (col.stop - col.start))
        for i in rest.split(size) if rest.numel() > 0 else ():
            out[i] = self.among_all(row[i], col, distance[i])
        return out

    def among_all(
        self,
        row: Tensor,
        col: slice,
        distance: Tensor,
        is_last: bool = False,
    ) -> Tensor:
        # If some may be missing, compares all points that are not excluded by
        # bounds in double precision.
        lower = self.lower_bound(torch.double, row, col)
        limit = self.limit(torch.double, row, distance)
        i, j = (lower <= limit[:, None]).nonzero(as_tuple=True)
        j = j + col.start
        if not is_last:
            # Among many duplicates, the first are most likely enough.
            is_first = _rank(i, row.numel()) < 4 * self.num_candidates
            keep = is_first | (distance[i] > 0) | (row[i] == j)
            i, j = i[keep], j[keep]

        found = self.distance(row[i], j[:, None]).view(-1)
        perm = found.argsort(stable=True)
        perm = perm[i[perm].argsort(stable=True)]
        perm = perm[_rank(i, row.numel()) < self.k].view(-1, self.k)
        out = j[perm]

        i = (found[perm[:, -1]] > distance).nonzero().view(-1)
        if i.numel() > 0 and not is_last:
            out[i] = self.among_all(row[i], col, distance[i], is_last=True)
        return out

    def error(self, dtype: torch.dtype) -> float:
        # Of ½‖a‖² + ½‖b‖² - a·b, relative to half the sum of both squares.
        return (self.x.size(1) + 8) * torch.finfo(dtype).eps  # eps = 2u

    def margin(self, dtype: torch.dtype) -> float:
        # The error by underflow.
        return 4 * self.x.size(1) * torch.finfo(dtype).tiny

    def points_and_norm(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        # Centered points and their ½‖x‖² less the error, with padding that is
        # infinitely far away.
        if dtype not in self.points:
            num_nodes, num_channels = self.x.shape
            size = num_nodes + self.num_candidates + GROUP_SIZE
            points = self.x.new_zeros(size, num_channels, dtype=dtype)
            norm = points.new_full((size, ), math.inf)

            # Any center is exact as long as the difference is rounded once.
            center = self.x.mean(0)
            work_dtype = torch.promote_types(self.x.dtype, dtype)
            size = max(1, PART_SIZE // num_channels)
            for start in range(0, num_nodes, size):
                row = slice(start, min(start + size, num_nodes))
                points[row] = self.x[row].to(work_dtype) - center
                square = points[row].double().square().sum(1)
                norm[row] = square * (1 - self.error(dtype)) / 2
            self.points[dtype] = points, norm
        return self.points[dtype]

    def lower_bound(
        self,
        dtype: torch.dtype,
        row: Tensor,
        col: slice,
    ) -> Tensor:
        # Without the norm of the row, which does not change the order.
        points, norm = self.points_and_norm(dtype)
        out = torch.addmm(norm[col], points[row], points[col].t(), alpha=-1)
        if self.is_batch:
            index = torch.arange(col.start, col.stop, device=row.device)
            out.masked_fill_(index < self.first[row, None], math.inf)
            out.masked_fill_(index >= self.last[row, None], math.inf)
        return out

    def limit(
        self,
        dtype: torch.dtype,
        row: Tensor,
        distance: Tensor,
    ) -> Tensor:
        # Points of a greater lower bound are farther away.
        norm = self.points_and_norm(dtype)[1][row].double()
        distance = distance.clamp(min=0.) + self.step
        distance = distance.square() * (0.5 + 1e-9)
        return distance + self.margin(dtype) - norm

    def distance(self, row: Tensor, col: Tensor) -> Tensor:
        # The distances [R, K] of nodes [R] to nodes [R, K]. Equal points are
        # at equal distances, bit by bit.
        size = max(1, PART_SIZE // (col.size(1) * self.x.size(1)))
        parts = []
        for i, j in zip(row.split(size), col.split(size)):
            diff = self.x[j].double()
            diff -= self.x[i, None]
            parts.append(torch.linalg.vector_norm(diff, dim=-1))
        out = torch.cat(parts)
        if self.step > 0:
            out = (out / self.step).round() * self.step
        # A node is nearest to itself, whatever its duplicates:
        return out.masked_fill(row[:, None] == col, -1.)


def _smallest(value: Tensor, num: int) -> tuple[Tensor, Tensor]:
    # The smallest entries of each row and their columns. They lie in the
    # groups of columns with the smallest minima, which are faster to find.
    group = value.view(value.size(0), GROUP_SIZE, -1).amin(1)
    step = group.size(1)
    group = group.topk(min(num, step), largest=False).indices
    member = torch.arange(0, value.size(1), step, device=value.device)
    member = (group.unsqueeze(-1) + member).flatten(1)
    value, index = value.gather(1, member).topk(num, largest=False)
    return value, member.gather(1, index)


def _rank(index: Tensor, size: int) -> Tensor:
    # The position of each entry among equal ones of a sorted index.
    count = index.bincount(minlength=size)
    start = count.cumsum(0) - count
    return torch.arange(index.numel(), device=index.device) - start[index]


def _matmul_dtype() -> torch.dtype:
    # Users may have allowed less than single precision.
    try:
        is_full = torch.get_float32_matmul_precision() == 'highest'
    except RuntimeError:  # raised if set by the newer interface
        is_full = False
    return torch.float if is_full else torch.double


def _normalize(x: Tensor) -> Tensor:
    # ‖a − b‖² = 2 − 2·cos(a, b) for the rows of the result.
    top = torch.linalg.vector_norm(x, math.inf, 1, keepdim=True).double()
    is_zero = top == 0
    x = x / top.masked_fill(is_zero, 1.)
    x /= x.norm(dim=1, keepdim=True).masked_fill(is_zero, 1.)
    # An additional axis makes zero vectors orthogonal to all others:
    return torch.cat([x, is_zero.double()], dim=1) if is_zero.any() else x
