import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from benchmarks.baselines.lanczosnet import LanczosConv, lanczos, run
from benchmarks.sparse import CSR
from benchmarks.training import normalized


def graph(N=60, seed=0):
    rng = np.random.default_rng(seed)
    A = np.triu(rng.random((N, N)) < 0.1, 1).astype(float)
    return sp.csr_matrix(A + A.T)


def gcn_matrix(A):
    return normalized(A + sp.eye(A.shape[0]))


def test_gcn_matrix_is_pygs():
    A = graph()
    edge_index = torch.from_numpy(np.stack(A.nonzero()))
    conv = GCNConv(60, 60, bias=False)
    torch.nn.init.eye_(conv.lin.weight)
    expected = conv(torch.eye(60), edge_index)
    out = torch.from_numpy(gcn_matrix(A).toarray()).float()
    assert torch.allclose(out, expected, atol=1e-6)


def test_all_steps_give_the_whole_spectrum():
    P = gcn_matrix(graph())
    R, V = lanczos(P, 60, np.random.default_rng(0))
    assert np.allclose(R, np.linalg.eigvalsh(P.toarray()), atol=1e-8)
    assert np.allclose(V.T @ V, np.eye(60), atol=1e-10)
    assert np.allclose(V @ np.diag(R) @ V.T, P.toarray(), atol=1e-8)


def test_extreme_ritz_values_approach_the_spectrum():
    P = gcn_matrix(graph(N=300))
    expected = np.linalg.eigvalsh(P.toarray())
    errors = []
    for K in (5, 10, 20, 40, 80):
        R, V = lanczos(P, K, np.random.default_rng(0))
        assert np.allclose(V.T @ V, np.eye(K), atol=1e-10)
        assert np.allclose(V.T @ (P @ V), np.diag(R), atol=1e-10)
        errors.append([expected[-1] - R[-1], R[0] - expected[0]])
    errors = np.array(errors)
    assert (errors > -1e-10).all()  # from within
    assert (np.diff(errors, axis=0) < 1e-10).all()
    assert (errors[-1] < 1e-6).all()


def test_stops_where_the_krylov_space_ends():
    P = sp.eye(10, format='csr')
    R, V = lanczos(P, 5, np.random.default_rng(0))
    assert R.shape == (1,) and V.shape == (10, 1)
    assert np.allclose(R, 1)


def test_layer_is_the_concatenation_of_all_scales():
    P = gcn_matrix(graph())
    R, V = lanczos(P, 8, np.random.default_rng(0))
    R, V = torch.from_numpy(R).float(), torch.from_numpy(V).float()
    dense = torch.from_numpy(P.toarray()).float()
    torch.manual_seed(0)
    for short, long in [((1, 2, 5), (10, 20)), ((0, 3), (7,)), ((1,), (4,))]:
        conv = LanczosConv(5, 3, short, long, 16)
        torch.nn.init.normal_(conv.bias)
        x = torch.randn(60, 5)
        out = conv(x, CSR.from_scipy(P), R, V)
        f = conv.filter(torch.stack([R**k for k in long], dim=1))
        scales = [torch.linalg.matrix_power(dense, k) @ x for k in short]
        scales += [V @ torch.diag(f[:, j]) @ V.t() @ x
                   for j in range(len(long))]
        expected = torch.cat(scales, dim=1) @ conv.weight + conv.bias
        assert torch.allclose(out, expected, atol=1e-5)


def test_run():
    block = torch.ones(6, 6).fill_diagonal_(0)
    A = torch.block_diag(block, block)
    A[0, 6] = A[6, 0] = 1
    y = torch.arange(12) // 6
    data = Data(x=torch.eye(12), y=y, edge_index=A.nonzero().t(),
                train_mask=torch.arange(12) % 6 == 1,
                val_mask=torch.arange(12) % 6 == 2)
    settings = {'num_steps': 4, 'epochs': 30, 'p': 0.0}
    out = run(data, seed=0, **settings)
    assert out.logits.argmax(dim=-1).equal(y)
    assert run(data, seed=0, **settings).logits.equal(out.logits)
    data.x = data.x.to_sparse()
    sparse = run(data, seed=0, **settings)
    assert torch.allclose(sparse.logits, out.logits, atol=1e-4)
