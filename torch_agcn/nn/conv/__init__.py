from torch_agcn.nn.conv.agcn2_conv import AGCN2Conv
from torch_agcn.nn.conv.agcn_conv import AGCNConv
from torch_agcn.nn.conv.gated_diffusion import GatedDiffusion

__all__ = ['AGCN2Conv', 'AGCNConv', 'GatedDiffusion']
