from torch_agcn.nn.conv import AGCN2Conv, AGCNConv, GatedDiffusion
from torch_agcn.nn.models import AGCN, DeepAGCN, DiffusedMLP

__all__ = ['AGCN', 'AGCN2Conv', 'AGCNConv', 'DeepAGCN', 'DiffusedMLP',
           'GatedDiffusion']
