from collections.abc import Sequence
from pathlib import Path

from torch_geometric.data import InMemoryDataset
from torch_geometric.data.data import BaseData

from torch_agcn.datasets._fetch import replacing


class WholeFiles(InMemoryDataset):
    r"""A data set whose processed file is whole at any time."""

    @classmethod
    def save(cls, data_list: Sequence[BaseData], path: str) -> None:
        r"""Saves a list of data objects to the file path :obj:`path`, as a
        whole or not at all.
        """
        with replacing(Path(path)) as part:
            super().save(data_list, str(part))
