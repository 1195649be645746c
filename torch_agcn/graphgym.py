r"""Registers the GraphGym layer :obj:`agcnconv`, with its arguments in the
configuration group :obj:`agcn`, on import.
"""
from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.graphgym.models.layer import LayerConfig
from torch_geometric.graphgym.register import register_config, register_layer

from torch_agcn import _checks
from torch_agcn.nn.conv import AGCNConv

try:
    from torch_geometric.graphgym.config import CN
except ImportError as error:
    raise ImportError("'torch_agcn.graphgym' requires 'pip install yacs', as "
                      "GraphGym does") from error


@register_config('agcn')  # type: ignore[untyped-decorator]
def set_agcn_config(cfg: Any) -> None:
    r"""Sets the defaults of the group :obj:`agcn`.

    Example:
        >>> cfg = CN()
        >>> set_agcn_config(cfg)
        >>> cfg.agcn.energy
        'total'
    """
    _checks.check_kind('set_agcn_config', CN, "pass GraphGym's 'cfg'",
                       cfg=cfg)
    cfg.agcn = CN()
    cfg.agcn.energy = 'total'
    cfg.agcn.beta = None
    cfg.agcn.residual = None
    cfg.agcn.num_hops = 1
    cfg.agcn.alpha = 0.0
    cfg.agcn.learn_beta = False
    cfg.agcn.improved = False
    cfg.agcn.cached = False
    cfg.agcn.recompute = False


@register_layer('agcnconv')
class AGCNConvLayer(torch.nn.Module):
    r"""The :class:`~torch_agcn.nn.conv.AGCNConv` layer for GraphGym.

    Args:
        layer_config (LayerConfig): The configuration of the layer.

    Example:
        >>> layer = AGCNConvLayer(LayerConfig(dim_in=3, dim_out=2))
        >>> layer(Data(x=torch.eye(3), edge_index=torch.tensor(
        ...     [[0, 1, 1, 2], [1, 0, 2, 1]]))).x.shape
        torch.Size([3, 2])
    """

    def __init__(self, layer_config: LayerConfig, **kwargs: Any) -> None:
        super().__init__()
        _checks.check_kind('AGCNConvLayer', LayerConfig, "pass GraphGym's "
                           "'LayerConfig'", layer_config=layer_config)
        from torch_geometric.graphgym.config import cfg
        options = cfg.agcn if 'agcn' in cfg else {}
        self.model = AGCNConv(
            layer_config.dim_in, layer_config.dim_out,
            bias=layer_config.has_bias,
            **{k: v for k, v in options.items() if v is not None})

    def forward(self, batch: Any) -> Any:
        _checks.check_kind('AGCNConvLayer', Data, "pass a batch, as a 'Data' "
                           'object', batch=batch)
        batch.x = self.model(batch.x, batch.edge_index,
                             batch=getattr(batch, 'batch', None))
        return batch
