from .planetoid import Planetoid

__all__ = ['Planetoid']
