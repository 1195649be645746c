r"""Layers on devices, without one. On the meta device there are no values:
what runs there looks at none, and a real device never has to be waited for.
The same path on the CPU gives the CPU's own results. Where there is a GPU, all
of it runs there as well.
"""
import itertools
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torch_agcn
from torch_agcn import AGCN2Conv, AGCNConv

DEVICES = ['meta'] + ['cuda'] * torch.cuda.is_available()
MODES = {
    'total': dict(energy='total', residual=False, beta=1e-4),
    'total residual': dict(energy='total', residual=True, beta=1e-4),
    'relative': dict(energy='relative', residual=False, beta=1.0),
    'relative residual': dict(energy='relative', residual=True, beta=1.0),
}
OPTIONS = {
    'nothing': dict(),
    'hops': dict(num_hops=3),
    'restart': dict(num_hops=2, alpha=0.2),
    'learnt beta': dict(num_hops=2, learn_beta=True),
    'improved': dict(improved=True),
    'no loops': dict(add_self_loops=False),
    'no normalization': dict(normalize=False),
    'no bias': dict(bias=False),
    'flow': dict(flow='target_to_source'),
    'recompute': dict(num_hops=5, recompute=True),
    'momentum': dict(num_hops=2, momentum=0.1),
}


# Two rings of six nodes, with a few more edges, one of them a loop:
RING = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
RING = torch.cat([RING, RING.flip(0)[:, :4], torch.tensor([[0], [0]])], dim=1)
EDGES = torch.cat([RING, RING + 6], dim=1)
BATCH = torch.arange(12) // 6


def weights() -> Tensor:
    return torch.rand(EDGES.size(1)) + 0.5


CALLS = {
    'nothing': lambda: dict(x=torch.randn(12, 4)),
    'weights': lambda: dict(x=torch.randn(12, 4), edge_weight=weights()),
    'weights to learn': lambda: dict(
        x=torch.randn(12, 4), edge_weight=weights().requires_grad_()),
    'batch': lambda: dict(x=torch.randn(12, 4), batch=BATCH),
    'batch and its size': lambda: dict(x=torch.randn(12, 4), batch=BATCH,
                                       batch_size=2),
    'static': lambda: dict(x=torch.randn(3, 12, 4), edge_weight=weights()),
    'static batch': lambda: dict(x=torch.randn(3, 12, 4), batch=BATCH),
    'degrees': lambda: dict(x=torch.randn(12, 4),
                            degree=torch.rand(12) + 3),
    'sample': lambda: dict(
        x=torch.randn(12, 4), edge_weight=weights(),
        degree=torch.rand(12) + 3,
        node_weight=torch.tensor([0., 2., 1.]).repeat(4)),
    'no edges': lambda: dict(x=torch.randn(12, 4), edge_index=EDGES[:, :0]),
    'no nodes': lambda: dict(x=torch.randn(0, 4), edge_index=EDGES[:, :0]),
}


def bipartite(channels):
    sizes = channels if isinstance(channels, tuple) else (4, 4)
    return dict(x=(torch.randn(12, sizes[0]), torch.randn(12, sizes[1])),
                edge_weight=weights())


def cases():
    r"""How a layer is made, and what it is called with."""
    for (name, mode), option in itertools.product(MODES.items(), OPTIONS):
        yield (f'{name}, {option}', AGCNConv, (4, 3),
               {**mode, **OPTIONS[option]}, CALLS['weights'])
    for (name, mode), call in itertools.product(MODES.items(), CALLS):
        if call != 'weights':
            yield f'{name}, {call}', AGCNConv, (4, 3), mode, CALLS[call]
    for (name, mode), channels in itertools.product(MODES.items(),
                                                    [4, (4, 5)]):
        yield (f'{name}, bipartite {channels}', AGCNConv, (channels, 3),
               dict(mode), lambda c=channels: bipartite(c))
    for (name, mode), call in itertools.product(
            MODES.items(), ['weights', 'batch']):
        yield (f'{name}, AGCN2Conv, {call}', AGCN2Conv, (4, ),
               dict(mode, alpha=0.1, theta=0.5, layer=2, num_hops=2),
               lambda c=call: dict(CALLS[c](), x_0=torch.randn(12, 4)))
        yield (f'{name}, GatedDiffusion, {call}', 'GatedDiffusion', (),
               dict(mode, num_hops=3), CALLS[call])


CASES = {name: case for name, *case in cases()}
all_cases = pytest.mark.parametrize('case', CASES)


def make(case, **more):
    r"""A layer, and the arguments of a call."""
    layer, args, kwargs, call = CASES[case]
    if isinstance(layer, str):
        layer = getattr(torch_agcn, layer)
    return layer(*args, **kwargs, **more), {'edge_index': EDGES, **call()}


def to(value, device):
    if isinstance(value, tuple):
        return tuple(to(side, device) for side in value)
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def run(conv, inputs, device='cpu'):
    r"""The output and the gradients of all that can have one."""
    conv.to(device)
    inputs = {key: to(value, device) for key, value in inputs.items()}
    wanted = [value for key in ('x', 'x_0', 'edge_weight')
              for value in (inputs[key] if isinstance(inputs.get(key), tuple)
                            else [inputs.get(key)])
              if value is not None
              and (key != 'edge_weight' or value.requires_grad)]
    for value in wanted:
        value.requires_grad_()
    wanted += list(conv.parameters())
    out = conv(**inputs)
    assert out.device.type == device
    return [out, *torch.autograd.grad(out.square().sum(), wanted)]


def same(found, expected):
    for value, other in zip(found, expected):
        assert value.shape == other.shape and value.dtype == other.dtype
        if not value.is_meta:
            assert torch.allclose(value.cpu(), other, rtol=1e-4, atol=1e-4)


@contextmanager
def no_waiting(device):
    r"""Within it, a GPU is not waited for."""
    if device == 'cuda':
        torch.cuda.set_sync_debug_mode('error')
    try:
        yield
    finally:
        if device == 'cuda':
            torch.cuda.set_sync_debug_mode('default')


@all_cases
@pytest.mark.parametrize('device', DEVICES)
def test_nothing_looks_at_a_value(case, device):
    conv, inputs = make(case)
    expected = run(conv, inputs)
    with no_waiting(device):
        found = run(conv, inputs, device)
    same(found, expected)


class NoLooking(TorchDispatchMode):
    r"""Within it, what a device would have to be waited for is refused."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in ('_local_scalar_dense', 'equal', 'nonzero',
                            'masked_select', 'bincount', '_unique2')
        return func(*args, **kwargs or {})


@all_cases
def test_kept_graphs_are_looked_at_once(case, on_device):
    # The first call may look at values; the next one may not.
    conv, inputs = make(case, cached=True)
    with on_device():
        expected = run(conv, inputs)
        with NoLooking():
            same(run(conv, inputs), expected)


@all_cases
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_kept_graphs_are_looked_at_once_on_a_gpu(case):
    conv, inputs = make(case, cached=True)
    inputs = {key: to(value, 'cuda') for key, value in inputs.items()}
    conv.to('cuda')(**inputs)
    with no_waiting('cuda'):
        conv(**inputs)


@all_cases
@pytest.mark.parametrize('cached', [False, True])
def test_the_path_of_a_device_on_the_cpu(case, cached, on_device):
    conv, inputs = make(case, cached=cached)
    expected, gate = run(conv, inputs), conv.gate(**inputs)
    with on_device():
        for _ in range(2):
            same(run(conv, inputs), expected)
        assert torch.allclose(conv.gate(**inputs), gate, atol=1e-5)


def test_batches_need_no_size():
    # As many graphs as nodes is a bound that needs no look at any of them.
    conv = AGCNConv(4, 3, beta=1e-3).to('meta')
    x, edge_index = torch.randn(12, 4, device='meta'), EDGES.to('meta')
    assert conv(x, edge_index, batch=BATCH.to('meta')).shape == (12, 3)


@pytest.mark.parametrize('mode', MODES.values(), ids=MODES)
def test_low_precision_and_autocast_on_the_path_of_a_device(mode, on_device):
    conv, x = AGCNConv(4, 3, **mode), torch.randn(12, 4)
    expected = conv(x, EDGES)
    with on_device():
        with torch.autocast('cpu', torch.bfloat16):
            out = conv(x, EDGES)
        assert torch.allclose(out.float(), expected, atol=0.1)
        out = conv.bfloat16()(x.bfloat16(), EDGES)
        assert torch.allclose(out.float(), expected, atol=0.1)
