from .image_graph import ImageGraph
from .imdb import IMDB
from .planetoid import Planetoid

__all__ = ['IMDB', 'ImageGraph', 'Planetoid']
