"""What `catalogue` makes of a table, without training: its index, its page and what stays of an earlier run."""

import colorsys

import pytest
from refusals import assert_refused
from search_data import ColorEmbedder, png

from mural_lite import models
from mural_search import catalogue, changes, runs
from mural_search.index import Index, load_index
from mural_search.tables.product_table import TableRequest


class NoTrainer:
    """A `catalogue.Trainer` that trains nothing."""

    needs_captions = False
    page = "report.html"

    def __init__(self, trained=None):
        self._trained = trained

    def check(self, description):
        pass

    def train(self, entries, tally):
        return True

    def workdirs(self):
        return []

    def trained(self):
        return self._trained

    def held_out(self):
        return set()

    def commands(self, trained):
        return []

    def reading(self, description, texts):
        return None


@pytest.fixture
def model(monkeypatch, tmp_path):
    """The folder of a model, which is another one with another seed in it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "vocabulary.txt").write_text("0")

    def opened(*_, **__):
        return ColorEmbedder(int((folder / "vocabulary.txt").read_text()))

    monkeypatch.setattr(ColorEmbedder, "reading", None, raising=False)
    monkeypatch.setattr(models, "open_model", opened)
    monkeypatch.setattr(runs, "open_model", opened)
    return folder


def write_shop(folder, count=5):
    """Writes a table of products, each with a picture; returns its file."""
    lines = ["image,title,sku,price"]
    for number in range(count):
        color = tuple(int(255 * part) for part in colorsys.hsv_to_rgb(number / count, 1, 1))
        (folder / f"{number}.png").write_bytes(png(color))
        lines.append(f"{number}.png,thing number {'abcdefgh'[number]},S-{number},{number}.50")
    (folder / "shop.csv").write_text("\n".join(lines))
    return folder / "shop.csv"


def make(table, model, output=None, trainer=None, source=None, **asked):
    """Makes the search of a table; returns the folder of the index."""
    request = TableRequest(str(table), language="en", **asked)
    output = output or table.parent / "out"
    return catalogue.catalogue(request, output, source or str(model), trainer or NoTrainer(), train=False)


def names(index):
    return list(load_index(index).items)


def test_other_commands_leave_the_index_of_a_table_alone(tmp_path, model):
    index = make(write_shop(tmp_path), model)
    words = ["follows a table: bring it up to date with the command `catalogue`"]
    assert_refused(runs.index, words, [], str(index), prune=True)
    assert_refused(runs.index, words, [str(tmp_path / "shop.csv")], str(index), model=str(model))
    assert_refused(Index.build, words, index, ColorEmbedder(), prune=True)
    opened = load_index(index)
    assert (len(opened), opened.product, len(opened.table.caption_ids)) == (5, "sku", 5)


def test_names_with_line_breaks_and_pictures_that_went_away_end_nothing(tmp_path, model, monkeypatch):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a\nb.png", "c.png", "d.png"):
        (folder / name).write_bytes(png((ord(name[0]), 0, 99)))
    index = make(folder, model, tmp_path / "out")
    assert len(names(index)) == 3
    read_image = Index.read_image

    def read_or_fail(self, row):
        if self.items[row] == "c.png":
            raise OSError("it went away")
        return read_image(self, row)

    monkeypatch.setattr(Index, "read_image", read_or_fail)
    make(folder, model, tmp_path / "out")
    page = (tmp_path / "out/examples.html").read_text()
    assert "Pictures like d.png" in page and "Pictures like c.png" not in page


def test_a_table_that_became_short_is_searched_with_the_trained_model(tmp_path, model):
    index = make(write_shop(tmp_path), model, trainer=NoTrainer(model), source="nothing")
    assert len(names(index)) == 5
    request = TableRequest(str(tmp_path / "shop.csv"), language="en")
    assert catalogue.catalogue(request, tmp_path / "out", "nothing", NoTrainer(model)) == index
    assert_refused(catalogue.catalogue, ["are too few"], request, tmp_path / "new", "nothing", NoTrainer())


def test_files_of_ones_own_in_the_folder_stay(tmp_path, model):
    table = write_shop(tmp_path)
    for name in ("skipped.tsv", "film.mp4.partial"):
        (tmp_path / name).write_text("mine")
    make(table, model, tmp_path)
    for name in ("skipped.tsv", "film.mp4.partial"):
        assert (tmp_path / name).read_text() == "mine"


def test_what_was_removed_by_hand_stays_out_of_another_models_index(tmp_path, model):
    index = make(write_shop(tmp_path), model)
    changes.remove(index, ["S-2"])
    (model / "vocabulary.txt").write_text("1")
    make(tmp_path / "shop.csv", model)
    assert names(index) == ["S-0", "S-1", "S-3", "S-4"]
    make(tmp_path / "shop.csv", model)
    assert names(index) == ["S-0", "S-1", "S-3", "S-4"]
