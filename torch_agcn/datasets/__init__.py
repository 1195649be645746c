from ._fetch import FetchError
from .image_graph import ImageGraph
from .imdb import IMDB
from .planetoid import Planetoid

__all__ = ['IMDB', 'FetchError', 'ImageGraph', 'Planetoid']
