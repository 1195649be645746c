r"""How figures look: colours that differ in grey too, PNG and SVG."""
import io
from pathlib import Path
from typing import Any

import matplotlib

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
    'GCN': dict(color='#555555', marker='o', linestyle='--'),
    'GAT': dict(color='#009e73', marker='^', linestyle=':'),
    'GCN-PN': dict(color='#cc79a7', marker='v', linestyle='--'),
    'JK-Net': dict(color='#e69f00', marker='P', linestyle=':'),
    'GCNII': dict(color='#000000', marker='X', linestyle='-'),
    'AGCN, paper': dict(color='#d55e00', marker='s', linestyle='-.'),
    'AGCN, recommended': dict(color='#0072b2', marker='D', linestyle='-'),
    'AGCN, hops': dict(color='#0072b2', marker='D', linestyle='-'),
    'AGCN, stack': dict(color='#56b4e9', marker='*', linestyle='-'),
}
HATCHES = ['', '///', '...', 'xxx', '\\\\\\', '++']


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    r"""Writes a figure as PNG and SVG, closes it, and returns both paths."""
    figure.tight_layout()
    options: dict[str, Any] = {'png': {'dpi': 144},
                               'svg': {'metadata': {'Date': None}}}
    paths = []
    for kind, others in options.items():
        content = io.BytesIO()
        figure.savefig(content, format=kind, **others)
        paths.append(folder / f'{name}.{kind}')
        write_whole(paths[-1], content.getvalue())
    plt.close(figure)
    return paths
