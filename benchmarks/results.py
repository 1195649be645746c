r"""Results as CSV, a row per run, and their way into the README."""
import csv
import os
import platform
import re
import subprocess
from contextlib import suppress
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch_geometric

import torch_agcn

ROOT = Path(__file__).parent
RESULTS = ROOT / 'results'
FIGURES = ROOT / 'figures'
README = ROOT.parent / 'README.md'


@cache
def provenance() -> dict[str, str]:
    r"""What a result depends on beside its settings."""
    commit = ''
    with suppress(FileNotFoundError):  # an archive, on a machine without git
        commit = subprocess.run(
            ['git', 'rev-parse', '--short', 'HEAD'], cwd=ROOT,
            capture_output=True, text=True, check=False).stdout.strip()
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


class Claim(NamedTuple):
    r"""A claim of the paper, and what came of it here."""

    paper: str
    holds: str  # 'yes', 'no' or 'not shown'
    measured: str


class Table:
    r"""A CSV file that rows are appended to, one for each finished run.

    A row is on the disk before the next run starts. The rest of a row that a
    killed process had begun is dropped, so that what is read is always whole.

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
        r"""All rows."""
        self._drop_partial_row()
        if self._is_empty():
            return pd.DataFrame(columns=self.columns)
        return pd.read_csv(self.path, dtype={'commit': str})

    def missing(self, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
        r"""Those that are not the beginnings of rows from this commit, which
        is what a time belongs to.
        """
        rows = self.read()
        rows = rows[rows.commit == provenance()['commit']]
        done = {columns: set(rows[list(columns)].itertuples(index=False,
                                                            name=None))
                for columns in {tuple(row) for row in wanted}}
        return [row for row in wanted
                if tuple(row.values()) not in done[tuple(row)]]

    def append(self, **row: Any) -> None:
        r"""Adds a row, or ends the program where none can be written. It is
        from here and now unless it says otherwise.
        """
        row = {**provenance(), **row}
        if set(row) != set(self.columns):
            raise ValueError(f"'{self.path.name}' has the columns "
                             f'{self.columns}, but got {sorted(row)}')
        try:
            self._drop_partial_row()
            self._write(row)
        except OSError as error:
            with suppress(OSError):
                self._drop_partial_row()
            raise _cannot_write(self.path, error) from error

    def _write(self, row: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        columns = self.columns
        new = self._is_empty()
        if not new:
            with self.path.open(newline='') as file:
                columns = next(csv.reader(file))
            if set(columns) != set(self.columns):
                raise ValueError(
                    f"'{self.path}' is of another version: it has the "
                    f'columns {columns}, and not {self.columns}. Move it '
                    f'away')
        with self.path.open('a', newline='') as file:
            writer = csv.DictWriter(file, columns)
            if new:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            os.fsync(file.fileno())

    def _is_empty(self) -> bool:
        return not self.path.exists() or self.path.stat().st_size == 0

    def _drop_partial_row(self) -> None:
        if not self._is_empty():
            content = self.path.read_bytes()
            if not content.endswith(b'\n'):
                os.truncate(self.path, content.rfind(b'\n') + 1)


def has_section(section: str) -> bool:
    r"""Whether the README has a place for generated text of that name."""
    return f'<!-- {section} -->' in README.read_text(encoding='utf-8')


def write_readme(section: str, markdown: str) -> None:
    r"""Puts generated text between the markers of its section."""
    text = README.read_text(encoding='utf-8')
    begin, end = f'<!-- {section} -->', f'<!-- /{section} -->'
    if not has_section(section) or end not in text:
        raise ValueError(f"'README.md' has no section '{section}'; add the "
                         f'lines {begin} and {end}')
    text = re.sub(f'{begin}.*?{end}', lambda _: f'{begin}\n{markdown}\n{end}',
                  text, flags=re.DOTALL)
    write_whole(README, text)


def write_whole(path: Path, text: str) -> None:
    r"""Replaces a file in one step, or ends the program: what is read is
    always whole.
    """
    part = path.with_name(f'.{path.name}.part')
    try:
        part.write_text(text, encoding='utf-8')
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> SystemExit:
    return SystemExit(f"'{path}' cannot be written ({error.strerror}): make "
                      f'room, or see to it that you may write there. The '
                      f'same command then goes on from here.')


def markdown_table(frame: pd.DataFrame) -> str:
    r"""A frame of strings as a table for the README."""
    lines = [list(frame.columns), ['---'] * len(frame.columns)]
    lines += frame.astype(str).values.tolist()
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)
