import errno
import hashlib
import io
import multiprocessing
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import types
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from torch_agcn.datasets import _fetch
from torch_agcn.datasets._fetch import (
    FetchError,
    locked,
    npm_archive,
    pip_archive,
    read_members,
    replacing,
    url_file,
    write_file,
)

CONTENT = bytes(range(256)) * 1024
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WRONG = hashlib.sha256(b'').hexdigest()

# What the server says of the size of a file, where it is not the truth.
SIZES = {'/unknown-size': None, '/no-number': 'many', '/negative': '-1',
         '/many-digits': 5000 * '9', '/huge': str(1 << 40)}

requires_fork = pytest.mark.skipif(
    'fork' not in multiprocessing.get_all_start_methods(),
    reason='no fork on this platform')


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        if self.path == '/missing':
            self.send_error(404)
            return
        if self.path == '/silent':
            time.sleep(1)
            return
        if self.path == '/nowhere':
            self.send_response(302)
            self.send_header('Location', f'http://{99 * "a"}.invalid/file')
            self.end_headers()
            return
        self.send_response(200)
        size = SIZES.get(self.path, str(len(CONTENT)))
        if size is not None:
            self.send_header('Content-Length', size)
        self.end_headers()
        if self.path == '/torn':
            self.wfile.write(CONTENT[:1000])
        elif self.path == '/stuck':
            self.wfile.write(CONTENT[:1000])
            self.wfile.flush()
            self.server.stuck.set()
            time.sleep(1)
        else:
            self.wfile.write(CONTENT)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv('no_proxy', '*')
    server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    server.requests, server.stuck = [], threading.Event()
    server.url = f'http://127.0.0.1:{server.server_address[1]}'
    threading.Thread(target=server.serve_forever, args=(0.01, )).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def client(tmp_path, monkeypatch):
    r"""A program that takes the place of both pip and npm."""
    folder = tmp_path / 'bin'
    folder.mkdir()

    def write(body):
        path = folder / 'npm'
        path.write_text(f"""#!{sys.executable}
import sys, time
from pathlib import Path
log = Path({str(tmp_path / 'calls')!r})
with log.open('a') as f:
    print(*sys.argv[1:], file=f)
target = Path(sys.argv[sys.argv.index('-d') + 1] if '-d' in sys.argv else '.')
content = bytes(range(256)) * 1024
{body}
""")
        path.chmod(0o755)
        monkeypatch.setattr(sys, 'executable', str(path))
        monkeypatch.setenv('PATH', str(folder))

    return write


def calls(tmp_path):
    path = tmp_path / 'calls'
    return path.read_text().splitlines() if path.exists() else []


def get_pip(cache_dir, sha256=SHA256, options=()):
    return pip_archive('thing==1.0', 'thing.whl', sha256, cache_dir, options)


def get_npm(cache_dir, sha256=SHA256):
    return npm_archive('thing@1.0', 'thing.tgz', sha256, cache_dir)


def make_zip(path, members):
    with zipfile.ZipFile(path, 'w') as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def make_tar(path, members):
    with tarfile.open(path, 'w:gz') as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo('link')
        link.type, link.linkname = tarfile.SYMTYPE, '/etc/passwd'
        tar.addfile(link)
    return path


@pytest.mark.parametrize('make, name', [
    (make_zip, 'a.whl'),
    (make_zip, 'a.zip'),
    (make_tar, 'a.tgz'),
    (make_tar, 'a.tar.gz'),
])
def test_read_members(make, name, tmp_path):
    members = {'p/a': b'1', '../outside': b'2', 'p/b': b'3'}
    archive = make(tmp_path / name, members)

    digest = hashlib.sha256(archive.read_bytes()).hexdigest()

    out = read_members(archive, ['p/b', 'p/a'], digest)
    assert list(out.items()) == [('p/b', b'3'), ('p/a', b'1')]
    # A name that leads out of the archive is but a name:
    out = read_members(archive, ['../outside'], digest)
    assert out == {'../outside': b'2'}
    assert os.listdir(tmp_path) == [name]

    with pytest.raises(FetchError, match=r'a\.\S+ lacks p/c, link\. .*delete'):
        read_members(archive, ['p/a', 'p/c', 'link'], digest)


@pytest.mark.parametrize('make, name', [(make_zip, 'a.whl'),
                                        (make_tar, 'a.tgz')])
def test_read_members_of_torn_archive(make, name, tmp_path):
    archive = make(tmp_path / name, {'a': os.urandom(9999)})
    whole = archive.read_bytes()
    archive.write_bytes(whole[:5000])
    digest = hashlib.sha256(whole[:5000]).hexdigest()
    with pytest.raises(FetchError, match=r'not a readable .*Delete it'):
        read_members(archive, ['a'], digest)

    # What is opened is what was checked, whoever replaced it in between:
    digest = hashlib.sha256(whole).hexdigest()
    with pytest.raises(FetchError, match=r'wrong checksum .*not opened'):
        read_members(archive, ['a'], digest)
    archive.write_bytes(whole)
    assert len(read_members(archive, ['a'], digest)['a']) == 9999


@pytest.mark.parametrize('get', [get_pip, get_npm])
def test_client(get, client, tmp_path):
    client("(target / 'thing-1.0.any').write_bytes(content)")
    path = get(tmp_path / 'cache')
    assert path.parent == tmp_path / 'cache'
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == [path.name]
    assert len(calls(tmp_path)) == 1

    # A whole file is used again:
    assert get(tmp_path / 'cache') == path
    assert len(calls(tmp_path)) == 1

    # A torn one is not:
    path.write_bytes(CONTENT[:-1])
    assert get(tmp_path / 'cache').read_bytes() == CONTENT
    assert len(calls(tmp_path)) == 2


def test_client_commands(client, tmp_path):
    client("(target / 'thing-1.0.any').write_bytes(content)")
    get_pip(tmp_path, options=['--python-version', '38'])
    get_npm(tmp_path)
    pip, npm = [call.split() for call in calls(tmp_path)]
    assert pip == ['-I', '-m', 'pip', 'download', '--no-deps',
                   '--python-version', '38', '-d', '.', 'thing==1.0']
    assert npm == ['--prefix', '.', 'pack', '--ignore-scripts', 'thing@1.0']


def test_pip_runs_nothing_of_the_working_directory(tmp_path, monkeypatch):
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    for name in ['pip.py', 'json.py', 'sitecustomize.py']:
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    # A relative folder is where it was, although pip runs elsewhere:
    with pytest.raises(FetchError, match=r'thing.* cannot be downloaded'):
        get_pip(Path('cache'))
    assert not (tmp_path / 'ran').exists()
    assert os.listdir(tmp_path / 'cache') == []


@pytest.mark.parametrize('entry', ['.', '', 'bin'])
def test_npm_of_the_working_directory(entry, client, tmp_path, monkeypatch):
    client("(target / 'thing-1.0.any').write_bytes(content)")
    monkeypatch.chdir(tmp_path if entry == 'bin' else tmp_path / 'bin')
    monkeypatch.setenv('PATH', entry + os.pathsep)
    with pytest.raises(FetchError, match='npm is not installed'):
        get_npm(tmp_path / 'cache')
    assert calls(tmp_path) == []


def test_npm_settings_of_the_working_directory(tmp_path, monkeypatch):
    if shutil.which('npm') is None:
        pytest.skip('no npm')
    # A package around the data, with settings that lead elsewhere:
    (tmp_path / 'package.json').write_text('{}')
    (tmp_path / '.npmrc').write_text('registry=http://127.0.0.1:9/\n'
                                     'offline=false\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('npm_config_offline', 'true')
    with pytest.raises(FetchError) as info:
        get_npm(Path('cache'))
    assert '127.0.0.1' not in str(info.value)


@pytest.mark.parametrize('get', [get_pip, get_npm])
@pytest.mark.parametrize('body, message', [
    ("(target / 'a').write_bytes(content[1:])", 'wrong checksum'),
    ('pass', 'One archive was expected for .* and 0 came'),
    ("(target / 'a').touch(); (target / 'b').touch()", 'and 2 came'),
    ("sys.exit('WARNING: Retrying after connection broken by ...\\n"
     "ERROR: No matching distribution found')",
     '(?s)reaches no package index.*by hand.*says:\nERROR: No matching'),
    ("sys.exit('npm error code ENOTFOUND')", 'reaches no package index'),
    ("sys.exit('ERROR: No matching distribution found')",
     '(?s)whether your package index offers it.*No matching distribution'),
    ("sys.exit('ERROR: [Errno 28] No space left on device')", 'disk is full'),
    ("sys.exit('npm error code ENOSPC')", 'disk is full'),
    ("sys.exit('python: No module named pip')", 'is not installed'),
])
def test_client_failures(get, body, message, client, tmp_path):
    client(body)
    cache_dir = tmp_path / 'cache'
    with pytest.raises(FetchError, match=message):
        get(cache_dir)
    assert os.listdir(cache_dir) == []

    # A file with a wrong checksum is neither taken nor lost:
    path = cache_dir / ('thing.whl' if get is get_pip else 'thing.tgz')
    path.write_bytes(b'mine')
    with pytest.raises(FetchError, match=message):
        get(cache_dir)
    assert path.read_bytes() == b'mine'
    assert os.listdir(cache_dir) == [path.name]


def test_wrong_checksum_names_both_digests(client, tmp_path):
    client("(target / 'thing-1.0.any').write_bytes(content)")
    with pytest.raises(FetchError) as info:
        get_pip(tmp_path, sha256=WRONG)
    assert SHA256 in str(info.value) and WRONG in str(info.value)
    assert 'not opened' in str(info.value)


def test_missing_clients(monkeypatch, tmp_path):
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(FetchError, match=r'npm is not installed: .*Node\.js'):
        get_npm(tmp_path / 'cache')

    def run(*args, **kwargs):
        return subprocess.CompletedProcess(args, 1, '', 'No module named pip')

    monkeypatch.setattr(subprocess, 'run', run)
    with pytest.raises(FetchError, match=r'pip is not installed.* ensurepip'):
        get_pip(tmp_path / 'cache')


@requires_fork
def test_concurrent_clients(client, tmp_path):
    client("""
with (target / 'thing-1.0.any').open('wb') as file:
    for i in range(8):
        file.write(content[i << 15:(i + 1) << 15])
        file.flush()
        time.sleep(0.05)
""")
    context = multiprocessing.get_context('fork')
    processes = [context.Process(target=get_pip, args=(tmp_path / 'cache', ))
                 for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / 'cache' / 'thing.whl').read_bytes() == CONTENT
    assert os.listdir(tmp_path / 'cache') == ['thing.whl']
    assert len(calls(tmp_path)) == 1  # The others waited for the first.


def test_url_file(server, tmp_path, capsys):
    path = tmp_path / 'a' / 'file'
    assert url_file(f'{server.url}/file', path, SHA256) == path
    assert path.read_bytes() == CONTENT
    assert '/262k' in capsys.readouterr().err

    url_file(f'{server.url}/file', path, SHA256)
    url_file(f'{server.url}/file', path)
    assert len(server.requests) == 1

    path.write_bytes(CONTENT[:-1])
    url_file(f'{server.url}/unknown-size', path, SHA256)
    assert path.read_bytes() == CONTENT
    assert len(server.requests) == 2
    assert os.listdir(path.parent) == ['file']


@pytest.mark.parametrize('name', ['no-number', 'negative', 'many-digits'])
def test_url_file_of_a_size_that_is_none(name, server, tmp_path):
    path = url_file(f'{server.url}/{name}', tmp_path / 'file', SHA256)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize('name', ['huge', 'unknown-size'])
def test_url_file_that_is_too_large(name, server, tmp_path, monkeypatch):
    monkeypatch.setattr(_fetch, 'MAX_SIZE', 100_000)
    with pytest.raises(FetchError, match=r'more than 100000 bytes.*by hand'):
        url_file(f'{server.url}/{name}', tmp_path / 'file')
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize('name, message', [
    ('file', f'wrong checksum.*{WRONG}.*{SHA256}'),
    ('missing', 'the server answers 404.*by hand'),
    ('silent', 'no network.*timed out.*by hand'),
    ('stuck', 'no network.*timed out.*by hand'),
    ('torn', 'no network.*1000 of 262144 bytes.*by hand'),
    ('nowhere', 'cannot be downloaded.*no network.*by hand'),
])
def test_url_file_failures(name, message, server, tmp_path):
    with pytest.raises(FetchError, match=message):
        url_file(f'{server.url}/{name}', tmp_path / 'x', WRONG, timeout=0.2)
    assert os.listdir(tmp_path) == []


def test_url_file_without_network(tmp_path):
    with pytest.raises(FetchError, match=f'no network.*into {tmp_path} by'):
        url_file('http://name.invalid/file', tmp_path / 'file', timeout=1.)
    assert os.listdir(tmp_path) == []


def test_url_file_without_a_route(tmp_path, monkeypatch):
    class Answer(io.BytesIO):
        headers = types.MappingProxyType({})

        def read(self, size):
            raise OSError(errno.EHOSTUNREACH, 'No route to host')

    monkeypatch.setattr(_fetch, 'urlopen', lambda url, timeout: Answer())
    with pytest.raises(FetchError, match=r'no network.*No route to host'):
        url_file('http://name.invalid/file', tmp_path / 'file')
    assert os.listdir(tmp_path) == []


def test_url_file_refused(server, tmp_path):
    def test(path):
        assert path.read_bytes() == CONTENT
        raise FetchError('not this one')

    with pytest.raises(FetchError, match='not this one'):
        url_file(f'{server.url}/file', tmp_path / 'file', test=test)
    assert os.listdir(tmp_path) == []


@requires_fork
def test_killed_download(server, tmp_path):
    path = tmp_path / 'file'
    process = multiprocessing.get_context('fork').Process(
        target=url_file, args=(f'{server.url}/stuck', path))
    process.start()
    assert server.stuck.wait(10)
    process.kill()
    process.join()
    assert not path.exists()  # ... and the lock of the dead is no obstacle:

    start = time.monotonic()
    url_file(f'{server.url}/file', path)
    assert path.read_bytes() == CONTENT
    assert time.monotonic() - start < 5


@pytest.mark.parametrize('code, message', [
    (errno.ENOSPC, 'The disk is full, .*Free some space'),
    (errno.EROFS, 'cannot be stored .*directory that you may write to'),
    (errno.EACCES, 'cannot be stored .*directory that you may write to'),
])
@pytest.mark.parametrize('step', ['fsync', 'replace'])
def test_disk_failures(step, code, message, server, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(FetchError, match=message):
        url_file(f'{server.url}/file', tmp_path / 'file')
    with pytest.raises(FetchError, match=message):
        write_file(tmp_path / 'file', CONTENT)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='no /dev/full')
def test_full_disk(tmp_path):
    with (pytest.raises(FetchError, match='disk is full'),
          replacing(tmp_path / 'file'),
          open('/dev/full', 'wb') as file):
        file.write(CONTENT)
    assert os.listdir(tmp_path) == []


def test_write_file(tmp_path):
    path = tmp_path / 'a' / 'file'
    write_file(path, CONTENT, SHA256)
    assert path.read_bytes() == CONTENT
    with pytest.raises(FetchError, match='file has a wrong checksum'):
        write_file(path, b'other', SHA256)
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ['file']


def test_replacing_keeps_old_file_on_error(tmp_path):
    path = tmp_path / 'file'
    path.write_bytes(b'old')
    with pytest.raises(KeyboardInterrupt), replacing(path) as part:
        part.write_bytes(b'half')
        raise KeyboardInterrupt
    assert path.read_bytes() == b'old'
    assert os.listdir(tmp_path) == ['file']


@pytest.mark.parametrize('flock', [True, False])
def test_locked(flock, tmp_path, monkeypatch):
    if not flock:
        monkeypatch.setattr(_fetch, 'fcntl', None)
    elif _fetch.fcntl is None:
        pytest.skip('no fcntl on this platform')

    inside, overlaps = [], []

    def work():
        for _ in range(20):
            with locked(tmp_path / 'file'):
                inside.append(1)
                overlaps.append(len(inside) > 1)
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [False] * 80
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize('flock', [True, False])
def test_stale_lock(flock, tmp_path, monkeypatch):
    if not flock:
        monkeypatch.setattr(_fetch, 'fcntl', None)

    # Left behind by a process that died long ago:
    lock = tmp_path / '.file.lock'
    lock.touch()
    os.utime(lock, (0, 0))
    start = time.monotonic()
    with locked(tmp_path / 'file'):
        assert time.monotonic() - start < 5

    # Held by one that hangs:
    with locked(tmp_path / 'file'):
        monkeypatch.setattr(_fetch, 'PATIENCE', 0.2)
        start = time.monotonic()
        with locked(tmp_path / 'file'):
            assert time.monotonic() - start < 5


@pytest.mark.parametrize('flock', [True, False])
def test_lock_that_is_a_link(flock, tmp_path, monkeypatch):
    if not flock:
        monkeypatch.setattr(_fetch, 'fcntl', None)
    monkeypatch.setattr(_fetch, 'PATIENCE', 0.1)
    (tmp_path / '.file.lock').symlink_to(tmp_path / 'elsewhere')
    with locked(tmp_path / 'file'):
        assert not (tmp_path / 'elsewhere').exists()
    assert (tmp_path / '.file.lock').is_symlink()


def test_no_lock_to_be_had(tmp_path, monkeypatch):
    def acquire(lock):
        raise OSError(errno.EROFS, 'Read-only file system')

    monkeypatch.setattr(_fetch, '_acquire', acquire)
    path = tmp_path / 'thing.whl'
    path.write_bytes(CONTENT)
    assert get_pip(tmp_path) == path  # A shared read-only directory.
