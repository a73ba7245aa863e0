"""The commands of search in a row; tests/snapshots/search_session.txt has all that each prints, or its refusal."""

import re

import pytest
from search_data import ColorEmbedder, png, write_folder
from snapshots import assert_snapshot

from mural_lite.errors import UserError
from mural_lite.progress import announcing
from mural_search import runs
from mural_search.items import Filter
from mural_search.queries import Query

TABLE = ["path\tcaption\tlanguage\tbrand\tprice\tsku", "red.png\ta red spot\ten\tacme\t9.90\tA-1",
         "red.png\tein roter Fleck\tde\tacme\t9.90\tA-1", "blue.png\ta blue spot\ten\tacme\t19.90\tA-2",
         "violet.png\t\t\tbolt\t5\tB-1", "a/orange.PNG\tan orange\ten\tbolt\t\tB-2", "broken.png\tx\ten\tbolt\t1\tB-3",
         "gone.png\tx\ten\tbolt\t1\tB-4", "violet.png\tviolet\ten\tbolt\t5\tB-1"]  # fmt: skip
RIGHT = [Query("red", "en", right=("red.png",)), Query("rot", "de", right=("blue.png", "red.png"))] * 3


def test_a_session(tmp_path, monkeypatch, capsys):
    for module in ("mural_search.runs", "mural_lite.models"):
        monkeypatch.setattr(f"{module}.open_model", lambda path, **_: ColorEmbedder())
    monkeypatch.chdir(tmp_path)
    table = write_folder(tmp_path / "images") / "table.tsv"
    (tmp_path / "model").mkdir()

    def index(*names, **options):
        return lambda: runs.index(list(names), "index", **options)

    def query(*queries, **options):
        return lambda: runs.query("index", queries, model="model", **options)

    def remove(*names, **options):
        return lambda: runs.remove("index", names, **options)

    def write(*lines):
        return lambda: table.write_text("\n".join(lines), encoding="utf-8")

    red, source = Query("red"), "images/table.tsv"
    steps = {
        "no sources": index(), "no model": index(source), "no source": index("nowhere", model="model"),
        "a table": write(*TABLE), "index": index(source, model="model", fields=["brand"]),
        "index again": index(model="model"), "an unknown field": index(source, model="model", fields=["colour"]),
        "the named field stays": index(model="model"),
        "query": query(red), "the two best": query(red, top=2), "further ones": query(red, top=2, offset=1),
        "by pictures": query(red, rank="pictures"), "by texts": query(red, rank="texts"),
        "by words": query(Query("spot"), rank="words"), "weights": query(Query("spot"), weights=["words=9", "texts=0"]),
        "without a word": query(Query("spot -blue")), "by an image": query(Query(image="images/violet.png"), top=2),
        "a filter": query(red, filters=[Filter("brand", "acme")]), "sorted": query(red, sort="-price"),
        "no such value": query(red, filters=[Filter("brand", "none")]),
        "an exact number": query(Query("A-2"), top=1),
        "JSON": query(red, Query("blue größe", "de"), top=2, json="-"),
        "files": query(red, json="a.json", html="a.html"),
        "right answers": query(*RIGHT), "a right answer": query(RIGHT[1], top=3),
        "nothing asked": query(), "no words": query(Query(" ")), "no image": query(Query(image="none.png")),
        "no top": query(red, top=0), "no rank": query(red, rank="best"), "no order": query(red, sort="brand"),
        "no folder": query(red, html="none/a.html"), "only -words": query(Query("-red")),
        "no field": query(red, filters=[Filter("colour", "x")]), "no weight": query(red, weights=["x=1"]),
        "try to remove": remove("red.png", dry_run=True), "remove": remove("red.png"), "twice": remove("red.png"),
        "nothing to remove": remove(), "both": remove("a", filters=[Filter("a", "b")]), "after it": query(red, top=2),
        "remove by a field": remove(filters=[Filter("brand", "bolt")]), "remove all": remove("blue.png"),
        "another table": write(TABLE[0], TABLE[3].replace("blue spot", "sea"), "new.png\t\t\t\t\t"),
        "changes": index(model="model"), "prune": index(model="model", prune=True),
        "export": lambda: runs.export("index", "a.parquet"),
        "texts of it": index("images/table.tsv", model="model", kind="texts"),
    }  # fmt: skip
    (tmp_path / "images/new.png").write_bytes(png((0, 250, 0)))
    lines = []
    for name, step in steps.items():
        lines.append(f"# {name}")
        try:
            with announcing():
                step()
        except UserError as error:
            lines.append(f"refused: {error}")
        printed = capsys.readouterr()
        lines += [*printed.out.splitlines(), *(line for line in re.split(r"[\r\n]", printed.err) if "/s" not in line)]
    assert_snapshot("search_session", "\n".join(filter(None, lines)), folder=tmp_path)


@pytest.mark.parametrize("queries, options", [([Query(" ")], {}), ([Query("red")], {"top": 0})])
def test_mistakes_are_reported_before_the_model_is_loaded(tmp_path, monkeypatch, queries, options):
    monkeypatch.setattr(runs, "open_model", lambda path, **_: pytest.fail("loaded the model first"))
    with pytest.raises(UserError):
        runs.query(str(tmp_path), queries, **options)
