import itertools

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import (
    ClusterData,
    ClusterLoader,
    GraphSAINTRandomWalkSampler,
    NeighborLoader,
)
from torch_geometric.testing import withPackage
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import (
    coalesce,
    remove_self_loops,
    subgraph,
    to_undirected,
)

from torch_agcn import AGCN, AGCNConv
from torch_agcn.loader import (
    ImportanceWeights,
    MixedBatchSampler,
    cluster_weights,
    neighbor_weight,
    saint_weights,
    seed_weight,
)

pytestmark = pytest.mark.filterwarnings('ignore:Using .NeighborSampler.')
KINDS = [dict(), dict(weighted=True), dict(weighted=True, directed=True)]


def make_graph(num_nodes=6, num_edges=8, weighted=False, directed=False):
    edge_index = remove_self_loops(
        torch.randint(num_nodes, (2, num_edges)))[0]
    edge_index = (coalesce(edge_index) if directed
                  else to_undirected(edge_index))
    data = Data(x=torch.randn(num_nodes, 3).double(), edge_index=edge_index)
    if weighted:
        data.edge_weight = 0.5 + (edge_index.sum(0) % 5).double()
        if directed:
            data.edge_weight = torch.rand(edge_index.size(1)).double() + 0.5
    return data


def part(data, n_id, edges, **kwargs):
    r"""The batch of some nodes and the edges of these numbers."""
    place = torch.full((data.num_nodes, ), -1)
    place[n_id] = torch.arange(len(n_id))
    batch = Data(x=data.x[n_id], edge_index=place[data.edge_index[:, edges]],
                 n_id=n_id, **kwargs)
    assert (batch.edge_index >= 0).all()
    if 'edge_weight' in data:
        batch.edge_weight = data.edge_weight[edges]
    return batch


def neighborhoods(data, seeds, num_neighbors):
    r"""All batches that a NeighborLoader could make of some seeds."""
    choices = []
    for seed in seeds:
        into = (data.edge_index[1] == seed).nonzero().view(-1).tolist()
        choices.append(list(itertools.combinations(
            into, min(num_neighbors, len(into)))))
    for choice in itertools.product(*choices):
        edges = torch.tensor(sum(choice, ()), dtype=torch.long)
        new = [j for j in data.edge_index[0, edges].unique().tolist()
               if j not in seeds]
        yield part(data, torch.tensor([*seeds, *new]), edges,
                   batch_size=len(seeds))


def all_samples(data, num_seeds, num_neighbors):
    r"""All of them with their probabilities, every set of seeds being as
    likely as any other.
    """
    sets = list(itertools.combinations(range(data.num_nodes), num_seeds))
    for seeds in sets:
        batches = list(neighborhoods(data, list(seeds), num_neighbors))
        for batch in batches:
            yield 1 / len(sets) / len(batches), batch


def make_conv(energy, **kwargs):
    conv = AGCNConv(3, 3, energy=energy, bias=False, residual=True,
                    beta=0.02 if energy == 'total' else 1.0, **kwargs)
    conv.lin.weight.data = torch.eye(3)
    return conv.double()


def mean_of_sums(samples, energy):
    r"""The expectation of what a layer sums over a batch, from the running
    estimate that it keeps.
    """
    conv = make_conv(energy, momentum=1.0)  # nothing but the last batch
    mean = 0
    for probability, args in samples:
        conv(*args[:2], **args[2])
        sums = conv.running_energy[0].clone()
        if energy == 'relative':  # of squares and numbers, linear in weights
            _, spread, weight = sums[:3]
            sums[1] = spread + weight * sums[3:].square().sum()
            sums[3:] = weight * sums[3:]
        mean = mean + probability * sums
    return mean


def whole(data):
    return [(1.0, (data.x, data.edge_index,
                   dict(edge_weight=data.get('edge_weight'))))]


@pytest.mark.parametrize('energy', ['total', 'relative'])
@pytest.mark.parametrize('kind', KINDS)
def test_energy_of_sampled_neighbors_in_expectation(energy, kind):
    data = make_graph(num_edges=16, **kind)
    weights = ImportanceWeights(NeighborLoader(data, [1], batch_size=2))
    samples = [(p, (batch.x, batch.edge_index, weights(batch)))
               for p, batch in all_samples(data, 2, 1)]
    assert len(samples) > 50
    assert sum(p for p, _ in samples) == pytest.approx(1)
    expected = mean_of_sums(whole(data), energy)
    assert torch.allclose(mean_of_sums(samples, energy), expected)
    # Without weights they are far away:
    for args in samples:
        args[1][2].clear()
    assert not torch.allclose(mean_of_sums(samples, energy), expected,
                              rtol=0.2)


def with_the_gate_of(data):
    r"""A layer that keeps a graph's gate, and its output on that."""
    conv = make_conv('relative', momentum=0.0)
    args = data.x, data.edge_index, data.get('edge_weight')
    out = conv(*args)
    gate = conv.eval().gate(*args)
    assert 0.1 < gate < 0.9
    assert torch.allclose(conv(*args), out)
    return conv, out


@pytest.mark.parametrize('kind', KINDS)
def test_propagation_of_sampled_neighbors_in_expectation(kind):
    data = make_graph(**kind)
    weights = ImportanceWeights(NeighborLoader(data, [1], batch_size=1))
    conv, expected = with_the_gate_of(data)
    for seed in range(data.num_nodes):
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
    samples = []
    others = list(itertools.combinations([0, 2, 3, 5], 2))
    for first, pair in itertools.product(train.tolist(), others):
        batches = list(neighborhoods(data, [first, *pair], 1))
        for batch in batches:
            found = weights(batch)
            assert found['node_weight'][:3].tolist() == [2, 2, 2]
            samples.append((1 / 12 / len(batches),
                            (batch.x, batch.edge_index, found)))
    assert torch.allclose(mean_of_sums(samples, energy),
                          mean_of_sums(whole(data), energy))


@pytest.mark.parametrize('energy', ['total', 'relative'])
@pytest.mark.parametrize('kind', KINDS)
def test_energy_of_saint_in_expectation(energy, kind):
    # Sets of three nodes, not all as likely, with the edges among them:
    data = make_graph(**kind)
    N, E = data.num_nodes, data.num_edges
    sets = [torch.tensor(s) for s in itertools.combinations(range(N), 3)]
    chance = torch.rand(len(sets)).double() + 0.1
    chance /= chance.sum()
    edges_of = [(torch.isin(data.edge_index, nodes).all(0)).nonzero().view(-1)
                for nodes in sets]
    node_chance = torch.zeros(N).double()
    edge_chance = torch.zeros(E).double()
    for p, nodes, edges in zip(chance, sets, edges_of):
        node_chance[nodes] += p
        edge_chance[edges] += p
    node_norm = 1 / node_chance / N
    edge_norm = node_chance[data.edge_index[0]] / edge_chance
    samples, propagated = [], torch.zeros(N, 3).double()
    degree = torch.zeros(N).double().index_add_(
        0, data.edge_index[1], data.get('edge_weight', torch.ones(E)).double())
    conv, expected = with_the_gate_of(data)
    for p, nodes, edges in zip(chance, sets, edges_of):
        batch = part(data, nodes, edges)
        edge_weight, node_weight = saint_weights(
            batch.edge_index, node_norm[nodes], edge_norm[edges], N)
        args = dict(edge_weight=edge_weight * batch.get('edge_weight', 1),
                    node_weight=node_weight, degree=degree[nodes])
        samples.append((p, (batch.x, batch.edge_index, args)))
        propagated[nodes] += p / node_chance[nodes][:, None] * conv(
            batch.x, batch.edge_index, **args)
    assert torch.allclose(mean_of_sums(samples, energy),
                          mean_of_sums(whole(data), energy))
    assert torch.allclose(propagated, expected)


@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_energy_of_clusters_in_expectation(energy):
    data = make_graph(9, 16)
    cluster = torch.tensor([0, 2, 1, 0, 3, 1, 1, 2, 3])
    degree = torch.bincount(data.edge_index[1]).double()

    def samples(size):
        sets = list(itertools.combinations(range(4), size))
        for some in sets:
            n_id = torch.isin(cluster, torch.tensor(some)).nonzero().view(-1)
            edges = torch.isin(data.edge_index, n_id).all(0).nonzero().view(-1)
            batch = part(data, n_id, edges)
            edge_weight, node_weight = cluster_weights(n_id, batch.edge_index,
                                                       cluster)
            assert (node_weight == 4 / size).all()
            yield 1 / len(sets), (batch.x, batch.edge_index, dict(
                edge_weight=edge_weight, node_weight=node_weight,
                degree=degree[n_id]))

    expected = mean_of_sums(whole(data), energy)
    for size in [2, 3, 4]:
        assert torch.allclose(mean_of_sums(samples(size), energy), expected)
    # Single clusters lack the edges between them, and nothing else:
    inside = data.clone()
    source, target = cluster[data.edge_index]
    inside.edge_index = data.edge_index[:, source == target]
    found = mean_of_sums(samples(1), energy)
    if energy == 'total':
        assert torch.allclose(found, mean_of_sums(whole(inside), energy))
    assert found[0] < 0.9 * expected[0]


def test_weights_by_hand():
    # Node 0 has 4 neighbors, of which 2 were sampled; node 1 has all of 3:
    target = torch.tensor([0, 0, 1, 1, 1])
    count = torch.tensor([4.0, 3.0, 7.0, 0.0])
    assert neighbor_weight(target, count).tolist() == [2, 2, 1, 1, 1]
    strata = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    assert seed_weight(torch.tensor([0, 2, 6]), strata).tolist() == [
        2.5, 2.5, 2]
    # 1 / p = 2, 4 and 5; p_j / p_ij = 3 and 1:
    edge_weight, node_weight = saint_weights(
        torch.tensor([[0, 1], [1, 2]]), torch.tensor([0.2, 0.4, 0.5]),
        torch.tensor([3.0, 1.0]), 10)
    assert node_weight.tolist() == [2, 4, 5]
    assert torch.allclose(edge_weight, torch.tensor([1.5, 0.8]))
    # Three clusters of which two were drawn, and the edge between them:
    edge_weight, node_weight = cluster_weights(
        torch.tensor([4, 1, 0]), torch.tensor([[0, 1], [1, 2]]),
        torch.tensor([0, 0, 1, 1, 2]))
    assert edge_weight.tolist() == [2, 1]
    assert node_weight.tolist() == [1.5, 1.5, 1.5]


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

    refused('NeighborLoader', [data])
    refused('MixedBatchSampler',
            NeighborLoader(data, [2], input_nodes=torch.arange(3)))
    refused('directional',
            NeighborLoader(data, [2], subgraph_type='induced'))
    refused('strata of 2', NeighborLoader(data, [2]), strata=torch.zeros(2))
    loops = data.clone()
    loops.edge_index = torch.cat([data.edge_index,
                                  torch.tensor([[1], [1]])], dim=1)
    refused('RemoveSelfLoops', NeighborLoader(loops, [2]))


# With the loaders themselves #################################################


class Partitioned(ClusterData):
    r"""METIS is not everywhere."""

    def _metis(self, edge_index, num_nodes):
        return torch.randint(self.num_parts, (num_nodes, ))


def large_graph():
    data = make_graph(60, 150, weighted=True)
    data.x, data.edge_weight = data.x.float(), data.edge_weight.float()
    data.generate_ids()
    return data


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('kwargs', [
    dict(beta=1e-6), dict(energy='relative', residual=True),
    dict(energy='relative', num_hops=2, alpha=0.1, beta=5.0)])
def test_whole_neighborhoods_are_exact(kwargs):
    # Where nothing is left out, nothing is estimated.
    data = large_graph()
    model = AGCN(3, 8, 2, 4, **kwargs)
    expected = model(data.x, data.edge_index, data.edge_weight)
    hops = sum(conv.num_hops for conv in model.convs)
    for loader in [
            NeighborLoader(data, [-1] * hops, batch_size=60, shuffle=True),
            ClusterLoader(Partitioned(data, 5, log=False), batch_size=5,
                          shuffle=True),
            ClusterLoader(Partitioned(data, 5, log=False, sparse_format='csc'),
                          batch_size=5)]:
        batch, = loader
        out = model(batch.x, batch.edge_index,
                    **ImportanceWeights(loader)(batch))
        assert torch.allclose(out, expected[batch.n_id], atol=1e-5)
    # Some seeds: their gates are estimates, all else is exact.
    for conv in model.convs:
        conv.beta = 1e9
    expected = model(data.x, data.edge_index, data.edge_weight)
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
@pytest.mark.parametrize('name', ['neighbor', 'mixed', 'replace', 'saint',
                                  'cluster'])
def test_loaders_in_expectation(energy, name):
    data = large_graph()
    if name == 'saint':
        loader = GraphSAINTRandomWalkSampler(
            data, batch_size=8, walk_length=2, num_steps=400,
            sample_coverage=200, log=False)
        batches = list(loader)
    else:
        if name == 'cluster':
            loader = ClusterLoader(Partitioned(data, 8, log=False),
                                   batch_size=3, shuffle=True)
        elif name == 'mixed':
            loader = NeighborLoader(data, [3], batch_sampler=MixedBatchSampler(
                torch.arange(10), 60, 5, 15))
        else:
            loader = NeighborLoader(data, [3], batch_size=20, shuffle=True,
                                    replace=name == 'replace')
        batches = [batch for _ in range(150) for batch in loader]
    weights = ImportanceWeights(loader)
    conv = AGCNConv(3, 2, energy=energy, momentum=0.0, beta=1e-6)
    for batch in batches:
        conv(batch.x, batch.edge_index, **weights(batch))
    exact = AGCNConv(3, 2, energy=energy, momentum=0.0, beta=1e-6)
    exact(data.x, data.edge_index, data.edge_weight)
    assert conv.num_batches_tracked == len(batches)
    assert torch.allclose(conv.running_energy[0, :3],
                          exact.running_energy[0, :3], rtol=0.05)
    assert torch.allclose(conv.running_energy[0, 3:],
                          exact.running_energy[0, 3:], atol=0.02)


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_edges_that_a_trial_missed():
    data = large_graph()
    loader = GraphSAINTRandomWalkSampler(data, 8, 2, sample_coverage=1,
                                         log=False)
    assert loader.edge_norm.max() == 1e4
    seen = float(loader.edge_norm[loader.edge_norm < 1e4].max())
    weights = ImportanceWeights(loader)
    for _ in range(50):
        batch, = loader
        source, target = batch.edge_index
        ratio = batch.node_norm[source] / batch.node_norm[target]
        found = weights(batch)['edge_weight'] / ratio / batch.edge_weight
        assert torch.allclose(found, batch.edge_norm.clamp(max=seen))


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_samplers_that_do_not_tell():
    data = make_graph(weighted=True)
    for loader, match in [
            (GraphSAINTRandomWalkSampler(data, 2, 2), 'generate_ids'),
            (ClusterLoader(Partitioned(data, 2, log=False)), 'generate_ids')]:
        with pytest.raises(ValueError, match=match):
            ImportanceWeights(loader)
    with pytest.raises(ValueError, match='ToSparseTensor'):
        ImportanceWeights(NeighborLoader(ToSparseTensor()(data.clone()), [2]))
    data.generate_ids()
    with pytest.raises(ValueError, match='sample_coverage=0'):
        ImportanceWeights(GraphSAINTRandomWalkSampler(data, 2, 2))


def test_subgraph_helper():
    # What the tests above call a part is PyG's subgraph.
    data = make_graph()
    nodes = torch.tensor([0, 2, 3])
    edges = torch.isin(data.edge_index, nodes).all(0).nonzero().view(-1)
    assert part(data, nodes, edges).edge_index.equal(
        subgraph(nodes, data.edge_index, relabel_nodes=True)[0])
