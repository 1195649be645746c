import io
import pickle
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.data.data import BaseData

from torch_agcn.datasets._digest import digest
from torch_agcn.datasets._fetch import (
    explained,
    locked,
    read_or_none,
    write_file,
)

# In these files, PyG records the transforms of 'data.pt'.
RECORDS = ['pre_transform.pt', 'pre_filter.pt']


class StoredDataset(InMemoryDataset):
    r"""A data set that is stored per argument and loaded with
    :obj:`weights_only=True`. Subclasses define :meth:`_make`, and
    :attr:`_stem` if they have arguments.
    """

    _processed: Any = None

    @property
    def _stem(self) -> str | None:
        r"""The file name without :obj:`pre_transform`, if known."""
        return 'data'

    def _make(self) -> BaseData:
        r"""Makes the data before :obj:`pre_transform`."""
        raise NotImplementedError

    @cached_property
    def _key(self) -> str | None:
        if self.pre_transform is None or self._stem is None:
            return self._stem
        key = digest(type(self).__name__, 'pre_transform', self.pre_transform)
        return None if key is None else f'{self._stem}_{key}'

    @property
    def processed_file_names(self) -> str:
        return f'{self._key or "unknown"}.pt'

    def process(self) -> None:
        r"""Makes the data, and stores it if its key is known."""
        data = self._make()
        if self.pre_transform is not None:
            data = self.pre_transform(data)
        data, slices = self.collate([data])
        file = io.BytesIO()
        torch.save((data.to_dict(), slices, data.__class__), file)
        self._processed = _load(file, weights_only=False)  # written above
        if self._key is None:
            return
        try:
            _load(file, weights_only=True)
        except pickle.UnpicklingError:
            warnings.warn(
                f"'{self.__class__.__name__}' is not stored and is made anew "
                f"each time, as 'pre_transform' adds objects other than "
                f'tensors, which are not read from files', stacklevel=2)
            return
        path = Path(self.processed_paths[0])
        write_file(path, file.getvalue())
        if self._key == 'data':
            for name in RECORDS:  # last, as they vouch for the file
                record = io.BytesIO()
                torch.save('None', record)
                write_file(path.with_name(name), record.getvalue())

    def load(self, path: str, data_cls: type[BaseData] = Data) -> None:
        out, self._processed = self._processed, None
        data, self.slices, data_cls = out or _read(Path(path))
        self.data = data_cls.from_dict(data)

    def _process(self) -> None:
        path = Path(self.processed_paths[0])
        if self._key is None:
            with explained(path):
                self.process()
            return
        with locked(path), explained(path):
            if not self.force_reload and self._is_current(path):
                self._processed = read_or_none(_read, path)
            if self._processed is None:
                self.process()

    def _is_current(self, path: Path) -> bool:
        records = [path.with_name(name) for name in RECORDS]
        return self._key != 'data' or all(
            read_or_none(_read_record, record) == 'None'
            for record in records if record.exists())


def _load(file: io.BytesIO, weights_only: bool) -> Any:
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def _read(path: Path) -> tuple[Any, Any, Any]:
    with path.open('rb') as file:
        data, slices, data_cls = torch.load(file, weights_only=True)
    if not isinstance(data, dict) or not issubclass(data_cls, BaseData):
        raise ValueError(f'{path} is not a data set')
    return data, slices, data_cls


def _read_record(path: Path) -> Any:
    with path.open('rb') as file:
        return torch.load(file, weights_only=True)
