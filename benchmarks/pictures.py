r"""The paper's two pictures: sample images, and what a layer aggregates."""
import argparse

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import to_undirected

from benchmarks import plots
from benchmarks.results import FIGURES
from torch_agcn import AGCNConv
from torch_agcn.datasets import ImageGraph

# A node, four neighbors, and theirs:
PLACES = torch.tensor([
    [0.0, 0.0], [-1.1, 0.5], [-0.6, -0.9], [0.9, 0.8], [0.9, -0.7],
    [-2.1, 0.9], [-1.7, -0.9], [0.6, 1.7], [2.0, 0.6], [2.0, -0.5],
    [0.1, -1.7]])
EDGES = torch.tensor([
    [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 8],
    [1, 2, 3, 4, 5, 6, 6, 10, 7, 8, 9, 10, 9]])
CLASSES = {
    'CIFAR10': ['airplane', 'automobile', 'bird', 'cat', 'deer', 'dog',
                'frog', 'horse', 'ship', 'truck'],
    'MNIST': [str(digit) for digit in range(10)]}


def matrix_of_layer(x: Tensor, edge_index: Tensor,
                    **layer: float) -> tuple[Tensor, float, Tensor]:
    r"""What AGCNConv multiplies features by, its gate, and its output, all
    without a weight matrix.
    """
    conv = AGCNConv(x.size(1), x.size(1), bias=False, **layer)
    with torch.no_grad():
        conv.lin.weight.copy_(torch.eye(x.size(1)))
        gate, out = float(conv.gate(x, edge_index)), conv(x, edge_index)
        conv = AGCNConv(x.size(0), x.size(0), bias=False, beta=1e30)
        conv.lin.weight.copy_(torch.eye(x.size(0)))
        return gate * conv(torch.eye(x.size(0)), edge_index), gate, out


def draw_aggregation(beta: float = 0.02) -> list:
    r"""Features, a node's neighbors by weight, and those of two layers."""
    edges = to_undirected(EDGES)
    x = torch.tensor([0.1, 0.4, 0.2, 0.9, 0.3, 0.6, 0.2, 1.0, 0.9, 0.6,
                      0.0])[:, None] * 3
    first, gate, hidden = matrix_of_layer(x, edges, beta=beta)
    second, gate2, _ = matrix_of_layer(hidden, edges, beta=beta)
    panels = {f'features (gate: {gate:.2f})': x[:, 0],
              'weights of one layer': first[0],
              f'two layers (gate: {gate2:.2f})': (second @ first)[0]}
    is_center = torch.arange(len(PLACES)) == 0
    figure, axes = plots.panels(3, 3.5, 3.4, 0)
    for axis, (title, values) in zip(axes, panels.items()):
        for ends in EDGES.t():
            axis.plot(*PLACES[ends].t(), color='#bbbbbb', zorder=1,
                      linewidth=1.5)
        axis.scatter(*PLACES.t(), s=620, zorder=2, c=values, cmap='Blues',
                     vmin=0, vmax=1.6 * float(values.max()),
                     edgecolors=np.where(is_center, '#000000', '#888888'),
                     linewidths=np.where(is_center, 2.5, 1))
        is_layer = values is panels['weights of one layer']
        for place, value in zip(PLACES.tolist(), values):
            if value > 0 or not is_layer:
                axis.annotate(f'{float(value):.2f}'.replace('0.', '.', 1),
                              place, ha='center', va='center', fontsize=11)
        for neighbor in PLACES[1:5].tolist() if is_layer else []:
            axis.annotate('', PLACES[0].tolist(), neighbor, arrowprops=dict(
                arrowstyle='->', shrinkA=14, shrinkB=14, color='#d55e00',
                linewidth=2))
        axis.set_title(title)
        axis.set_axis_off()
        axis.set(xlim=(-2.6, 2.5), ylim=(-2.2, 2.2))
    return plots.save(figure, FIGURES, 'aggregation')


def draw_samples(root: str, each: int = 8) -> list:
    r"""The first images of each class, as drawn with seed 0."""
    figure, axes = plots.panels(2, 4.0, 5.0)
    for axis, (name, classes) in zip(axes, CLASSES.items()):
        dataset = ImageGraph(root, name)
        data = dataset[0]
        images = np.load(dataset.raw_paths[0])['images']  # [N, C, H, W]
        rows = [np.concatenate(list(images[data.image_id[data.y == label][
            :each]].transpose(0, 2, 3, 1)), axis=1)
            for label in range(len(classes))]
        mosaic = np.concatenate(rows)
        axis.imshow(mosaic, cmap='gray_r')
        height = len(mosaic) / len(classes)
        axis.set_yticks([(i + 0.5) * height for i in range(len(classes))],
                        classes)
        axis.set_xticks([])
        axis.grid(visible=False)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        axis.set_title(name)
    return plots.save(figure, FIGURES, 'samples')


def main(argv: list[str]) -> None:
    options = argparse.ArgumentParser('python -m benchmarks pictures')
    options.add_argument('--root', default='data', help='where data is kept')
    args = options.parse_args(argv)
    print(*draw_aggregation(), *draw_samples(args.root), sep='\n')
