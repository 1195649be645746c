import numpy as np
import pandas as pd

from benchmarks import plots


def test_far_runs_are_arrows():
    _, (axis,) = plots.panels(1)
    plots.dots(axis, {'GCN': [80., 81, 82], 'GAT': [14.94, 79, 80],
                      'MLP': [3., 2]})
    left, right = axis.get_xlim()
    assert 70 < left < 79 and 82 < right < 84
    assert [text.get_text() for text in axis.texts] == [
        '← 14.9', '← 2.0, 3.0']
    # Points of all other runs, and a mean where it is to be seen:
    points = np.concatenate([dots.get_offsets()[:, 0]
                             for dots in axis.collections])
    assert points.tolist() == [80, 81, 82, 79, 80]
    assert [line.get_xdata()[0] for line in axis.lines] == [81]
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        'GCN', 'GAT', 'MLP']
    plots.plt.close('all')


def test_one_legend_for_all_panels():
    figure, axes = plots.panels(2)
    plots.legend_below(figure)
    assert not figure.legends  # of nothing
    for axis, names in zip(axes, [['GCN'], ['GCN', 'GAT']]):
        for name in names:
            plots.error_line(axis, [1, 2], [pd.Series([1., 2])] * 2, name)
    plots.legend_below(figure)
    legend, = figure.legends
    assert [text.get_text() for text in legend.texts] == ['GCN', 'GAT']
    plots.plt.close('all')


def test_looks():
    assert plots.style_of('GCN, tuned') == plots.STYLES['GCN']
    assert plots.style_of('no method') == plots.OTHER
    looks = [(s['color'], s['marker'], s.get('markerfacecolor'))
             for s in plots.STYLES.values()]
    assert len(set(looks)) == len(looks)
