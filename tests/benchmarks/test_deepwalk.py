import torch
import torch.nn.functional as F
from torch_geometric.data import Data

from benchmarks.baselines.deepwalk import (
    random_walk,
    run,
    skip_gram_loss,
    window_mask,
)

# A star around 0 with leaves 1, 2, 3; 4 - 5; 6 alone.
EDGES = torch.tensor([[0, 0, 0, 1, 2, 3, 4, 5], [1, 2, 3, 0, 0, 0, 5, 4]])
INDPTR = torch.tensor([0, 3, 4, 5, 6, 7, 8, 8])
INDICES = EDGES[1]


def test_walks_follow_edges():
    torch.manual_seed(0)
    walk = random_walk(INDPTR, INDICES, torch.arange(7).repeat(50), 9)
    assert walk.shape == (350, 9)
    A = torch.zeros(7, 7, dtype=torch.bool)
    A[EDGES[0], EDGES[1]] = True
    A[6, 6] = True  # a node without edges stays put
    assert A[walk[:, :-1], walk[:, 1:]].all()


def test_uniform_transitions():
    torch.manual_seed(0)
    n = 30000
    walk = random_walk(INDPTR, INDICES, torch.zeros(n, dtype=torch.long), 2)
    share = walk[:, 1].bincount(minlength=7) / n
    expected = torch.tensor([0, 1 / 3, 1 / 3, 1 / 3, 0, 0, 0])
    # Five standard deviations of a share of n draws.
    assert torch.allclose(share, expected, atol=5 * (2 / 9 / n)**0.5)


def test_pairs_of_a_window():
    pairs = window_mask(4, 2).nonzero().tolist()
    assert pairs == [[0, 1], [0, 2], [1, 0], [1, 2], [1, 3],
                     [2, 0], [2, 1], [2, 3], [3, 1], [3, 2]]


def test_loss_is_the_mean_over_pairs():
    torch.manual_seed(0)
    u, v = torch.randn(7, 4), torch.randn(7, 4)
    walk = torch.tensor([[1, 0, 2, 0], [4, 5, 4, 5]])
    negative = torch.tensor([[3, 6, 6], [0, 1, 2]])
    window, K = 2, 5
    total, pairs = 0.0, 0
    for w, noise in zip(walk, negative):
        for i in range(4):
            for j in range(4):
                if i != j and abs(i - j) <= window:
                    score = u[w[i]] @ v[w[j]]
                    far = v[noise] @ u[w[i]]
                    total += -F.logsigmoid(score)
                    total += -K * F.logsigmoid(-far).mean()
                    pairs += 1
    out = skip_gram_loss(u, v, walk, negative, window, K)
    assert torch.allclose(out, total / pairs)


def test_communities_are_found_without_features():
    # Two cliques of ten with one edge between them, one label each.
    block = torch.ones(10, 10).fill_diagonal_(0)
    A = torch.block_diag(block, block)
    A[0, 10] = A[10, 0] = 1
    y = torch.arange(20) // 10
    data = Data(edge_index=A.nonzero().t(), y=y, num_nodes=20,
                train_mask=torch.arange(20) % 10 == 5)
    settings = {'dim': 8, 'walk_length': 10, 'walks_per_node': 200,
                'batch_size': 100, 'window': 3, 'lr': 0.1}
    out = run(data, seed=0, **settings)
    assert out.logits.argmax(dim=-1).equal(y)
    assert run(data, seed=0, **settings).logits.equal(out.logits)
