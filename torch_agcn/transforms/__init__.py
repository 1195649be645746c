r"""Transforms of graphs, for use with :mod:`torch_geometric.transforms`."""

from .anisotropic_weights import AnisotropicWeights
from .knn_graph import KNNGraph
from .reorder_nodes import ReorderNodes

__all__ = ['AnisotropicWeights', 'KNNGraph', 'ReorderNodes']
