from torch_agcn.nn.conv import AGCNConv
from torch_agcn.nn.models import AGCN

__all__ = ['AGCN', 'AGCNConv']
