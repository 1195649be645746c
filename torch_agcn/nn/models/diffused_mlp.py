from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.nn.inits import zeros
from torch_geometric.typing import Adj, OptTensor

from torch_agcn import _checks
from torch_agcn.nn.conv import GatedDiffusion
from torch_agcn.nn.models.deep_agcn import dropout


class DiffusedMLP(Module):
    r"""A multi-layer perceptron followed by
    :class:`~torch_agcn.nn.conv.GatedDiffusion`.

    Args:
        in_channels (int): Size of each input sample, or :obj:`-1` to derive it
            from the first input.
        hidden_channels (int): Size of each hidden sample.
        num_layers (int): Number of linear layers.
        out_channels (int): Size of each output sample.
        dropout (float, optional): Dropout probability. (default: :obj:`0.`)
        num_hops (int, optional): Number of hops. (default: :obj:`10`)
        alpha (float, optional): The share of the perceptron's output in the
            output of each hop. (default: :obj:`0.05`)
        **kwargs (optional): Additional arguments of
            :class:`~torch_agcn.nn.conv.GatedDiffusion`.

    Example:
        >>> DiffusedMLP(1433, 64, num_layers=2, out_channels=7)
        DiffusedMLP(1433, 7, num_layers=2, num_hops=10)
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        dropout: float = 0.0,
        num_hops: int = 10,
        alpha: float = 0.05,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        _checks.check_model('DiffusedMLP', num_layers, dropout, in_channels,
                            hidden_channels=hidden_channels,
                            out_channels=out_channels)
        self.in_channels = in_channels
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers
        self.out_channels = out_channels
        self.dropout = dropout
        sizes = [in_channels, *[hidden_channels] * (num_layers - 1),
                 out_channels]
        # The bias of the last layer is added after the diffusion.
        self.lins = ModuleList([
            Linear(sizes[i], sizes[i + 1], bias=i < num_layers - 1,
                   weight_initializer='glorot', bias_initializer='zeros')
            for i in range(num_layers)])
        self.diffusion = GatedDiffusion(num_hops, alpha, **kwargs)
        self.bias = Parameter(torch.zeros(out_channels))

    def reset_parameters(self) -> None:
        r"""Resets all learnable parameters of the module."""
        for module in [*self.lins, self.diffusion]:
            module.reset_parameters()
        zeros(self.bias)

    def forward(self, x: Tensor, edge_index: Adj,
                edge_weight: OptTensor = None, batch: OptTensor = None,
                batch_size: int | None = None) -> Tensor:
        r"""Forward pass, see :class:`~torch_agcn.nn.conv.GatedDiffusion`."""
        channels: Any = self.lins[0].in_channels
        _checks.check_features('DiffusedMLP', x, channels)
        _checks.check_type('DiffusedMLP', self.bias.dtype, x)
        _checks.check_devices('DiffusedMLP', self.bias.device, x=x)
        for i, lin in enumerate(self.lins):
            x = x.relu() if i > 0 else x
            x = lin(dropout(x, self.dropout, self.training))
        x = self.diffusion(x, edge_index, edge_weight, batch, batch_size)
        return x + self.bias

    def __repr__(self) -> str:
        return (f'{self.__class__.__name__}({self.in_channels}, '
                f'{self.out_channels}, num_layers={self.num_layers}, '
                f'num_hops={self.diffusion.num_hops})')
