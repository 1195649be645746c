import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module, ModuleList
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import Adj, OptTensor

from torch_agcn import _checks
from torch_agcn.nn.conv import AGCN2Conv


class DeepAGCN(Module):
    r"""A deep network of :class:`~torch_agcn.nn.conv.AGCN2Conv` layers between
    two linear layers.

    Args:
        in_channels (int): Size of each input sample, or :obj:`-1` to derive it
            from the first input.
        hidden_channels (int): Size of each hidden sample.
        num_layers (int): Number of convolutions.
        out_channels (int): Size of each output sample.
        dropout (float, optional): Dropout probability. (default: :obj:`0.`)
        alpha (float, optional): The strength of the initial residual
            connection. (default: :obj:`0.1`)
        theta (float, optional): The hyperparameter of the identity mapping.
            (default: :obj:`0.5`)
        num_hops (int, optional): Number of hops per layer. By default, at
            least two, and 16 over all layers. (default: :obj:`None`)
        **kwargs (optional): Additional arguments of
            :class:`~torch_agcn.nn.conv.AGCN2Conv`.

    Example:
        >>> DeepAGCN(1433, 64, num_layers=64, out_channels=7)
        DeepAGCN(1433, 7, num_layers=64)
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        dropout: float = 0.0,
        alpha: float = 0.1,
        theta: float | None = 0.5,
        num_hops: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        _checks.check_model('DeepAGCN', num_layers, dropout, in_channels,
                            hidden_channels=hidden_channels,
                            out_channels=out_channels)
        self.in_channels = in_channels
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers
        self.out_channels = out_channels
        self.dropout = dropout
        if num_hops is None:
            num_hops = max(math.ceil(16 / num_layers), 2)
        self.lin_in = Linear(in_channels, hidden_channels)
        self.convs = ModuleList([
            AGCN2Conv(hidden_channels, alpha, theta,
                      None if theta is None else layer, num_hops=num_hops,
                      **kwargs)
            for layer in range(1, num_layers + 1)])
        self.lin_out = Linear(hidden_channels, out_channels)

    def reset_parameters(self) -> None:
        r"""Resets all learnable parameters of the module."""
        for module in [self.lin_in, *self.convs, self.lin_out]:
            module.reset_parameters()

    def forward(self, x: Tensor, edge_index: Adj,
                edge_weight: OptTensor = None, batch: OptTensor = None,
                batch_size: int | None = None) -> Tensor:
        r"""Forward pass, see :class:`~torch_agcn.nn.conv.GatedDiffusion`."""
        _checks.check_features('DeepAGCN', x, self.lin_in.in_channels)
        _checks.check_type('DeepAGCN', self.lin_out.weight.dtype, x)
        _checks.check_devices('DeepAGCN', self.lin_out.weight.device, x=x)
        x = x_0 = self.lin_in(self._drop(x)).relu()
        for conv in self.convs:
            x = conv(self._drop(x), x_0, edge_index, edge_weight, batch,
                     batch_size).relu()
        return self.lin_out(self._drop(x))

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)

    def __repr__(self) -> str:
        return (f'{self.__class__.__name__}({self.in_channels}, '
                f'{self.out_channels}, num_layers={self.num_layers})')


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    r"""Dropout of dense or sparse features."""
    if x.layout == torch.strided:
        return F.dropout(x, p, training)
    x = x.to_sparse_coo().coalesce()
    return torch.sparse_coo_tensor(
        x.indices(), F.dropout(x.values(), p, training), x.shape,
        is_coalesced=True, check_invariants=False)
