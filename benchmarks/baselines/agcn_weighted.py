r"""AGCN on a graph with AnisotropicWeights."""
from functools import wraps
from typing import Any

from torch_geometric.data import Data

from benchmarks.baselines import agcn
from benchmarks.training import Run
from torch_agcn.transforms import AnisotropicWeights


@wraps(agcn.run)  # and with its settings
def run(data: Data, seed: int, **settings: Any) -> Run:
    return agcn.run(AnisotropicWeights()(data), seed, **settings)
