from torch_agcn.nn.models.agcn import AGCN
from torch_agcn.nn.models.deep_agcn import DeepAGCN

__all__ = ['AGCN', 'DeepAGCN']
