r"""Any input is either right or refused: what comes out is the dense
reference's, or an error of ours that names what was wrong.

``FUZZ=2000 pytest tests/test_fuzz.py`` is the long run.
"""
import math
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_agcn import AGCN, AGCNConv
from torch_agcn.functional import (
    dirichlet_energy,
    mean_average_distance,
    relative_energy,
)

CASES = int(os.environ.get('FUZZ', 200))
profile = settings(
    max_examples=CASES, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture,
                           HealthCheck.too_slow])


@st.composite
def graphs(draw):
    r"""Arguments of a call that are all right, and how the layer is made."""
    num_nodes = draw(st.integers(2, 9))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), min_size=1, max_size=24))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    scale = draw(st.sampled_from([1e-3, 1.0, 30.0]))
    call = {
        'x': scale * torch.randn(num_nodes, 4, generator=generator),
        'edge_index': torch.tensor(edges).t().contiguous(),
        'edge_weight': None, 'batch': None}
    if draw(st.booleans()):
        call['edge_weight'] = 0.1 + torch.rand(len(edges),
                                               generator=generator)
    layer = dict(
        beta=draw(st.sampled_from([0.0, 1e-4, 0.5, 50.0])),
        energy=draw(st.sampled_from(['total', 'relative'])),
        residual=draw(st.booleans()), num_hops=draw(st.sampled_from([1, 3])),
        alpha=draw(st.sampled_from([0.0, 0.2])))
    return call, layer, draw(st.booleans())


@given(graphs())
@profile
def test_good_input_is_the_reference(dense, case):
    call, layer, cached = case
    conv = AGCNConv(4, 3, **layer, cached=cached)
    x = call['x'].double()
    expected = dense(len(x), call['edge_index'], call['edge_weight']).layer(
        x, conv.lin.weight.t().double(), conv.bias.double(), **layer)
    if expected.isnan().any():
        return  # The reference divides zero by zero.
    out = conv(**call)
    size = float(expected.detach().abs().max())
    assert torch.allclose(out.double(), expected, rtol=1e-3,
                          atol=1e-4 * size + 1e-6)


def _set(tensor, index, value):
    tensor = tensor.clone()
    tensor.view(-1)[index % tensor.numel()] = value
    return tensor


# What to change, and into what; `i` is any number.
WRONG = {
    'a node too many': ('edge_index', lambda v, i, n: _set(v, i, n + i % 5)),
    'a far node': ('edge_index', lambda v, i, n: _set(v, i, 2**40 + i)),
    'a negative node': ('edge_index', lambda v, i, n: _set(v, i, -1 - i % 9)),
    'edges as numbers': ('edge_index', lambda v, i, n: v.float()),
    'edges as bytes': ('edge_index', lambda v, i, n: v.to(torch.uint8)),
    'edges the other way': ('edge_index', lambda v, i, n: torch.cat(
        [v, v, v], dim=1).t()),
    'half of the edges': ('edge_index', lambda v, i, n: v[0]),
    'a third row': ('edge_index', lambda v, i, n: torch.cat([v, v[:1]])),
    'edges elsewhere': ('edge_index', lambda v, i, n: v.to('meta')),
    'edges in a list': ('edge_index', lambda v, i, n: v.tolist()),
    'no edges': ('edge_index', lambda v, i, n: None),
    'another matrix': ('edge_index', lambda v, i, n: torch.eye(
        n + 1).to_sparse_csr()),
    'whole features': ('x', lambda v, i, n: v.long()),
    'complex features': ('x', lambda v, i, n: v.to(torch.complex64)),
    'long features': ('x', lambda v, i, n: v.double()),
    'short features': ('x', lambda v, i, n: v.half()),
    'a feature less': ('x', lambda v, i, n: v[:, :3]),
    'one feature': ('x', lambda v, i, n: v[:, 0]),
    'features elsewhere': ('x', lambda v, i, n: v.to('meta')),
    'features in a list': ('x', lambda v, i, n: v.tolist()),
    'no features': ('x', lambda v, i, n: None),
    'a weight less': ('edge_weight', lambda v, i, n: v[1:]),
    'a negative weight': ('edge_weight', lambda v, i, n: _set(v, i, -0.5)),
    'no weight': ('edge_weight', lambda v, i, n: _set(v, i, math.nan)),
    'an endless weight': ('edge_weight', lambda v, i, n: _set(
        v, i, math.inf)),
    'weights in a list': ('edge_weight', lambda v, i, n: v.tolist()),
    'weights of NumPy': ('edge_weight', lambda v, i, n: v.numpy()),
    'whole weights': ('edge_weight', lambda v, i, n: v.long()),
    'weights of features': ('edge_weight', lambda v, i, n: v[:, None].expand(
        -1, 2)),
    'weights elsewhere': ('edge_weight', lambda v, i, n: v.to('meta')),
    'a node without a graph': ('batch', lambda v, i, n: v[1:]),
    'a graph below zero': ('batch', lambda v, i, n: _set(v, i, -1 - i % 9)),
    'graphs as numbers': ('batch', lambda v, i, n: v.float()),
    'a table of graphs': ('batch', lambda v, i, n: v[None]),
    'graphs elsewhere': ('batch', lambda v, i, n: v.to('meta')),
    'graphs in a list': ('batch', lambda v, i, n: v.tolist()),
}


def spoil(call, kind, number):
    r"""Makes one of the arguments wrong."""
    key, change = WRONG[kind]
    num_nodes, num_edges = len(call['x']), call['edge_index'].size(1)
    if key == 'edge_weight':
        call['edge_weight'] = torch.ones(num_edges)
    if kind == 'another matrix':
        call['edge_weight'] = None
    if key == 'batch':
        call['batch'] = torch.zeros(num_nodes, dtype=torch.long)
    call[key] = change(call[key], number, num_nodes)


@given(graphs(), st.sampled_from(list(WRONG)), st.integers(0, 1000),
       st.booleans())
@profile
def test_bad_input_is_refused(case, kind, number, as_model):
    call, layer, cached = case
    spoil(call, kind, number)
    make = (AGCN(4, 8, 2, 3, cached=cached, **layer) if as_model else
            AGCNConv(4, 3, cached=cached, **layer))
    with pytest.raises((ValueError, IndexError), match="'AGCNConv'"):
        make(**call)


@given(graphs(), st.integers(0, 1000),
       st.sampled_from([math.nan, math.inf, -math.inf]))
@profile
def test_what_is_no_number_stays_none(case, index, value):
    # What a bad feature can reach is not a number; nothing else is made up.
    call, layer, cached = case
    conv = AGCNConv(4, 3, **layer, cached=cached)
    call['x'] = _set(call['x'], index, value)
    out = conv(**call)
    node = index % call['x'].numel() // 4
    assert not out[node].isfinite().all()


@given(graphs(), st.sampled_from(
    [kind for kind in WRONG if kind not in (
        'a feature less', 'long features', 'short features')]),
    st.integers(0, 1000),
    st.sampled_from([dirichlet_energy, relative_energy,
                     mean_average_distance]))
@profile
def test_bad_input_of_measures_is_refused(case, kind, number, measure):
    call, _, _ = case
    spoil(call, kind, number)
    with pytest.raises((ValueError, IndexError), match=measure.__name__):
        measure(**call)
