"""Models of SentencePiece (Kudo and Richardson, 2018) as vocabulary files, and back.

A model file (`spiece.model`, `sentencepiece.bpe.model`) and Hugging Face's `tokenizer.json` of the same pieces become
our own vocabulary file, which is read too: one line per piece, whose number is its id, `["▁the", -3.2, "normal"]`.
Line 0 has a fourth entry, the settings of the model. So ids that a family moves are moved in the file, digests, copies
and assets are the same as for every vocabulary, and the model that TensorFlow's operation takes is made of the lines.

These types of tokenizer.json are read: Unigram with `Precompiled` and `Metaspace`; BPE with byte fallback, whose
pieces score as the first merge that makes them.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from mural_lite.errors import UserError
from mural_lite.files import as_path, check_json
from mural_tf.text.character_maps import problem_of
from mural_tf.text.vocabulary_file import LONGEST_PIECE

SPACE = "▁"  # U+2581, a space in pieces
MODELS = {"unigram": 1, "bpe": 2}
TYPES = {"normal": 1, "unknown": 2, "control": 3, "user_defined": 4, "unused": 5, "byte": 6}
SETTINGS = {"model": str, "byte_fallback": bool, "add_dummy_prefix": bool, "remove_extra_whitespaces": bool}
SETTINGS |= {"escape_whitespaces": bool, "treat_whitespace_as_suffix": bool, "charsmap": str}

# The part of sentencepiece_model.proto that decides how texts are divided: (name, number, type, default).
_FIELDS = {
    "Piece": [("piece", 1, "STRING", ""), ("score", 2, "FLOAT", "0"), ("type", 3, "INT32", "1")],
    "Trainer": [
        ("model", 3, "INT32", "1"),
        ("treat_whitespace_as_suffix", 24, "BOOL", "false"),
        ("byte_fallback", 35, "BOOL", "false"),
    ],
    "Normalizer": [
        ("charsmap", 2, "BYTES", ""),
        ("add_dummy_prefix", 3, "BOOL", "true"),
        ("remove_extra_whitespaces", 4, "BOOL", "true"),
        ("escape_whitespaces", 5, "BOOL", "true"),
    ],
    "Model": [("pieces", 1, ".Piece", ""), ("trainer", 2, ".Trainer", ""), ("normalizer", 3, ".Normalizer", "")],
}


@functools.cache
def _model_class() -> type[message.Message]:
    file = descriptor_pb2.FileDescriptorProto(name="pieces.proto", syntax="proto2")
    for name, fields in _FIELDS.items():
        described = file.message_type.add(name=name)
        for field, number, type_name, default in fields:
            added = described.field.add(name=field, number=number, label=3 if field == "pieces" else 1)
            if type_name.startswith("."):
                added.type, added.type_name = added.TYPE_MESSAGE, type_name
            else:
                added.type, added.default_value = getattr(added, f"TYPE_{type_name}"), default
    pool = descriptor_pool.DescriptorPool()  # of our own: other packages may hold SentencePiece's
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Model"))


def read_lines(path: str | pathlib.Path, fairseq: bool = False) -> list[str]:
    """Returns the lines of the vocabulary that a file of any of the three kinds holds.

    Args:
      path: the file.
      fairseq: give the pieces of a model file fairseq's ids: `<s>`, `<pad>`, `</s>`, `<unk>`, the pieces, `<mask>`.

    Raises:
      UserError: no such file, or it holds no pieces of unigram or byte-fallback BPE.
    """
    try:
        data = as_path(path).read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read the vocabulary {path}: {error.strerror}.") from None
    if data.startswith(b'["'):
        return data.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\n").split("\n")
    if data.startswith(b"{"):
        pieces, settings = _read_json(data, path)
    else:
        pieces, settings = read_model(data, path)
        if fairseq and pieces[0][2] == "unknown":
            ours = [["<s>", 0.0, "control"], ["<pad>", 0.0, "control"], ["</s>", 0.0, "control"], pieces[0]]
            names = {piece for piece, _, _ in ours}
            pieces = [*ours, *(entry for entry in pieces if entry[0] not in names), ["<mask>", 0.0, "control"]]
    lines = [json.dumps(piece, ensure_ascii=False) for piece in [[*pieces[0], settings], *pieces[1:]]]
    parse_lines(lines, path)
    return lines


def parse_lines(lines: Sequence[str], path: str | pathlib.Path) -> tuple[list[list], dict]:
    """Returns the pieces, [piece, score, type] each, and the settings; raises `UserError` for other lines."""
    try:
        pieces = json.loads(f"[{','.join(lines)}]")
        settings = pieces[0].pop(3)
        good = len(pieces) == len(lines) and all(type(settings[name]) is tag for name, tag in SETTINGS.items())
        good = good and settings["model"] in MODELS
        charsmap = base64.b64decode(settings["charsmap"], validate=True)
        for piece, score, tag in pieces:
            good = good and isinstance(piece, str) and piece != "" and isinstance(score, (int, float)) and tag in TYPES
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise _refusal(path, "its lines are not [piece, score, type], with settings in the first")
    if sum(tag == "unknown" for _, _, tag in pieces) != 1:
        raise _refusal(path, "not exactly one of its pieces is the unknown one")
    if len({piece for piece, _, _ in pieces}) < len(pieces):
        raise _refusal(path, "a piece occurs twice")
    if any(tag == "byte" for _, _, tag in pieces) != settings["byte_fallback"]:
        raise _refusal(path, "its bytes and its byte_fallback do not agree")
    longest = max(len(piece) for piece, _, _ in pieces)
    if longest > LONGEST_PIECE:
        raise _refusal(path, f"a piece has {longest} characters, and at most {LONGEST_PIECE} are taken")
    problem = problem_of(charsmap)
    if problem:
        raise _refusal(path, f"its charsmap is damaged: {problem}")
    return pieces, settings


def model_of(pieces: Sequence[Sequence], settings: Mapping) -> bytes:
    """Returns the serialized model of what `parse_lines` returns."""
    model = _model_class()()
    for piece, score, piece_type in pieces:
        model.pieces.add(piece=piece, score=score, type=TYPES[piece_type])
    for name in SETTINGS:
        part = model.trainer if name in ("model", "byte_fallback", "treat_whitespace_as_suffix") else model.normalizer
        value = settings[name]
        convert = {"model": MODELS.get, "charsmap": base64.b64decode}.get(name, bool)
        setattr(part, name, convert(value))
    return model.SerializeToString()


def read_model(data: bytes, path: str | pathlib.Path) -> tuple[list[list], dict]:
    """Returns the pieces and settings of a model file's content, as `parse_lines` does; raises `UserError`."""
    try:
        model = _model_class().FromString(data)
    except (message.DecodeError, UnicodeDecodeError):
        raise _refusal(path, "it is neither a model file nor JSON") from None
    kinds = {number: name for name, number in TYPES.items()}
    models = {number: name for name, number in MODELS.items()}
    if not model.pieces:
        raise _refusal(path, "it holds no pieces")
    if model.trainer.model not in models:
        raise _refusal(path, "its pieces are words or characters")
    settings = {}
    for name in SETTINGS:
        settings[name] = getattr(model.trainer if hasattr(model.trainer, name) else model.normalizer, name)
    settings |= {"model": models[model.trainer.model], "charsmap": _text(settings["charsmap"])}
    return [[piece.piece, piece.score, kinds.get(piece.type, "")] for piece in model.pieces], settings


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _refusal(path: str | pathlib.Path, why: str) -> UserError:
    return UserError(
        f"{path} holds no pieces of SentencePiece, {why}: expected a model file (unigram or BPE), a tokenizer.json of "
        "Unigram or of BPE with byte fallback, or a vocabulary that this package wrote."
    )


# tokenizer.json.


def _read_json(data: bytes, path: str | pathlib.Path) -> tuple[list[list], dict]:
    try:
        tokenizer = json.loads(data)
        model = tokenizer["model"]
        family = model.get("type") or ("BPE" if "merges" in model else "")
        bytes_too = bool(model.get("byte_fallback"))
        if family not in ("Unigram", "BPE") or (family == "BPE" and not bytes_too):
            raise _refusal(path, f"its model is {family or 'unnamed'}{' without byte fallback' * (family == 'BPE')}")
        scores = _unigram_scores(model) if family == "Unigram" else _merge_scores(model)
        names = {piece for piece, _ in scores}
        if bytes_too and "<0x09>" not in names:  # Gemma's, where the tab took its place
            scores = [["<0x09>" if piece == "\t" else piece, score] for piece, score in scores]
        unknown = scores[model["unk_id"]][0] if family == "Unigram" else model["unk_token"]
        added = {described["content"]: described for described in tokenizer.get("added_tokens") or []}
        for token in sorted(added.values(), key=lambda described: described["id"]):
            if token["id"] == len(scores):
                scores.append([token["content"], 0.0])
        special = {name: "control" if described.get("special") else "user_defined" for name, described in added.items()}
        special |= {f"<0x{byte:02X}>": "byte" for byte in range(256) if bytes_too}
        special[unknown] = "unknown"
        mergeable = {pair[0] + pair[1] for pair in _merges(model)} if family == "BPE" else set()
        pieces = []
        for piece, score in scores:
            plain = "normal" if family == "Unigram" or len(piece) == 1 or piece in mergeable else "control"
            pieces.append([piece, float(score), special.get(piece, plain)])
        settings = {"model": family.lower(), "byte_fallback": bytes_too, "treat_whitespace_as_suffix": False}
        return pieces, {**settings, **_normalization(tokenizer, path)}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise _refusal(path, "its JSON is not a tokenizer's") from None


def _unigram_scores(model: Mapping) -> list[list]:
    return [[piece, score] for piece, score in model["vocab"]]


def _merge_scores(model: Mapping) -> list[list]:
    """BPE's pieces in the order of their ids; merged pieces score minus the rank of the first merge that makes them."""
    ranks: dict[str, int] = {}
    for left, right in _merges(model):
        ranks.setdefault(left + right, len(ranks))
    ids = sorted(model["vocab"].items(), key=lambda entry: entry[1])
    if [number for _, number in ids] != list(range(len(ids))):
        raise ValueError("ids")
    return [[piece, -float(ranks.get(piece, 0))] for piece, _ in ids]


def _merges(model: Mapping) -> list[Sequence[str]]:
    return [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]


def byte_pair_lines(
    ids: Mapping[str, int],
    merges: Sequence,
    special: Mapping[str, str],
    written: Callable[[str], str],
    path: str | pathlib.Path,
) -> list[str]:
    """Returns the lines of byte pairs whose texts are written in bytes before they are divided.

    Args:
      ids: of the pieces.
      merges: "a b" or [a, b] each, in the order in which they were learned.
      special: {piece: its type}.
      written: how a piece is written in a text.
      path: the file, for messages.

    Raises `UserError` for ids or merges that are not such.
    """
    try:
        scores = _merge_scores({"vocab": ids, "merges": merges})
        mergeable = {left + right for left, right in _merges({"merges": merges})}
    except (ValueError, TypeError, AttributeError, KeyError):
        raise UserError(f"{path}: its ids are not 0 to {len(ids) - 1}, or a merge is not a pair of pieces.") from None
    pieces = []
    for piece, score in scores:
        is_of_text = len(written(piece)) == 1 or piece in mergeable
        pieces.append([written(piece), score, special.get(piece, "normal" if is_of_text else "control")])
    settings = {"model": "bpe", "byte_fallback": False, "treat_whitespace_as_suffix": False, "charsmap": ""}
    settings |= dict.fromkeys(("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"), False)
    lines = [json.dumps(piece, ensure_ascii=False) for piece in [[*pieces[0], settings], *pieces[1:]]]
    parse_lines(lines, path)
    return lines


def steps_of(tokenizer: Mapping, part: str) -> list[dict]:
    """The steps of a part of tokenizer.json ("normalizer", "pre_tokenizer", "post_processor"), in their order.

    Steps within sequences are there too. Raises `UserError` for other JSON.
    """
    steps, waiting = [], [tokenizer.get(part)]
    while waiting:
        step = check_json({} if waiting[0] is None else waiting[0], dict, part, "tokenizer.json")
        inner = [step[name] for name in ("normalizers", "pretokenizers", "processors") if name in step]
        inner = check_json(inner[0] if inner else [], list, part, "tokenizer.json")
        waiting[:1] = inner
        steps += [step] if step and not inner and step.get("type") != "Sequence" else []
    return steps


def _pattern(step: Mapping) -> str:
    pattern = step.get("pattern") or {}
    return pattern.get("Regex", pattern.get("String", ""))


def _normalization(tokenizer: Mapping, path: str | pathlib.Path) -> dict:
    rules = {"charsmap": "", "add_dummy_prefix": False, "remove_extra_whitespaces": False, "escape_whitespaces": True}
    for step in [*steps_of(tokenizer, "normalizer"), *steps_of(tokenizer, "pre_tokenizer")]:
        step_type, pattern = step["type"], _pattern(step)
        if step_type == "Precompiled":
            rules["charsmap"] = step["precompiled_charsmap"] or ""
        elif step_type == "Metaspace":
            old = "always" if step.get("add_prefix_space", True) else "never"
            rules["add_dummy_prefix"] |= step.get("prepend_scheme", old) != "never"
        elif step_type == "Prepend":
            rules["add_dummy_prefix"] = True
        elif step_type == "WhitespaceSplit" or (step_type == "Replace" and pattern in (" {2,}", "\\s+")):
            rules["remove_extra_whitespaces"] = True
        elif step_type == "Replace" and pattern != " ":
            raise _refusal(path, f"it replaces {pattern!r} before its model")
        elif step_type not in ("Strip", "Lowercase", "Replace", "Split"):
            raise _refusal(path, f"texts pass {step_type} before its model")
    try:
        base64.b64decode(rules["charsmap"], validate=True)
    except binascii.Error:
        raise ValueError("charsmap") from None
    return rules
