from torch_agcn.nn import AGCN, AGCN2Conv, AGCNConv, DeepAGCN

__version__ = '0.1.0'

__all__ = ['AGCN', 'AGCN2Conv', 'AGCNConv', 'DeepAGCN', '__version__']
