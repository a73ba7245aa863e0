"""Files and folders that appear whole or not at all."""

import pytest

from mural_tf.files import remove_partial, whole, whole_folder


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_file_keeps_what_it_held_until_the_block_ends(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(RuntimeError), whole(path) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert contents(tmp_path) == {"file": "before"}
    with whole(path) as partial:
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
    for name in (".a.7.partial", "below/.b.8.partial", "below/kept"):
        (tmp_path / name).write_text("x")
    remove_partial(tmp_path)
    assert contents(tmp_path) == {"below/kept": "x"}
