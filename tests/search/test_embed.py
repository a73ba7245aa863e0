"""Embedding by shards: the same vectors however it runs, resumed after a kill; indexes made of them, and exported."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from object_store import object_store, stored, upload
from refusals import assert_refused
from search_data import COLORS, ColorEmbedder, image_records, png, write_folder, write_records

from mural_lite.errors import UserError
from mural_lite.fingerprint import take_fingerprint
from mural_lite.record_format import IMAGE_TEXT, ImageTextRecord
from mural_lite.vectors import read_rows, vector_files
from mural_search import changes, collect, database, embed
from mural_search import commands as program
from mural_search import index as index_files
from mural_search import runs as commands
from mural_search.collect import Unreadable
from mural_search.embed import Settings, make_shard
from mural_search.index import Index, load_index, sync
from mural_search.items import IMAGES, TEXTS, Item, parse_filters

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def model(monkeypatch, tmp_path):
    """A model folder, and what is loaded from it."""
    (tmp_path / "model").mkdir()
    loaded = ColorEmbedder()
    monkeypatch.setattr(embed, "load_model", lambda *_: (loaded, take_fingerprint(loaded)))
    return loaded


def write_sources(folder):
    """Images with two broken ones, a table of texts with repeated ones and a line that is no text."""
    write_folder(folder / "images")
    lines = [f"de\tSatz {n % 250}" if n % 2 else f"sentence {n % 250}" for n in range(300)]
    (folder / "texts.tsv").write_bytes("\n".join(lines).encode() + b"\nen\tbad \xff\n")
    (folder / "more.txt").write_text("".join(f"sentence {n - n % 8}\n" for n in range(0, 400, 4)))
    return [str(folder / "texts.tsv"), str(folder / "more.txt")]


def run(folder, sources, output="out", **settings):
    values = {"kind": TEXTS, "workers": 0, "shard_items": 12, "max_skipped_fraction": 1.0, **settings}
    return embed.embed(str(folder / "model"), sources, folder / output, Settings(**values), progress=False)


def rows_of(output):
    """(item, vector) of all shards, in their order."""
    return [row for path in vector_files(output) for row in rows_of_file(path)]


def contents(output):
    """{file: its rows, or bytes}: Parquet's own bytes hold the place of the model."""
    parts = {path.name: rows_of_file(path) for path in vector_files(output)}
    return {**parts, "embeddings.json": (output / "embeddings.json").read_bytes()}


def rows_of_file(path):
    return [(embed.to_item(row), tuple(vector)) for rows, of in read_rows(path) for row, vector in zip(rows, of)]


def test_texts(tmp_path, model):
    output = run(tmp_path, write_sources(tmp_path))
    found, described = rows_of(output), json.loads((output / "embeddings.json").read_text())
    assert described["count"] == len(found) and len(vector_files(output)) > 5 and described["embedding_size"] == 3
    assert described["skipped"] == {"Text that is not UTF-8": {"count": 1, "first": f"{tmp_path}/texts.tsv:301"}}
    assert described["left_out"]["repeated"]["count"] == 400 - len(found)
    assert (output / "skipped.tsv").read_text() == f"Text that is not UTF-8\t{tmp_path}/texts.tsv:301\n"
    assert described["made_by"]["identity"] == str(take_fingerprint(model)) and described["made_by"]["step"] == 7
    assert "tests" not in embed.describe(output) and f"{len(found):,} texts in" in embed.describe(output)
    assert sorted(path.name for path in tmp_path.glob(".out*")) == [".out.lock"]
    described["skipped"] = {"rare": {"count": 1, "first": "a"}, "often": {"count": 2, "first": "b"}}
    (output / "embeddings.json").write_text(json.dumps(described))
    assert embed.describe(output).index("2 x often, first at b") < embed.describe(output).index("1 x rare")


def test_the_command_embed_says_what_it_made(tmp_path, capsys):
    options = {"model": str(tmp_path / "model"), "output": str(tmp_path / "out"), "restart": False}
    program.embed.main(write_sources(tmp_path), **options, kind=TEXTS, workers=0, max_skipped_fraction=1.0)
    assert f" texts in {tmp_path}/out: float32 [N, 3]" in capsys.readouterr().out
    assert_refused(program.embed.main, ["Nothing to embed: name folders"], [], **options)


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    sources, done, after = write_sources(tmp_path), [], 3
    whole = contents(run(tmp_path, sources, "whole"))
    count = sum(name.startswith("part") for name in whole)

    def stopping(embedder, model, folder, number, *shard):
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(number)
        make_shard(embedder, model, folder, number, *shard)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="run the same command again"):
        patch.setattr(embed, "make_shard", stopping)  # no signal: shells start background jobs without SIGINT
        run(tmp_path, sources)
    (tmp_path / "model" / "config.json").write_text("{}")  # the files of the model tell, too
    assert_refused(run, ["unfinished work on other sources or with other settings"], tmp_path, sources)
    (tmp_path / "model" / "config.json").unlink()
    other = ColorEmbedder(seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(embed, "load_model", lambda *_: (other, take_fingerprint(other)))
        assert_refused(run, ["unfinished work in ", " was made by the model colors at step 7"], tmp_path, sources)
    parts, again = tmp_path / ".out.embedding" / "parts", []
    assert not (tmp_path / "out").exists() and len(list(parts.glob("*.json"))) == after
    before = {path: path.stat().st_mtime_ns for path in parts.glob("*.parquet")}

    def counting(embedder, model, folder, number, *shard):
        again.append(number)
        assert all(path.stat().st_mtime_ns == mtime for path, mtime in before.items())
        make_shard(embedder, model, folder, number, *shard)

    with monkeypatch.context() as patch:
        patch.setattr(embed, "make_shard", counting)
        assert contents(run(tmp_path, sources[::-1])) == whole  # the order of sources decides nothing
    assert not set(again) & set(done) and len(again) + len(done) == count


def test_too_much_that_is_unusable(tmp_path, model):
    (tmp_path / "bad.txt").write_bytes(b"".join(b"good %d\n" % n if n % 10 else b"\xff\n" for n in range(1500)))
    words = ["images and texts (", f"first at {tmp_path}/bad.txt:"]
    options = {"max_skipped_fraction": 0.05, "shard_items": 500}
    assert_refused(lambda: run(tmp_path, [str(tmp_path / "bad.txt")], **options), words)
    assert not (tmp_path / "out").exists()
    output = run(tmp_path, [str(tmp_path / "bad.txt")], max_skipped_fraction=0.2, shard_items=500)
    assert len(rows_of(output)) == 1350


def test_mistakes(tmp_path):
    assert_refused(lambda: Settings(max_skipped_fraction=float("nan")),
                   ["max_skipped_fraction=nan: expected a number from 0 to 1"])  # fmt: skip
    (tmp_path / "empty.txt").write_text("\n")
    assert_refused(run, ["missing does not exist"], tmp_path, [str(tmp_path / "missing")])
    assert_refused(run, ["Nothing to embed: 0 images and texts read"], tmp_path, [str(tmp_path / "empty.txt")])
    (tmp_path / "model").rmdir()
    assert_refused(run, ["The model folder", "does not exist"], tmp_path, [str(tmp_path / "empty.txt")])


def read_all(kind, groups):
    found = [entry for group in groups for entry in collect.read(kind, group)]
    return [entry if isinstance(entry, Unreadable) else entry[0] for entry in found]


@pytest.mark.parametrize("items", [1, 7, 10_000])
@pytest.mark.parametrize("kind", [IMAGES, TEXTS])
def test_parts_of_lines_are_the_whole(tmp_path, kind, items):
    """Of texts, and of a table, whose first line has the names of all parts' columns."""
    sources = write_sources(tmp_path)
    if kind == IMAGES:
        lines = [f"{name}\tbrand {n}" for n, name in enumerate([*COLORS] * 40)]
        (tmp_path / "images/table.tsv").write_text("\n".join(["path\tbrand", *lines]))
        sources = [str(tmp_path / "images/table.tsv")]
    groups, whole = (collect.cut_files(kind, collect.list_files(kind, sources), most) for most in (items, 10**9))
    assert read_all(kind, groups) == read_all(kind, whole)
    assert len(groups) == 1 if items == 10_000 else len(groups) > 5
    assert all(sum(unit.weight for _, unit in group) <= items or len(group) == 1 for group in groups)


@pytest.mark.parametrize("damage", [None, 30, 2_000])
def test_parts_of_records_are_the_whole(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(collect, "RECORD_BYTES", 300)
    rows = [ImageTextRecord(f"{n}", png((n, 0, 9)), [f"thing {n}"], ["en"], [""]) for n in range(60)]
    write_records(tmp_path, "train", rows)
    (path,) = (tmp_path / IMAGE_TEXT).iterdir()
    if damage is not None:
        data = bytearray(path.read_bytes())
        data[damage] ^= 4
        path.write_bytes(data)
    files = collect.list_files(IMAGES, [str(tmp_path)])
    whole = read_all(IMAGES, collect.cut_files(IMAGES, files, 10**9))
    for items in (1, 5, 17):
        groups = collect.cut_files(IMAGES, files, items)
        assert len(groups) > 1 and read_all(IMAGES, groups) == whole
    is_whole = len(whole) == 60 and not any(isinstance(entry, Unreadable) for entry in whole)
    assert len(whole) >= 59 and (damage is None) == is_whole


# --- indexes of embeddings


def index_of(embedded, output, prune=False):
    model, about, items = embed.read(embedded)
    return sync(output, None, items, prune, model=model, **about)


@pytest.mark.parametrize("kind, dtype", [(IMAGES, "float32"), (IMAGES, "float16"), (TEXTS, "float32")])
def test_an_index_of_embeddings_is_the_index_of_their_sources(tmp_path, model, kind, dtype):
    sources = write_sources(tmp_path) if kind == TEXTS else [str(write_sources(tmp_path) and tmp_path / "images")]
    embedded = run(tmp_path, sources, kind=kind, dtype=dtype, shard_items=2 if kind == IMAGES else 12)
    made = index_of(embedded, tmp_path / "a")
    direct = Index.build(tmp_path / "b", model, sorted(sources), kind=kind, dtype=dtype)
    assert sorted(map(repr, made.table)) == sorted(map(repr, direct.table)) and made.model.distance(direct.model) == 0
    order = [np.argsort(list(index.items), kind="stable") for index in (made, direct)]
    np.testing.assert_array_equal(made.embeddings[order[0]], direct.embeddings[order[1]])
    names, shards = [(item.language, item.name) for item, _ in rows_of(embedded)], len(vector_files(embedded))
    assert len(set(names)) == len(made) and made.dtype == dtype
    assert shards == 3 if kind == IMAGES else shards > 5 and len(names) > len(made)  # some came in two shards
    if kind == IMAGES:
        skipped = json.loads((embedded / "embeddings.json").read_text())["skipped"]
        assert skipped == {"File that is not an image in a format that is read": {"count": 2, "first": "broken.png"}}


def test_an_index_follows_embeddings(tmp_path):
    rows = list(image_records(lambda name: {"en": name}))
    write_records(tmp_path / "data", "test", rows)
    fields = tmp_path / "data" / "fields.jsonl"
    fields.write_text('{"image_id": "red.png", "fields": {"brand": "acme"}}\n')
    acme = parse_filters(["brand=acme"])
    first = index_of(run(tmp_path, [str(tmp_path / "data")], kind=IMAGES), tmp_path / "index")
    assert [first.items[row] for row in first.rows(acme)] == ["red.png"]
    assert index_of(tmp_path / "out", tmp_path / "index").counts.kept == 4
    fields.write_text('{"image_id": "violet.png", "fields": {"brand": "acme"}}\n')
    assert_refused(run, ["another set of embeddings"], tmp_path, [str(tmp_path / "data")], kind=IMAGES)
    (tmp_path / "out").rename(tmp_path / "before")
    write_records(tmp_path / "data", "test", rows[1:])
    again = run(tmp_path, [str(tmp_path / "data")], kind=IMAGES)
    second = index_of(again, tmp_path / "index")
    assert [second.items[row] for row in second.rows(acme)] == ["violet.png"]
    assert len(second) == 4 and len(index_of(again, tmp_path / "index", prune=True)) == 3


def test_vectors_keep_the_field_of_their_products(tmp_path):
    write_records(tmp_path / "data", "test", image_records(lambda name: {"en": name}))
    (tmp_path / "data/dataset.json").write_text('{"product": "sku"}')
    made = index_of(run(tmp_path, [str(tmp_path / "data")], kind=IMAGES), tmp_path / "index")
    assert made.product == "sku"
    (tmp_path / "exported").mkdir()
    embed.export(made, tmp_path / "exported/a.parquet")
    assert index_of(tmp_path / "exported", tmp_path / "again").product == "sku"


def test_the_command_index_takes_embeddings(tmp_path, monkeypatch, capsys):
    (tmp_path / "colors").mkdir()  # the place of the model
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    rows = image_records(lambda name: {"en": f"thing {name}"})
    write_records(tmp_path / "data", "train", rows)
    embedded = run(tmp_path, [str(tmp_path / "data")], kind=IMAGES)
    monkeypatch.setattr(commands, "open_model", lambda path, **_: pytest.fail("loaded a model that nothing needs"))
    made = commands.index([str(embedded)], str(tmp_path / "index"))
    assert "4 images in" in (printed := capsys.readouterr().out) and "by words alone: --model=MODEL" in printed
    assert made.captions is None and load_index(tmp_path / "index").sources == (str(embedded),)
    monkeypatch.setattr(commands, "open_model", lambda path, **_: ColorEmbedder())
    made = commands.index([], str(tmp_path / "index"), model=str(tmp_path / "model"))  # of what it was made of
    assert len(made.captions.vectors) == 4 and made.counts.kept == 4
    changes.remove(tmp_path / "index", ["red.png"])  # of four, so that the noise level is measured again
    texts_alone = ColorEmbedder()
    texts_alone.encode_image = lambda *_, **__: pytest.fail("pictures are encoded")
    monkeypatch.setattr("mural_lite.models.open_model", lambda path: texts_alone)
    assert commands.index([str(embedded)], str(tmp_path / "index")).noise.count == 3
    new = Item("new", captions=(("en", "a new caption"),)), np.eye(3)[0]
    assert sync(tmp_path / "index", None, [new], model=made.model).captions is None  # of which one has no vector
    monkeypatch.setattr(commands, "open_model", lambda path, **_: ColorEmbedder(seed=1))
    for sources, output, options, words in (
        ([embedded, "photos"], "index", {}, "holds vectors that `embed` made: give this folder alone"),
        ([tmp_path / "data"], "other", {}, "--model is missing"),
        ([embedded], "index", {"model": str(tmp_path / "model")}, "was made by the model"),
    ):
        assert_refused(commands.index, [words], list(map(str, sources)), str(tmp_path / output), **options)


def test_damaged_embeddings_are_named(tmp_path):
    embedded = run(tmp_path, write_sources(tmp_path))
    path = vector_files(embedded)[1]
    data, random = path.read_bytes(), np.random.default_rng(0)
    whole = rows_of_file(path)
    for number in range(60):
        damaged = bytearray(data)
        damaged[random.integers(4, len(data))] ^= 1 << number % 8
        path.write_bytes(damaged)
        try:
            assert rows_of_file(path) == whole  # of a bit that nothing depends on
        except UserError as error:
            assert path.name in str(error) and "\n" not in str(error)
    for content in (b"", b"PAR1", data[: len(data) // 2]):
        path.write_bytes(content)
        assert_refused(index_of, [f"{path.name} is damaged"], embedded, tmp_path / "index")
    assert_refused(index_of, ["holds no embeddings"], tmp_path / "images", tmp_path / "index")


def test_a_million_texts_are_no_million_objects(tmp_path, monkeypatch):
    """Memory does not grow with the items: three times as many in the same."""
    monkeypatch.setattr(changes, "BLOCK", {TEXTS: 64})
    for module, name in ((database, "TOGETHER"), (index_files, "TOGETHER"), (index_files, "_BLOCK")):
        monkeypatch.setattr(module, name, 64)
    peaks = []
    for count in (400, 1_200):
        items = ((Item(f"text {n}", language="en"), f"text {n}") for n in range(count))
        tracemalloc.start()
        sync(tmp_path / f"{count}", ColorEmbedder(), items, kind=TEXTS, dtype="float16")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0], peaks


# --- what leaves an index, and the recipes of docs/search.md for engines that take it


DOCS = ROOT / "docs/search.md"
COUNT = 60


def recipe(name):
    """A function of the page."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(next(block for block in blocks if f"def {name}(" in block), names)
    return names[name]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An index with captions, fields and an item without a picture, and its file."""
    folder = tmp_path_factory.mktemp("exported")
    items = [(Item(f"p{n}", captions=(("sw", f"kitu {n}"),), fields={"brand": "acme", "price": str(n)}, digest="1"),
              png((4 * n, 0, 250 - 4 * n))) for n in range(COUNT)]  # fmt: skip
    sync(folder / "index", ColorEmbedder(), [*items, (Item("a gift", digest="1"), None)], dtype="float16")
    commands.export(str(folder / "index"), str(folder / "index.parquet"))
    return load_index(folder / "index"), folder / "index.parquet"


def test_ids_fields_and_vectors_leave_and_become_an_index_again(exported, tmp_path):
    index, path = exported
    matrix = path.parent / "index/vectors.npy"
    stamp = matrix.stat().st_mtime_ns
    load_index(path.parent / "index")
    assert matrix.stat().st_mtime_ns == stamp  # an item without a picture is no damage, for which it is made again
    ((rows, vectors),) = read_rows(path)
    assert list(map(embed.to_item, rows)) == [dataclasses.replace(item, digest="") for item in index.table]
    np.testing.assert_array_equal(vectors, index.embeddings)
    assert vectors.dtype == np.float16 and not vectors[COUNT].any()
    assert embed.to_item({"name": "a"}) == Item("a")  # columns that another program left out
    model, about, items = embed.read(path.parent)
    again = sync(tmp_path / "again", None, items, model=model, **about)
    assert list(again.items) == list(index.items) and again.bare.tolist() == index.bare.tolist() == [COUNT]
    np.testing.assert_array_equal(again.embeddings, index.embeddings)
    for vector, words in ((np.full(3, 5.0), "'x' has the length 8.66: expected 1"), (np.full(3, np.nan), "length nan")):
        assert_refused(sync, [words], tmp_path / "again", None, [(Item("x"), vector)], model=model, **about)


def test_the_recipe_for_faiss_finds_what_exact_search_finds(exported):
    pytest.importorskip("faiss")
    index, path = exported
    built, names = recipe("faiss_index")(path, lists=4, visited=4)
    queries = np.asarray(index.embeddings[:9], np.float32)
    _, expected = index.search(queries, 1)
    _, found = built.search(queries, 1)
    assert [names[row] for row in found[:, 0]] == [index.items[row] for row in expected[:, 0]]


def test_the_recipe_for_postgresql_fits_its_table(exported):
    """No PostgreSQL with pgvector runs here: the text and what is copied are looked at."""
    index, path = exported
    (statements,) = re.findall(r"```sql\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (columns,) = re.findall(r"CREATE TABLE items \((.*)\);", statements)
    assert re.findall(r"(\w+) (text|jsonb|halfvec)", columns) == [
        ("name", "text"), ("captions", "jsonb"), ("fields", "jsonb"), ("vector", "halfvec")
    ]  # fmt: skip
    copied = list(recipe("rows")(path))
    assert len(copied) == COUNT + 1 and all(len(row) == 4 for row in copied)
    name, captions, fields, vector = copied[7]
    assert name == "p7" and json.loads(captions) == [["sw", "kitu 7"]] and json.loads(fields)["price"] == "7"
    np.testing.assert_array_equal(np.array(json.loads(vector), np.float16), index.embeddings[7])  # pgvector's text form


PROGRAM = """
import pathlib, sys
from mural_search.embed import Settings, embed
if __name__ == "__main__":
    settings = Settings(kind="texts", workers=int(sys.argv[3]), shard_items=3, max_skipped_fraction=1.0)
    embed(sys.argv[1], sys.argv[4:], sys.argv[2], settings, progress=False)
"""


@pytest.mark.slow
def test_two_processes_give_the_same_vectors(tmp_path, toy):
    """Each loads the model; kills are tested with `convert`, whose shards and pool these are."""
    sources, environment = write_sources(tmp_path), {**os.environ, "PYTHONPATH": str(ROOT)}
    for output, workers in (("whole", "0"), ("out", "2")):
        command = [sys.executable, "-c", PROGRAM, str(toy.path), str(tmp_path / output), workers]
        subprocess.run([*command, *sources], check=True, env=environment)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_bucket_gives_and_takes_the_same_vectors(tmp_path, monkeypatch):
    sources = tmp_path / "in"
    write_records(sources / "data", "train", image_records(lambda name: {"en": "a"}))
    (sources / "texts.tsv").write_text("".join(f"de\tSatz {n}\n" for n in range(300)))
    with object_store(monkeypatch) as client:
        upload(client, sources, "in")
        for kind, name in ((IMAGES, "data"), (TEXTS, "texts.tsv")):
            expected = run(tmp_path, [str(sources / name)], f"out {kind}", kind=kind)
            output = embed.embed(
                str(tmp_path / "model"), [f"s3://bucket/in/{name}"], f"s3://bucket/sets/{kind}",
                Settings(kind, workers=0, shard_items=12), progress=False,
            )  # fmt: skip
            assert set(stored(client, f"sets/{kind}")) == {path.name for path in expected.iterdir()}
            made = index_of(output, tmp_path / f"index {kind}")
            assert len(made) == (4 if kind == IMAGES else 300)
            if kind == IMAGES:
                assert made.read_image(0) == png(COLORS[made.items[0]])  # from the bucket
