import copy
import inspect
import itertools
import math
import pickle

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.nn import APPNP, Sequential
from torch_geometric.testing import withPackage
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import to_torch_csc_tensor, to_undirected

from torch_agcn import AGCN2Conv, AGCNConv, GatedDiffusion

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
MODES = [
    dict(energy='total', residual=False, beta=1e-4),
    dict(energy='total', residual=True, beta=1e-4),
    dict(energy='relative', residual=False, beta=1.0),
    dict(energy='relative', residual=True, beta=1.0),
]


def random_graph(num_nodes=12, num_edges=20, directed=False):
    edge_index = torch.randint(num_nodes, (2, num_edges))
    edge_index = torch.unique(edge_index, dim=1).contiguous()
    if not directed:
        edge_index = to_undirected(edge_index)
    # The same there and back:
    return edge_index, 0.1 + (edge_index.sum(0) % 7) / 3


# Against APPNP ###############################################################


@pytest.mark.parametrize('num_hops, alpha', [(1, 0.0), (10, 0.1), (4, 0.5)])
@pytest.mark.parametrize('kwargs', [
    {}, dict(add_self_loops=False), dict(normalize=False),
    dict(flow='target_to_source')])
@pytest.mark.parametrize('directed', [False, True])
def test_an_open_gate_is_appnp(num_hops, alpha, kwargs, directed, way):
    x, (edge_index, weight) = torch.randn(12, 4), random_graph(
        directed=directed)
    diffusion = way(GatedDiffusion, num_hops, alpha, beta=1e30, **kwargs)
    appnp = APPNP(num_hops, alpha, **kwargs)
    for some in [None, weight]:
        expected = appnp(x, edge_index, some)
        size = float(expected.abs().max())  # Sums grow, if not normalized.
        assert torch.allclose(diffusion(x, edge_index, some), expected,
                              rtol=1e-5, atol=1e-5 * max(size, 1))


def test_it_takes_the_place_of_appnp():
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    outs = []
    for layer in [APPNP(10, 0.1), GatedDiffusion(10, 0.1, beta=1e30)]:
        torch.manual_seed(0)
        net = Sequential('x, edge_index', [
            (torch.nn.Linear(4, 8), 'x -> x'), torch.nn.ReLU(),
            (torch.nn.Linear(8, 3), 'x -> x'),
            (layer, 'x, edge_index -> x')])
        outs.append(net(x, edge_index))
    assert torch.allclose(*outs, atol=1e-5)


# The interface ###############################################################


def test_defaults():
    diffusion = GatedDiffusion()
    assert (diffusion.num_hops, diffusion.alpha) == (10, 0.1)
    assert (diffusion.energy, diffusion.beta) == ('relative', 500.0)
    assert diffusion.residual is True
    paper = GatedDiffusion(energy='total')
    assert (paper.beta, paper.residual) == (1.0, False)
    both = GatedDiffusion(energy='total', beta=None, residual=None)
    assert (both.beta, both.residual) == (1.0, False)
    parameters = list(inspect.signature(GatedDiffusion).parameters.values())
    assert [p.name for p in parameters[:2]] == ['num_hops', 'alpha']
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD)
               for p in parameters[2:])


def test_there_is_nothing_to_learn():
    diffusion = GatedDiffusion(beta=2.0)
    assert not list(diffusion.parameters()) and not diffusion.state_dict()
    learnt = GatedDiffusion(beta=2.0, learn_beta=True)
    assert list(learnt.state_dict()) == ['raw_beta']
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    learnt(x, edge_index).square().sum().backward()
    assert learnt.raw_beta.grad != 0
    assert learnt.beta.item() == pytest.approx(2.0)


@pytest.mark.parametrize('kwargs', [
    {}, dict(num_hops=3), dict(alpha=0.2), dict(energy='total'),
    dict(beta=2.0), dict(residual=False), dict(cached=True),
    dict(energy='total', beta=0.1, residual=True, num_hops=2)])
def test_repr_makes_the_same_layer(kwargs):
    text = str(GatedDiffusion(**kwargs))
    assert text.startswith('GatedDiffusion(')
    for key, value in kwargs.items():
        assert f'{key}={value!r}' in text
    assert str(eval(text)) == text
    for key in ('energy', 'beta', 'residual', 'cached', 'normalize'):
        assert key in kwargs or key not in text


def test_layers_with_weights_are_made_of_it():
    assert issubclass(AGCNConv, GatedDiffusion)
    assert issubclass(AGCN2Conv, GatedDiffusion)
    x, (edge_index, weight) = torch.randn(12, 4), random_graph()
    for mode in MODES:
        mode = dict(mode, num_hops=3, alpha=0.2)
        diffusion, conv = GatedDiffusion(**mode), AGCNConv(4, 3, **mode)
        expected = conv.lin(diffusion(x, edge_index, weight)) + conv.bias
        assert torch.allclose(conv(x, edge_index, weight), expected,
                              atol=1e-5)
        assert torch.allclose(conv.gate(x, edge_index, weight),
                              diffusion.gate(x, edge_index, weight))


# Values ######################################################################


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('num_hops, alpha', [(1, 0.0), (5, 0.0), (5, 0.3)])
@pytest.mark.parametrize('directed', [False, True])
def test_against_dense(dense, way, mode, num_hops, alpha, directed):
    edge_index, weight = random_graph(directed=directed)
    x = torch.randn(12, 4)
    diffusion = way(GatedDiffusion, num_hops, alpha, **mode)
    for some in [None, weight]:
        expected = dense(12, edge_index, some).layer(
            x.double(), torch.eye(4).double(), 0, mode['beta'],
            mode['energy'], mode['residual'], num_hops, alpha)
        assert torch.allclose(diffusion(x, edge_index, some).double(),
                              expected, atol=1e-5)


@pytest.mark.parametrize('mode', MODES)
def test_all_forms_of_a_graph(mode):
    x, (edge_index, value) = torch.randn(12, 4), random_graph(directed=True)
    diffusion = GatedDiffusion(3, 0.2, **mode)
    turned = GatedDiffusion(3, 0.2, flow='target_to_source', **mode)
    for weight in [None, value]:
        out = diffusion(x, edge_index, weight)
        csr = to_torch_csc_tensor(edge_index, weight, size=(12, 12)).t()
        index = EdgeIndex(edge_index, sparse_size=(12, 12))
        for args in [(csr, ), (csr.to_sparse_coo(), ), (index, weight)]:
            assert torch.allclose(diffusion(x, *args), out, atol=1e-5)
        assert torch.allclose(turned(x, edge_index.flip(0), weight), out,
                              atol=1e-5)
        for sparse in [x.to_sparse(), x.to_sparse_csr()]:
            assert torch.allclose(diffusion(sparse, edge_index, weight), out,
                                  atol=1e-5)


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('mode', MODES)
def test_sparse_tensor(mode):
    x, (edge_index, weight) = torch.randn(12, 4), random_graph()
    diffusion = GatedDiffusion(3, 0.2, **mode)
    adj = SparseTensor.from_edge_index(edge_index, weight, (12, 12)).t()
    assert torch.allclose(diffusion(x, adj), diffusion(x, edge_index, weight),
                          atol=1e-5)


@pytest.mark.parametrize('mode', MODES)
def test_batch_and_static_graphs(mode, way):
    graphs = [Data(x=2.0**i * torch.randn(n, 4),
                   edge_index=random_graph(n, m)[0])
              for i, (n, m) in enumerate([(5, 9), (12, 30), (1, 0), (7, 3)])]
    batch = Batch.from_data_list(graphs)
    diffusion = way(GatedDiffusion, 3, 0.2, **mode)
    expected = torch.cat([diffusion(g.x, g.edge_index) for g in graphs])
    args = batch.edge_index, None, batch.batch
    assert torch.allclose(diffusion(batch.x, *args), expected, atol=1e-5)
    assert diffusion.gate(batch.x, *args).shape == (3, 4)
    stacked = torch.stack([batch.x, 0.1 * batch.x])
    out = diffusion(stacked, *args)
    assert torch.allclose(out[0], expected, atol=1e-5)
    assert torch.allclose(out[1], diffusion(0.1 * batch.x, *args), atol=1e-5)
    out.view(-1)  # Memory is as it is in PyG.


def test_gates_close_as_features_get_smooth():
    x, (edge_index, _) = torch.randn(12, 4), random_graph(num_edges=40)
    gates = GatedDiffusion(16, 0.0, beta=5.0).gate(x, edge_index)
    assert gates.shape == (16, )
    assert (gates.diff() <= 1e-6).all() and gates[-1] < 0.7 * gates[0]
    closed = GatedDiffusion(8, 0.0, beta=0.0)
    assert torch.allclose(closed(x, edge_index), x)
    assert closed.gate(x, edge_index).tolist() == [0] * 8


# Gradients ###################################################################


@pytest.mark.parametrize('mode', MODES)
def test_gradients(mode, way):
    edge_index, weight = random_graph(6, 8)
    mode = dict(mode, beta=0.01 if mode['energy'] == 'total' else 1.0)
    diffusion = way(GatedDiffusion, 3, 0.2, learn_beta=True, **mode).double()
    x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
    weight, raw_beta = weight.double(), diffusion.raw_beta.detach().clone()

    def run(x, weight, raw_beta):
        return torch.func.functional_call(
            diffusion, {'raw_beta': raw_beta}, (x, edge_index, weight))

    for weight.requires_grad in [False, True]:
        assert torch.autograd.gradcheck(
            run, (x, weight, raw_beta.requires_grad_()))


@pytest.mark.parametrize('mode', MODES)
def test_recomputing_changes_nothing(mode, way):
    x, (edge_index, weight) = torch.randn(12, 4), random_graph()
    x.requires_grad_()
    outs, grads = [], []
    for recompute in [False, True]:
        diffusion = way(GatedDiffusion, 7, 0.1, recompute=recompute, **mode)
        outs.append(diffusion(x, edge_index, weight))
        grads += torch.autograd.grad(outs[-1].square().sum(), x)
    assert torch.equal(*outs)
    assert torch.allclose(*grads, rtol=1e-5, atol=1e-6)


# What PyG and torch do with a layer ##########################################


@pytest.mark.parametrize('mode', MODES)
def test_copy_pickle_cache_and_compile(mode, calls):
    x, (edge_index, weight) = torch.randn(12, 4), random_graph()
    diffusion = GatedDiffusion(3, 0.2, **mode)
    out = diffusion(x, edge_index, weight)
    for other in [copy.deepcopy(diffusion),
                  pickle.loads(pickle.dumps(diffusion))]:
        assert torch.allclose(other(x, edge_index, weight), out)
    cached = GatedDiffusion(3, 0.2, cached=True, **mode)
    for _ in range(2):
        assert torch.allclose(cached(x, edge_index, weight), out, atol=1e-5)
    assert not calls.builds(cached, x, edge_index, weight)
    torch._dynamo.reset()
    compiled = torch.compile(diffusion, fullgraph=True, backend='aot_eager')
    assert torch.allclose(compiled(x, edge_index, weight), out, atol=1e-5)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.half, torch.double])
def test_types(dtype, way):
    # There are no weights that a type could differ from.
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    diffusion = way(GatedDiffusion, 3, beta=1.0)
    out = diffusion(x.to(dtype), edge_index)
    assert out.dtype == dtype
    assert torch.allclose(out.float(), diffusion(x, edge_index), atol=0.1)


@pytest.mark.parametrize('kwargs, message', [
    (dict(num_hops=0), 'num_hops=0'), (dict(alpha=1.0), 'alpha=1.0'),
    (dict(beta=-1.0), 'beta=-1.0'), (dict(beta=math.nan), 'beta=nan'),
    (dict(energy='kinetic'), "'relative'"), (dict(aggr='max'), 'max')])
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match='GatedDiffusion') as error:
        GatedDiffusion(**kwargs)
    assert message in str(error.value)


@pytest.mark.parametrize('kwargs, message', [
    (dict(x=torch.ones(3, 4, dtype=torch.long)), 'x.float()'),
    (dict(x=torch.ones(3)), 'shape'), (dict(x=torch.ones(2, 4)), 'node 2'),
    (dict(edge_weight=-torch.ones(4)), '-1'),
    (dict(batch=torch.zeros(2, dtype=torch.long)), '3 nodes')])
def test_bad_input(kwargs, message):
    good = dict(x=torch.rand(3, 4), edge_index=PATH)
    with pytest.raises(ValueError, match='GatedDiffusion') as error:
        GatedDiffusion()(**{**good, **kwargs})
    assert message in str(error.value)


@pytest.mark.parametrize('kind', ['constant', 'zero', 'huge', 'tiny'])
def test_never_nan(kind, way):
    size = {'constant': 1.0, 'zero': 0.0, 'huge': 1e30, 'tiny': 1e-30}[kind]
    x = size * (torch.ones if kind == 'constant' else torch.randn)(3, 4)
    x.requires_grad_()
    for mode, edge_index in itertools.product(MODES, [PATH, PATH[:, :0]]):
        out = way(GatedDiffusion, 3, 0.2, **mode)(x, edge_index)
        grad, = torch.autograd.grad(out.sum(), x)
        assert out.isfinite().all() and grad.isfinite().all()
    empty = way(GatedDiffusion)(torch.randn(0, 4), PATH[:, :0])
    assert empty.shape == (0, 4)
