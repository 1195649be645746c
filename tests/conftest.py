import weakref
from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

# Small tensors gain nothing from threads, and on a busy machine threads that
# wait for each other stall.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(12345)


# The reference ###############################################################


class Dense:
    r"""The mathematics on dense float64 matrices, as plainly as it can be
    written: what everything else is measured against.
    """

    def __init__(self, num_nodes, edge_index, edge_weight=None, loops=True,
                 fill=1.0):
        if edge_weight is None:
            edge_weight = torch.ones(edge_index.size(1))
        source, target = edge_index
        # Row: who receives. Edges that stand twice weigh twice.
        A = torch.zeros(num_nodes, num_nodes, dtype=torch.double)
        for s, t, w in zip(source.tolist(), target.tolist(),
                           edge_weight.double()):
            if loops and s == t:
                A[t, t] = w  # of several loops, the last
            else:
                A[t, s] = A[t, s] + w
        if loops:
            has_loop = torch.zeros(num_nodes, dtype=torch.bool)
            has_loop[target[source == target]] = True
            A = A + torch.diag((~has_loop).double() * fill)
        self.A = A
        self.degree = A.sum(1)
        scale = self.degree.pow(-0.5)
        scale[self.degree == 0] = 0
        self.scale = scale
        self.P = scale[:, None] * A * scale[None, :]

    def total(self, H: Tensor) -> Tensor:
        difference = H[:, None] - H[None, :]
        return (self.A * difference.square().sum(-1)).sum() / 2

    def relative(self, H: Tensor) -> Tensor:
        U = self.scale[:, None] * H
        weight = (self.A.sum(0) + self.A.sum(1)) / 2
        mean = (weight[:, None] * U).sum(0) / weight.sum()
        spread = (weight[:, None] * (U - mean).square()).sum()
        return self.total(U) / spread

    def layer(self, H, W, b, beta, energy, residual, num_hops, alpha):
        start = H
        for _ in range(num_hops):
            s = self.total(H) if energy == 'total' else self.relative(H)
            g = 1 - torch.exp(-beta * s**2)
            PH = self.P @ H
            H = (H + g * (PH - H)) if residual else g * PH
            H = (1 - alpha) * H + alpha * start
        return H @ W + b


@pytest.fixture
def dense() -> type[Dense]:
    return Dense


# The ways to one result ######################################################


@contextmanager
def as_on_a_device():
    r"""Within it, tensors say that they are not on the CPU: what runs is the
    path of a device, which looks at no value.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, 'is_cpu', False)
        yield


@pytest.fixture
def on_device():
    return as_on_a_device


@pytest.fixture(params=['messages', 'matrix', 'cached', 'device'])
def way(request):
    r"""Makes a layer that takes one of four ways to the same result: messages
    along a list of edges, a matrix made for this call, a matrix that is kept,
    and the path of a device. ``way(AGCNConv, 4, 3, beta=2.0)`` makes
    ``AGCNConv(4, 3, beta=2.0)``.
    """
    def make(layer, /, *args, **kwargs):
        if request.param == 'cached':
            kwargs['cached'] = True
        conv = layer(*args, **kwargs)
        if request.param == 'messages':
            conv.fuse = False
        return conv

    with as_on_a_device() if request.param == 'device' else nullcontext():
        yield make


# What a call does ############################################################


# One of these runs wherever edges are put in the order of a matrix.
ORDERING = {'aten::sort', 'aten::argsort', 'aten::bincount',
            'aten::_convert_indices_from_coo_to_csr'}


class Calls:
    r"""What a call does inside of torch: in eager and in compiled code, in
    the forward and in the backward pass.
    """

    @staticmethod
    def count(function, *args, **kwargs) -> Counter:
        r"""How often each of torch's operators runs."""
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            function(*args, **kwargs)
        return Counter(event.name for event in profiler.events())

    @classmethod
    def builds(cls, function, *args, **kwargs) -> bool:
        r"""Whether a matrix is made of the edges."""
        return bool(ORDERING & cls.count(function, *args, **kwargs).keys())


@pytest.fixture
def calls() -> type[Calls]:
    return Calls


class Memory(TorchDispatchMode):
    r"""The bytes of tensors made within it: those that are there, and the
    most that were there at a time.
    """

    def __init__(self):
        super().__init__()
        self.sizes, self.peak = {}, 0

    @property
    def now(self) -> int:
        return sum(self.sizes.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, Tensor) and value.layout == torch.strided:
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self.sizes:
                    self.sizes[key] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, key)
        self.peak = max(self.peak, self.now)
        return out


@pytest.fixture
def memory() -> type[Memory]:
    return Memory
