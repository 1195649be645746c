from torch_agcn.nn import AGCN, AGCNConv

__version__ = '0.1.0'

__all__ = ['AGCN', 'AGCNConv', '__version__']
