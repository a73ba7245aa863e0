"""Words counted by language in bounded memory, and vocabularies from converted and from published data."""

import math

import pytest
from convert_data import run, write_moses
from smooth_pictures import image_bytes
from test_commands import run_here

from mural_tf.commands import COMMANDS
from mural_tf.ingest import rows
from mural_tf.ingest.build_vocabulary import COUNTS, WordCounts, count_sources
from mural_tf.ingest.convert import KINDS
from mural_tf.ingest.source import Settings, parse_source
from mural_tf.text.vocabulary_file import load_vocabulary
from mural_tf.text.word_pieces import WordPieceTokenizer


def test_temperature_by_hand(tmp_path):
    blocks = [("en", "a", 60), ("en", "x", 4), ("sw", "x", 1)], [("en", "the", 30), ("en", "x", 6), ("sw", "ya", 3)]
    for number, block in enumerate(blocks):
        with rows.write(tmp_path, "counts", number, COUNTS) as add:
            list(map(add, block))
    counts = WordCounts(tmp_path)
    assert counts.totals == {"en": 100, "sw": 4}
    assert counts.combined() == ({"a": 60, "the": 30, "x": 11, "ya": 3}, 0)
    # T = 2: shares in proportion to the square root, 10 : 2, so sw's 4 words count as 100 * 2 / 10 = 20: times 5
    assert counts.combined(2.0) == ({"a": 60, "the": 30, "x": 10 + 5, "ya": 15}, 0)
    # T = infinity: 4 words count as 100: times 25
    assert counts.combined(math.inf)[0] == {"a": 60, "the": 30, "x": 10 + 25, "ya": 75}
    assert counts.combined(2.0, most=3) == ({"a": 60, "the": 30, "x": 15}, 1)  # of x and ya, the alphabet decides


def sources_of_every_kind(tmp_path):
    """A zip of translations, a TSV of captions whose images are nowhere, and a converted data set."""
    moses = write_moses(
        tmp_path / "de-sw.txt.zip",
        {"X.de-sw.de": "".join(f"Hund nummer{n % 7}\n" for n in range(200)).encode(),
         "X.de-sw.sw": "".join("\n" if n == 3 else "mbwa\n" for n in range(200)).encode()},
    )  # fmt: skip
    (tmp_path / "cc12m.tsv").write_text("".join(f"http://x/{n}.jpg\ta dog\n" for n in range(120)))
    (tmp_path / "a.jpg").write_bytes(image_bytes(0))
    (tmp_path / "mine.tsv").write_text("a.jpg\tchien chien\n")
    (tmp_path / "pairs.tsv").write_text("perro\tcane\n")
    mine = [f"captions:{tmp_path}/mine.tsv,images={tmp_path},language=fr"]
    mine.append(f"pairs:{tmp_path}/pairs.tsv,language_a=es,language_b=it")
    run(mine, tmp_path / "mine")
    return [f"opus:{moses}", f"cc12m:{tmp_path}/cc12m.tsv", f"records:{tmp_path}/mine"]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_any_source_is_counted(tmp_path, workers):
    sources = [parse_source(text, KINDS) for text in sources_of_every_kind(tmp_path)]
    settings = Settings(workers=workers, unit_bytes=2000, max_skipped_fraction=1.0)
    (tmp_path / "counts").mkdir()
    counts, tally = count_sources(sources, settings, tmp_path / "counts", progress=False)
    combined, _ = counts.combined()
    assert (combined["Hund"], combined["mbwa"], combined["dog"]) == (199, 199, 120)
    assert (combined["chien"], combined["perro"], combined["cane"]) == (2, 1, 1)
    assert counts.totals["en"] == 240 and counts.totals["sw"] == 199
    assert tally.written == 199 + 120 + 3 and list(tally.skipped) == ["empty text"]


def test_command(tmp_path, capsys):
    sources = sources_of_every_kind(tmp_path)
    flags = ["--size=80", "--workers=0", "--temperature=2", f"--output={tmp_path}/v.txt"]
    assert run_here(COMMANDS, "vocabulary", *sources, *flags) == 0
    assert "323 captions and pairs read, 322 written, 1 skipped" in capsys.readouterr().out
    tokenizer = WordPieceTokenizer(load_vocabulary(tmp_path / "v.txt"))
    assert tokenizer.tokenize(["mbwa dog chien"]).shape[0] == 1
    assert run_here(COMMANDS, "vocabulary", "--size=80", f"--output={tmp_path}/v.txt") == 1
    assert capsys.readouterr().err.startswith("Error: Expected sources")
