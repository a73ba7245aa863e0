"""An index is a dictionary: any order of updates, prunings and removals, compared with one of Python's.

`test_search_changes.py` kills updates between their steps, and asks of sources in files.
"""

import pathlib
import tempfile

import numpy as np
import pytest
from search_data import ColorEmbedder, png

from mural_lite.errors import UserError
from mural_search import changes
from mural_search.index import load_index
from mural_search.items import Filter, Item

pytest.importorskip("hypothesis", reason="needs hypothesis: pip install -e '.[test]'")
from hypothesis import settings, stateful, strategies  # noqa: E402

NAMES = ("a", "a#2", "b")  # a#2 is a further picture of the product a
VERSIONS = ("old", "new")  # of an item's row
COLOURS = ((250, 0, 0), (0, 250, 0))
PICTURES = {None: None, **{colour: png(colour) for colour in COLOURS}, "broken": b"broken"}
ROWS = strategies.tuples(*map(strategies.sampled_from, (NAMES, VERSIONS, [*PICTURES])))


def vector_of(colour):
    return tuple(np.array(colour or (0, 0, 0)) / 250)


class IndexMachine(stateful.RuleBasedStateMachine):
    """`rows`: name -> (version of its row, colour or None); `removed`: name -> the version that stays out."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.place = pathlib.Path(self.folder.name, "index")
        self.rows = {}
        self.removed = {}
        self.constants = changes.BLOCK, changes.TOGETHER
        changes.BLOCK, changes.TOGETHER = {"images": 2, "texts": 2}, 2  # an update has several blocks

    def teardown(self):
        changes.BLOCK, changes.TOGETHER = self.constants
        self.folder.cleanup()

    @stateful.rule(entries=strategies.lists(ROWS, max_size=5), prune=strategies.booleans())
    def sync(self, entries, prune):
        expected = changes.Counts(repeated=len(entries) - len({name for name, *_ in entries}))
        pictures = 0
        before = dict(self.rows)
        met = {}
        for entry in reversed(entries):
            met[entry[0]] = entry  # of equal names, the first counts
        for name, version, colour in met.values():
            if self.removed.get(name) == version:
                expected.deleted += 1
            elif colour == "broken":
                expected.skipped += 1
            elif before.get(name) == (version, colour):
                expected.kept += 1
            else:
                expected.changed += name in before
                expected.added += name not in before
                pictures += colour is not None and before.get(name, ("", None))[1] != colour
                self.rows[name] = (version, colour)
                self.removed.pop(name, None)
        gone = self.rows.keys() - met.keys()
        prunes = prune and len(gone) < len(self.rows)  # a source of which nothing is met empties no index
        expected.gone, expected.pruned = (0, len(gone)) if prunes else (len(gone), 0)
        for name in gone if prunes else ():
            del self.rows[name]
        embedder = ColorEmbedder()
        items = []
        for name, version, colour in entries:
            captions = (("en", f"thing {version}"), ("de", name))
            items.append((Item(name, captions=captions, fields={"n": version}, digest=version), PICTURES[colour]))
        try:
            counts = changes.sync(self.place, embedder, items, prune)
        except UserError:
            assert gone == self.rows.keys()
        else:
            assert self.rows and counts == expected and embedder.encoded == pictures

    @stateful.precondition(lambda self: self.rows)
    @stateful.rule(names=strategies.sets(strategies.sampled_from(NAMES), min_size=1, max_size=2))
    def remove(self, names):
        chosen = {name for name in self.rows if name in names or name.split("#")[0] in names}
        is_known = all(name in self.rows or any(other.split("#")[0] == name for other in self.rows) for name in names)
        self.take_out(chosen, is_known and len(chosen) < len(self.rows), names=sorted(names))

    @stateful.precondition(lambda self: self.rows)
    @stateful.rule(version=strategies.sampled_from(VERSIONS))
    def remove_by_filter(self, version):
        chosen = {name for name, row in self.rows.items() if row[0] == version}
        self.take_out(chosen, len(chosen) < len(self.rows), filters=[Filter("n", version)])

    def take_out(self, chosen, is_possible, **asked):
        if not is_possible:
            with pytest.raises(UserError):
                changes.remove(self.place, **asked)
            return
        for dry_run in (True, False):
            assert changes.remove(self.place, dry_run=dry_run, **asked) == (len(chosen), len(self.rows))
        for name in chosen:
            self.removed[name] = self.rows.pop(name)[0]

    @stateful.invariant()
    def is_the_dictionary(self):
        if not self.rows:
            return
        index = load_index(self.place)
        found = {item.name: (item.fields, item.captions, tuple(index.embeddings[row].tolist()))
                 for row, item in enumerate(index.table)}  # fmt: skip
        assert len(index) == len(self.rows) and found == {
            name: ({"n": version}, (("en", f"thing {version}"), ("de", name)), vector_of(colour))
            for name, (version, colour) in self.rows.items()
        }
        assert len(index.captions.vectors) == 2 * len(self.rows)
        for version in VERSIONS:
            expected = [row for row, name in enumerate(index.items) if self.rows[name][0] == version]
            assert index.table.with_words(version).tolist() == index.rows([Filter("n", version)]).tolist() == expected


IndexMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=12, deadline=None)
TestIndex = IndexMachine.TestCase
