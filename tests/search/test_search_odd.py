"""Sources and indexes that others made, or that are damaged: what is odd is listed or refused, never ranked."""

import contextlib
import io
import os
import shutil
import sqlite3

import numpy as np
import pytest
from refusals import assert_refused, given
from search_data import COLORS, ColorEmbedder, png
from snapshots import assert_refusals

from mural_lite import tfrecord
from mural_lite.errors import UserError
from mural_lite.fingerprint import take_fingerprint
from mural_lite.vectors import VectorFile
from mural_search import changes, collect, database, embed, item_table
from mural_search import index as index_files
from mural_search.embed import to_row, vectors_metadata
from mural_search.index import Index, index_in_memory, load_index, sync
from mural_search.items import IMAGES, Filter, Item, parse_filters
from mural_search.queries import Query, check_filters, check_queries, search
from mural_search.query_files import read_queries
from mural_search.server.answers import Question, answer
from mural_search.stored_images import read_image


def items():
    for name, color in COLORS.items():
        yield Item(name, captions=(("en", f"a {name} thing"),), fields={"brand": "acme", "price": "10"}), png(color)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    place = tmp_path_factory.mktemp("shared") / "index"
    sync(place, ColorEmbedder(), items())
    return place


@pytest.fixture
def index(shared, tmp_path):
    return shutil.copytree(shared, tmp_path / "index", ignore=shutil.ignore_patterns("*-wal", "*-shm"))


def ask_everything(folder):
    """What searches and servers ask of an index; returns the names that captions find."""
    opened = load_index(folder)
    opened.rows(parse_filters(["brand=acme", "price<20"]))
    opened.facets()
    list(opened.table)
    list(opened.items)
    opened.table.captions(2)
    search(opened, ColorEmbedder(), [Query("a red thing"), Query("acme -blue")])
    opened.is_current()
    hits = search(opened, ColorEmbedder(), [Query("red")], rank="texts")[0].hits
    lengths = [np.linalg.norm(part.astype(np.float32), axis=1) for part in (opened.embeddings, opened.captions.vectors)]
    return sorted(hit.name for hit in hits), np.round(lengths, 1).tolist()


@pytest.mark.parametrize("name", ["vectors.npy", "captions.npy", "index.sqlite"])
def test_damaged_files_end_in_one_line(index, name):
    """The caches are made again, and no flipped bit is first for a question; the database is refused, or answers."""
    good, content, random = ask_everything(index), (index / name).read_bytes(), np.random.default_rng(0)
    is_cache, size, refused = name != "index.sqlite", 8 * len(content), 0
    flips = [random.integers(0, size, 1 + random.integers(0, 4)) for _ in range(25 if is_cache else 150)]
    flips += [[size - 8 * 32 - bit] for bit in range(1, 4 * 3 * 16 + 1, 5)] if is_cache else []  # bits of the numbers
    for bits in flips:
        damaged = bytearray(content)
        for bit in bits:
            damaged[bit // 8] ^= 1 << bit % 8
        (index / name).write_bytes(damaged)
        try:
            assert ask_everything(index) == good or not is_cache
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and not is_cache
    assert is_cache or refused
    for damaged in (b"", b"PK\3\4", b"\x93NUMPY", content[: len(content) // 2]):
        (index / name).write_bytes(damaged)
        with contextlib.nullcontext() if is_cache else pytest.raises(UserError, match="again"):
            ask_everything(index)


@pytest.mark.parametrize("begin", [
    lambda path: path.touch(), lambda path: sqlite3.connect(path).execute("PRAGMA journal_mode = WAL"), database.make,
])  # fmt: skip
def test_an_index_that_was_hardly_begun_goes_on(tmp_path, begin):
    """Of a process that was killed before its first transaction."""
    (tmp_path / "index").mkdir()
    (tmp_path / "red.png").write_bytes(png((250, 0, 0)))
    begin(tmp_path / "index/index.sqlite")
    assert_refused(load_index, ["holds nothing yet: run the command"], tmp_path / "index")
    assert index_files.model_of(tmp_path / "index") is None
    assert len(Index.build(tmp_path / "index", ColorEmbedder(), [tmp_path / "red.png"])) == 1


@pytest.mark.parametrize("statement", [
    "UPDATE items SET name = NULL", "UPDATE items SET offset = 'x'", "UPDATE items SET path = x'ff'",
    "UPDATE fields SET value = NULL", "UPDATE texts SET text = NULL", "UPDATE texts SET item = 'x'",
    "UPDATE fields SET item = 'x'", "DELETE FROM meta WHERE key = 'dtype'",
    "UPDATE meta SET value = '{' WHERE key = 'kind'", "UPDATE meta SET value = '5' WHERE key = 'head'",
    "UPDATE meta SET value = x'00' WHERE key = 'probes'", "INSERT OR REPLACE INTO meta VALUES ('noise', x'00')",
    "UPDATE meta SET value = '0' WHERE key = 'changed'; INSERT OR REPLACE INTO meta VALUES ('noise', '{}')",
    "UPDATE vectors SET vector = x'0000'", "UPDATE caption_vectors SET vector = x'ff'", "DELETE FROM items",
    "DELETE FROM vectors WHERE item = 2", "UPDATE vectors SET vector = zeroblob(12) WHERE item = 2",
    "PRAGMA user_version = 3", "DROP TABLE texts", "UPDATE meta SET value = CAST(x'ff' AS TEXT) WHERE key = 'kind'",
])  # fmt: skip
def test_values_of_other_types_are_refused(index, statement):
    with contextlib.closing(sqlite3.connect(index / "index.sqlite", isolation_level=None)) as opened:
        opened.executescript(statement)
    for name in ("vectors.npy", "captions.npy"):
        (index / name).unlink(missing_ok=True)
    with contextlib.suppress(UserError):  # some are worth no refusal: the field of no item
        ask_everything(index)
        assert statement.startswith(("UPDATE fields", "DELETE FROM vectors")), statement


@pytest.mark.parametrize("value", [0.0, 7.0, np.nan, np.inf])
def test_vectors_of_another_length_are_never_ranked(index, value, monkeypatch):
    """Not in the database, and not in a matrix that was right when it was opened."""
    opened = load_index(index)
    opened.embeddings = np.array(opened.embeddings)
    opened.embeddings[2] = value
    opened.captions.vectors = np.array(opened.captions.vectors)
    opened.captions.vectors[1] = value or 7.0
    for rank, name in (("pictures", "vectors.npy"), ("texts", "captions.npy")):
        if value or rank == "texts":  # zeros are not found
            asked = opened, ColorEmbedder(), [Query("red")], 4
            assert_refused(search, [f"{name} is damaged: delete this file"], *asked, rank=rank)
    with contextlib.closing(sqlite3.connect(index / "index.sqlite", isolation_level=None)) as other:
        other.execute("UPDATE vectors SET vector = ? WHERE item = 3", [np.full(3, value, np.float32).tobytes()])
    (index / "vectors.npy").unlink()
    assert_refused(load_index, ["index.sqlite): delete it and make it again: the vector of row 2 ", ", not 1"], index)


def test_vectors_of_deleted_items_are_passed_over(index):
    """Another program may delete a row and leave its vector: the vectors after it are of the items after it."""
    before = load_index(index).embeddings.copy()
    with contextlib.closing(sqlite3.connect(index / "index.sqlite", isolation_level=None)) as other:
        other.execute("DELETE FROM items WHERE id = 2")
    (index / "vectors.npy").unlink()
    np.testing.assert_array_equal(load_index(index).embeddings, np.delete(before, 1, axis=0))


def test_captions_without_vectors_make_no_file(index):
    (index / "captions.npy").unlink()
    with contextlib.closing(sqlite3.connect(index / "index.sqlite", isolation_level=None)) as other:
        other.execute("DELETE FROM caption_vectors WHERE text = 1")
    assert load_index(index).captions is None
    assert not (index / "captions.npy").exists()


def test_busy_and_forbidden_and_of_another_version_is_not_damaged(index, monkeypatch):
    monkeypatch.setattr(item_table, "PATIENCE", 0.1)
    for statements, words in (
        ("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE", "is busy: another process is changing it; try again"),
        ("PRAGMA user_version = 3", "made by another version"),
    ):
        with contextlib.closing(sqlite3.connect(index / "index.sqlite", isolation_level=None)) as other:
            other.executescript(statements)
            for call in (load_index, lambda folder: sync(folder, ColorEmbedder(), items())):
                assert_refused(call, [words], index)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    error = item_table.problem(index / "index.sqlite", sqlite3.OperationalError("unable to open database file"))
    assert "may not be read: check its permissions" in str(error) and "again" not in str(error)


def test_a_full_disk_is_one_line(index, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    (index / "vectors.npy").unlink()
    monkeypatch.setattr(index_files, "_write_matrix", full)
    assert_refused(load_index, ["Cannot write to ", "vectors.npy: No space left on device"], index)
    monkeypatch.setattr(changes, "read_entry", lambda *_, **__: full())
    assert_refused(sync, ["Cannot write to ", "No space left"], index, ColorEmbedder(), items())


def of_a_program(folder, **columns):
    """A folder of vectors that another program wrote, or of a row with these columns."""
    folder.mkdir()
    about = vectors_metadata(take_fingerprint(ColorEmbedder()), IMAGES, "", "float32") if columns else {"kind": IMAGES}
    with VectorFile(folder / "a.parquet", 3, "float32", about) as file:
        file.add([{**to_row(Item("a")), **columns}], np.eye(1, 3, dtype=np.float32))
    return folder


REFUSED = {
    "words of an image": lambda place, index: search(
        index, ColorEmbedder(), [Query(image=f"{place}/red.png")], rank="words"
    ),
    "an image that is none": lambda place, index: check_queries([Query(image=f"{place}/no.png")], 1),
    "a filter that nothing passes": lambda place, index: check_filters(index, parse_filters(["price>99"])),
    "a value that nothing has": lambda place, index: check_filters(index, parse_filters(["code=A"])),
    "a filter of items without fields": lambda place, index: check_filters(
        Index([Item("a")], np.eye(1, 3), index.model), parse_filters(["a=b"])
    ),
    "a limit that is no number": lambda place, index: index.rows([Filter("price", "cheap", "<")]),
    "no pictures": lambda place, index: index_in_memory(ColorEmbedder(), collect.find(IMAGES, [f"{place}/no.png"])),
    "no file of queries": lambda place, index: read_queries(place / "none.tsv"),
    "no queries": lambda place, index: read_queries(place / "empty.tsv"),
    "a query without a sentence": lambda place, index: read_queries(place / "bare.tsv"),
    "queries that are no UTF-8": lambda place, index: read_queries(place / "latin.tsv"),
    "no items": lambda place, index: Index([], np.zeros((0, 3)), index.model),
    "fewer items than vectors": lambda place, index: Index([Item("a")], np.zeros((2, 3)), index.model),
    "another dtype": lambda place, index: Index.build(
        place / "new", ColorEmbedder(), [place / "red.png"], dtype="float64"
    ),
    "another kind": lambda place, index: collect.list_files("videos", ["a"]),
    "an index in a store": lambda place, index: sync("s3://a/b", ColorEmbedder(), []),
    "no sources": lambda place, index: sync(place / "new", ColorEmbedder(), []),
    "vectors that are no numbers": lambda place, index: database.parse_fingerprint(npy(np.full((2, 3), np.nan)), {}),
    "a record of another kind": lambda place, index: read_image(Item("a", f"{place}/a.tfrecord", 0)),
    "no picture": lambda place, index: read_image(Item("a")),
    "vectors without a model": lambda place, index: embed.read(of_a_program(place / "v")),
    "columns of another program": lambda place, index: list(embed.read(of_a_program(place / "v", fields="["))[2]),
    "an empty question": lambda place, index: answer(index, None, Question("  ")),
}


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_mistakes_have_their_line(tmp_path):
    items = [Item(f"{n}", fields={"price": f"{n} €", "code": f"C{n}"}) for n in range(12)]
    items += [Item(f"x{n}", fields={"code": f"D{n}"}) for n in range(60)]
    index = Index(items, np.tile(np.eye(3, dtype=np.float32), (24, 1)), take_fingerprint(ColorEmbedder()))

    def prepared(call):
        files = {"red.png": png((250, 0, 0)), "no.png": b"no", "empty.tsv": b"\n", "bare.tsv": b"sw\t\n",
                 "latin.tsv": b"red\n\xff\n"}  # fmt: skip
        return given({**files, "a.tfrecord": tfrecord.framed(b"\xff no example")}, lambda place: call(place, index))

    assert_refusals("refusals_of_search", {name: prepared(call) for name, call in REFUSED.items()}, tmp_path)


def test_a_transaction_is_whole_or_not_there():
    opened = database.make()
    database.put(opened, b"0", Item("first"))
    with pytest.raises(KeyboardInterrupt), database.transaction(opened, published=True):
        database.put(opened, b"1", Item("second"))
        raise KeyboardInterrupt
    assert not opened.in_transaction and [item.name for item in item_table.ItemTable(opened)] == ["first"]
