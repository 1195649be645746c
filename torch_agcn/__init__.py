r"""Anisotropic graph convolutional networks for PyTorch Geometric.

* :class:`AGCNConv` replaces :class:`~torch_geometric.nn.conv.GCNConv`.
* :class:`GatedDiffusion` replaces :class:`~torch_geometric.nn.conv.APPNP`.
* :class:`AGCN`, :class:`DeepAGCN` and :class:`DiffusedMLP` are models of these
  layers.
* :class:`torch_agcn.transforms.AnisotropicWeights` gives chance edges little
  weight, for any PyG model.
* :class:`torch_agcn.diagnostics.SmoothnessRecorder` measures over-smoothing in
  any PyG model.
"""
from importlib import import_module
from typing import Any

from torch_agcn._memory import keep_memory
from torch_agcn.nn import (
    AGCN,
    AGCN2Conv,
    AGCNConv,
    DeepAGCN,
    DiffusedMLP,
    GatedDiffusion,
)

__version__ = '0.2.0'

_MODULES = ['datasets', 'diagnostics', 'functional', 'label_expansion',
            'loader', 'nn', 'transforms']

__all__ = ['AGCN', 'AGCN2Conv', 'AGCNConv', 'DeepAGCN', 'DiffusedMLP',
           'GatedDiffusion', '__version__', 'keep_memory']


def __getattr__(name: str) -> Any:
    if name in _MODULES:  # loaded lazily
        return import_module(f'torch_agcn.{name}')
    raise AttributeError(f"module 'torch_agcn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
