"""Sentence pieces of this package against SentencePiece's own and against Hugging Face's tokenizers.

Two steps, for environments that need not hold each other's packages. The first trains models on the texts and writes
the ids of 100,000 lines (needs sentencepiece, tokenizers, transformers); the second compares them (needs mural_tf):

    python benchmarks/sentence_pieces.py oracle --texts=lines.txt --folder=/tmp/pieces
    python -m benchmarks.sentence_pieces compare --folder=/tmp/pieces

A text is a line of the file; lines of every script, fuzz, runs of spaces, control strings and invalid UTF-8 are added.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import pathlib
import random
import sys
import time
import unicodedata

LINES = 100_000
CONTROL = ("</s>", "<s>", "<unk>", "<pad>", "<0x41>", "<mask>")
MODELS = ("unigram", "unigram_ties", "bpe")


def lines_to_compare(texts: list[str]) -> list[bytes]:
    """Returns `LINES` lines, the same for the same texts: 60% are texts, the others are made."""
    draw = random.Random(7)
    lines = [text.encode() for text in draw.sample(texts, min(len(texts), LINES * 6 // 10))]
    letters = [chr(code) for code in range(0x20, 0x32000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
    blocks = collections.defaultdict(list)
    for letter in letters:
        blocks[ord(letter) >> 7].append(letter)
    blocks = list(blocks.values())

    def words(characters):
        return "".join(draw.choice(characters) + " " * (draw.random() < 0.15) for _ in range(draw.randint(1, 40)))

    while len(lines) < LINES:
        kind, text = len(lines) % 8, draw.choice(texts)
        if kind == 0:  # one block
            line = words(draw.choice(blocks)).encode()
        elif kind == 1:  # any characters
            line = words(letters).encode()
        elif kind == 2:  # control strings within a text
            at = draw.randint(0, len(text))
            line = (text[:at] + draw.choice(CONTROL) + text[at:]).encode()
        elif kind == 3:  # any bytes
            line = bytes(draw.randrange(256) for _ in range(draw.randint(0, 40)))
        elif kind == 4:  # a text that lost or changed bytes
            data = bytearray(text.encode())
            for _ in range(draw.randint(1, 4)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            line = bytes(data[: draw.randint(1, len(data))])
        elif kind == 5:  # white space
            spaces = (" ", "  ", "\t", "\u3000", "\u00a0", "\u200b", "\r", "\x00", " \u2028", "▁")
            line = "".join(word + draw.choice(spaces) for word in [*text.split(" "), ""]).encode()
        elif kind == 6:  # repetitions, where pieces of equal score divide a text in several ways
            line = (draw.choice(letters[1:600]) * draw.randint(2, 30) + text[:3] * draw.randint(1, 9)).encode()
        else:  # casing and composition
            form = unicodedata.normalize(draw.choice(["NFC", "NFD", "NFKC", "NFKD"]), text)
            line = draw.choice([form.upper(), form.title(), form.swapcase()]).encode()
        lines.append(line)
    return lines


def oracle(texts: list[str], folder: pathlib.Path) -> None:
    """Trains the models and writes them, their tokenizer.json, the lines and everybody's ids into the folder."""
    import base64

    import sentencepiece
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import models, normalizers, pre_tokenizers
    from transformers.convert_slow_tokenizer import generate_merges

    lines = lines_to_compare(texts)
    found = {"lines": [line.decode("latin-1") for line in lines], "ids": {}, "tokenizers": {}}
    for name in MODELS:
        options = dict(normalization_rule_name="nmt_nfkc", pad_id=3)
        if name == "bpe":
            options = dict(byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False)
            options |= dict(remove_extra_whitespaces=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3)
            options |= dict(user_defined_symbols=["<mask>", "\n", "▁▁", "<b>"])
        made = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=made,
            vocab_size=8000,
            model_type=name.split("_")[0],
            num_threads=1,
            minloglevel=2,
            **options,
        )
        model = sentencepiece_model_pb2.ModelProto.FromString(made.getvalue())
        if name == "unigram_ties":
            for piece in model.pieces:
                piece.score = float(round(piece.score))
        (folder / f"{name}.model").write_bytes(model.SerializeToString())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
        found["ids"][name] = [processor.encode(line) for line in lines]
        pieces = [(piece.piece, piece.score) for piece in model.pieces]
        if name == "bpe":
            vocabulary = {piece: number for number, (piece, _) in enumerate(pieces)}
            user = {piece.piece for piece in model.pieces if piece.type != piece.NORMAL}
            merges = generate_merges(vocabulary, dict(pieces), user)
            theirs = tokenizers.Tokenizer(
                models.BPE(vocabulary, merges, fuse_unk=True, unk_token="<unk>", byte_fallback=True)
            )
            theirs.normalizer = normalizers.Replace(" ", "▁")
            theirs.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
            theirs.add_tokens(["<mask>", "\n", "▁▁", "<b>"])
        else:
            theirs = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
            charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap)
            theirs.normalizer = normalizers.Sequence(
                [
                    normalizers.Precompiled(base64.b64decode(charsmap)),
                    normalizers.Strip(left=False, right=True),
                    normalizers.Replace(tokenizers.Regex(" {2,}"), "▁"),
                ]
            )
            theirs.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        special = [piece.piece for piece in model.pieces if piece.type in (piece.CONTROL, piece.UNKNOWN)]
        theirs.add_special_tokens(special)
        theirs.save(str(folder / f"{name}.json"))
        found["tokenizers"][name] = [
            None if text is None else theirs.encode(text, add_special_tokens=False).ids for text in map(_text, lines)
        ]
        print(name, len(pieces), "pieces", flush=True)
    (folder / "found.json").write_text(json.dumps(found))


def _text(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def compare(folder: pathlib.Path) -> int:
    """Prints how many lines differ; returns how many from SentencePiece itself, but for equally good divisions."""
    import tensorflow as tf

    from mural_tf.text.piece_models import parse_lines, read_lines
    from mural_tf.text.sentence_pieces import SentencePieceTokenizer

    found = json.loads((folder / "found.json").read_text())
    lines, wrong = [line.encode("latin-1") for line in found["lines"]], 0
    for name in MODELS:
        for kind in ("model", "json"):
            vocabulary = read_lines(folder / f"{name}.{kind}")
            tokenizer, started = SentencePieceTokenizer(vocabulary, layout="siglip2"), time.monotonic()
            ours = []
            for begin in range(0, len(lines), 1000):
                ours += tokenizer.tokenize(tf.constant(lines[begin : begin + 1000])).merge_dims(1, 2).to_list()
            seconds = time.monotonic() - started
            pieces, _ = parse_lines(vocabulary, name)
            both = enumerate(zip(ours, found["ids"][name]))
            differ = {i: _have_equal_scores(a, b, pieces) for i, (a, b) in both if a != b}
            ties, others = sum(differ.values()), [i for i, is_tie in differ.items() if not is_tie]
            wrong += len(others)
            print(
                f"{name}.{kind}: {len(lines)} lines in {seconds:.1f} s, {len(differ)} differ from sentencepiece, "
                f"{ties} of them in the choice among pieces of equal score"
            )
            for i in others[:5]:
                print("  ", lines[i], ours[i], found["ids"][name][i])
        kinds, examples = collections.Counter(), {}
        texts = 0
        for line, a, b in zip(lines, ours, found["tokenizers"][name]):
            if b is None:
                continue
            texts += 1
            if a != b:
                kinds[why := _kind(line.decode(), a, b, pieces)] += 1
                examples.setdefault(why, (line.decode(), a, b))
        print(f"{name}: {texts} texts, {sum(kinds.values())} differ from tokenizers: {dict(kinds)}")
        for why, example in examples.items():
            print("  ", why, *map(ascii, example))
    return wrong


def _have_equal_scores(ours: list[int], theirs: list[int], pieces: list[list]) -> bool:
    """Tells whether two divisions of a text are equally good."""
    texts = ["".join(pieces[i][0] for i in ids) for ids in (ours, theirs)]
    scores = [sum(pieces[i][1] for i in ids) for ids in (ours, theirs)]
    return texts[0] == texts[1] and abs(scores[0] - scores[1]) < 1e-5 * abs(scores[0])


def _kind(text: str, ours: list[int], theirs: list[int], pieces: list[list]) -> str:
    """Returns why ids differ."""
    if any(piece in text for piece, _, kind in pieces if kind in ("control", "unknown", "byte")):
        return "a control piece in the text"
    if any(piece in text for piece, _, kind in pieces if kind == "user_defined" and piece.strip()):
        return "a user-defined piece in the text"
    if _have_equal_scores(ours, theirs, pieces):
        return "pieces of equal score"
    if any(unicodedata.category(c) in ("Cc", "Cf", "Zs", "Zl", "Zp") and c != " " for c in text) or "  " in text:
        return "white space and format characters"
    if any(unicodedata.combining(c) for c in text):
        return "combining marks, normalized a grapheme at a time"
    if "▁" in text:
        return "the character of the space itself"
    return "others"


def main() -> None:
    """Runs one step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["oracle", "compare"])
    parser.add_argument("--texts", help="a file with a text a line")
    parser.add_argument("--folder", required=True)
    given = parser.parse_args()
    folder = pathlib.Path(given.folder)
    if given.step == "compare":
        sys.exit(compare(folder) > 0)
    folder.mkdir(parents=True, exist_ok=True)
    oracle([line for line in pathlib.Path(given.texts).read_text(encoding="utf-8").split("\n") if line], folder)


if __name__ == "__main__":
    main()
