import subprocess
import urllib.request

import pytest
from torch_geometric.io import fs

from torch_agcn.datasets import _fetch


@pytest.fixture
def network(request, monkeypatch):
    r"""Every attempt to leave the machine, none of which succeeds."""
    tried = []
    if request.node.get_closest_marker('data'):
        return tried

    def urlopen(url, timeout):
        assert timeout <= 10
        tried.append(url)
        raise urllib.request.URLError('unreachable')

    def run(command, **kwargs):
        tried.append(command)
        return subprocess.CompletedProcess(command, 1, '', 'connection broken')

    def cp(*args, **kwargs):
        raise AssertionError('PyG goes to its server')

    monkeypatch.setattr(_fetch, 'urlopen', urlopen)
    monkeypatch.setattr(subprocess, 'run', run)
    monkeypatch.setattr(fs, 'cp', cp)
    return tried
