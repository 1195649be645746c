import itertools

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import GraphSAINTRandomWalkSampler, NeighborLoader
from torch_geometric.testing import withPackage
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import remove_self_loops, to_undirected

from torch_agcn import AGCN, AGCNConv
from torch_agcn.functional import dirichlet_energy
from torch_agcn.loader import ImportanceWeights, MixedBatchSampler

pytestmark = pytest.mark.filterwarnings('ignore:Using .NeighborSampler.')
KINDS = [dict(), dict(weighted=True), dict(weighted=True, directed=True)]


def make_graph(weighted=False, directed=False):
    r"""Six nodes that receive three edges each, so that all samples of
    neighbors are as likely as any other.
    """
    node = torch.arange(6)
    edge_index = torch.cat([torch.stack([(node + step) % 6, node])
                            for step in ([1, 2, 4] if directed else
                                         [1, 3, 5])], dim=1)
    data = Data(x=torch.randn(6, 3).double(), edge_index=edge_index)
    if weighted:
        data.edge_weight = 0.5 + (edge_index.sum(0) % 5).double()
        if directed:
            data.edge_weight = torch.rand(edge_index.size(1)).double() + 0.5
    return data


def neighborhoods(data, seeds, num_neighbors):
    r"""All batches that a NeighborLoader could make of some seeds."""
    choices = [itertools.combinations(
        (data.edge_index[1] == seed).nonzero().view(-1).tolist(),
        num_neighbors) for seed in seeds]
    for choice in itertools.product(*choices):
        edges = torch.tensor(sum(choice, ()), dtype=torch.long)
        new = [j for j in data.edge_index[0, edges].unique().tolist()
               if j not in seeds]
        n_id = torch.tensor([*seeds, *new])
        place = torch.full((data.num_nodes, ), -1)
        place[n_id] = torch.arange(len(n_id))
        batch = Data(x=data.x[n_id], n_id=n_id, batch_size=len(seeds),
                     edge_index=place[data.edge_index[:, edges]])
        if 'edge_weight' in data:
            batch.edge_weight = data.edge_weight[edges]
        yield batch


def all_of(data):
    return data.x, data.edge_index, data.get('edge_weight')


def make_conv(energy, data, **kwargs):
    r"""Propagation alone, with a gate that is half open on a graph."""
    beta = 1.0
    if energy == 'total':
        beta = float(dirichlet_energy(*all_of(data)))**-2
    conv = AGCNConv(3, 3, energy=energy, beta=beta, residual=True, bias=False,
                    **kwargs)
    conv.lin.weight.data = torch.eye(3)
    return conv.to(data.x.dtype)


def gate_over(batches, weights, energy, data):
    r"""The gate by the mean over batches of all that an energy is made of."""
    conv = make_conv(energy, data, momentum=0.0)
    for batch in batches:
        conv(batch.x, batch.edge_index, **weights(batch))
    return conv.eval().gate(*all_of(data))


def exact_gate(energy, data):
    gate = make_conv(energy, data).gate(*all_of(data))
    assert 0.1 < gate < 0.9
    return gate


@pytest.mark.parametrize('energy', ['total', 'relative'])
@pytest.mark.parametrize('kind', KINDS)
def test_energy_of_sampled_neighbors_in_expectation(energy, kind):
    data = make_graph(**kind)
    weights = ImportanceWeights(NeighborLoader(data, [1], batch_size=2))
    batches = [batch for seeds in itertools.combinations(range(6), 2)
               for batch in neighborhoods(data, seeds, 1)]
    assert len(batches) == 15 * 9
    exact = exact_gate(energy, data)
    assert torch.allclose(gate_over(batches, weights, energy, data), exact)
    # Without weights it is far away:
    found = gate_over(batches, lambda batch: {}, energy, data)
    assert not torch.allclose(found, exact, atol=0.05)


@pytest.mark.parametrize('kind', KINDS)
def test_propagation_of_sampled_neighbors_in_expectation(kind):
    data = make_graph(**kind)
    weights = ImportanceWeights(NeighborLoader(data, [1], batch_size=1))
    conv = make_conv('relative', data, momentum=0.0)
    expected = conv(*all_of(data))
    conv.eval()  # keeps the gate
    for seed in range(6):
        outs = [conv(batch.x, batch.edge_index, **weights(batch))[0]
                for batch in neighborhoods(data, [seed], 1)]
        assert torch.allclose(sum(outs) / len(outs), expected[seed])


@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_energy_of_strata_in_expectation(energy):
    # One of two training nodes, and two of the four others:
    data = make_graph()
    train = torch.tensor([1, 4])
    sampler = MixedBatchSampler(train, 6, batch_size=1, num_random=2)
    weights = ImportanceWeights(
        NeighborLoader(data, [1], batch_sampler=sampler))
    batches = [batch for first in train.tolist()
               for pair in itertools.combinations([0, 2, 3, 5], 2)
               for batch in neighborhoods(data, [first, *pair], 1)]
    assert all(weights(batch)['node_weight'][:3].eq(2).all()
               for batch in batches)
    assert torch.allclose(gate_over(batches, weights, energy, data),
                          exact_gate(energy, data))


def test_weights_by_hand():
    # Node 0 receives 4 edges, of which 2 were sampled, and node 1 all of 3:
    edge_index = torch.tensor([[2, 3, 4, 5, 2, 3, 4, 0, 1],
                               [0, 0, 0, 0, 1, 1, 1, 5, 5]])
    data = Data(x=torch.eye(8), edge_index=edge_index)
    n_id = torch.arange(5)
    batch = Data(x=data.x[n_id], n_id=n_id, batch_size=2,
                 edge_index=torch.tensor([[2, 4, 2, 3, 4], [0, 0, 1, 1, 1]]))
    loader = NeighborLoader(data, [3], batch_size=2)
    found = ImportanceWeights(loader)(batch)
    assert {key: value.tolist() for key, value in found.items()} == {
        'edge_weight': [2, 2, 1, 1, 1], 'node_weight': [4, 4, 0, 0, 0],
        'degree': [4, 3, 0, 0, 0]}
    # One of five nodes, and one of two; there is no seed of the last kind:
    strata = torch.tensor([0, 1, 0, 0, 0, 0, 1, 2])
    found = ImportanceWeights(loader, strata)(batch)
    assert found['node_weight'].tolist() == [5, 2, 0, 0, 0]
    # Any numbers tell strata apart, and ask for no memory:
    found = ImportanceWeights(loader, 2**60 * (strata - 1))(batch)
    assert found['node_weight'].tolist() == [5, 2, 0, 0, 0]
    # Weights of the graph multiply those of the sample:
    data.edge_weight = torch.arange(1.0, 10.0)
    batch.edge_weight = data.edge_weight[[0, 2, 4, 5, 6]]
    found = ImportanceWeights(NeighborLoader(data, [3]))(batch)
    assert found['edge_weight'].tolist() == [2, 6, 5, 6, 7]
    assert found['degree'].tolist() == [10, 18, 0, 0, 0]


def test_mixed_batches():
    mask = torch.zeros(100, dtype=torch.bool)
    mask[:7] = True
    seen = torch.zeros(100)
    for nodes in [mask, torch.arange(7)]:
        sampler = MixedBatchSampler(nodes, 100, batch_size=3, num_random=20)
        assert sampler.strata.equal(mask.long())
        for _ in range(200):
            batches = list(sampler)
            assert [len(batch) for batch in batches] == [23, 23, 21]
            assert len(sampler) == 3
            assert all(len(set(batch)) == len(batch) for batch in batches)
            for batch in batches:
                seen[batch] += 1
    assert (seen[:7] == 400).all()
    # 1200 batches of 20 out of 93:
    assert (seen[7:] / 1200 - 20 / 93).abs().max() < 0.06
    a, b = (list(MixedBatchSampler(mask, 100, 3, 20, torch.Generator()
                                   .manual_seed(1))) for _ in range(2))
    assert a == b
    for bad in [dict(num_random=94), dict(num_random=0), dict(batch_size=0)]:
        with pytest.raises(ValueError, match='MixedBatchSampler'):
            MixedBatchSampler(mask, 100, **{'batch_size': 3, 'num_random': 2,
                                            **bad})


def test_what_cannot_be_weighted():
    data = make_graph()

    def refused(match, loader, **kwargs):
        with pytest.raises(ValueError, match=match):
            ImportanceWeights(loader, **kwargs)

    refused("'list'; pass a 'NeighborLoader'", [data])
    refused('MixedBatchSampler',
            NeighborLoader(data, [2], input_nodes=torch.arange(3)))
    refused('directional',
            NeighborLoader(data, [2], subgraph_type='induced'))
    refused("'strata' of shape .2", NeighborLoader(data, [2]),
            strata=torch.zeros(2))
    loops = data.clone()
    loops.edge_index = torch.cat([data.edge_index,
                                  torch.tensor([[1], [1]])], dim=1)
    refused('RemoveSelfLoops', NeighborLoader(loops, [2]))
    hetero = HeteroData(paper=dict(x=data.x))
    hetero['paper', 'cites', 'paper'].edge_index = data.edge_index
    refused("pass one 'Data' object",
            NeighborLoader(hetero, [2], input_nodes='paper'))


# With the loader itself ######################################################


def large_graph():
    edge_index = to_undirected(remove_self_loops(
        torch.randint(60, (2, 150)))[0])
    return Data(x=torch.randn(60, 3), edge_index=edge_index,
                edge_weight=0.5 + (edge_index.sum(0) % 5).float())


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('kwargs', [
    dict(beta=1e-6), dict(energy='relative', beta=1.0, residual=True),
    dict(energy='relative', beta=5.0, residual=False, num_hops=2,
         alpha=0.1)])
def test_whole_neighborhoods_are_exact(kwargs):
    # Where nothing is left out, nothing is estimated.
    data = large_graph()
    model = AGCN(3, 8, 2, 4, **kwargs)
    expected = model(*all_of(data))
    hops = sum(conv.num_hops for conv in model.convs)
    loader = NeighborLoader(data, [-1] * hops, batch_size=60, shuffle=True)
    batch, = loader
    out = model(batch.x, batch.edge_index, **ImportanceWeights(loader)(batch))
    assert torch.allclose(out, expected[batch.n_id], atol=1e-5)
    # Some seeds: their gates are estimates, all else is exact.
    for conv in model.convs:
        conv.beta = 1e9
    expected = model(*all_of(data))
    loader = NeighborLoader(data, [-1] * hops, batch_size=20)
    for batch in loader:
        weights = ImportanceWeights(loader)(batch)
        assert weights['node_weight'][:20].eq(3).all()
        assert not weights['node_weight'][20:].any()
        out = model(batch.x, batch.edge_index, **weights)[:20]
        assert torch.allclose(out, expected[batch.n_id[:20]], atol=1e-4)


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('energy', ['total', 'relative'])
@pytest.mark.parametrize('name', ['neighbor', 'mixed', 'replace'])
def test_loader_in_expectation(energy, name):
    data = large_graph()
    if name == 'mixed':
        loader = NeighborLoader(data, [3], batch_sampler=MixedBatchSampler(
            torch.arange(10), 60, 5, 15))
    else:
        loader = NeighborLoader(data, [3], batch_size=20, shuffle=True,
                                replace=name == 'replace')
    batches = [batch for _ in range(150) for batch in loader]
    found = gate_over(batches, ImportanceWeights(loader), energy, data)
    assert torch.allclose(found, exact_gate(energy, data), rtol=0.05)


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_other_loaders_are_refused():
    data = large_graph()
    with pytest.raises(ValueError, match='GraphSAINTRandomWalkSampler'):
        ImportanceWeights(GraphSAINTRandomWalkSampler(data, 2, 2))
    with pytest.raises(ValueError, match='ToSparseTensor'):
        ImportanceWeights(NeighborLoader(ToSparseTensor()(data), [2]))
