import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from benchmarks.baselines import gcn, gcn_jaccard
from benchmarks.baselines.gcn_jaccard import jaccard, prune, row_products, run
from benchmarks.training import to_scipy


def graph(sparse=False, N=40):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 3
    x = torch.rand(N, 12, generator=generator)
    x = x * (torch.rand(N, 12, generator=generator) < 0.2)
    x[torch.arange(3, N), y[3:]] = 1
    x[:3] = 0  # nodes without a word, two of them neighbours
    edge_index = torch.randint(N, (2, 90), generator=generator)
    edge_index[:, 0] = torch.tensor([0, 1])
    data = Data(x=x, y=y, num_nodes=N, edge_index=to_undirected(edge_index),
                train_mask=torch.arange(N) < 15,
                val_mask=torch.arange(N) >= 25)
    data.x = x.to_sparse().coalesce() if sparse else x
    return data


def reference(x, edge_index):
    words = [set(row.nonzero().flatten().tolist()) for row in x]
    pairs = [(words[i], words[j]) for i, j in edge_index.t().tolist()]
    return np.array([len(a & b) / len(a | b) if a | b else 0.0
                     for a, b in pairs])


@pytest.mark.parametrize('chunk', [7, 20000])
def test_similarity_is_that_of_sets(chunk, monkeypatch):
    monkeypatch.setattr(gcn_jaccard, 'CHUNK', chunk)
    data = graph()
    out = jaccard(to_scipy(data.x), *data.edge_index.numpy())
    assert np.allclose(out, reference(data.x, data.edge_index), atol=1e-12)
    x = data.x.double().numpy()
    row, col = data.edge_index.numpy()
    assert np.allclose(row_products(to_scipy(data.x), row, col),
                       (x[row] * x[col]).sum(axis=1), atol=1e-12)


@pytest.mark.parametrize('sparse', [True, False])
@pytest.mark.parametrize('threshold', [0.0, 0.01, 0.25, 0.5])
def test_dropped_edges(sparse, threshold):
    data = graph(sparse)
    similarity = reference(graph().x, data.edge_index)
    keep = torch.from_numpy(similarity >= threshold)
    out = prune(data, threshold)
    assert out.edge_index.equal(data.edge_index[:, keep])
    assert out.num_nodes == 40 and out.is_undirected()
    assert data.num_edges == len(similarity)  # was not changed itself
    assert keep.all() == (threshold == 0)


@pytest.mark.parametrize('sparse', [True, False])
def test_run(sparse):
    out = run(graph(sparse), 3, epochs=5)
    assert out.logits.shape == (40, 3)
    assert out.logits.isfinite().all()
    assert 0 < out.extra['kept'] < 1
    assert run(graph(sparse), 3, epochs=5).logits.equal(out.logits)
    plain = gcn.run(graph(sparse), 3, epochs=5)
    assert not plain.logits.equal(out.logits)
    assert run(graph(sparse), 3, threshold=0.0, epochs=5).logits.equal(
        plain.logits)
