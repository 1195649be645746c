from .image_graph import ImageGraph
from .planetoid import Planetoid

__all__ = ['ImageGraph', 'Planetoid']
