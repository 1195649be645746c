import math
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import Adj, OptTensor

from torch_agcn import _checks
from torch_agcn._tracing import run_eagerly
from torch_agcn.nn.conv.gated_diffusion import GatedDiffusion, Inputs


class AGCN2Conv(GatedDiffusion):
    r"""The anisotropic graph convolutional operator with the initial residual
    connections and identity mapping of the `"Simple and Deep Graph
    Convolutional Networks" <https://arxiv.org/abs/2007.02133>`_ paper

    .. math::
        \mathbf{X}^{\prime} = \mathbf{H} \left( (1 - \beta_\ell) \mathbf{I} +
        \beta_\ell \mathbf{\Theta} \right), \quad \mathbf{H} = (1 - \alpha)
        \left( \mathbf{X} + g(s) (\mathbf{P} \mathbf{X} - \mathbf{X}) \right)
        + \alpha \mathbf{X}^{(0)},

    where :math:`g(s)` is the gate of the relative energy of
    :math:`\mathbf{X}`, see :class:`~torch_agcn.nn.conv.GatedDiffusion`,
    :math:`\mathbf{X}^{(0)}` are the initial features, and :math:`\beta_\ell =
    \log(\theta / \ell + 1)`. With :math:`g(s) = 1`, it is
    :class:`~torch_geometric.nn.conv.GCN2Conv`.

    Args:
        channels (int): Size of each input and output sample.
        alpha (float): The strength :math:`\alpha \in [0, 1)` of the initial
            residual connection.
        theta (float, optional): The hyperparameter :math:`\theta` of the
            identity mapping. If not given, :math:`\beta_\ell = 1`.
            (default: :obj:`None`)
        layer (int, optional): The layer :math:`\ell \geq 1` in which this
            module is executed. (default: :obj:`None`)
        num_hops (int, optional): Number of hops before the weight matrix.
            (default: :obj:`1`)
        residual (bool, optional): If set to :obj:`False`, a hop computes
            :math:`g(s) \mathbf{P} \mathbf{X}`. (default: :obj:`True`)
        **kwargs (optional): Additional arguments of
            :class:`~torch_agcn.nn.conv.GatedDiffusion`.

    Shapes:
        - **input:**
          node features :math:`(|\mathcal{V}|, F)`,
          initial node features :math:`(|\mathcal{V}|, F)`,
          edge indices :math:`(2, |\mathcal{E}|)`,
          edge weights :math:`(|\mathcal{E}|)` *(optional)*
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
        *,
        num_hops: int = 1,
        residual: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_hops, alpha, residual=residual, **kwargs)
        self.channels = channels
        self.theta = theta
        self.layer = layer
        _checks.check_identity_mapping(self._name, channels, theta, layer)
        self.lin = Linear(channels, channels, bias=False,
                          weight_initializer='glorot')
        self.strength = 1.0
        if theta is not None and layer is not None:
            self.strength = math.log(theta / layer + 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        r"""Resets all learnable parameters of the module."""
        super().reset_parameters()
        self.lin.reset_parameters()

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
            x_0 (torch.Tensor): The initial node features.
            x, edge_index, edge_weight, batch, batch_size: As in
                :class:`~torch_agcn.nn.conv.GatedDiffusion`.
        """
        if self.cached and torch.compiler.is_dynamo_compiling():
            return run_eagerly(self.forward, x, x_0, edge_index, edge_weight,
                               batch, batch_size)

        return self._run(self._prepare(x, x_0, edge_index, edge_weight, batch,
                                       batch_size))[0]

    def _run(self, inputs: Inputs) -> tuple[Tensor, list[OptTensor]]:
        h, gates = super()._run(inputs)
        out = self.lin(h)
        if self.strength != 1.0:
            out = torch.lerp(h.to(out.dtype), out, self.strength)
        return out, gates

    def _prepare(self, x: Any, x_0: Any, *args: Any,  # type: ignore[override]
                 **kwargs: Any) -> Inputs:
        _checks.check_features(self._name, x, self.channels)
        _checks.check_initial(self._name, x, x_0)
        weight = getattr(self.lin, 'weight', None)
        if weight is not None:
            _checks.check_type(self._name, weight.dtype, x)
            _checks.check_type(self._name, weight.dtype, x_0, 'x_0')
        _checks.check_devices(self._name, x.device, x_0=x_0)
        return super()._prepare(x, *args, **kwargs)._replace(x_0=x_0)

    def _arguments(self) -> list[str]:
        return [str(self.channels), f'alpha={self.alpha}',
                *super()._arguments()]
