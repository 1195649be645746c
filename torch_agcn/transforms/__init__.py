from .anisotropic_weights import AnisotropicWeights
from .knn_graph import KNNGraph
from .reorder_nodes import ReorderNodes

__all__ = ['AnisotropicWeights', 'KNNGraph', 'ReorderNodes']
