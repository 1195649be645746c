r"""How figures look: colours that differ in grey too, PNG and SVG."""
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use('Agg')  # no screen is needed
import matplotlib.pyplot as plt

from benchmarks.results import write_whole

matplotlib.rcdefaults()  # whatever the user's matplotlibrc says
plt.rcParams.update({
    'svg.hashsalt': 'torch_agcn',  # the same picture is the same file
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.alpha': 0.3,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'font.size': 10,
    'legend.frameon': False,
})

# Okabe and Ito's colours, with a line and a marker each for grey print.
STYLES: dict[str, dict[str, Any]] = {
    'MLP': dict(color='#000000', marker='x', linestyle=':'),
    'GCN': dict(color='#555555', marker='o', linestyle='--'),
    'GAT': dict(color='#009e73', marker='^', linestyle=':'),
    'GCN-PN': dict(color='#cc79a7', marker='v', linestyle='--'),
    'JK-Net': dict(color='#e69f00', marker='P', linestyle=':'),
    'GCNII': dict(color='#000000', marker='X', linestyle='-'),
    'APPNP': dict(color='#8c6bb1', marker='<', linestyle=':'),
    'AGCN (paper)': dict(color='#d55e00', marker='s', linestyle='-.'),
    'DiffusedMLP': dict(color='#0072b2', marker='D', linestyle='-'),
    'GatedDiffusion': dict(color='#0072b2', marker='D', linestyle='-'),
    'DeepAGCN': dict(color='#7f0000', marker='p', linestyle='-.'),
}
OTHER = dict(color='#555555', marker='o', linestyle='-')


def style_of(label: str) -> dict[str, Any]:
    r"""The look of a method, or of what it is a variant of."""
    return STYLES.get(label) or STYLES.get(label.split(', ')[0], OTHER)


def panels(count: int, width: float = 3.4, height: float = 3.6,
           margin: float = 1.0, **options: Any) -> tuple[Any, list[Any]]:
    r"""A figure with so many panels in a row, and the panels."""
    figure, axes = plt.subplots(1, count, squeeze=False, figsize=(
        margin + width * count, height), **options)
    return figure, list(axes[0])


def legend_right(axis: Any, **options: Any) -> None:
    r"""Puts the legend to the right of a panel."""
    axis.legend(loc='upper left', bbox_to_anchor=(1.01, 1.0), **options)


def error_line(axis: Any, x: Iterable[float], groups: Iterable[pd.Series],
               label: str, **style: Any) -> None:
    r"""Means with their standard errors against something."""
    groups = list(groups)
    axis.errorbar(list(x), [v.mean() for v in groups],
                  [v.sem() if v.count() > 1 else 0 for v in groups],
                  capsize=3, label=label, **{**style_of(label), **style})


def band(axis: Any, curves: Any, label: str, **style: Any) -> None:
    r"""The mean of curves against epochs, with their standard deviation."""
    style = {**style_of(label), 'marker': None, **style}
    mean, std = curves.mean(0), curves.std(0)
    epoch = np.arange(1, len(mean) + 1)
    axis.plot(epoch, mean, label=label, **style)
    axis.fill_between(epoch, mean - std, mean + std, alpha=0.15,
                      color=style['color'], linewidth=0)


def dots(axis: Any, groups: dict[str, Any],
         styles: dict[str, dict[str, Any]] | None = None,
         mean: bool = True) -> None:
    r"""A line for each name, from above: a point for each run, one above the
    other so that equal ones do not hide each other, and the mean as a bar.
    """
    for y, (label, values) in enumerate(groups.items()):
        style = (styles or {}).get(label) or style_of(label)
        values = np.asarray(values, dtype=float)
        if mean and len(values):
            axis.plot([values.mean()] * 2, [y - 0.32, y + 0.32],
                      color='black', linewidth=2)
        axis.scatter(values, y + np.linspace(-0.22, 0.22, len(values) + 2)[
            1:-1], s=24, zorder=3, color=style['color'],
            marker=style['marker'])
    axis.set_yticks(range(len(groups)), list(groups))
    axis.set_ylim(len(groups) - 0.5, -0.5)
    axis.grid(visible=False, axis='y')


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    r"""Writes a figure as PNG and SVG, closes it, and returns both paths."""
    figure.tight_layout()
    options: dict[str, Any] = {'png': {'dpi': 144},
                               'svg': {'metadata': {'Date': None}}}
    paths = []
    for kind, others in options.items():
        content = io.BytesIO()
        figure.savefig(content, format=kind, bbox_inches='tight', **others)
        paths.append(folder / f'{name}.{kind}')
        write_whole(paths[-1], content.getvalue())
    plt.close(figure)
    return paths
