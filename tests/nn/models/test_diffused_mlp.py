import copy

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from torch_agcn import DiffusedMLP, GatedDiffusion
from torch_agcn.diagnostics import SmoothnessRecorder

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 4, 1],
                      [1, 0, 2, 1, 3, 2, 0, 3, 1, 4]])


def maps(model):
    r"""The weights and biases of the perceptron, first to last."""
    parameters = list(model.parameters())
    return ([p for p in parameters if p.dim() == 2],
            [p for p in parameters if p.dim() == 1])


def diffusion_of(model):
    found, = (m for m in model.modules() if isinstance(m, GatedDiffusion))
    return found


@pytest.mark.parametrize('num_layers', [1, 2, 3])
@pytest.mark.parametrize('kwargs', [
    {}, dict(num_hops=3, alpha=0.3), dict(beta=2.0),
    dict(energy='total', beta=1e-3, residual=False)])
def test_model_is_the_formula(dense, num_layers, kwargs):
    # A perceptron, and its outputs diffused.
    model = DiffusedMLP(7, 8, num_layers, 3, dropout=0.5,
                        **kwargs).double().eval()
    x = torch.rand(6, 7, dtype=torch.double)
    weights, biases = maps(model)
    assert [tuple(w.shape) for w in weights] == {
        1: [(3, 7)], 2: [(8, 7), (3, 8)], 3: [(8, 7), (8, 8), (3, 8)],
    }[num_layers]
    with torch.no_grad():
        for bias in biases:  # Wherever the last one is added.
            bias.zero_()
    h = x
    for i, weight in enumerate(weights):
        h = h @ weight.t()
        h = h.relu() if i < num_layers - 1 else h
    settings = dict(dict(num_hops=10, alpha=0.05, energy='relative',
                         beta=500.0, residual=True), **kwargs)
    expected = dense(6, EDGES).layer(h, torch.eye(3).double(), 0, **settings)
    assert torch.allclose(model(x, EDGES), expected)


def test_arguments_reach_the_diffusion():
    diffusion = diffusion_of(DiffusedMLP(7, 8, 2, 3))
    assert (diffusion.num_hops, diffusion.alpha) == (10, 0.05)
    assert (diffusion.energy, diffusion.beta) == ('relative', 500.0)
    assert diffusion.residual is True
    diffusion = diffusion_of(DiffusedMLP(
        7, 8, 2, 3, 0.5, 4, 0.2, beta=3.0, residual=False, cached=True,
        learn_beta=True, recompute=True))
    assert (diffusion.num_hops, diffusion.alpha) == (4, 0.2)
    assert diffusion.beta.item() == pytest.approx(3.0)
    assert diffusion.cached and diffusion.learn_beta and diffusion.recompute
    assert diffusion.residual is False


def test_repr():
    model = DiffusedMLP(7, 8, num_layers=2, out_channels=3)
    assert str(model).startswith('DiffusedMLP(7, 3, num_layers=2')


def test_weights_and_batches():
    graphs = [Data(x=3.0**i * torch.randn(n, 7), edge_weight=torch.rand(20),
                   edge_index=torch.randint(n, (2, 20)))
              for i, n in enumerate([12, 5])]
    batch = Batch.from_data_list(graphs)
    model = DiffusedMLP(7, 8, 2, 3, beta=1.0, num_hops=3)
    out = model(batch.x, batch.edge_index, batch.edge_weight,
                batch=batch.batch)
    expected = torch.cat([model(g.x, g.edge_index, g.edge_weight)
                          for g in graphs])
    assert torch.allclose(out, expected, atol=1e-5)
    assert not torch.allclose(model(batch.x, batch.edge_index), out,
                              atol=1e-3)


@pytest.mark.parametrize('layout', [torch.sparse_coo, torch.sparse_csr])
def test_sparse_features(layout):
    model = DiffusedMLP(7, 8, 2, 3, dropout=0.5)
    x = torch.rand(6, 7) * (torch.rand(6, 7) < 0.5)
    sparse = x.to_sparse(layout=layout)
    model(sparse, EDGES).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.eval()
    assert torch.allclose(model(sparse, EDGES), model(x, EDGES), atol=1e-6)


def test_dropout_reset_and_lazy_channels():
    model = DiffusedMLP(-1, 8, 2, 3, dropout=0.5)
    x = torch.rand(6, 7)
    assert not torch.equal(model(x, EDGES), model(x, EDGES))
    before = model.eval()(x, EDGES)
    assert torch.equal(model(x, EDGES), before)
    model.reset_parameters()
    assert not torch.allclose(model(x, EDGES), before)
    with pytest.raises(ValueError, match='whole number >= 1'):
        DiffusedMLP(7, 8, 0, 3)


def test_copy_compile_and_recorder():
    model, x = DiffusedMLP(7, 8, 2, 3, beta=1.0).eval(), torch.rand(6, 7)
    out = model(x, EDGES)
    assert torch.equal(copy.deepcopy(model)(x, EDGES), out)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    assert torch.allclose(compiled(x, EDGES), out, atol=1e-5)
    with SmoothnessRecorder(model) as recorder:
        model(x, EDGES)
    before, after = recorder.records
    assert before.gate is None and len(after.gates) == 10


def test_it_learns_a_graph_of_classes():
    y = torch.arange(200) % 4
    pairs = torch.randint(200, (2, 4000))
    pairs = pairs[:, (y[pairs[0]] == y[pairs[1]]) | (torch.rand(4000) < 0.1)]
    edge_index = to_undirected(pairs)
    x = torch.randn(200, 8)
    x[torch.arange(200), y] += 2
    model = DiffusedMLP(8, 16, 2, 4, dropout=0.2, cached=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x, edge_index)[:40], y[:40]).backward()
        optimizer.step()
    hit = model.eval()(x, edge_index).argmax(-1) == y
    assert hit[40:].float().mean() > 0.9
