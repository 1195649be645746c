import os
import platform
import subprocess
import sys

import pytest

import torch_agcn

IS_GLIBC = platform.libc_ver()[0] == 'glibc'


@pytest.mark.skipif(not IS_GLIBC, reason='it is for glibc')
def test_freed_memory_is_kept():
    # Page faults of the last tensor of 64 MiB, when the heap has settled, with
    # and without, each in a process of its own.
    code = ('import resource, sys, torch, torch_agcn\n'
            'assert sys.argv[1] != "keep" or torch_agcn.keep_memory()\n'
            'for _ in range(20):\n'
            '    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n'
            '    x = torch.ones(2**24)\n'
            '    del x\n'
            'print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt'
            ' - before)')
    # Experiments that ran in this process have set it, too:
    env = {key: value for key, value in os.environ.items()
           if not key.startswith('MALLOC_')}
    faults = {mode: int(subprocess.run(
        [sys.executable, '-c', code, mode], check=True, capture_output=True,
        text=True, env=env).stdout) for mode in ['keep', 'leave']}
    assert faults['keep'] < 100 < faults['leave']


def test_elsewhere_it_says_that_it_does_nothing(monkeypatch):
    monkeypatch.setattr(platform, 'libc_ver', lambda: ('musl', '1.2'))
    with pytest.warns(UserWarning, match="'keep_memory' does nothing here"):
        assert not torch_agcn.keep_memory()
