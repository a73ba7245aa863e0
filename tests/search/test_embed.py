"""Embedding by shards: the same vectors however it runs, resumed after a kill; and indexes made of them."""

import json
import os
import pathlib
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from object_store import object_store, stored, upload
from search_data import COLORS, ColorEmbedder, png, write_folder

from mural_tf.data import records
from mural_tf.data.vectors import read_rows, vector_files
from mural_tf.errors import UserError
from mural_tf.fingerprint import take_fingerprint
from mural_tf.search import changes, collect, commands, database, embed
from mural_tf.search import index as index_files
from mural_tf.search.collect import Unreadable
from mural_tf.search.embed import Settings, make_shard
from mural_tf.search.index import Index, load_index, sync
from mural_tf.search.items import IMAGES, TEXTS, Item, parse_filters

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
    for path in vector_files(output):
        for rows, vectors in read_rows(path):
            yield from zip(map(embed.to_item, rows), vectors)


def contents(output):
    """{file: its rows, or bytes}: Parquet's own bytes hold the place of the model."""
    parts = {path.name: [(item, tuple(vector)) for item, vector in rows_of_file(path)] for path in vector_files(output)}
    return {**parts, "embeddings.json": (output / "embeddings.json").read_bytes()}


def rows_of_file(path):
    blocks = [(map(embed.to_item, rows), vectors.tolist()) for rows, vectors in read_rows(path)]
    return [entry for items, vectors in blocks for entry in zip(items, vectors)]


# --- the folder


def test_texts(tmp_path, model):
    output = run(tmp_path, write_sources(tmp_path))
    found, described = list(rows_of(output)), json.loads((output / "embeddings.json").read_text())
    expected = {("de", f"Satz {n % 250}") for n in range(1, 300, 2)}
    expected |= {("", f"sentence {n}") for n in [*range(0, 250, 2), *range(0, 400, 8)]}
    assert {(item.language, item.name) for item, _ in found} == expected
    vectors = model.encode_text([item.name for item, _ in found])
    np.testing.assert_array_equal(vectors, np.array([vector for _, vector in found]))
    assert described["count"] == len(found) and len(vector_files(output)) > 5 and described["embedding_size"] == 3
    assert described["skipped"] == {"Text that is not UTF-8": {"count": 1, "first": f"{tmp_path}/texts.tsv:301"}}
    assert described["left_out"]["repeated"]["count"] == 400 - len(found)
    assert (output / "skipped.tsv").read_text() == f"Text that is not UTF-8\t{tmp_path}/texts.tsv:301\n"
    assert described["made_by"]["identity"] == str(take_fingerprint(model)) and described["made_by"]["step"] == 7
    assert "tests" not in embed.describe(output) and f"{len(found):,} texts in" in embed.describe(output)
    assert sorted(path.name for path in tmp_path.glob(".out*")) == [".out.lock"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_images(tmp_path, model, dtype):
    write_sources(tmp_path)
    output = run(tmp_path, [str(tmp_path / "images")], kind=IMAGES, dtype=dtype, shard_items=2)
    found = list(rows_of(output))
    assert [item.name for item, _ in found] == sorted(COLORS)
    assert found[0][1].dtype == dtype
    expected = model.encode_image([png(COLORS[item.name]) for item, _ in found])
    assert np.abs(expected - np.array([vector for _, vector in found])).max() < (1e-7 if dtype == "float32" else 1e-3)
    described = json.loads((output / "embeddings.json").read_text())
    kind = "File that is not an image that Pillow reads"
    assert described["skipped"] == {kind: {"count": 2, "first": "broken.png"}} and len(vector_files(output)) == 3


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
        patch.setattr(embed, "make_shard", stopping)
        run(tmp_path, sources)
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


def interrupted(*_):
    raise KeyboardInterrupt


def test_another_model_does_not_go_on(tmp_path, monkeypatch):
    sources = write_sources(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(embed, "_finish", interrupted)  # no signal: shells start background jobs without SIGINT
        run(tmp_path, sources)
    (next((tmp_path / ".out.embedding" / "parts").glob("*.json"))).unlink()
    other = ColorEmbedder(seed=1)
    monkeypatch.setattr(embed, "load_model", lambda *_: (other, take_fingerprint(other)))
    with pytest.raises(UserError, match="unfinished work in .* was made by the model colors at step 7"):
        run(tmp_path, sources)
    (tmp_path / "model" / "config.json").write_text("{}")  # the files of the model tell, too
    with pytest.raises(UserError, match="unfinished work on other sources or with other settings"):
        run(tmp_path, sources)


def test_too_much_that_is_unusable(tmp_path, model):
    (tmp_path / "bad.txt").write_bytes(b"".join(b"good %d\n" % n if n % 10 else b"\xff\n" for n in range(1500)))
    with pytest.raises(UserError) as error:
        run(tmp_path, [str(tmp_path / "bad.txt")], max_skipped_fraction=0.05, shard_items=500)
    assert "images and texts (" in str(error.value) and f"first at {tmp_path}/bad.txt:" in str(error.value)
    assert not (tmp_path / "out").exists()
    assert (
        len(list(rows_of(run(tmp_path, [str(tmp_path / "bad.txt")], max_skipped_fraction=0.2, shard_items=500))))
        == 1350
    )


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="^max_skipped_fraction=nan: expected a number from 0 to 1"):
        Settings(max_skipped_fraction=float("nan"))
    sources = write_sources(tmp_path)
    with pytest.raises(UserError, match="The model folder .* does not exist"):
        embed.embed(str(tmp_path / "nothing"), sources, tmp_path / "out", Settings())
    with pytest.raises(UserError, match="missing does not exist"):
        run(tmp_path, [str(tmp_path / "missing")])
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match="Nothing to embed: 0 images and texts read"):
        run(tmp_path, [str(tmp_path / "empty.txt")])


# --- cutting files


def read_all(kind, groups):
    found = [entry for group in groups for entry in collect.read(kind, group)]
    return [entry if isinstance(entry, Unreadable) else entry[0] for entry in found]


@pytest.mark.parametrize("items", [1, 7, 10_000])
def test_parts_of_texts_are_the_whole(tmp_path, items):
    sources = write_sources(tmp_path)
    groups = collect.cut_files(TEXTS, collect.list_files(TEXTS, sources), items)
    assert read_all(TEXTS, groups) == read_all(TEXTS, [[p for g in collect.cut_files(
        TEXTS, collect.list_files(TEXTS, sources), 10**9) for p in g]])  # fmt: skip
    assert len(groups) == 1 if items == 10_000 else len(groups) > 5
    assert all(sum(unit.weight for _, unit in group) <= items or len(group) == 1 for group in groups)


@pytest.mark.parametrize("damage", [None, 30, 2_000])
def test_parts_of_records_are_the_whole(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(collect, "RECORD_BYTES", 300)
    rows = [records.ImageTextRecord(f"{n}", png((n, 0, 9)), [f"thing {n}"], ["en"], [""]) for n in range(60)]
    records.write_records(tmp_path, records.IMAGE_TEXT, "train", rows)
    (path,) = (tmp_path / records.IMAGE_TEXT).iterdir()
    if damage is not None:
        data = bytearray(path.read_bytes())
        data[damage] ^= 4
        path.write_bytes(data)
    files = collect.list_files(IMAGES, [str(tmp_path)])
    whole = read_all(IMAGES, collect.cut_files(IMAGES, files, 10**9))
    for items in (1, 5, 17):
        groups = collect.cut_files(IMAGES, files, items)
        assert len(groups) > 1 and read_all(IMAGES, groups) == whole
    assert len(whole) >= 59 and (damage is None) == (len(whole) == 60 and not any(
        isinstance(entry, Unreadable) for entry in whole))  # fmt: skip


# --- indexes of embeddings


def index_of(embedded, output, prune=False):
    model, about, items = embed.read(embedded)
    return sync(output, None, items, prune, model=model, **about)


@pytest.mark.parametrize("kind", [IMAGES, TEXTS])
def test_an_index_of_embeddings_is_the_index_of_their_sources(tmp_path, model, kind):
    sources = write_sources(tmp_path) if kind == TEXTS else [str(write_sources(tmp_path) and tmp_path / "images")]
    embedded = run(tmp_path, sources, kind=kind, shard_items=3 if kind == IMAGES else 12)
    made = index_of(embedded, tmp_path / "a")
    direct = Index.build(tmp_path / "b", model, sorted(sources), kind=kind)
    assert sorted(map(repr, made.table)) == sorted(map(repr, direct.table)) and made.model.distance(direct.model) == 0
    order = [np.argsort(list(index.items), kind="stable") for index in (made, direct)]
    np.testing.assert_array_equal(made.embeddings[order[0]], direct.embeddings[order[1]])
    names = [(item.language, item.name) for item, _ in rows_of(embedded)]
    assert len(set(names)) == len(made) and (kind == IMAGES or len(names) > len(made))  # some came in two shards


def test_an_index_follows_embeddings(tmp_path):
    rows = [records.ImageTextRecord(name, png(color), [name], ["en"], [""]) for name, color in COLORS.items()]
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "test", rows)
    fields = tmp_path / "data" / "fields.jsonl"
    fields.write_text('{"image_id": "red.png", "fields": {"brand": "acme"}}\n')
    acme = parse_filters(["brand=acme"])
    first = index_of(run(tmp_path, [str(tmp_path / "data")], kind=IMAGES), tmp_path / "index")
    assert [first.items[row] for row in first.rows(acme)] == ["red.png"]
    assert index_of(tmp_path / "out", tmp_path / "index").counts.kept == 4
    fields.write_text('{"image_id": "violet.png", "fields": {"brand": "acme"}}\n')
    with pytest.raises(UserError, match="another set of embeddings"):
        run(tmp_path, [str(tmp_path / "data")], kind=IMAGES)
    (tmp_path / "out").rename(tmp_path / "before")
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "test", rows[1:])
    again = run(tmp_path, [str(tmp_path / "data")], kind=IMAGES)
    second = index_of(again, tmp_path / "index")
    assert [second.items[row] for row in second.rows(acme)] == ["violet.png"]
    assert len(second) == 4 and len(index_of(again, tmp_path / "index", prune=True)) == 3


def test_the_command_index_takes_embeddings(tmp_path, monkeypatch, capsys):
    write_sources(tmp_path)
    rows = [records.ImageTextRecord(n, png(color), [f"thing {n}"], ["en"], [""]) for n, color in COLORS.items()]
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "train", rows)
    embedded = run(tmp_path, [str(tmp_path / "data")], kind=IMAGES)
    monkeypatch.setattr(commands, "load", lambda path: pytest.fail("loaded a model that nothing needs"))
    made = commands.index([str(embedded)], str(tmp_path / "index"))
    assert "4 images in" in (printed := capsys.readouterr().out) and "by words alone: --model=MODEL" in printed
    assert made.captions is None and load_index(tmp_path / "index").sources == (str(embedded),)
    monkeypatch.setattr(commands, "load", lambda path: ColorEmbedder())
    made = commands.index([], str(tmp_path / "index"), model=str(tmp_path / "model"))  # of what it was made of
    assert len(made.captions.vectors) == 4 and made.counts.kept == 4
    with pytest.raises(UserError, match="holds vectors that `embed` made: give this folder alone"):
        commands.index([str(embedded), "photos"], str(tmp_path / "index"))
    with pytest.raises(UserError, match="--model is missing"):
        commands.index([str(tmp_path / "data")], str(tmp_path / "other"))
    monkeypatch.setattr(commands, "load", lambda path: ColorEmbedder(seed=1))
    with pytest.raises(UserError, match="was made by the model"):
        commands.index([str(embedded)], str(tmp_path / "index"), model=str(tmp_path / "model"))


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
        with pytest.raises(UserError, match=f"{path.name} is damaged"):
            index_of(embedded, tmp_path / "index")
    with pytest.raises(UserError, match="holds no embeddings"):
        index_of(tmp_path / "images", tmp_path / "index")


def test_a_million_texts_are_no_million_objects(tmp_path, monkeypatch):
    """Memory does not grow with the items: three times as many in the same."""
    monkeypatch.setattr(changes, "BLOCK", {TEXTS: 256})
    for module, name in ((database, "TOGETHER"), (index_files, "TOGETHER"), (index_files, "_BLOCK")):
        monkeypatch.setattr(module, name, 256)
    peaks = []
    for count in (1_000, 3_000):
        items = ((Item(f"text {n}", language="en"), f"text {n}") for n in range(count))
        tracemalloc.start()
        sync(tmp_path / f"{count}", ColorEmbedder(), items, kind=TEXTS, dtype="float16")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0], peaks


# --- processes


PROGRAM = """
import pathlib, sys
from mural_tf.search.embed import Settings, embed
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
    rows = [records.ImageTextRecord(name, png(color), ["a"], ["en"], [""]) for name, color in COLORS.items()]
    records.write_records(sources / "data", records.IMAGE_TEXT, "train", rows)
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
            model, about, items = embed.read(output)
            made = sync(tmp_path / f"index {kind}", None, items, model=model, **about)
            assert len(made) == (4 if kind == IMAGES else 300)
            if kind == IMAGES:
                assert made.read_image(0) == png(COLORS[made.items[0]])  # from the bucket
