r"""Transforms of graphs, for use with :mod:`torch_geometric.transforms`."""

from .knn_graph import KNNGraph

__all__ = ['KNNGraph']
