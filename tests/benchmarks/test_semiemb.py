import torch
from torch_geometric.data import Data

from benchmarks.baselines.semiemb import SemiEmb, embedding_loss, run


def test_embedding_loss_by_hand():
    h = torch.tensor([[0.0, 0.0], [0.3, 0.4], [3.0, 4.0]])
    edges = torch.tensor([[0, 0], [1, 2]])       # distances 0.5 and 5
    non_edges = torch.tensor([[0, 0], [1, 2]])
    out = embedding_loss(h, edges, non_edges, margin=1.0)
    assert torch.allclose(out, torch.tensor((0.25 + 25 + 0.25 + 0) / 4))
    out = embedding_loss(h, edges, non_edges, margin=6.0)
    assert torch.allclose(out, torch.tensor((0.25 + 25 + 5.5**2 + 1) / 4))


def test_embedding_loss_gradients():
    h = torch.randn(5, 3, dtype=torch.double, requires_grad=True,
                    generator=torch.manual_seed(0))
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    non_edges = torch.tensor([[0, 1], [4, 3]])
    assert torch.autograd.gradcheck(
        lambda h: embedding_loss(h, edges, non_edges, margin=5.0), (h,))

    h = torch.zeros(5, 3, requires_grad=True)  # distance 0: still finite
    embedding_loss(h, edges, non_edges).backward()
    assert h.grad.isfinite().all()


def test_hidden_layer_is_the_embedding():
    torch.manual_seed(0)
    model = SemiEmb(4, 8, 3, p=0.5).eval()
    x = torch.randn(6, 4)
    out = model(x, None)
    h = (x @ model.lin1.weight.t() + model.lin1.bias).relu()
    assert torch.allclose(model.embed(x), h)
    assert torch.allclose(out, model.lin2(h))


def test_the_graph_helps():
    # Two cliques; the features say nothing but who a node is.
    block = torch.ones(6, 6).fill_diagonal_(0)
    edge_index = torch.block_diag(block, block).nonzero().t()
    y = torch.arange(12) // 6
    mask = torch.arange(12) % 6
    data = Data(x=torch.eye(12), edge_index=edge_index, y=y,
                train_mask=mask == 0, val_mask=mask == 1)
    settings = {'p': 0.0, 'epochs': 100, 'patience': 100, 'weight': 10.0}
    out = run(data, seed=0, **settings)
    assert out.logits.argmax(dim=-1).equal(y)
    again = run(data, seed=0, **settings)
    assert again.logits.equal(out.logits)
    data.x = data.x.to_sparse()
    sparse = run(data, seed=0, **settings)
    assert torch.allclose(sparse.logits, out.logits, atol=1e-4)
