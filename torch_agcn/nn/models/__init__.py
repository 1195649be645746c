from torch_agcn.nn.models.agcn import AGCN
from torch_agcn.nn.models.deep_agcn import DeepAGCN
from torch_agcn.nn.models.diffused_mlp import DiffusedMLP

__all__ = ['AGCN', 'DeepAGCN', 'DiffusedMLP']
