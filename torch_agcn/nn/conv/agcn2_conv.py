import math
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import Adj, OptTensor

from torch_agcn.nn.conv.agcn_conv import AGCNConv, uncompiled


class AGCN2Conv(AGCNConv):
    r"""The anisotropic graph convolutional operator with initial residual
    connections and identity mapping, for networks of many layers:
    what :class:`~torch_agcn.nn.conv.AGCNConv` is to
    :class:`~torch_geometric.nn.conv.GCNConv`, this is to
    :class:`~torch_geometric.nn.conv.GCN2Conv` from the `"Simple and Deep
    Graph Convolutional Networks" <https://arxiv.org/abs/2007.02133>`_ paper

    .. math::
        \mathbf{X}^{\prime} = \mathbf{H} \left( (1 - \beta_\ell) \mathbf{I} +
        \beta_\ell \mathbf{\Theta} \right), \quad \mathbf{H} = (1 - \alpha)
        \left( \mathbf{X} + g(s) (\mathbf{P} \mathbf{X} - \mathbf{X}) \right)
        + \alpha \mathbf{X}^{(0)},

    where the gate :math:`g(s) = 1 - \exp(-\beta s^2)` looks at the relative
    energy :math:`s` of :math:`\mathbf{X}`, :math:`\mathbf{X}^{(0)}` are the
    features of the first layer, and :math:`\beta_\ell = \log(\theta / \ell +
    1)` in layer :math:`\ell`.
    With a gate held open (:obj:`beta=1e30`) it is
    :class:`~torch_geometric.nn.conv.GCN2Conv`.

    Args:
        channels (int): Size of each input and output sample.
        alpha (float): The strength :math:`\alpha \in [0, 1)` of the initial
            residual connection.
        theta (float, optional): The hyperparameter :math:`\theta` of the
            identity mapping. Without, :math:`\beta_\ell = 1`.
            (default: :obj:`None`)
        layer (int, optional): The layer :math:`\ell \geq 1` in which this
            module is executed, if :obj:`theta` is given.
            (default: :obj:`None`)
        beta (float, optional): The sharpness :math:`\beta \geq 0` of the
            gate. (default: :obj:`500.0`)
        energy (str, optional): The energy the gate looks at.
            (default: :obj:`"relative"`)
        residual (bool, optional): If set to :obj:`False`, the gate leads from
            zero to :math:`\mathbf{P} \mathbf{X}` instead.
            (default: :obj:`True`)
        **kwargs (optional): Additional arguments of
            :class:`~torch_agcn.nn.conv.AGCNConv`, *e.g.*, :obj:`cached` or
            :obj:`learn_beta`.

    Shapes:
        - **input:**
          node features :math:`(|\mathcal{V}|, F)`,
          initial node features :math:`(|\mathcal{V}|, F)`,
          edge indices :math:`(2, |\mathcal{E}|)`
          or sparse matrix :math:`(|\mathcal{V}|, |\mathcal{V}|)`,
          edge weights :math:`(|\mathcal{E}|)` *(optional)*,
          batch vector :math:`(|\mathcal{V}|)` *(optional)*
        - **output:** node features :math:`(|\mathcal{V}|, F)`

    Example:
        >>> x = torch.eye(3)
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> conv = AGCN2Conv(3, alpha=0.1, theta=0.5, layer=1)
        >>> conv(x, x, edge_index).shape
        torch.Size([3, 3])
    """

    def __init__(
        self,
        channels: int,
        alpha: float,
        theta: float | None = None,
        layer: int | None = None,
        beta: float = 500.0,
        energy: str = 'relative',
        residual: bool = True,
        **kwargs: Any,
    ) -> None:
        if theta is not None and (layer is None or layer < 1 or theta <= 0):
            raise ValueError(f"'AGCN2Conv' got theta={theta} and "
                             f'layer={layer}; pass a positive theta with the '
                             f'number of the layer from 1 on, or neither')
        if kwargs.get('momentum') is not None:
            raise ValueError(f"'AGCN2Conv' got momentum={kwargs['momentum']}; "
                             f"leave it out, or use 'AGCNConv': there is no "
                             f'running estimate of deep networks')
        super().__init__(channels, channels, beta=beta, energy=energy,
                         residual=residual, alpha=alpha,
                         bias=kwargs.pop('bias', False), **kwargs)
        self.strength = 1.0
        if theta is not None and layer is not None:
            self.strength = math.log(theta / layer + 1)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        x_0: Tensor,
        edge_index: Adj,
        edge_weight: OptTensor = None,
        batch: OptTensor = None,
        batch_size: int | None = None,
    ) -> Tensor:
        r"""Runs the forward pass of the module.

        Args:
            x (torch.Tensor): The node features.
            x_0 (torch.Tensor): The node features of the first layer.
            edge_index (torch.Tensor or SparseTensor): The edge indices or the
                transposed adjacency matrix.
            edge_weight (torch.Tensor, optional): The edge weights, which must
                not be negative. (default: :obj:`None`)
            batch (torch.Tensor, optional): The batch vector; each graph has a
                gate of its own. (default: :obj:`None`)
            batch_size (int, optional): The number of graphs.
                Automatically calculated if not given. (default: :obj:`None`)
        """
        if self.cached and torch.compiler.is_dynamo_compiling():
            return uncompiled(self.forward, x, x_0, edge_index, edge_weight,
                              batch, batch_size)

        if x.shape != x_0.shape or x.layout != torch.strided:
            raise ValueError(f"'{self.__class__.__name__}' got 'x' of shape "
                             f"{list(x.shape)} and 'x_0' of shape "
                             f'{list(x_0.shape)}; pass dense features of the '
                             f'same nodes and channels')
        x, graph, batch, size = self._prepare(x, edge_index, edge_weight,
                                              batch, batch_size)
        x, _ = self._hops(x, x_0, graph, self.beta, batch, size,
                          self.num_hops, update=False)
        out = self.lin(x)
        if self.strength != 1.0:
            out = torch.lerp(x.to(out.dtype), out, self.strength)
        return out if self.bias is None else out + self.bias

    def gate(  # type: ignore[override]
        self,
        x: Tensor,
        x_0: Tensor,
        edge_index: Adj,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        r"""Returns the gate :math:`g(s)` for the arguments of
        :meth:`forward`, which does not depend on :obj:`x_0`.
        """
        return super().gate(x, edge_index, *args, **kwargs)

    def __repr__(self) -> str:
        return (f'{self.__class__.__name__}({self.in_channels}, '
                f'alpha={self.alpha}, strength={self.strength:.4g})')
