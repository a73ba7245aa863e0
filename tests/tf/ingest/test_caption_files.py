"""Caption files in exactly the published formats, with their traps."""

import gzip
import json
import random

import pytest

from mural_lite import text_files
from mural_lite.errors import UserError
from mural_tf.data import caption_files
from mural_tf.data.caption_files import Caption
from mural_tf.ingest.sources import wit
from mural_tf.ingest.sources.captioned_sets import Multi30k

WIT_COLUMNS = [
    "language", "page_url", "image_url", "page_title", "section_title", "hierarchical_section_title",
    "caption_reference_description", "caption_attribution_description", "caption_alt_text_description", "mime_type",
    "original_height", "original_width", "is_main_image", "attribution_passes_lang_id", "page_changed_recently",
    "context_page_description", "context_section_description",
]  # fmt: skip


def write_gz(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode("utf-8")))


def write_json(path, content):
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


class Problems(list):
    def __call__(self, kind, location, *count):
        self.append((kind, location, *count))


def test_lines_end_with_newlines_only(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffuno\r\ndos\u2028tres\u0085cuatro\n\n cinco".encode())
    assert list(text_files.read_lines(path)) == [
        (1, "uno"),
        (2, "dos\u2028tres\u0085cuatro"),
        (3, ""),
        (4, " cinco"),
    ]


def test_lines_that_cannot_be_read_are_reported(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good\n\xff\xfe\nfine\n")
    problems = Problems()
    assert list(text_files.read_lines(path, problems)) == [(1, "good"), (2, None), (3, "fine")]
    assert problems == [("text that is not UTF-8", f"{path}:2")]
    with pytest.raises(UserError, match=r"bad.txt:2: text that is not UTF-8"):
        list(text_files.read_lines(path))
    path.write_bytes(b"good\nfi" + bytes(40) + b"\nfine\n")  # a block that was never written
    problems = Problems()
    assert list(text_files.read_lines(path, problems)) == [(1, "good"), (2, None), (3, "fine")] and len(problems) == 1
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(b"one\ntwo\n" * 5000)[:-20])
    problems = Problems()
    assert 0 < len(list(text_files.read_lines(cut, problems))) <= 10000
    assert [kind for kind, _ in problems] == ["file that is damaged or cut off: what follows is lost"]
    with pytest.raises(UserError, match="Cannot read .*missing.txt: No such file"):
        list(text_files.read_lines(tmp_path / "missing.txt"))


@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
@pytest.mark.parametrize("cuts", [[0, 1, 5], [0, 4], [0, 3, 3], [0, 100], [0, 2, 17, 50]])
def test_parts_of_a_file_have_each_line_once(tmp_path, ending, cuts):
    """A line belongs to the part in which its first byte lies, wherever a file is cut."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(("one\ntwo\n\nfour is long\nfive" + ending).encode()))
    whole = list(text_files.read_lines(path))
    parts = [text_files.Part(begin, end) for begin, end in zip(cuts, [*cuts[1:], None])]
    assert [line for part in parts for line in text_files.read_lines(path, text_files.refuse, part)] == whole


def test_damage_is_the_problem_of_one_part(tmp_path):
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(random.Random(0).randbytes(200_000).hex(" ").replace("0 ", "\n").encode())[:-9000])
    problems = Problems()
    for begin in range(0, 600_000, 100_000):
        part = text_files.Part(begin, begin + 100_000 if begin < 500_000 else None)
        list(text_files.read_lines(path, problems, part))
    assert [kind for kind, _ in problems] == ["file that is damaged or cut off: what follows is lost"]


def test_aligned_files_as_in_xtd(tmp_path):
    images, captions = tmp_path / "test_image_names.txt", tmp_path / "test_1kcaptions_jp.txt"
    images.write_text("COCO_train2014_000000061844.jpg\nCOCO_val2014_000000000042.jpg#367178\n")
    captions.write_bytes("野球の試合\r\n犬\r".encode() + b"")  # CRLF, and no newline at the end
    assert list(caption_files.read_aligned(captions, images, "jp")) == [
        Caption("COCO_train2014_000000061844.jpg", "COCO_train2014_000000061844.jpg", "野球の試合", "ja",
                f"{captions}:1"),
        Caption("COCO_val2014_000000000042.jpg", "COCO_val2014_000000000042.jpg", "犬", "ja", f"{captions}:2"),
    ]  # fmt: skip
    captions.write_text("only one\n")
    with pytest.raises(UserError, match="jp.txt ends before line 2 of .*names.txt"):
        list(caption_files.read_aligned(captions, images, "ja"))
    captions.write_text("one\n\n")
    with pytest.raises(UserError, match="jp.txt:2: empty caption"):
        list(caption_files.read_aligned(captions, images, "ja"))


def wit_row(language="en", url="http://x/1.jpg", caption="", **others):
    values = {
        "language": language,
        "image_url": url,
        "caption_reference_description": caption,
        "is_main_image": "false",
    }
    return "\t".join({**values, **others}.get(column, "") for column in WIT_COLUMNS)


def test_wit(tmp_path):
    path = tmp_path / "wit_v1.train.all-00000-of-00010.tsv.gz"
    rows = [
        "\t".join(WIT_COLUMNS),
        wit_row("iw", "http://x/1.jpg", "כלב"),
        wit_row("en", "http://x/2.jpg", ""),  # no reference description
        wit_row("en", "http://x/3.jpg", '"A ""large"" dog\nin two\tlines"', page_title='a "word" inside'),
        "en\ttoo\tshort",
        wit_row("zh-TW", "http://x/4.jpg", "狗"),
        wit_row("qq-nonsense-code", "http://x/5.jpg", "?"),
        wit_row("en", "", "no address"),
        wit_row("de", "http://x/6.jpg", "Hund"),
    ]
    write_gz(path, "\r\n".join(rows))
    problems = Problems()
    found = list(wit.read_wit(path, on_problem=problems))
    assert [caption[1:] for caption in found] == [
        ("http://x/1.jpg", "כלב", "he", f"{path}:2"),
        ("http://x/3.jpg", 'A "large" dog in two lines', "en", f"{path}:4"),
        ("http://x/4.jpg", "狗", "zh-TW", f"{path}:7"),
        ("http://x/6.jpg", "Hund", "de", f"{path}:10"),
    ]
    assert problems == [
        ("row with the wrong number of columns", f"{path}:6"),
        ("unknown language", f"{path}:8: 'qq-nonsense-code'"),
        ("caption of an image that the file does not name", f"{path}:9"),
    ]
    assert [c.language for c in wit.read_wit(path, ["iw", "de"], Problems())] == ["he", "de"]
    with pytest.raises(UserError, match="lacks the column 'image_url'"):
        write_gz(path, "language\tcaption\nen\tdog\n")
        list(wit.read_wit(path))


def test_multi30k_may_be_unpacked(tmp_path):
    (tmp_path / "data/task1/raw").mkdir(parents=True)
    (tmp_path / "data/task1/raw/train.en").write_text("a hat\n")
    assert [path.name for path in Multi30k(str(tmp_path)).files()] == ["train.en"]
