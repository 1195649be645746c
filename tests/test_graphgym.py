import pytest
import torch
from torch_geometric.data import Batch, Data

from torch_agcn import AGCNConv

pytest.importorskip('yacs')


def test_registered_layer():
    from torch_geometric.graphgym import register
    from torch_geometric.graphgym.config import cfg, set_cfg
    from torch_geometric.graphgym.models.layer import (
        GeneralLayer,
        new_layer_config,
    )

    import torch_agcn.graphgym  # noqa: F401

    assert 'agcnconv' in register.layer_dict
    set_cfg(cfg)
    config = new_layer_config(8, 16, 1, has_act=False, has_bias=True, cfg=cfg)
    conv = GeneralLayer('agcnconv', config).layer.model
    assert str(conv) == str(AGCNConv(8, 16, bias=False))
    cfg.agcn.energy, cfg.agcn.residual, cfg.agcn.beta = 'relative', True, 2.0
    layer = GeneralLayer('agcnconv', config)
    conv = layer.layer.model
    assert (conv.energy, conv.residual, conv.beta) == ('relative', True, 2.0)
    graphs = [Data(x=torch.randn(n, 8), edge_index=torch.randint(n, (2, 9)))
              for n in (4, 6)]
    expected = torch.cat([conv(g.x, g.edge_index) for g in graphs])
    out = layer.layer(Batch.from_data_list(graphs)).x
    assert torch.allclose(out, expected, atol=1e-5)
