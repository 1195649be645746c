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
    'figure.constrained_layout.use': True,
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.alpha': 0.3,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'font.size': 12,  # readable at half its size
    'axes.titlesize': 13,
    'lines.linewidth': 1.8,
    'legend.frameon': False,
    'legend.fontsize': 11,
})

# Okabe and Ito's colours and a few of Tol's, with a line and a marker each for
# grey print. A method has the same look in all figures.
STYLES: dict[str, dict[str, Any]] = {
    'MLP': dict(color='#999999', marker='x', linestyle=':'),
    'GCN': dict(color='#555555', marker='o', linestyle='--'),
    'GAT': dict(color='#009e73', marker='^', linestyle=':'),
    'GCN-PN': dict(color='#cc79a7', marker='v', linestyle='--'),
    'JK-Net': dict(color='#e69f00', marker='P', linestyle=':'),
    'GCNII': dict(color='#000000', marker='X', linestyle='-'),
    'APPNP': dict(color='#8c6bb1', marker='<', linestyle='--'),
    'GCN-Jaccard': dict(color='#e69f00', marker='H', linestyle='-.'),
    'GNNGuard': dict(color='#cc79a7', marker='<', linestyle=':'),
    'AGCN (paper)': dict(color='#d55e00', marker='s', linestyle='-.'),
    'AGCN (paper), beta = 5': dict(color='#d55e00', marker='s', linestyle=':',
                                   markerfacecolor='white'),
    'AGCN (relative)': dict(color='#56b4e9', marker='>', linestyle='-'),
    'DiffusedMLP': dict(color='#0072b2', marker='D', linestyle='-'),
    'DeepAGCN': dict(color='#aa3377', marker='p', linestyle='--'),
    'GCN with AnisotropicWeights': dict(color='#0072b2', marker='*',
                                        markersize=10, linewidth=2.8),
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


def legend_below(figure: Any) -> None:
    r"""One legend for all panels, in a line below them."""
    found = {label: handle for axis in figure.axes for handle, label
             in zip(*axis.get_legend_handles_labels())}
    if found:
        figure.legend(found.values(), found, ncols=len(found),
                      loc='outside lower center', columnspacing=1.4)


def few_ticks(axis: Any, count: int = 4) -> None:
    r"""So few numbers along the bottom that they do not touch."""
    axis.locator_params(axis='x', nbins=count)


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


def dots(axis: Any, groups: dict[str, Any], boxes: bool = False) -> None:
    r"""A line for each name, from above: a point for each run, one above the
    other so that equal ones do not hide each other, and the mean as a bar or
    quartiles as a box. Runs far to the left, which would flatten all others,
    are an arrow with their values.
    """
    values = np.concatenate([np.asarray(v, float) for v in groups.values()])
    middle, high = np.percentile(values, [50, 75])
    edge = middle - 10 * max(high - middle, 1.0)
    for y, (label, found) in enumerate(groups.items()):
        style = style_of(label)
        own = np.asarray(found, dtype=float)
        places = y + np.linspace(-0.22, 0.22, len(own) + 2)[1:-1]
        axis.scatter(own[own >= edge], places[own >= edge], s=36, zorder=2,
                     color=style['color'], marker=style['marker'])
        if boxes and len(own):
            axis.boxplot([own], positions=[y], widths=0.7, showfliers=False,
                         orientation='horizontal', manage_ticks=False,
                         medianprops=dict(color='black', linewidth=2.5))
        elif len(own) and own.mean() >= edge:
            axis.plot([own.mean()] * 2, [y - 0.34, y + 0.34],
                      color='black', linewidth=2.5)
        if (own < edge).any():
            axis.annotate('← ' + ', '.join(f'{v:.1f}' for v in sorted(
                own[own < edge])), (0.01, y), va='center',
                xycoords=('axes fraction', 'data'), color=style['color'])
    inner = values[values >= edge]
    margin = 0.05 * max(np.ptp(inner), 1.0)
    axis.set_xlim(inner.min() - margin * (1 + 5 * (values < edge).any()),
                  inner.max() + margin)
    axis.set_yticks(range(len(groups)), list(groups))
    axis.set_ylim(len(groups) - 0.5, -0.5)
    axis.grid(visible=False, axis='y')


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    r"""Writes a figure as PNG and SVG, closes it, and returns both paths."""
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
