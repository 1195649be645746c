import pytest
import scipy.sparse as sp
import torch

from benchmarks.sparse import CSR, row_pointer, weighted_sum

DENSE = torch.tensor([[0.0, 2.0, 0.5], [0.0, 0.0, 0.0],
                      [1.0, 0.0, 3.0], [0.0, 4.0, 0.0]])
ROW, COL = DENSE.nonzero()[[4, 1, 3, 0, 2]].t()  # in any order


def test_row_pointer():
    for row in [[0, 2, 2], [2, 0, 2]]:
        assert row_pointer(torch.tensor(row), 4).tolist() == [0, 1, 1, 3, 3]


def test_weighted_sum():
    rowptr, col = torch.tensor([0, 2, 2]), torch.tensor([1, 0])
    x = torch.tensor([[1.0, 2.0], [10.0, 20.0]]).t().contiguous().t()
    assert weighted_sum(rowptr, col, torch.tensor([0.5, 3.0]), x).tolist() == [
        [8, 16], [0, 0]]
    assert weighted_sum(rowptr, col, None, x).tolist() == [[11, 22], [0, 0]]


@pytest.mark.parametrize('matrix', [
    CSR.from_edges(ROW, COL, DENSE[ROW, COL], (4, 3)),
    CSR.from_tensor(DENSE),
    CSR.from_tensor(DENSE.to_sparse()),
    CSR.from_tensor(DENSE.to_sparse_csr()),
    CSR.from_scipy(sp.csr_matrix(DENSE.double().numpy())),
    CSR.from_scipy(sp.csc_matrix(DENSE.double().numpy())),
])
def test_product(matrix):
    assert (matrix.size(0), matrix.size(1)) == (4, 3)
    x = torch.randn(3, 2, requires_grad=True)
    out, grad = matrix @ x, torch.randn(4, 2)
    assert torch.allclose(out, DENSE @ x)
    found, = torch.autograd.grad(out, x, grad)
    assert torch.allclose(found, DENSE.t() @ grad)
    # The same positions with other values:
    x = torch.randn(3, 2, requires_grad=True)
    out = CSR(matrix.layout, 2 * matrix.value) @ x
    assert torch.allclose(out, 2 * DENSE @ x)
    found, = torch.autograd.grad(out, x, grad)
    assert torch.allclose(found, 2 * DENSE.t() @ grad)


def test_gradient_in_double():
    matrix = CSR.from_tensor(DENSE.double())
    x = torch.randn(3, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(matrix.__matmul__, x)


def test_matrix_without_entries():
    x = torch.randn(3, 2, requires_grad=True)
    out = CSR.from_tensor(torch.zeros(4, 3)) @ x
    out.sum().backward()
    assert out.tolist() == [[0, 0]] * 4 and not x.grad.any()
