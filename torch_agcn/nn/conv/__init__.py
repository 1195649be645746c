from torch_agcn.nn.conv.agcn_conv import AGCNConv

__all__ = ['AGCNConv']
