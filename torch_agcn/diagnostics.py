r"""Diagnoses chance edges and over-smoothing."""
import inspect
import math
import threading
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel
from torch_geometric import EdgeIndex, is_compiling
from torch_geometric.data import Data
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.typing import Adj, OptTensor
from torch_geometric.utils import is_sparse

from torch_agcn import _checks, functional
from torch_agcn._cache import tensors_of
from torch_agcn._chance import find_chance, to_pairs
from torch_agcn._edges import to_edges
from torch_agcn._energy import to_measure
from torch_agcn._tracing import accumulation_dtype
from torch_agcn.nn.conv import GatedDiffusion

__all__ = ['ChanceEdges', 'Record', 'SmoothnessRecorder', 'chance_edges']

NAME = 'SmoothnessRecorder'
MEASURES = [functional.dirichlet_energy, functional.relative_energy,
            functional.mean_average_distance]


class ChanceEdges(NamedTuple):
    r"""The result of :meth:`chance_edges`.

    Example:
        >>> ChanceEdges((0.6, 0.5), similarity=torch.tensor([0.0, 0.9]),
        ...             of_random=torch.tensor([-0.1, 0.1]),
        ...             weight=torch.ones(2)).share
        0.5
    """

    #: The estimated share of chance edges, by features alone and then after
    #: each step. If the first one is 0.9 or more, features cannot tell wrong
    #: edges from right ones.
    shares: tuple[float, ...]
    #: The similarity of the ends of each undirected edge after the last step.
    similarity: Tensor
    #: The similarity of each random pair.
    of_random: Tensor
    #: The weight of each undirected edge.
    weight: Tensor

    @property
    def share(self) -> float:
        r"""The estimate after the last step."""
        return self.shares[-1]

    def plot(self) -> Any:
        r"""Plots the similarities of all edges and of chance edges as a
        :class:`matplotlib.figure.Figure`.
        """
        name = 'ChanceEdges.plot'
        _optional('matplotlib', name)
        import matplotlib.pyplot as plt

        if float(self.weight.sum()) == 0:
            _checks.refuse(name, 'no edges', 'pass a graph with edges')

        figure, ax = plt.subplots(figsize=(5, 3), layout='constrained')
        both = torch.cat([self.of_random, self.similarity]).tolist()

        def bars(values: Tensor, weight: Tensor, **style: Any) -> None:
            ax.hist(values.tolist(), bins=60, range=(min(both), max(both)),
                    weights=weight.tolist(), **style)

        size = self.of_random.numel()
        bars(self.of_random, torch.full((size, ), self.share / size),
             color='#d55e00', alpha=0.6,
             label=f'by chance: {self.share:.0%} of the edges')
        bars(self.similarity, self.weight / self.weight.sum(),
             histtype='step', color='black', label='all edges')
        ax.set(xlabel='similarity of two nodes and their neighbors',
               ylabel='share of the edges')
        ax.grid(alpha=0.3)
        ax.legend(frameon=False)
        return figure

    def __repr__(self) -> str:
        shares = ', '.join(f'{share:.3f}' for share in self.shares)
        return (f'{self.__class__.__name__}(share={self.share:.3f}, '
                f'shares=({shares}), num_edges={self.similarity.numel()})')


@torch.no_grad()
def chance_edges(
    x: Tensor,
    edge_index: Adj,
    edge_weight: OptTensor = None,
    steps: int = 2,
) -> ChanceEdges:
    r"""Estimates, without labels, the share of edges whose ends are no more
    similar than random pairs of nodes, by the similarities :math:`s` of
    :meth:`~torch_agcn.functional.anisotropic_weights`

    .. math::
        \pi = \frac{P(s \leq t \mid \textrm{edge})}
        {P(s \leq t \mid \textrm{random pair})}, \quad t \textrm{ the median
        over random pairs}.

    Args:
        x, edge_index, edge_weight, steps: As in
            :meth:`~torch_agcn.functional.anisotropic_weights`.

    :rtype: :class:`ChanceEdges`

    Example:
        >>> x = torch.eye(2).repeat_interleave(5, dim=0)
        >>> clique = torch.combinations(torch.arange(5)).t()
        >>> edge_index = torch.cat([clique, clique + 5,
        ...                         torch.tensor([[0], [9]])], dim=1)
        >>> chance_edges(x, edge_index)
        ChanceEdges(share=0.086, shares=(0.086, 0.086, 0.086), num_edges=21)
    """
    owner = 'chance_edges'
    _checks.check_whole(owner, steps=steps)
    _checks.check_features(owner, x, node_dim=0)
    _checks.check_devices(owner, x.device, edge_index=edge_index,
                          edge_weight=edge_weight)
    x = to_measure(x)
    edges = to_edges(owner, edge_index, edge_weight, (x.size(0), x.size(0)),
                     x.dtype)
    pairs, _ = to_pairs(edges, x.size(0), x.dtype)
    found = list(find_chance(x, pairs, steps))
    return ChanceEdges(tuple(step.share for step in found),
                       found[-1].similarity, found[-1].of_random,
                       pairs.weight)


class Record(NamedTuple):
    r"""The measures of the output of one layer, averaged over the graphs of a
    batch.

    Example:
        >>> Record(0, 1, 'conv1', 'train', dirichlet_energy=4.0,
        ...        relative_energy=0.5, mean_average_distance=0.2).layer
        1
    """

    #: The epoch, from zero on.
    epoch: int
    #: The position of the layer in the forward pass; zero is the input of the
    #: first layer.
    layer: int
    #: The name of the layer in the model, or ``'input'``.
    name: str
    #: ``'train'`` or ``'eval'``.
    mode: str
    dirichlet_energy: float
    relative_energy: float
    mean_average_distance: float
    #: The mean gate over the hops of a
    #: :class:`~torch_agcn.nn.conv.GatedDiffusion` layer.
    gate: float | None = None
    #: The gate of each hop.
    gates: tuple[float, ...] = ()


class SmoothnessRecorder:
    r"""Records the smoothness of the features in each layer of a PyG model:
    :meth:`~torch_agcn.functional.dirichlet_energy`,
    :meth:`~torch_agcn.functional.relative_energy`,
    :meth:`~torch_agcn.functional.mean_average_distance`, and the gate, if any.
    Relative energy and mean average distance fall towards zero in models that
    over-smooth.

    Forward hooks measure the first forward pass in training mode and the first
    one in evaluation mode of each epoch, without changing outputs.

    .. note::
        Layers that cannot be measured (a tuple :obj:`x`, no :obj:`edge_index`,
        negative weights) are skipped with a warning, see :obj:`skipped`. Calls
        of a model compiled by :meth:`torch.compile` are not measured.

    Args:
        model (torch.nn.Module): The model.
        every (int, optional): Measures every so many epochs.
            (default: :obj:`1`)
        modules (List[str], optional): The names of the modules to measure.
            Those called without a graph (*e.g.*, a normalization) use that of
            the previous layer or of the model. By default, all
            :class:`~torch_geometric.nn.conv.MessagePassing` layers.
            (default: :obj:`None`)

    Example:
        >>> from torch_geometric.nn import GCN
        >>> x = torch.eye(3)
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> model = GCN(3, 16, num_layers=2)
        >>> with SmoothnessRecorder(model, every=10) as recorder:
        ...     for epoch in range(20):
        ...         out = model(x, edge_index)
        ...         recorder.step()
        >>> [(r.epoch, r.layer, r.name) for r in recorder.records[:3]]
        [(0, 0, 'input'), (0, 1, 'convs.0'), (0, 2, 'convs.1')]
    """

    #: The records, in the order of measurement.
    records: list[Record]
    #: The reason why a module was skipped, by name.
    skipped: dict[str, str]
    #: The current epoch.
    epoch: int

    def __init__(self, model: Module, every: int = 1,
                 modules: Iterable[str] | None = None) -> None:
        _checks.check_whole(NAME, 1, every=every)
        _checks.check_kind(NAME, Module, "pass a 'torch.nn.Module'",
                           model=model)
        self.model = _unwrap(model)
        self.every = every
        self.records = []
        self.skipped = {}
        self.epoch = 0
        self._layers = _find_layers(self.model, modules)
        self._handles: list[Any] = []
        self._modes: set[str] = set()  # measured in this epoch
        self._pass = _Pass()
        self._input = _Input()
        self.attach()

    def attach(self) -> 'SmoothnessRecorder':
        r"""Registers the hooks again after :meth:`detach`."""
        if self._handles:
            return self
        # If the model itself is a layer, it must be measured before `_end`
        # runs:
        self._handles = [
            module.register_forward_hook(_Hook(partial(self._look, name)),
                                         with_kwargs=True)
            for name, module in self._layers.items()
        ]
        self._handles += [
            self.model.register_forward_pre_hook(_Hook(self._begin),
                                                 with_kwargs=True),
            self.model.register_forward_hook(_Hook(self._end),
                                             always_call=True),
        ]
        return self

    def detach(self) -> None:
        r"""Removes the hooks and keeps the records."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._pass = _Pass()
        self._input = _Input()

    def __enter__(self) -> 'SmoothnessRecorder':
        return self.attach()

    def __exit__(self, *_: Any) -> None:
        self.detach()

    def step(self) -> None:
        r"""Ends an epoch."""
        self.epoch += 1
        self._modes.clear()

    def to_dataframe(self) -> Any:
        r"""Returns the records as a :class:`pandas.DataFrame`."""
        pandas = _optional('pandas', f'{NAME}.to_dataframe')
        frame = pandas.DataFrame(self.records, columns=Record._fields)
        return frame.astype({'gate': float})

    def plot(self, mode: str | None = None) -> Any:
        r"""Plots all measures by layer and by epoch as a
        :class:`matplotlib.figure.Figure`.

        Args:
            mode (str, optional): The passes to show, :obj:`"train"` or
                :obj:`"eval"`. By default, :obj:`"eval"` if recorded.
                (default: :obj:`None`)
        """
        _optional('matplotlib', f'{NAME}.plot')
        modes = {record.mode for record in self.records}
        if mode is None:
            mode = 'eval' if 'eval' in modes else 'train'
        _checks.check_choice(f'{NAME}.plot', ('train', 'eval'), mode=mode)
        if mode not in modes:
            raise ValueError(
                f"'{NAME}.plot' has no record of mode '{mode}' (but of "
                f'{sorted(modes) or "none"}); call the model in that mode '
                f"while the recorder is attached, and not only through "
                f"'torch.compile'")
        return _draw([r for r in self.records if r.mode == mode])

    def __repr__(self) -> str:
        return (f'{self.__class__.__name__}({self.model.__class__.__name__}, '
                f'{len(self._layers)} layers, every={self.every}, '
                f'epoch={self.epoch})')

    # Hooks ###################################################################

    def _begin(self, module: Module, args: Any, kwargs: Any) -> None:
        if self.epoch % self.every == 0:
            self._pass.start(_read_call(module, args, kwargs), in_call=True)

    def _end(self, *_: Any) -> None:
        self._pass.start()

    def _look(self, name: str, module: Module, args: Any, kwargs: Any,
              out: Any) -> None:
        if self.epoch % self.every > 0:
            return
        this = self._pass
        if not this.in_call and name in this.names:
            # Outside of `model.forward` (e.g. in `model.encode`), a new pass
            # begins when a layer is called again.
            this.start()
        this.names.add(name)
        if this.mode is None:
            mode = 'train' if self.model.training else 'eval'
            this.mode = '' if mode in self._modes else mode
            self._modes.add(mode)
        if this.mode == '':
            return

        # Layers may return more than features, e.g. attention weights:
        out = out[0] if isinstance(out, (tuple, list)) and out else out
        device = out.device.type if isinstance(out, Tensor) else 'cpu'
        with torch.no_grad(), torch.autocast(device, enabled=False):
            try:
                call = _complete(_read_call(module, args, kwargs), out, module,
                                 this.call)
            except Exception as error:
                self._skip(name or type(module).__name__, error)
                return
            this.call = call._replace(x=None)
            if this.layer == 0:
                self._record('input', lambda: self._input.measure(
                    call, this.mode), list)
            self._record(name or type(module).__name__,
                         lambda: _measure(out, call),
                         lambda: _gates(module, args, kwargs))

    def _record(self, name: str, measure: Callable[[], list[float]],
                gate: Callable[[], list[float]]) -> None:
        this = self._pass
        try:
            energy, relative, distance = measure()
            gates = gate()
        except Exception as error:
            self._skip(name, error)
        else:
            self.records.append(Record(
                self.epoch, this.layer, name, this.mode or '', energy,
                relative, distance, sum(gates) / len(gates) if gates else None,
                tuple(gates)))
        this.layer += 1

    def _skip(self, name: str, reason: Exception) -> None:
        if name not in self.skipped:
            self.skipped[name] = str(reason)
            warnings.warn(f"'{NAME}' leaves out '{name}': {reason}",
                          stacklevel=2)


class _Hook:
    r"""A hook that is inactive in copies and pickles of the model."""

    def __init__(self, call: Any = None) -> None:
        self.call = call

    def __call__(self, *args: Any) -> None:
        if not is_compiling() and self.call is not None:
            self.call(*args)

    def __reduce__(self) -> Any:
        return _Hook, ()


# What layers are called with #################################################


class _Call(NamedTuple):
    r"""The arguments of a call."""

    x: Any = None
    edge_index: Any = None
    edge_weight: OptTensor = None
    batch: OptTensor = None
    node_dim: int = -2


def _measure(x: Any, call: _Call) -> list[float]:
    batch = call.batch
    if isinstance(x, Tensor) and x.dim() > 1:
        x = x.flatten(1) if call.node_dim == 0 and x.dim() > 2 else x
        if batch is not None and batch.numel() != x.size(-2):
            batch = None
    found = []
    for measure in MEASURES:
        args = call.edge_index, call.edge_weight, batch
        value = measure(x, *args).mean()
        if not value.isfinite():  # try double precision
            value = measure(x.double(), *args).mean()
        found.append(float(value))
    return found


def _gates(module: Module, args: Any, kwargs: Any) -> list[float]:
    if not isinstance(module, GatedDiffusion):
        return []
    return module.gate(*args, **kwargs).view(module.num_hops, -1).mean(
        1).tolist()


_Key = tuple[Any, list[OptTensor]]  # settings, and tensors to compare


class _Input:
    r"""Caches the measures of the latest input of each mode."""

    def __init__(self) -> None:
        # Features are compared by a random projection: NumPy changes them
        # without a version counter.
        self.known: dict[str | None, tuple[Tensor, _Key, list[float]]] = {}

    def measure(self, call: _Call, mode: str | None) -> list[float]:
        x = call.x
        if not isinstance(x, Tensor) or not x.is_floating_point() or (
                x.dim() < 2 or x.size(-1) < 32 or x.layout not in (
                    torch.strided, torch.sparse_coo, torch.sparse_csr)):
            # It cannot be measured, or is cheap to measure.
            return _measure(x, call)
        for direction, key, found in list(self.known.values()):
            if direction.size(0) == x.size(-1) and (
                    direction.device == x.device) and _is_equal(
                        key, _key(call, direction)):
                return found
        found = _measure(x, call)
        direction = _direction(x)
        settings, (projected, *tensors) = _key(call, direction)
        if projected is not None and bool(projected.isfinite().all()):
            copies = [v if v is None else v.clone() for v in tensors]
            self.known[mode] = direction, (settings, [projected, *copies]), (
                found)
        return found


def _direction(x: Tensor) -> Tensor:
    r"""A random vector, scaled by the largest value of each column."""
    generator = torch.Generator()
    generator.seed()
    out = torch.rand(x.size(-1), generator=generator, dtype=torch.double)
    out = torch.where(out < 0.5, out - 1, out).to(x.device)
    if x.layout == torch.strided:
        largest = x.detach().abs().flatten(0, -2).amax(0)
    else:
        column, value = (x.col_indices(), x.values()) if (
            x.layout == torch.sparse_csr) else (x._indices()[-1], x._values())
        largest = value.new_zeros(x.size(-1)).scatter_reduce(
            0, column, value.detach().abs(), 'amax')
    largest = largest.double().nan_to_num(1.0)
    return out / largest.where(largest > 0, 1.0)


def _key(call: _Call, direction: Tensor) -> _Key:
    x = call.x.detach().to(accumulation_dtype(call.x.dtype))
    return ((type(call.edge_index), call.node_dim, call.x.dtype),
            [x @ direction.to(x.dtype), *tensors_of(call.edge_index),
             call.edge_weight, call.batch])


def _is_equal(a: _Key, b: _Key) -> bool:
    return a[0] == b[0] and len(a[1]) == len(b[1]) and all(
        (v is w) if v is None or w is None else (
            (v.device, v.dtype, v.layout) == (w.device, w.dtype, w.layout)
            and torch.equal(v, w))
        for v, w in zip(a[1], b[1]))


class _Pass(threading.local):
    r"""The state of a forward pass, one per thread for replicas."""

    def __init__(self) -> None:
        self.start()

    def start(self, call: _Call | None = None, in_call: bool = False) -> None:
        self.call = call or _Call()  # with the latest graph
        self.in_call = in_call
        self.names: set[str] = set()
        self.layer = 0
        self.mode: str | None = None  # '' if not to be measured


def _read_call(module: Module, args: Any, kwargs: Any) -> _Call:
    try:
        signature = inspect.signature(module.forward)
        found = dict(signature.bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # no signature
        found = {**{str(i): v for i, v in enumerate(args)}, **kwargs}
    values = list(found.values())
    if values and isinstance(values[0], Data):
        found = values[0].to_dict()
        values = list(found.values())
    x = found.get('x', values[0] if values else None)
    edge_index = found.get('edge_index')
    if edge_index is None:  # The graph may have another name.
        edge_index = next((v for v in values if v is not x and (
            isinstance(v, EdgeIndex) or is_sparse(v))), None)
    weight, batch = found.get('edge_weight'), found.get('batch')
    if getattr(module, 'flow', '') == 'target_to_source' and isinstance(
            edge_index, Tensor) and not is_sparse(edge_index):
        edge_index = edge_index.flip(0)
    return _Call(x, edge_index, weight if isinstance(weight, Tensor) else None,
                 batch if isinstance(batch, Tensor) else None,
                 getattr(module, 'node_dim', -2))


def _complete(call: _Call, out: Any, module: Module, latest: _Call) -> _Call:
    r"""Adds missing arguments, or raises why a layer cannot be measured."""
    if isinstance(call.x, (tuple, list)):
        raise ValueError('it was called with a tuple of node features, and '
                         'the measures are not defined between nodes of two '
                         'types')
    if call.edge_index is None:
        if isinstance(module, MessagePassing):
            raise ValueError("it was not called with an 'edge_index'")
        call = latest._replace(x=call.x, node_dim=-2)
    if call.edge_index is None:
        raise ValueError('neither it nor the model was called with a graph, '
                         'and no layer before it was')
    if call.batch is None:
        call = call._replace(batch=latest.batch)
    if (isinstance(call.x, Tensor) and isinstance(out, Tensor)
            and call.x.dim() > 1 and out.dim() > 1
            and call.x.size(call.node_dim) != out.size(call.node_dim)):
        raise ValueError(f'it maps {call.x.size(call.node_dim)} nodes to '
                         f'{out.size(call.node_dim)}, and the graph is that '
                         f'of the former')
    return call


def _unwrap(model: Module) -> Module:
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        return _unwrap(model.module)
    original = getattr(model, '_orig_mod', None)  # by `torch.compile`
    return _unwrap(original) if isinstance(original, Module) else model


def _find_layers(model: Module,
                 names: Iterable[str] | None) -> dict[str, Module]:
    found = dict(model.named_modules())
    if names is None:
        layers = {k: v for k, v in found.items()
                  if isinstance(v, MessagePassing)}
        if not layers:
            some = [name for name in found if name][:2]
            raise ValueError(
                f"'{NAME}' found no 'MessagePassing' layer in "
                f"'{type(model).__name__}'; " + (
                    f'name the modules to watch, e.g. modules={some}' if some
                    else 'pass the model that it is a part of'))
        return layers
    given: Any = names
    is_list = isinstance(given, Iterable) and not isinstance(
        given, (str, Tensor))
    names = list(given) if is_list else [given]
    if not all(isinstance(name, str) for name in names):
        _checks.refuse(NAME, f'modules={names}', 'pass a list of names')
    unknown = [name for name in names if name not in found]
    if unknown or not names:
        raise ValueError(
            f"'{NAME}' got modules={names}, but '{type(model).__name__}' has "
            f'no {unknown}; pass at least one of '
            f'{[name for name in found if name]}')
    return {name: found[name] for name in names}


def _optional(package: str, user: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(f"'{user}' requires '{package}': run 'pip install "
                          f"{package}'") from error


# Figures #####################################################################


def _some(values: list[int], count: int) -> list[int]:
    r"""At most :obj:`count` values, with the first and the last."""
    if len(values) <= count:
        return values
    step = (len(values) - 1) / (count - 1)
    return [values[round(i * step)] for i in range(count)]


def _draw(records: list[Record]) -> Any:
    import matplotlib.pyplot as plt

    rows = {'dirichlet_energy': 'Dirichlet energy',
            'relative_energy': 'relative energy',
            'mean_average_distance': 'mean average distance'}
    if any(record.gates for record in records):
        rows['gate'] = 'gate'
    names = {record.layer: record.name for record in records}
    epochs = sorted({record.epoch for record in records})
    columns = [('layer', 'layer (0 is the input)', {
        f'epoch {epoch}': [r for r in records if r.epoch == epoch]
        for epoch in _some(epochs, 4)})]
    if len(epochs) > 1:
        columns.append(('epoch', 'epoch', {
            f'{layer}: {names[layer]}': [
                r for r in records if r.layer == layer]
            for layer in _some(sorted(names), 5)}))
    figure, axes = plt.subplots(
        len(rows), len(columns), sharex='col', sharey='row', squeeze=False,
        figsize=(4.5 * len(columns), 2 * len(rows)), layout='constrained')
    for column, (x, label, lines) in zip(axes.T, columns):
        for i, (name, part) in enumerate(lines.items()):
            # From dark to light, which is visible in grey print as well.
            shade = plt.get_cmap('viridis')(0.85 * i / max(len(lines) - 1, 1))
            for ax, key in zip(column, rows):
                points = _points(part, x, key)
                ax.plot(*zip(*points), color=shade, label=name, markersize=4,
                        marker='osD^v'[i] if len(points) <= 12 else None)
        column[-1].set_xlabel(label)
        column[-1].xaxis.get_major_locator().set_params(integer=True)
        column[0].legend(loc='lower left', bbox_to_anchor=(0, 1), ncols=3,
                         frameon=False, fontsize='small')
    for (left, *_), key in zip(axes, rows):
        left.set_ylabel(rows[key])
        _scale(left, [v for r in records if (v := getattr(r, key))])
    for ax in axes.flat:
        ax.grid(alpha=0.3)
    figure.align_ylabels()
    return figure


def _points(records: list[Record], x: str,
            key: str) -> list[tuple[float, float]]:
    if key == 'gate' and x == 'layer':  # Hops lead from layer to layer.
        return [(r.layer - 1 + (k + 1) / len(r.gates), gate)
                for r in records for k, gate in enumerate(r.gates)]
    return [(getattr(r, x), getattr(r, key)) for r in records
            if getattr(r, key) is not None]


def _scale(ax: Any, values: list[float]) -> None:
    r"""Sets a logarithmic axis for values over a decade or more."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    decades = math.log10(max(values) / min(values)) if values else 0
    if decades < 1:
        ax.set_ylim(0, 1.08 * max(values, default=1))
        ax.yaxis.set_major_locator(MaxNLocator(4))
        return
    ax.set_yscale('log')
    ax.yaxis.set_major_locator(LogLocator(
        subs=(1, 3) if decades < 2 else (1, ), numticks=5))
    ax.yaxis.set_minor_locator(NullLocator())
    if min(values) > 1e-4 and max(values) < 1e5:  # else powers of ten
        ax.yaxis.set_major_formatter('{x:g}')
