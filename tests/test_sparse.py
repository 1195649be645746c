import pytest
import torch

from torch_agcn import _sparse
from torch_agcn._sparse import Edges


@pytest.mark.parametrize('size', [1, 7, 2**16, 2**16 + 1])
def test_order_of(size):
    # Up to 2**16 the numbers fit into two bytes, of which none may be lost.
    index = torch.randint(size, (1000, ))
    index[-1] = size - 1
    expected = torch.sort(index, stable=True).indices
    assert _sparse.order_of(index, size).equal(expected)
    empty = torch.empty(0, dtype=torch.long)
    assert _sparse.order_of(empty, size).equal(empty)


def test_to_csr():
    row, col = torch.tensor([2, 0, 2, 1]), torch.tensor([1, 3, 0, 1])
    value = torch.tensor([1., 2., 3., 4.])
    rowptr, col, (value, nothing) = _sparse.to_csr(row, col, 4, value, None)
    assert rowptr.tolist() == [0, 1, 2, 4, 4]
    assert col.tolist() == [3, 1, 1, 0]
    assert value.tolist() == [2., 4., 1., 3.]
    assert nothing is None


def test_apart_from_self_loops():
    row, col = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 1, 1, 0])
    edges, loops = _sparse.apart_from_self_loops(
        Edges(row, col, torch.tensor([5., 6., 7., 8.])), 3, 2.0, torch.float)
    assert edges.weight.tolist() == [5., 0., 0., 8.]
    assert loops.tolist() == [2., 7., 2.]  # the last one of node 1
    edges, loops = _sparse.apart_from_self_loops(
        Edges(row, col, None), 3, 1.0, torch.float)
    assert edges.weight.tolist() == [1., 0., 0., 1.]
    assert loops.tolist() == [1., 1., 1.]
    # Where there is none, nothing is made:
    given = Edges(row[::3], col[::3], None)
    assert _sparse.apart_from_self_loops(given, 3, 2.0, torch.float) == (
        given, 2.0)


@pytest.mark.parametrize('width', [0, 3])
def test_operators(width):
    dense = torch.tensor([[0., 2., 0.], [0., 0., 3.], [5., 0., 7.]]).double()
    row, col = dense.nonzero().t()
    value = dense[row, col]
    order = torch.tensor([2, 0, 3, 1])
    row, col, value = row[order], col[order], value[order]
    torch.library.opcheck(_sparse._sort_op, (row, 3))
    args = []
    for ends in [(row, col), (col, row)]:
        rowptr, other, (some, ) = _sparse.to_csr(*ends, 3, value)
        args.append((rowptr, other, some))
    x = torch.randn(3, width, dtype=torch.double, requires_grad=True)
    args = (*args[0], x, *args[1])
    torch.library.opcheck(_sparse._product_op, args)
    out = _sparse._product_op(*args)
    assert torch.allclose(out, dense @ x)
    weight = torch.randn_like(out)
    grad, = torch.autograd.grad((weight * out).sum(), x)
    assert torch.allclose(grad, dense.t() @ weight)
