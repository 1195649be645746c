from torch_agcn.nn.models.agcn import AGCN

__all__ = ['AGCN']
