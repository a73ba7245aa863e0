"""Files and folders that appear whole or not at all, also after a power cut; and JSON that is of the wrong kind."""

import errno
import os
import pathlib

import pytest

from mural_lite import files
from mural_lite.errors import UserError
from mural_lite.files import atomic_file, find, read_json, remove_partial, sync, whole_folder


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_file_keeps_what_it_held_until_the_block_ends(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(RuntimeError), atomic_file(path) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert contents(tmp_path) == {"file": "before"}
    with atomic_file(path) as partial:
        partial.write_text("after")
        assert path.read_text() == "before"
    assert contents(tmp_path) == {"file": "after"}


def test_a_folder_appears_when_it_is_complete_and_takes_the_place_of_another(tmp_path):
    path = tmp_path / "folder"
    for text in ("first", "second"):
        with whole_folder(path) as partial:
            (partial / text).write_text(text)
            assert "first" not in contents(path) if text == "first" else contents(path) == {"first": "first"}
        assert contents(tmp_path) == {f"folder/{text}": text}
    with pytest.raises(RuntimeError), whole_folder(path) as partial:
        (partial / "third").write_text("half")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["folder"] and contents(path) == {"second": "second"}


def test_what_a_killed_writer_left_of_a_folder_is_removed(tmp_path):
    (tmp_path / ".folder.partial").mkdir()
    (tmp_path / ".folder.partial" / "stale").write_text("")
    (tmp_path / ".folder.replaced.partial").mkdir()
    (tmp_path / ".folder.replaced.partial" / "stale").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("")
    with whole_folder(tmp_path / "folder") as partial:
        assert not list(partial.iterdir())
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_what_killed_writers_left_of_files_is_removed(tmp_path):
    (tmp_path / "below").mkdir()
    for name in (".a.7.partial", "below/.b.8.partial", "below/kept", "somebody's.partial"):
        (tmp_path / name).write_text("x")
    remove_partial(tmp_path, min_age=60)
    assert len(contents(tmp_path)) == 4
    remove_partial(tmp_path)
    assert contents(tmp_path) == {"below/kept": "x", "somebody's.partial": "x"}


def test_two_stars_follow_no_links_to_folders(tmp_path, monkeypatch):
    for name in ("a/b/1.jpg", "a/2.jpg", "3.jpg", ".hidden/4.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for link in ("latest", "a/first", "a/second"):
        (tmp_path / link).symlink_to(tmp_path)
    pictures = [tmp_path / name for name in ("3.jpg", "a/2.jpg", "a/b/1.jpg")]
    assert find(tmp_path / "**/*.jpg") == find(f"{tmp_path}/**/**/*.jpg") == pictures
    assert find(tmp_path / "a/**/b/*") == [tmp_path / "a/b/1.jpg"]
    assert find(tmp_path / "latest/a/**/1.jpg") == [tmp_path / "latest/a/b/1.jpg"]
    everything = ("", "3.jpg", "a", "a/2.jpg", "a/b", "a/b/1.jpg", "a/first", "a/second", "latest")
    assert find(tmp_path / "**") == [tmp_path / name for name in everything]
    folders = ("", "a", "a/b", "a/first", "a/second", "latest")
    assert find(f"{tmp_path}/**/") == [tmp_path / name for name in folders]
    monkeypatch.chdir(tmp_path)
    assert find("**") == [pathlib.Path(name) for name in everything[1:]]
    assert find("**/*.jpg") == [path.relative_to(tmp_path) for path in pictures]


@pytest.fixture
def order(monkeypatch):
    """What reaches the disk, and what gets its name, in order: ("sync", name) and ("name", name)."""
    done, replace = [], os.replace

    def fsync(descriptor):
        done.append(("sync", pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))

    def named(partial, path):
        done.append(("name", pathlib.Path(path).name))
        replace(partial, path)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", named)
    return done


def test_a_file_is_on_the_disk_before_its_name_is(tmp_path, order):
    with atomic_file(tmp_path / "file") as partial:
        partial.write_text("x")
        assert not order
    assert order == [("sync", partial.name), ("name", "file"), ("sync", tmp_path.name)]


def test_a_folder_is_on_the_disk_before_its_name_is_and_before_the_old_one_goes(tmp_path, order):
    def write():
        order.clear()
        with whole_folder(tmp_path / "folder") as partial:
            (partial / "below").mkdir()
            (partial / "below" / "file").write_text("x")
        return [("sync", partial.name), ("sync", "file"), ("sync", "below")]

    synced = write()
    assert order == [*synced, ("name", "folder"), ("sync", tmp_path.name)]
    synced = write()
    assert order[:4] == [*synced, ("name", ".folder.replaced.partial")]
    assert order[-2:] == [("name", "folder"), ("sync", tmp_path.name)]


def test_a_disk_that_fails_is_reported_and_one_that_cannot_sync_folders_is_not(tmp_path, monkeypatch):
    def fsync(_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    sync(tmp_path)
    with pytest.raises(OSError), atomic_file(tmp_path / "file") as partial:
        partial.write_text("x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text, message", [("[1]", "holds a list"), ("{", "not valid JSON"), ("\xff", "not valid JSON"),
                                           ("[" * 100_000, "not valid JSON")])  # fmt: skip
def test_json_that_is_no_object(tmp_path, text, message):
    (tmp_path / "file").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        read_json(tmp_path / "file")


def test_a_file_system_without_locks_is_written_to(tmp_path, monkeypatch):
    """NFS, Lustre and others may have no locks: the lock guards against a second process, and is not needed to work."""

    def fail(number):
        def flock(*_):
            raise OSError(number, os.strerror(number))

        return flock

    monkeypatch.setattr(files.fcntl, "flock", fail(errno.ENOLCK))
    warnings = []
    monkeypatch.setattr(files.logging, "warning", lambda text, *values: warnings.append(text % values))
    with files.exclusive_lock(tmp_path / "lock"):
        assert warnings == [f"{tmp_path} has no locks (No locks available): run one process at a time."]
    monkeypatch.setattr(files.fcntl, "flock", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"), files.exclusive_lock(tmp_path / "lock"):
        pass


def test_what_cannot_be_written_has_the_name_that_was_given(tmp_path):
    """Not that of the partial file beside it."""
    with pytest.raises(FileNotFoundError) as error:
        files.write_whole(tmp_path / "no/page.html", "text")
    assert error.value.filename == str(tmp_path / "no/page.html")
