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

    A row is a line, and counts once its line break is there: what a killed
    process left without one is not read, and the next row to be appended moves
    it to a file beside the table, ``<name>.torn``. Rows are written under a
    lock, as several processes may append to a table, and are on the disk
    before the next run starts.

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
        r"""All rows; the file stays as it is."""
        return self._parse(self._content(), dtype={'commit': str})

    def keys(self, columns: Iterable[str],
             content: bytes | None = None) -> set[tuple[str, ...]]:
        r"""What stands in some columns, by :meth:`as_key`."""
        rows = self._parse(self._content() if content is None else content,
                           dtype=str, keep_default_na=False)
        return {as_key(row) for row in
                rows[list(columns)].itertuples(index=False, name=None)}

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
        line = _as_line(row[name] for name in self.columns)
        if line.count(b'\n') > 1:
            raise ValueError(f"A row of '{self.path.name}' is one line, "
                             f'but got {line!r}')
        with self._open() as (file, content):
            if key and as_key(row[name] for name in key) in self.keys(
                    key, content):
                return False
            _write(file, line)
        return True

    def _content(self) -> bytes:
        try:
            with self.path.open('rb') as file:
                _lock(file, shared=True)
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return b''

    def _parse(self, content: bytes, **options: Any) -> pd.DataFrame:
        r"""All rows; ends the program if something else is among them."""
        whole, _, torn = content.rpartition(b'\n')
        if torn:
            warnings.warn(f"The last row of '{self.path}' is torn and left "
                          f'out; its run is made again', stacklevel=2)
        if not whole:
            return pd.DataFrame(columns=self.columns)
        try:
            header, *rows = csv.reader(whole.decode().split('\n'),
                                       strict=True)
            wrong = [cells[0] for cells in rows
                     if cells and len(cells) != len(self.columns)]
        except (UnicodeDecodeError, csv.Error) as error:
            header, wrong = self.columns, [str(error)]
        if header != self.columns:
            raise SystemExit(
                f"'{self.path}' is of another version, or no table of this "
                f'experiment: it has the columns {header}, and not '
                f'{self.columns}. Move it away, and a new one is begun.')
        if wrong:
            raise SystemExit(f"'{self.path}' has lines that are no rows "
                             f'({"; ".join(wrong)}): mend or delete them.')
        return pd.read_csv(io.BytesIO(whole), **options)

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, bytes]]:
        r"""The file, locked and ready for a row, and what is in it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open('a+b', buffering=0) as file:
                _lock(file)
                file.seek(0)
                content = file.read()
                self._parse(content)  # before anything is changed
                whole, _, torn = content.rpartition(b'\n')
                if torn:
                    with self.path.with_name(f'{self.path.name}.torn').open(
                            'ab', buffering=0) as aside:
                        _write(aside, torn + b'\n')
                    file.truncate(len(content) - len(torn))
                if not whole:
                    _write(file, _as_line(self.columns))
                yield file, content
        except OSError as error:
            raise _cannot_write(self.path, error) from error


def _lock(file: Any, shared: bool = False) -> None:
    r"""Waits for others; the lock ends when the file is closed."""
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def _write(file: Any, line: bytes) -> None:
    r"""Adds a line to the end of a file, and waits for the disk."""
    while line:  # a second time only to be told why it was cut
        line = line[file.write(line):]
    os.fsync(file.fileno())


def _as_line(values: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue().encode()


# Files that are written whole ################################################


def write_whole(path: Path, content: str | bytes) -> None:
    r"""Replaces a file in one step, or ends the program: what is read is
    always whole.
    """
    # Two processes may write the same file.
    part = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open('wb') as file:
            file.write(content.encode() if isinstance(content, str)
                       else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with suppress(OSError):  # there is none after the replacement
            part.unlink()


def _cannot_write(path: Path, error: OSError) -> SystemExit:
    return SystemExit(f"'{path}' cannot be written ({error.strerror}): make "
                      f'room, or see to it that you may write there. The '
                      f'same command then goes on from here.')


def markdown_table(frame: pd.DataFrame) -> str:
    r"""A frame of strings as a table of Markdown."""
    lines = [list(frame.columns), ['---'] * len(frame.columns)]
    lines += frame.astype(str).values.tolist()
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)
