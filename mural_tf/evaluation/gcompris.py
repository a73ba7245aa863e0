"""GCompris' activity "lang": about 1,100 drawings, each with its word in up to 45 languages.

The drawings are the PNG files of GCompris-gtk's repository. The words are in GCompris-qt's `lang.rcc`, a resource file
of Qt: a header, a tree of names and a block of contents, which are plain or compressed by zlib. The format of Qt's
`qresource.cpp` in versions 1 to 3, all numbers big-endian:

    file     "qres", version, offset of the tree, of the contents, of the names, from version 3 on flags
    node     offset of its name, 2 bytes of flags, then for a folder: number of children, number of the first child;
             for a file: 4 bytes of country and language, offset of its content; from version 2 on 8 bytes of time
    name     2 bytes: length in characters, 4 bytes: hash, UTF-16
    content  length, bytes; of a compressed one the bytes are: length before compression, zlib's stream
"""

from __future__ import annotations

import collections
import json
import pathlib
import re
import struct
import zlib
from collections.abc import Sequence

from mural_lite.errors import UserError
from mural_lite.files import check_json
from mural_lite.text_files import canonical_language
from mural_tf.data.caption_files import Caption, checked
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation

WORDS = ("gcompris-qt-data/usr/share/gcompris-qt/rcc/lang.rcc", "lang.rcc")
DRAWINGS = ("GCompris-gtk/src/lang-activity/resources/lang/words", "words")
MANY = 1000  # words; a language with more enters the group's mean
GROUP = f"more than {MANY:,} words"
VERSIONS = (1, 2, 3)
LARGEST = 2**26  # bytes of a file in it; files of words have some 100,000 each
# Flags of a node; 4 is Zstandard.
COMPRESSED = 1
FOLDER = 2


def gcompris(request: Request) -> list[Evaluation]:
    """Measures image-text retrieval between drawings and their words, in each language that has words."""
    words = read_words(_first_existing(request.folder, WORDS))
    folder = _first_existing(request.folder, DRAWINGS)
    drawings = {path.stem: path for path in sorted(folder.glob("*.png"))}
    captions: list[Caption] = []
    for language, entries in words.items():
        for name, word in entries.items():
            if name in drawings and word.strip():
                captions += checked(str(drawings[name]), name, word, language, language, request.on_problem)
    if not captions:
        raise UserError(f"No word of lang.rcc is of a drawing in {folder}: expected words such as apple for apple.png.")
    pool = request.file_pool(captions, "GCompris' words")
    wordless = len(drawings) - len(pool.image_numbers)
    if wordless:
        pool.notes.append(f"{wordless} of {len(drawings):,} drawings have no word and are left out.")
    large_languages = [language for language, texts in pool.texts.items() if len(texts) > MANY]
    return request.measure(pool, "gcompris", {GROUP: large_languages})


def _first_existing(folder: pathlib.Path, names: Sequence[str]) -> pathlib.Path:
    """Returns the first of the paths `folder` / name that exists; `needs` in benchmarks.tsv has made sure of one."""
    return [folder / name for name in names if (folder / name).exists()][0]


def read_words(path: pathlib.Path) -> dict[str, dict[str, str]]:
    """Returns {language: {name of a drawing: word, "" if not translated}} of a lang.rcc; `UserError` for others."""
    words = {}
    for name, content in read_resources(path).items():
        content_name = re.search(r"/content-([\w@]+)\.json$", name)
        if content_name is None:
            continue
        try:
            entries = json.loads(content)
        except ValueError as error:
            raise UserError(f"{path}: {name} is not valid JSON ({error}). Fetch the package again.") from None
        check_json(entries, dict[str, str], name, path)
        language = canonical_language(content_name[1].replace("@", "-"))
        words[language] = {voice.removesuffix(".ogg"): word for voice, word in entries.items()}
    if not words:
        raise UserError(f"{path} holds no content-<language>.json: expected the lang.rcc of gcompris-qt-data.")
    return dict(sorted(words.items()))


def read_resources(path: pathlib.Path) -> dict[str, bytes]:
    """Returns {path: content} of the JSON files in a resource file of Qt.

    Raises `UserError` for another file, a version or a compression that is not known, or damage.
    """
    data = path.read_bytes()
    if data[:4] != b"qres":
        raise UserError(f"{path} is not a resource file of Qt: it begins with {data[:4]!r}, not with b'qres'.")
    try:
        version, tree, contents, names = struct.unpack_from(">4I", data, 4)
        if version not in VERSIONS:
            raise UserError(f"{path} has version {version} of Qt's resource files; versions 1 to 3 are known.")
        size = 14 if version == 1 else 22  # bytes of a node
        waiting = collections.deque([(0, "")])  # (number of a node, path of its folder); the root is the first
        node_count = 1
        resources = {}
        while waiting:
            node, parent = waiting.popleft()
            # `first` and `second`: a folder's number of children and first child; a file's language and content.
            name_at, flags, first, second = struct.unpack_from(">IHII", data, tree + node * size)
            name = ""  # the root's path
            if node:
                name = f"{parent}/{_name(data, names + name_at)}"
            if flags & FOLDER:
                node_count += first
                if node_count * size > len(data):
                    raise UserError(f"{path} is damaged: its folders hold more than the file. Fetch the package again.")
                waiting.extend((child, name) for child in range(second, second + first))
            elif name.endswith(".json"):
                resources[name] = _content(data, contents + second, flags, f"{path}: {name}")
    except (struct.error, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}). Fetch the package again.") from None
    return resources


def _name(data: bytes, at: int) -> str:
    """Returns the name at an offset in bytes: 2 bytes of length and 4 of a hash precede its characters."""
    (characters,) = struct.unpack_from(">H", data, at)
    return data[at + 6 : at + 6 + 2 * characters].decode("utf-16-be")


def _content(data: bytes, at: int, flags: int, where: str) -> bytes:
    """Returns the decompressed content of a node with these flags, at an offset in bytes; `where` is for messages."""
    (length,) = struct.unpack_from(">I", data, at)
    content = data[at + 4 : at + 4 + length]
    if flags & COMPRESSED:
        stream = zlib.decompressobj()
        decompressed = stream.decompress(content[4:], LARGEST)
        if not stream.eof:
            raise UserError(f"{where} is cut off, or has more than {LARGEST:,} bytes. Fetch the package again.")
        return decompressed
    if flags:
        raise UserError(f"{where} has a compression that is not known (flags {flags}); zlib's is (flags {COMPRESSED}).")
    return content
