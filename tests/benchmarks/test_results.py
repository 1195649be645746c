r"""Tables that outlive their writers, and files that are whole or old."""
import csv
import errno
import locale
import multiprocessing
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import plots, results
from benchmarks.results import Table, provenance


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch):
    monkeypatch.setattr(os, 'fsync', lambda file: None)  # it takes its time


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path / 'a.csv', ['text', 'number'])


def rows_of(table):
    rows = table.read()
    return list(zip(rows.text, rows.number))


@pytest.mark.filterwarnings('ignore:The last row')
@pytest.mark.parametrize('order', ['\r\n', '\n'])
def test_every_cut_of_a_file(order, table):
    rows = [('a,"b"', 1), ('c', 2), ('{"p": 0.5, "ä": 1}', 3)]
    for text, number in rows:
        table.append(text=text, number=number)
    content = table.path.read_bytes().replace(b'\r\n', order.encode())
    ends = [i for i, byte in enumerate(content) if byte == ord('\n')]
    aside = table.path.with_name('a.csv.torn')
    # All in the header and the last row, some of the others.
    cuts = [*range(ends[0] + 3), *range(ends[0], ends[2], 7),
            *range(ends[2], len(content))]
    for cut in cuts:
        aside.unlink(missing_ok=True)
        table.path.write_bytes(content[:cut])
        whole = [row for row, end in zip(rows, ends[1:]) if cut > end]
        assert rows_of(table) == whole
        assert table.path.read_bytes() == content[:cut]
        assert not aside.exists()
        table.append(text='new', number=9)
        with table.path.open(newline='', encoding='utf-8') as file:
            first, *others, last = csv.reader(file)
        assert first == table.columns and last[:2] == ['new', '9']
        assert [(text, int(n)) for text, n, *_ in others] == whole
        # What is not in the table is beside it:
        kept = b''.join(content[:cut].splitlines(keepends=True)[
            :len(whole) + (cut > ends[0])])
        assert kept + (aside.read_bytes()[:-1] if aside.exists()
                       else b'') == content[:cut]


def test_a_torn_row_is_reported_and_kept(table):
    table.append(text='first', number=1)
    with table.path.open('ab') as file:
        file.write(b'second,2,2026-')
    with pytest.warns(UserWarning, match="The last row of '.*a.csv' is torn"):
        assert rows_of(table) == [('first', 1)]
    with pytest.warns(UserWarning, match='its run is made again'):
        table.append(text='third', number=3)
    assert rows_of(table) == [('first', 1), ('third', 3)]
    assert table.path.with_name('a.csv.torn').read_bytes() == (
        b'second,2,2026-\n')


@pytest.mark.filterwarnings('ignore:The last row')
def test_no_room_for_a_torn_row(table):
    if not Path('/dev/full').exists():
        pytest.skip('no /dev/full')
    table.append(text='first', number=1)
    with table.path.open('ab') as file:
        file.write(b'second,2,2026-')
    before = table.path.read_bytes()
    table.path.with_name('a.csv.torn').symlink_to('/dev/full')
    with pytest.raises(SystemExit, match='cannot be written'):
        table.append(text='third', number=3)
    assert table.path.read_bytes() == before


@pytest.mark.parametrize('line', [
    b'<<<<<<< HEAD', b'a,1', b'a,1,d,c,v,more', b'"a,1,d,c,v', b'\0\0\0',
    b'\xff,1,d,c,v'])
def test_lines_that_are_no_rows(line, table):
    table.append(text='first', number=1)
    with table.path.open('ab') as file:
        file.write(line + b'\n\n')
    before = table.path.read_bytes()
    for use in [table.read, lambda: table.append(text='second', number=2)]:
        with pytest.raises(SystemExit, match=r'no rows .*: mend or delete'):
            use()
    assert table.path.read_bytes() == before


def test_a_cell_of_two_lines(table):
    with pytest.raises(ValueError, match='is one line'):
        table.append(text='a\nb', number=1)
    assert rows_of(table) == []


def append_rows(path, writer):
    for i in range(20):
        Table(path, ['text', 'number']).append(
            ['number'], text=f'{writer} ' + 'x' * 9_000, number=i)
        Table(path, ['text', 'number']).append(
            text=f'{writer} ' + 'y' * 9_000, number=100 * (writer + 1) + i)


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
def test_many_writers(table):
    context = multiprocessing.get_context('fork')
    writers = [context.Process(target=append_rows, args=(table.path, i))
               for i in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        table.read()  # and none sees half a row
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert sorted(number for _, number in rows_of(table)) == [
        100 * i + j for i in range(4) for j in range(20)]
    assert os.listdir(table.path.parent) == ['a.csv']


def test_rows_with_the_same_key(table):
    key = ['text', 'number']
    for text, number in [('', 1), (None, 2), ('NA', 1.0), ('1', 0.1)]:
        assert table.append(key, text=text, number=number)
        assert not table.append(key, text=text, number=number)
    assert not table.append(key, text='', number=1.0)
    assert not table.append(key, text=1, number='0.1')
    assert table.append(key, text=1, number=0.10001)
    assert table.append(text=1, number=0.1)
    assert len(table.read()) == 6
    found = table.keys(key)
    assert results.as_key([None, 2]) in found
    assert results.as_key(['NA', 2]) not in found


def test_without_locks(table, monkeypatch):
    monkeypatch.setattr(results, 'fcntl', None)
    table.append(text='first', number=1)
    assert not table.append(['text'], text='first', number=2)
    assert rows_of(table) == [('first', 1)]


@pytest.mark.parametrize('code', [errno.ENOSPC, errno.EROFS])
@pytest.mark.filterwarnings('ignore:The last row')
def test_nothing_half_written_is_read(code, table, monkeypatch):
    table.append(text='first', number=1)
    size = table.path.stat().st_size

    def fsync(file):
        os.truncate(table.path, size + 3)
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, 'fsync', fsync)
        with pytest.raises(SystemExit, match=os.strerror(code)):
            table.append(text='second', number=2)
    assert rows_of(table) == [('first', 1)]
    table.append(text='second', number=2)
    assert rows_of(table) == [('first', 1), ('second', 2)]


def test_a_place_that_is_none(tmp_path):
    (tmp_path / 'file').touch()
    table = Table(tmp_path / 'file' / 'a.csv', ['text'])
    assert len(table.read()) == 0
    for write in [table.begin, lambda: table.append(text='')]:
        with pytest.raises(SystemExit, match='cannot be written'):
            write()


def test_a_table_of_another_version(tmp_path):
    path = tmp_path / 'a.csv'
    Table(path, ['old', 'kept']).append(old=1, kept=2)
    before = path.read_bytes()
    other = Table(path, ['kept', 'new'])
    for use in [other.read, other.begin,
                lambda: other.append(kept=1, new=2),
                lambda: other.keys(['kept'])]:
        with pytest.raises(SystemExit, match=r'is of another version.*Move '
                           r'it away'):
            use()
    assert path.read_bytes() == before


@pytest.mark.parametrize('content', [
    b'text;number;date;commit;versions\na;1;d;c;v\n', b'<html>\n',
    b'PK\x03\x04\xff\xfe,"\n'])
def test_a_file_that_is_no_table(content, table):
    table.path.write_bytes(content)
    for use in [table.read, table.begin]:
        with pytest.raises(SystemExit, match=r'no table of this|no rows'):
            use()
    assert table.path.read_bytes() == content


def test_a_path_that_is_not_utf8(tmp_path):
    try:
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b'/\xff'))
        folder.mkdir()
    except OSError:
        pytest.skip('names are UTF-8 here')
    table = Table(folder / 'a.csv', ['text'])
    table.append(text='first')
    assert table.read().text.tolist() == ['first']
    figure, _ = plots.plt.subplots()
    assert all(path.exists() for path in plots.save(figure, folder, 'b'))
    assert sorted(os.listdir(folder)) == ['a.csv', 'b.png', 'b.svg']


def has_decimal_comma():
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')
        return locale.localeconv()['decimal_point'] == ','
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_ALL, before)


@pytest.mark.skipif(not has_decimal_comma(), reason='no de_DE.UTF-8 here')
def test_a_decimal_comma(table, tmp_path):
    other = Table(tmp_path / 'b.csv', table.own_columns)
    rows = [('1,5', 1234567.25), ('ä', 0.1 + 0.2), ('', 1e-7)]
    for text, number in rows:
        table.append(text=text, number=number)
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')
        for text, number in rows:
            other.append(text=text, number=number)
        assert other.read().equals(table.read())
        assert other.read().number.tolist() == [row[1] for row in rows]
    finally:
        locale.setlocale(locale.LC_ALL, before)
    assert other.path.read_bytes() == table.path.read_bytes()


# Files that are written whole ################################################


def test_a_file_is_whole_at_any_time(tmp_path, monkeypatch):
    path = tmp_path / 'RESULTS.md'
    path.write_text('old')
    for error, seen in [(OSError(errno.ENOSPC, 'No space left'), SystemExit),
                        (KeyboardInterrupt(), KeyboardInterrupt)]:
        def replace(*args, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, 'replace', replace)
            with pytest.raises(seen):
                results.write_whole(path, 'new')
        assert path.read_text() == 'old'
        assert os.listdir(tmp_path) == ['RESULTS.md']
    results.write_whole(path, 'new')
    assert path.read_text() == 'new'
    assert os.listdir(tmp_path) == ['RESULTS.md']


def test_a_figure_is_whole_at_any_time(tmp_path, monkeypatch):
    def replace(*args):
        raise OSError(errno.ENOSPC, 'No space left')

    (tmp_path / 'b.png').write_text('old')
    figure, _ = plots.plt.subplots()
    with monkeypatch.context() as patch:
        patch.setattr(os, 'replace', replace)
        with pytest.raises(SystemExit, match='No space left'):
            plots.save(figure, tmp_path, 'b')
    assert (tmp_path / 'b.png').read_text() == 'old'
    assert os.listdir(tmp_path) == ['b.png']


# Where a row comes from ######################################################


def test_without_git(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:  # an unpacked archive
        patch.setattr(results, 'ROOT', tmp_path)
        assert provenance.__wrapped__()['commit'] == 'unknown'
    monkeypatch.setenv('PATH', str(tmp_path))
    assert provenance.__wrapped__()['commit'] == 'unknown'
    (tmp_path / 'git').touch()  # which may not be run
    assert provenance.__wrapped__()['commit'] == 'unknown'
    assert 'torch_agcn=' in provenance()['versions']


def git(*args, cwd):
    command = ['git', '-c', 'user.name=a', '-c', 'user.email=a@b', *args]
    return subprocess.run(command, cwd=cwd, check=True, text=True,
                          capture_output=True).stdout.strip()


def test_the_commit_is_that_of_our_repository(tmp_path, monkeypatch):
    try:
        git('init', cwd=tmp_path)
    except OSError:
        pytest.skip('no git')
    monkeypatch.setattr(results, 'ROOT', tmp_path / 'benchmarks')
    results.ROOT.mkdir()
    assert provenance.__wrapped__()['commit'] == 'unknown'  # there is none
    (results.ROOT / 'file').touch()
    git('add', '.', cwd=tmp_path)
    git('commit', '-m', 'one', cwd=tmp_path)
    commit = git('rev-parse', '--short', 'HEAD', cwd=tmp_path)
    assert provenance.__wrapped__()['commit'] == commit
    git('worktree', 'add', '--detach', 'tree', cwd=tmp_path)
    monkeypatch.setattr(results, 'ROOT', tmp_path / 'tree' / 'benchmarks')
    assert provenance.__wrapped__()['commit'] == commit
    # An archive that was unpacked in the repository of somebody else:
    monkeypatch.setattr(results, 'ROOT', tmp_path / 'ours' / 'benchmarks')
    results.ROOT.mkdir(parents=True)
    assert provenance.__wrapped__()['commit'] == 'unknown'
