import pytest
import torch
from torch.nn import Linear, Module
from torch_geometric.data import Data

from benchmarks.sparse import CSR
from benchmarks.training import (
    adjacency,
    count_classes,
    dropout,
    fit,
    remember,
    sparse_features,
    to_scipy,
)


def bag_of_words():
    torch.manual_seed(0)
    x = torch.rand(20, 30)
    return x * (torch.rand(20, 30) < 0.1)


@pytest.mark.parametrize('layout', [torch.strided, torch.sparse_coo,
                                    torch.sparse_csr])
def test_sparse_features_multiply_like_dense(layout):
    x = bag_of_words()
    data = Data(x=x.to_sparse(layout=layout) if layout != torch.strided
                else x, edge_index=torch.tensor([[0, 1], [1, 0]]))
    out = sparse_features(data)
    assert isinstance(out.x, CSR) and out.num_nodes == 20
    assert not isinstance(data.x, CSR)  # the caller's is kept
    assert torch.equal(torch.from_numpy(to_scipy(data.x).toarray()).float(),
                       x)

    W = torch.randn(30, 4, requires_grad=True)
    V = W.detach().clone().requires_grad_()
    grad = torch.randn(20, 4)
    (out.x @ W).backward(grad)
    (x @ V).backward(grad)
    assert torch.allclose(out.x @ W, x @ V, atol=1e-6)
    assert torch.allclose(W.grad, V.grad, atol=1e-6)


def test_dense_features_stay_dense():
    x = torch.rand(20, 30)
    assert sparse_features(Data(x=x)).x is x


def test_sparse_dropout():
    dense = bag_of_words()
    x = CSR.from_tensor(dense)
    assert dropout(x, 0.5, training=False) is x
    torch.manual_seed(0)
    out = dropout(x, 0.25, training=True)
    kept = out @ torch.eye(30)
    on = kept != 0
    assert torch.allclose(kept[on], dense[on] / 0.75)
    assert 0 < on.sum() < (dense != 0).sum()

    mean = sum(dropout(x, 0.25, training=True) @ torch.eye(30)
               for _ in range(2000)) / 2000
    assert torch.allclose(mean, dense, atol=0.08)


def test_dense_dropout():
    x = torch.rand(50, 40) + 1
    torch.manual_seed(1)
    out = dropout(x, 0.75, training=True)
    kept = out != 0
    assert torch.allclose(out[kept], 4 * x[kept])
    assert 0.2 < kept.float().mean() < 0.3
    assert dropout(x, 0.75, training=False).equal(x)
    x.requires_grad_()
    out = dropout(x, 0.75, training=True)
    out.sum().backward()
    assert torch.equal(x.grad, 4.0 * (out != 0))


def test_adjacency():
    # One way only, twice, a self-loop, and node 3 without an edge.
    edge_index = torch.tensor([[0, 0, 1, 2, 2], [1, 1, 1, 1, 0]])
    A = adjacency(Data(edge_index=edge_index, num_nodes=4))
    assert A.toarray().tolist() == [[0, 1, 1, 0], [1, 0, 1, 0],
                                    [1, 1, 0, 0], [0, 0, 0, 0]]


class Net(Module):
    def __init__(self):
        super().__init__()
        self.lin1, self.lin2 = Linear(2, 4), Linear(4, 2)

    def forward(self, x, edge_index):
        return self.lin2(self.lin1(x).relu())


def separable():
    torch.manual_seed(0)
    y = torch.arange(40) % 2
    x = torch.randn(40, 2) + 3 * torch.eye(2)[y]
    return Data(x=x, y=y, edge_index=torch.empty(2, 0, dtype=torch.long),
                train_mask=torch.arange(40) < 10,
                val_mask=(torch.arange(40) >= 10) & (torch.arange(40) < 20))


def test_fit_returns_the_best_weights():
    data = separable()
    model = Net()
    run = fit(model, data, lr=0.1, epochs=50, patience=50)
    val = run.logits[data.val_mask]
    loss = torch.nn.functional.nll_loss(val, data.y[data.val_mask])
    assert torch.allclose(loss, torch.tensor(run.extra['val_loss']))
    assert run.extra['best_epoch'] <= run.epochs == 50
    assert torch.allclose(run.logits.exp().sum(dim=-1), torch.ones(40))
    assert (run.logits.argmax(dim=-1) == data.y).float().mean() > 0.9


def test_fit_stops_early():
    data = separable()
    data.y = data.y.clone()
    data.y[data.val_mask] = 1 - data.y[data.val_mask]  # learning only hurts
    run = fit(Net(), data, lr=0.1, epochs=200, patience=7)
    assert run.epochs == run.extra['best_epoch'] + 7 < 200


def test_fit_never_looks_at_test_labels():
    data = separable()
    torch.manual_seed(0)
    expected = fit(Net(), data, epochs=20).logits
    data.y = data.y.clone()
    data.y[20:] = 1 - data.y[20:]
    torch.manual_seed(0)
    assert fit(Net(), data, epochs=20).logits.equal(expected)


def test_fit_without_validation():
    data = separable()
    torch.manual_seed(0)
    expected = fit(Net(), data, lr=0.0, epochs=9, patience=9).logits
    del data.val_mask
    torch.manual_seed(0)
    model = Net()
    run = fit(model, data, lr=0.0, epochs=9, patience=0)
    assert run.epochs == 9 and run.logits.equal(expected)
    again = fit(model, data, lr=0.1, epochs=30, patience=0)
    assert again.epochs == 30  # the last weights, not those of a stop
    assert model(data.x, data.edge_index).log_softmax(-1).equal(again.logits)


def test_weight_decay_is_on_the_first_layer_only(monkeypatch):
    seen = []
    adam = torch.optim.Adam

    def spy(params, lr):
        seen.append(params)
        return adam(params, lr=lr)

    monkeypatch.setattr(torch.optim, 'Adam', spy)
    model = Net()
    fit(model, separable(), weight_decay=0.3, epochs=1)
    first, rest = seen[0]  # with Adam's defaults by now
    assert first['weight_decay'] == 0.3 and rest['weight_decay'] == 0
    assert first['params'] == list(model.lin1.parameters())
    assert rest['params'] == list(model.lin2.parameters())


def test_penalty_and_parameter_groups():
    model = Net()
    before = model.lin1.weight.detach().clone()
    calls = []

    def penalty():
        calls.append(1)
        return model.lin2.weight.pow(2).sum()

    fit(model, separable(), epochs=5, patience=5, penalty=penalty,
        params=[{'params': model.lin2.parameters()}])
    assert len(calls) == 5
    assert torch.equal(model.lin1.weight, before)


def test_remembered_steps_are_those_of_these_labels():
    calls = []

    @remember
    def step(data, *, size):
        calls.append(size)
        return size * data.y

    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2,
                y=torch.tensor([0, 1]))
    assert step(data, size=2).tolist() == [0, 2] == step(data,
                                                         size=2).tolist()
    data.y.numpy()[:] = 3  # which tensors do not notice
    assert step(data, size=2).tolist() == [6, 6] and len(calls) == 2


def test_classes_are_counted_from_zero():
    assert count_classes(torch.tensor([-1, 0, 2])) == 3
    for bad in [[0, 3, 1], [0, 10**9], [-1, -1]]:
        with pytest.raises(ValueError, match='number the classes from 0'):
            count_classes(torch.tensor(bad))
