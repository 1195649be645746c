r"""The graphs that layers keep (:obj:`cached=True`): made once, shared, and
never those of the caller.
"""
import copy
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch_geometric import EdgeIndex
from torch_geometric.nn import Sequential
from torch_geometric.utils import to_torch_csc_tensor, to_undirected

from torch_agcn import AGCNConv

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
MODES = [
    dict(energy='total', residual=False, beta=1e-4),
    dict(energy='total', residual=True, beta=1e-4),
    dict(energy='relative', residual=False, beta=1.0),
    dict(energy='relative', residual=True, beta=1.0),
]


def random_graph(num_nodes=12, num_edges=20, directed=False):
    edge_index = torch.randint(num_nodes, (2, num_edges))
    edge_index = torch.unique(edge_index, dim=1).contiguous()
    if not directed:
        edge_index = to_undirected(edge_index)
    # The same there and back:
    return edge_index, 0.1 + (edge_index.sum(0) % 7) / 3


def uncached(conv):
    other = copy.deepcopy(conv)
    other.cached = False
    return other


# Which graph #################################################################


def test_the_cache_never_lies(calls):
    x, (edge_index, weight) = torch.randn(12, 4), random_graph()
    conv = AGCNConv(4, 3, beta=1e-3, cached=True)
    plain = uncached(conv)

    def check(*args):
        expected = plain(*args)
        assert torch.allclose(conv(*args), expected, atol=1e-6)
        assert not calls.builds(conv, *args)  # It is served.
        assert torch.allclose(conv(*args), expected, atol=1e-6)

    assert calls.builds(conv, x, edge_index)
    check(x, edge_index)
    assert not calls.builds(conv, torch.rand_like(x), edge_index.clone())
    assert calls.builds(conv, x, edge_index, weight)
    check(x, edge_index, weight)
    check(x, edge_index, 2 * weight)
    check(x, edge_index[:, :-2])
    check(x, edge_index[:, torch.randperm(edge_index.size(1))])
    check(x, edge_index.flip(0).roll(1, dims=1))
    check(torch.randn(15, 4), edge_index)
    check(x, edge_index)
    edge_index[0, 0] = (edge_index[0, 0] + 1) % 12  # in place
    check(x, edge_index)
    edge_index.data[1, 0] = (edge_index[1, 0] + 1) % 12  # behind its back
    check(x, edge_index)
    weight.numpy()[0] = 3.0
    check(x, edge_index, weight)
    weight.numpy()[0] = 0.5
    check(x, edge_index, weight)
    plain.improved = conv.improved = True
    check(x, edge_index, weight)
    plain.double(), conv.double()
    check(x.double(), edge_index)
    adj = to_torch_csc_tensor(edge_index, weight, size=(12, 12)).t()
    check(x.double(), adj.double())
    adj.values()[0] = 7.0
    check(x.double(), adj.double())
    conv.reset_parameters()
    assert calls.builds(conv, x.double(), adj.double())


def test_other_graphs_of_the_same_size():
    x = torch.randn(3, 2)
    dense = torch.tensor([[0., 1., 0.], [1., 0., 1.], [0., 1., 0.]])
    more = dense.clone()
    more[0, 2] = more[2, 0] = 1.0
    conv = AGCNConv(2, 2, cached=True)
    plain = uncached(conv)
    for layout in [torch.sparse_coo, torch.sparse_csr]:
        for adj in [dense, more, 0 * dense, 2 * more, dense]:
            graph = adj.to_sparse(layout=layout)
            assert torch.allclose(conv(x, graph), plain(x, graph), atol=1e-6)
    # And one whose weights are changed in place:
    weight = torch.ones(4)
    for factor in [1.0, 3.0]:
        weight[:2] *= factor
        assert torch.allclose(conv(x, PATH, weight), plain(x, PATH, weight),
                              atol=1e-6)


def test_the_size_of_a_matrix(way):
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    conv = way(AGCNConv, 4, 3)
    value = torch.ones(edge_index.size(1))
    conv(x, torch.sparse_coo_tensor(edge_index, value, (12, 12)))
    for size in [(12, 15), (15, 15)]:
        with pytest.raises(ValueError, match='12 nodes'):
            conv(x, torch.sparse_coo_tensor(edge_index, value, size))


@pytest.mark.parametrize('mode', MODES)
def test_a_number_that_32_bits_do_not_tell_from_another(mode):
    x, (edge_index, weight) = torch.randn(12, 4), random_graph()
    conv = AGCNConv(4, 3, cached=True, **mode)
    conv(x, edge_index, weight)
    edge_index[0, 0] += 2**32
    for layer in [conv, AGCNConv(4, 3, cached=True, **mode)]:
        with pytest.raises(ValueError, match='12 nodes'):
            layer(x, edge_index, weight)


# Who keeps it ################################################################


def test_layers_keep_one_graph(calls):
    x, (edge_index, weight) = torch.randn(12, 4), random_graph()
    convs = [AGCNConv(4, 4, cached=True, **kwargs) for kwargs in [
        {}, dict(beta=0.1), dict(improved=True),
        dict(energy='relative', beta=1.0, residual=False)]]

    def check(*args):
        assert calls.builds(convs[0], *args)
        for conv in (convs[1], convs[3]):  # also one of another energy
            assert not calls.builds(conv, *args)
        for conv in convs:
            assert torch.allclose(conv(*args), uncached(conv)(*args),
                                  atol=1e-5)

    check(x, edge_index)
    # Each of them notices another graph, also where it changed in place:
    check(x, edge_index, weight)
    check(x, edge_index.roll(1, dims=1), weight)
    check(x, edge_index, weight)
    edge_index[0, 0] = (edge_index[0, 0] + 1) % 12
    check(x, edge_index, weight)
    for conv in convs:
        conv.double()
    check(x.double(), edge_index, weight)
    # Nothing is kept for longer than the layers:
    del conv
    convs.clear()
    assert calls.builds(AGCNConv(4, 4, cached=True).double(), x.double(),
                        edge_index, weight)


def test_copies_of_a_layer_share_its_graph(calls):
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    conv = AGCNConv(4, 3, cached=True)
    size = len(pickle.dumps(conv))
    expected = conv(x, edge_index)
    assert len(pickle.dumps(conv)) < size + 100  # Copies are small.
    others = [copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))]
    for other in others:
        assert not calls.builds(other, x, edge_index)
        assert torch.equal(other(x, edge_index), expected)
    for other in others:  # A new graph of one is not one of the others.
        other(x, edge_index.roll(1, dims=1))
        assert not calls.builds(conv, x, edge_index)
        assert torch.equal(conv(x, edge_index), expected)


@pytest.mark.parametrize('mode', MODES)
def test_threads_share_a_layer(mode):
    conv = AGCNConv(4, 3, cached=True, **mode)
    plain = uncached(conv)
    # Of the same size, so that they take each other's place:
    inputs = [(torch.randn(12, 4),
               torch.stack([torch.arange(12), torch.randperm(12)]))
              for _ in range(4)]
    expected = [plain(*args) for args in inputs]

    def run(i):
        return all(torch.allclose(conv(*inputs[i]), expected[i], atol=1e-5)
                   for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))


@pytest.mark.parametrize('mode', MODES)
def test_memory_of_a_kept_graph(mode, memory):
    # Node numbers of 32 bits: a copy of both ends and of the weight to
    # compare with, and the matrix.
    edge_index, weight = random_graph(500, 10_000)
    x, conv = torch.randn(500, 4), AGCNConv(4, 3, cached=True, **mode)
    num_edges = edge_index.size(1)
    with memory() as found, torch.no_grad():
        conv(x, edge_index, weight)
    del edge_index, weight
    assert found.now <= 36 * num_edges


# Whose memory it is ##########################################################


def test_the_callers_graph_is_not_kept():
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    conv = AGCNConv(4, 3, cached=True)
    expected = conv(x, edge_index)
    same, gone = edge_index.clone(), weakref.ref(edge_index)
    del edge_index
    assert gone() is None
    assert torch.equal(conv(x, same), expected)


def as_index(edges, weight):
    return (edges, weight), [edges, weight]


def as_edge_index(edges, weight):
    graph = EdgeIndex(edges, sparse_size=(12, 12))
    return (graph, weight), [edges, weight]


def as_coo(edges, weight):
    adj = torch.sparse_coo_tensor(edges, weight, (12, 12), is_coalesced=True)
    return (adj, ), [edges, weight]


def as_csr(edges, weight):
    adj = torch.sparse_coo_tensor(edges, weight, (12, 12)).to_sparse_csr()
    return (adj, ), [adj.col_indices(), adj.values()]


@pytest.mark.parametrize('kwargs', [
    {}, dict(add_self_loops=False), dict(normalize=False),
    dict(flow='target_to_source', add_self_loops=False),
    dict(add_self_loops=False, energy='relative', beta=1.0, residual=True)])
@pytest.mark.parametrize('form', [as_index, as_edge_index, as_coo, as_csr])
@pytest.mark.parametrize('fuse', [False, True])
def test_a_graph_changed_in_place_is_another_graph(form, kwargs, fuse):
    # Asked with an equal copy of what it was before, the layer knows it.
    if 'flow' in kwargs and form in (as_coo, as_csr):
        pytest.skip('matrices have no flow')
    ring = torch.stack([torch.arange(12), (torch.arange(12) + 1) % 12])
    weight = torch.rand(12) + 0.5
    conv = AGCNConv(4, 3, cached=True, **{'beta': 1e-4, **kwargs})
    conv.fuse = fuse
    x = torch.randn(12, 4)
    args, tensors = form(ring.clone(), weight.clone())
    expected = conv(x, *args), conv.gate(x, *args)
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.mul_(3)
        else:
            tensor.copy_((tensor + 5) % 12)
    args, _ = form(ring.clone(), weight.clone())
    for found, value in zip([conv(x, *args), conv.gate(x, *args)], expected):
        assert torch.allclose(found, value, atol=1e-6)


# What else goes on ###########################################################


def test_inference_mode_and_then_training():
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    conv = AGCNConv(4, 3, cached=True, energy='relative', beta=1.0,
                    residual=True)
    with torch.inference_mode():
        expected = conv(x, edge_index)
    out = conv(x.requires_grad_(), edge_index)
    assert torch.allclose(out, expected, atol=1e-6)
    out.sum().backward()


def test_a_matrix_to_learn():
    x, (edge_index, weight) = torch.randn(12, 4), random_graph()
    conv = AGCNConv(4, 3, beta=1e-3, cached=True).requires_grad_(False)
    weight.requires_grad_()
    conv(x, edge_index, weight).square().sum().backward()
    expected, weight.grad = weight.grad, None
    adj = torch.sparse_coo_tensor(edge_index.flip(0), weight, (12, 12))
    conv(x, adj).square().sum().backward()
    assert torch.allclose(weight.grad, expected, atol=1e-4)


def test_weights_to_learn():
    x, (edge_index, weight) = torch.randn(12, 4), random_graph()
    conv = AGCNConv(4, 3, cached=True)
    weight.requires_grad_()
    for _ in range(2):  # GCNConv fails the second time.
        conv(x, edge_index, weight).sum().backward()
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize('mode', [
    *MODES, dict(MODES[0], num_hops=3, alpha=0.2), dict(learn_beta=True)])
@pytest.mark.parametrize('directed', [False, True])
def test_layers_in_compiled_networks_keep_graphs(mode, directed, calls):
    torch._dynamo.reset()
    net = Sequential('x, edge_index, weight', [
        (AGCNConv(4, 4, cached=True, **mode), 'x, edge_index, weight -> x'),
        torch.nn.ELU(),
        (AGCNConv(4, 3, cached=True, **mode), 'x, edge_index, weight -> x')])
    plain = copy.deepcopy(net)
    for conv in [plain[0], plain[2]]:
        conv.cached = False
    counter = CompileCounterWithBackend('aot_eager')
    compiled = torch.compile(net, dynamic=True, backend=counter)

    def check(num_nodes, *args):
        x = torch.randn(num_nodes, 4)
        results = []
        for model, params in [(compiled, net), (plain, plain)]:
            x = x.detach().requires_grad_()
            out = model(x, *args)
            results.append([out, *torch.autograd.grad(
                out.square().sum(), [x, *params.parameters()])])
        for value, expected in zip(*results):
            assert torch.allclose(value, expected, rtol=1e-3, atol=1e-4)

    edge_index, weight = random_graph(directed=directed)
    check(12, edge_index, None)
    x = torch.randn(12, 4)
    assert not calls.builds(compiled, x, edge_index, None)
    check(12, edge_index, weight)
    assert not calls.builds(compiled, x, edge_index, weight)
    edge_index[0, 0] = (edge_index[0, 0] + 1) % 12  # in place
    check(12, edge_index, weight)
    edge_index[0, 0] = (edge_index[0, 0] + 1) % 12
    assert calls.builds(compiled, x, edge_index, weight)
    count = counter.frame_count
    for num_nodes in [13, 17, 40]:
        check(num_nodes, random_graph(num_nodes, directed=directed)[0], None)
    assert counter.frame_count == count  # Another size is nothing new.


def test_one_compiled_graph_and_a_kept_one_exclude_each_other():
    torch._dynamo.reset()
    conv = AGCNConv(4, 3, cached=True)
    compiled = torch.compile(conv, fullgraph=True, backend='eager')
    with pytest.raises(torch._dynamo.exc.Unsupported,
                       match='pass cached=False'):
        compiled(torch.randn(12, 4), random_graph()[0])


def test_a_graph_that_was_replaced_is_freed_at_once():
    import gc
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    conv = AGCNConv(4, 3, cached=True)
    gc.collect()
    gc.disable()
    try:
        conv(x, edge_index)
        count = sum(isinstance(v, torch.Tensor) for v in gc.get_objects())
        for shift in range(1, 6):
            conv(x, (edge_index + shift) % 12)
        after = sum(isinstance(v, torch.Tensor) for v in gc.get_objects())
    finally:
        gc.enable()
    assert after <= count + 3
