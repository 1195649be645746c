from torch_agcn.nn.conv import AGCN2Conv, AGCNConv
from torch_agcn.nn.models import AGCN, DeepAGCN

__all__ = ['AGCN', 'AGCN2Conv', 'AGCNConv', 'DeepAGCN']
