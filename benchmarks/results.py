r"""Results as CSV, a row per run, and files that are written whole."""
import csv
import io
import os
import platform
import subprocess
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch_geometric

import torch_agcn

try:
    import fcntl
except ImportError:  # Windows, where tables have one writer at a time
    fcntl = None

ROOT = Path(__file__).parent
RESULTS = ROOT / 'results'
FIGURES = ROOT / 'figures'
README = ROOT.parent / 'README.md'
KEPT = ' malloc=kept'


@cache
def provenance() -> dict[str, str]:
    r"""What a result depends on beside its settings."""
    commit = ''
    with suppress(OSError):  # an archive, on a machine without git
        prefix, *hashes = subprocess.run(
            ['git', 'rev-parse', '--show-prefix', '--short', 'HEAD'], cwd=ROOT,
            capture_output=True, check=False).stdout.split(b'\n')
        if prefix == b'benchmarks/':  # and no repository around ours
            commit = hashes[0].decode()
    return {
        'date': date.today().isoformat(),
        'commit': commit or 'unknown',
        'versions': ' '.join([
            f'torch_agcn={torch_agcn.__version__}',
            f'torch={torch.__version__}',
            f'torch_geometric={torch_geometric.__version__}',
            f'python={platform.python_version()}',
        ]),
    }


def keep_memory() -> None:
    r"""Lets this process keep the memory of large tensors, and says so among
    the versions of its rows.
    """
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # that it does nothing elsewhere
        kept = torch_agcn.keep_memory()
    found = provenance()
    if kept and KEPT not in found['versions']:
        found['versions'] += KEPT


class Claim(NamedTuple):
    r"""A claim of the paper, and what came of it here."""

    paper: str
    holds: str  # 'yes', 'no' or 'not shown'
    measured: str


def as_key(values: Iterable[Any]) -> tuple[str, ...]:
    r"""Values as a table has them: what is written the same is the same."""
    return tuple('' if value is None else str(value).removesuffix('.0')
                 for value in values)


class Table:
    r"""A CSV file that rows are appended to, one for each finished run.

    A row is a line. It is written under a lock, as several processes may
    append to a table, and is on the disk before the next run starts. A row
    that a killed process left torn is not read, and the next one to be
    appended moves it to a file beside the table, ``<name>.torn``.

    Args:
        path (Path): The file.
        columns (list): The names of its columns; those of
            :meth:`provenance` are added.
    """

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        self.own_columns = columns
        self.columns = [*columns, *provenance()]

    def read(self) -> pd.DataFrame:
        r"""All whole rows; the file stays as it is."""
        lines = self._lines()
        if not lines:
            return pd.DataFrame(columns=self.columns)
        return _read(lines, dtype={'commit': str})

    def keys(self, columns: Iterable[str]) -> set[tuple[str, ...]]:
        r"""What stands in some columns, by :meth:`as_key`."""
        return _keys(self._lines(), columns)

    def begin(self) -> None:
        r"""Writes the header if there is none, or ends the program where
        nothing can be written, before a run is made in vain.
        """
        with self._open():
            pass

    def append(self, key: Iterable[str] = (), /, **row: Any) -> bool:
        r"""Adds a row, or ends the program where none can be written. It is
        from here and now unless it says otherwise.

        Args:
            key (iterable, optional): The columns that no two rows may have
                the same of; a second row is not added.
            **row: A value for each column.

        :rtype: Whether it was added.
        """
        row, key = {**provenance(), **row}, list(key)
        if set(row) != set(self.columns):
            raise ValueError(f"'{self.path.name}' has the columns "
                             f'{self.columns}, but got {sorted(row)}')
        with self._open() as (file, lines):
            if key and as_key(row[name] for name in key) in _keys(lines, key):
                return False
            line = _as_line(row[name] for name in _cells(lines[0]))
            if line.count(b'\n') > 1:
                raise ValueError(f"A row of '{self.path.name}' is one line, "
                                 f'but got {line!r}')
            _write(file, line)
        return True

    def _lines(self) -> list[bytes]:
        r"""The header and all whole rows."""
        try:
            with self.path.open('rb') as file:
                _lock(file, shared=True)
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise SystemExit(f"'{self.path}' cannot be read "
                             f'({error.strerror}): see to it that it is a '
                             f'file that you may read.') from error
        lines, torn = self._split(content)
        if torn:
            warnings.warn(f"The last row of '{self.path}' is torn and left "
                          f'out; its run is made again', stacklevel=2)
        return lines

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, list[bytes]]]:
        r"""The file, locked and ready for a row, and its lines."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open('a+b', buffering=0) as file:
                _lock(file)
                file.seek(0)
                content = file.read()
                lines, torn = self._split(content)
                if torn:
                    self._set_aside(torn)
                    file.truncate(len(content) - len(torn))
                elif lines and not content.endswith(b'\n'):
                    _write(file, b'\n' if content[-1:] == b'\r' else b'\r\n')
                if not lines:
                    lines = [_as_line(self.columns)]
                    _write(file, lines[0])
                yield file, lines
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def _split(self, content: bytes) -> tuple[list[bytes], bytes]:
        r"""The header and all whole rows, and what is torn at the end."""
        *lines, last = content.split(b'\n')
        header = _as_line(self.columns).rstrip()
        if not lines and last != header and header.startswith(last):
            return [], last
        if not lines:
            lines, last = [last], b''
        found = _cells(lines[0])
        if sorted(found) != sorted(self.columns):
            raise SystemExit(
                f"'{self.path}' is of another version, or no table of this "
                f'experiment: it has the columns {found}, and not '
                f'{self.columns}. Move it away, and a new one is begun.')
        # Of tables that were put together by hand, one header is left.
        lines[1:] = [line if line.strip() != lines[0].strip() else b''
                     for line in lines[1:]]
        whole = [line for line in lines if _width(line) == len(found)]
        wrong = [i for i, line in enumerate(lines, 1)
                 if line.strip() and _width(line) != len(found)]
        if wrong:
            warnings.warn(f"Lines {wrong} of '{self.path}' are no whole rows "
                          f'and left out: mend or delete them', stacklevel=2)
        # Without a line break, the last cell is whole if it is a known one.
        known = {line.rpartition(b',')[2].strip() for line in whole}
        known.add(provenance().get(found[-1], '').encode())
        end = last.rpartition(b',')[2]
        if _width(last) == len(found) and end.strip() and (
                end.endswith(b'\r') or end in known):
            return [*whole, last], b''
        return whole, last

    def _set_aside(self, torn: bytes) -> None:
        path = self.path.with_name(f'{self.path.name}.torn')
        with path.open('ab', buffering=0) as file:
            _write(file, torn + b'\n')
        warnings.warn(f"The last row of '{self.path}' was torn and is now in "
                      f"'{path.name}'; its run is made again", stacklevel=2)


def _lock(file: Any, shared: bool = False) -> None:
    r"""Waits for others; the lock ends when the file is closed."""
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def _write(file: Any, content: bytes) -> None:
    r"""Adds to the end of a file: all of it, or nothing."""
    size = file.seek(0, os.SEEK_END)
    try:
        while content:  # a second time only to be told why it was cut
            content = content[file.write(content):]
        os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(size)
        raise


def _as_line(values: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue().encode()


def _cells(header: bytes) -> list[str]:
    text = header.decode('utf-8-sig', errors='replace')
    return text.rstrip().split(',')


def _width(line: bytes) -> int:
    r"""The number of cells of a line, 0 if it was cut within one."""
    try:
        return len(next(csv.reader([line.decode()], strict=True), []))
    except (UnicodeDecodeError, csv.Error):
        return 0


def _read(lines: list[bytes], **options: Any) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(b'\n'.join(lines)), **options)


def _keys(lines: list[bytes],
          columns: Iterable[str]) -> set[tuple[str, ...]]:
    if not lines:
        return set()
    frame = _read(lines, dtype=str, keep_default_na=False)
    return {as_key(row) for row in
            frame[list(columns)].itertuples(index=False, name=None)}


# Files that are written whole ################################################


def write_whole(path: Path, content: str | bytes) -> None:
    r"""Replaces a file in one step, or ends the program: what is read is
    always whole.
    """
    if isinstance(content, str):
        content = content.encode()
    # Two processes may write the same file.
    part = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open('wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise _cannot_write(path, error) from error
        raise


def _cannot_write(path: Path, error: OSError) -> SystemExit:
    return SystemExit(f"'{path}' cannot be written ({error.strerror}): make "
                      f'room, or see to it that you may write there. The '
                      f'same command then goes on from here.')


def markdown_table(frame: pd.DataFrame) -> str:
    r"""A frame of strings as a table of Markdown."""
    lines = [list(frame.columns), ['---'] * len(frame.columns)]
    lines += frame.astype(str).values.tolist()
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)
