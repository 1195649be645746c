import pandas as pd
import torch
from torch_geometric.data import Data

from benchmarks.overhead import MODELS, compare, summary


def test_trains_the_same_with_and_without():
    data = Data(x=torch.rand(12, 5), y=torch.arange(12) % 7,
                edge_index=torch.randint(12, (2, 30)),
                train_mask=torch.arange(12) < 7)
    for name in MODELS:
        row = compare(name, data, epochs=5, every=2, repeat=0)
        assert row['same_weights']
        # Epochs 0, 2 and 4, two passes of input and two layers in each:
        assert row['records'] == 3 * 2 * 3
        assert row['seconds'] > 0 and row['seconds_with_recorder'] > 0


def test_summary_of_the_latest_commit():
    rows = pd.DataFrame([
        ['GCN', 10, 1., 9., 'old', False],
        ['GCN', 10, 1.0, 1.05, 'new', True],
        ['GCN', 10, 2.0, 2.1, 'new', True],
        ['GCN', 10, 3.0, 9.0, 'new', True],
        ['AGCN paper', 10, 1.0, 1.2, 'new', False],
    ], columns=['model', 'every', 'seconds', 'seconds_with_recorder',
                'commit', 'same_weights'])
    gcn, agcn = summary(rows).itertuples(index=False)
    assert list(gcn) == ['GCN', 10, 3, '2 s', '2.1 s', '1.050', '1.10', 'yes',
                         'yes']
    assert list(agcn)[-4:] == ['1.200', '1.10', 'no', 'no']
