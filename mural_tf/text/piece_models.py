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
SETTINGS = {
    "model": str,
    "byte_fallback": bool,
    "add_dummy_prefix": bool,
    "remove_extra_whitespaces": bool,
    "escape_whitespaces": bool,
    "treat_whitespace_as_suffix": bool,
    "charsmap": str,
}
# Of byte pairs whose texts are written in bytes before they are divided. The digests of vocabularies hold this order.
BYTE_PAIR_SETTINGS = {
    "model": "bpe",
    "byte_fallback": False,
    "treat_whitespace_as_suffix": False,
    "charsmap": "",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "escape_whitespaces": False,
}

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
    """Returns the class of protobuf messages "Model", built from `_FIELDS` without SentencePiece's package."""
    file = descriptor_pb2.FileDescriptorProto(name="pieces.proto", syntax="proto2")
    for message_name, fields in _FIELDS.items():
        message_type = file.message_type.add(name=message_name)
        for name, number, type_name, default in fields:
            label = 3 if name == "pieces" else 1  # protobuf's numbers for repeated and optional
            field = message_type.field.add(name=name, number=number, label=label)
            if type_name.startswith("."):
                field.type = field.TYPE_MESSAGE
                field.type_name = type_name
            else:
                field.type = getattr(field, f"TYPE_{type_name}")
                field.default_value = default
    pool = descriptor_pool.DescriptorPool()  # of our own: other packages may hold SentencePiece's
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Model"))


def read_lines(path: str | pathlib.Path, fairseq: bool = False) -> list[str]:
    """Returns the lines of the vocabulary in a file: SentencePiece's, a tokenizer.json, or this package's own.

    Args:
      path: the file.
      fairseq: whether the pieces of a model file that begins with the unknown piece get fairseq's ids, in the order
        `<s>`, `<pad>`, `</s>`, `<unk>`, the other pieces, `<mask>`.

    Raises:
      UserError: no such file, or it holds no pieces of unigram or byte-fallback BPE.
    """
    try:
        data = as_path(path).read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read the vocabulary {path}: {error.strerror}.") from None
    if data.startswith(b'["'):  # a file of this package, whose lines the tokenizer checks
        text = data.decode("utf-8", "replace").replace("\r\n", "\n")
        return text.removesuffix("\n").split("\n")
    if data.startswith(b"{"):
        pieces, settings = _read_json(data, path)
    else:
        pieces, settings = read_model(data, path)
        _, _, first_type = pieces[0]
        if fairseq and first_type == "unknown":
            pieces = _with_fairseq_ids(pieces)
    return as_lines(pieces, settings, path)


def _with_fairseq_ids(pieces: list[list]) -> list[list]:
    """Returns a model file's pieces, [piece, score, type] each, in fairseq's order, in which XLM-RoBERTa has its ids.

    `pieces[0]` is the unknown piece, which fairseq has after <s>, <pad> and </s>.
    """
    first_pieces = [["<s>", 0.0, "control"], ["<pad>", 0.0, "control"], ["</s>", 0.0, "control"], pieces[0]]
    first_names = {name for name, _, _ in first_pieces}
    other_pieces = [[name, score, piece_type] for name, score, piece_type in pieces if name not in first_names]
    return [*first_pieces, *other_pieces, ["<mask>", 0.0, "control"]]


def as_lines(pieces: list[list], settings: dict, path: str | pathlib.Path) -> list[str]:
    """Returns the lines that `parse_lines` reads as these pieces and settings; raises `UserError` as it does."""
    entries = [[*pieces[0], settings], *pieces[1:]]
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    parse_lines(lines, path)
    return lines


def parse_lines(lines: Sequence[str], path: str | pathlib.Path) -> tuple[list[list], dict]:
    """Returns a vocabulary's pieces, [piece, score, type] each, and settings; raises `UserError` for other lines."""
    try:
        pieces = json.loads(f"[{','.join(lines)}]")
        settings = pieces[0].pop(3)  # the first line has them after piece, score and type
        charsmap = base64.b64decode(settings["charsmap"], validate=True)
        is_valid = len(pieces) == len(lines) and _are_settings(settings) and all(map(_is_piece, pieces))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise _refusal(path, "its lines are not [piece, score, type], with settings in the first")
    names, _, types = zip(*pieces)
    if types.count("unknown") != 1:
        raise _refusal(path, "not exactly one of its pieces is the unknown one")
    if len(set(names)) < len(names):
        raise _refusal(path, "a piece occurs twice")
    if ("byte" in types) != settings["byte_fallback"]:
        raise _refusal(path, "its bytes and its byte_fallback do not agree")
    longest = max(map(len, names))
    if longest > LONGEST_PIECE:
        raise _refusal(path, f"a piece has {longest} characters, and at most {LONGEST_PIECE} are taken")
    problem = problem_of(charsmap)
    if problem:
        raise _refusal(path, f"its charsmap is damaged: {problem}")
    return pieces, settings


def _are_settings(settings: Mapping) -> bool:
    """Whether settings have the types of `SETTINGS` and a known model; raises `KeyError` if a setting is missing."""
    has_types = all(type(settings[name]) is value_type for name, value_type in SETTINGS.items())
    return has_types and settings["model"] in MODELS


def _is_piece(entry: list) -> bool:
    """Whether a line's JSON is [piece, score, type]; raises `ValueError` for another number of entries."""
    piece, score, piece_type = entry
    return isinstance(piece, str) and piece != "" and isinstance(score, (int, float)) and piece_type in TYPES


def model_of(pieces: Sequence[Sequence], settings: Mapping) -> bytes:
    """Returns the content of a model file for pieces and settings as `parse_lines` returns them."""
    model = _model_class()()
    for piece, score, piece_type in pieces:
        model.pieces.add(piece=piece, score=score, type=TYPES[piece_type])
    values = {
        **settings,
        "model": MODELS[settings["model"]],
        "charsmap": base64.b64decode(settings["charsmap"]),
    }
    for name in SETTINGS:
        setattr(_part_with(model, name), name, values[name])
    return model.SerializeToString()


def _part_with(model: message.Message, setting: str) -> message.Message:
    """Returns the part of a model that has the setting: "trainer" or "normalizer"."""
    if hasattr(model.trainer, setting):
        return model.trainer
    return model.normalizer


def read_model(data: bytes, path: str | pathlib.Path) -> tuple[list[list], dict]:
    """Returns (pieces, settings) of a model file's content, as `parse_lines`; `UserError` for other content."""
    try:
        model = _model_class().FromString(data)
    except (message.DecodeError, UnicodeDecodeError):
        raise _refusal(path, "it is neither a model file nor JSON") from None
    types = {number: name for name, number in TYPES.items()}
    models = {number: name for name, number in MODELS.items()}
    if not model.pieces:
        raise _refusal(path, "it holds no pieces")
    if model.trainer.model not in models:
        raise _refusal(path, "its pieces are words or characters")
    settings = {name: getattr(_part_with(model, name), name) for name in SETTINGS}
    settings["model"] = models[model.trainer.model]
    settings["charsmap"] = base64.b64encode(model.normalizer.charsmap).decode("ascii")
    return [[piece.piece, piece.score, types.get(piece.type, "")] for piece in model.pieces], settings


def _refusal(path: str | pathlib.Path, why: str) -> UserError:
    """Returns the error to raise for a file of which no vocabulary can be made; `why` is a clause about it."""
    return UserError(
        f"{path} holds no pieces of SentencePiece, {why}: expected a model file (unigram or BPE), a tokenizer.json of "
        "Unigram or of BPE with byte fallback, or a vocabulary that this package wrote."
    )


def _read_json(data: bytes, path: str | pathlib.Path) -> tuple[list[list], dict]:
    """Returns (pieces, settings) of a tokenizer.json's content, as `parse_lines`; `UserError` for other content."""
    try:
        tokenizer = json.loads(data)
        model = tokenizer["model"]
        family = _family_of(model, path)
        has_bytes = bool(model.get("byte_fallback"))
        pieces = _json_pieces(model, family, has_bytes, tokenizer.get("added_tokens") or [])
        settings = {"model": family.lower(), "byte_fallback": has_bytes, "treat_whitespace_as_suffix": False}
        return pieces, {**settings, **_normalization(tokenizer, path)}
    except UserError:
        raise  # it is a `ValueError`, and says more than the error below
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise _refusal(path, "its JSON is not a tokenizer's") from None


def _json_pieces(model: Mapping, family: str, has_bytes: bool, added_tokens: Sequence[Mapping]) -> list[list]:
    """Returns the pieces, [piece, score, type] each, of a tokenizer.json's `model` and `added_tokens`.

    `family` is "Unigram" or "BPE"; `has_bytes` says whether each byte is a piece, such as "<0x0A>".
    """
    scores = model["vocab"] if family == "Unigram" else _merge_scores(model)
    if has_bytes and "<0x09>" not in dict(scores):  # Gemma's, where the tab took its place
        scores = [("<0x09>" if piece == "\t" else piece, score) for piece, score in scores]
    scores, types = _with_added_tokens(scores, added_tokens)
    if has_bytes:
        types.update((f"<0x{byte:02X}>", "byte") for byte in range(256))
    if family == "Unigram":
        unknown, _ = scores[model["unk_id"]]
        text_pieces = {piece for piece, _ in scores}
    else:
        unknown = model["unk_token"]
        text_pieces = _merged_pieces(model)
    types[unknown] = "unknown"
    pieces = []
    for piece, score in scores:
        is_of_text = piece in text_pieces or len(piece) == 1
        default_type = "normal" if is_of_text else "control"
        pieces.append([piece, float(score), types.get(piece, default_type)])
    return pieces


def _family_of(model: Mapping, path: str | pathlib.Path) -> str:
    """Returns "Unigram" or "BPE"; raises `UserError` for other models, and for BPE without byte fallback."""
    family = model.get("type")
    if not family and "merges" in model:
        family = "BPE"
    if family not in ("Unigram", "BPE"):
        raise _refusal(path, f"its model is {family or 'unnamed'}")
    if family == "BPE" and not model.get("byte_fallback"):
        raise _refusal(path, "its model is BPE without byte fallback")
    return family


def _with_added_tokens(scores: Sequence, added_tokens: Sequence[Mapping]) -> tuple[list, dict[str, str]]:
    """Returns (piece, score) pairs, then the added tokens whose ids follow, and {added token: its type}."""
    scores = list(scores)
    token_of = {token["content"]: token for token in added_tokens}
    types = {}
    for name, token in sorted(token_of.items(), key=lambda item: item[1]["id"]):
        types[name] = "control" if token.get("special") else "user_defined"
        if token["id"] == len(scores):  # otherwise the model has the piece already
            scores.append((name, 0.0))
    return scores, types


def _merge_scores(model: Mapping) -> list[tuple[str, float]]:
    """Returns BPE's (piece, score) in the order of their ids; a merged piece scores minus the rank of its first merge.

    Raises `ValueError` if the ids are not 0, 1, 2, …
    """
    ranks: dict[str, int] = {}
    for left, right in _merges(model):
        ranks.setdefault(left + right, len(ranks))
    ids = sorted(model["vocab"].items(), key=lambda item: item[1])
    if [number for _, number in ids] != list(range(len(ids))):
        raise ValueError("ids")
    return [(piece, -float(ranks.get(piece, 0))) for piece, _ in ids]


def _merged_pieces(model: Mapping) -> set[str]:
    """Returns the pieces that a BPE model's merges make."""
    return {left + right for left, right in _merges(model)}


def _merges(model: Mapping) -> list[Sequence[str]]:
    """Returns the pairs of pieces that BPE merges, in order; a file has them as "a b" or ["a", "b"]."""
    merges = []
    for merge in model["merges"]:
        if isinstance(merge, str):
            merge = merge.split(" ")
        merges.append(merge)
    return merges


def byte_pair_lines(
    ids: Mapping[str, int],
    merges: Sequence,
    special: Mapping[str, str],
    written: Callable[[str], str],
    path: str | pathlib.Path,
) -> list[str]:
    """Returns the lines of a vocabulary of byte pairs, for texts that are written in bytes before they are divided.

    Args:
      ids: {piece: id}.
      merges: pairs of pieces, "a b" or ["a", "b"] each, in the order in which they were learned.
      special: {piece: its type of `TYPES`}, where the type does not follow from the merges.
      written: a function from a piece of the file to the same piece as our texts are written in bytes.
      path: the file, for messages.

    Raises `UserError` if the ids are not 0, 1, 2, … or a merge is not a pair.
    """
    try:
        model = {"vocab": ids, "merges": merges}
        scores = _merge_scores(model)
        merged_pieces = _merged_pieces(model)
    except (ValueError, TypeError, AttributeError, KeyError):
        raise UserError(f"{path}: its ids are not 0 to {len(ids) - 1}, or a merge is not a pair of pieces.") from None
    pieces = []
    for piece, score in scores:
        is_of_text = len(written(piece)) == 1 or piece in merged_pieces
        default_type = "normal" if is_of_text else "control"
        pieces.append([written(piece), score, special.get(piece, default_type)])
    return as_lines(pieces, BYTE_PAIR_SETTINGS, path)


def steps_of(tokenizer: Mapping, part: str) -> list[dict]:
    """Returns the steps of a part of tokenizer.json ("normalizer", "pre_tokenizer", "post_processor"), in their order.

    A sequence is replaced by its steps. Raises `UserError` for other JSON.
    """
    steps = []
    waiting = [tokenizer.get(part)]
    while waiting:
        step = waiting.pop(0)
        if step is None:  # a part without steps is null in a file
            continue
        check_json(step, dict, part, "tokenizer.json")
        inner = []
        for name in ("normalizers", "pretokenizers", "processors"):  # a sequence has one of these keys
            inner += check_json(step.get(name, []), list, part, "tokenizer.json")
        waiting = inner + waiting
        if step and not inner and step.get("type") != "Sequence":
            steps.append(step)
    return steps


def _pattern(step: Mapping) -> str:
    """Returns the regular expression or the string that a step replaces or splits at; "" if it has no pattern."""
    pattern = step.get("pattern") or {}
    return pattern.get("Regex", pattern.get("String", ""))


def _normalization(tokenizer: Mapping, path: str | pathlib.Path) -> dict:
    """Returns {setting: value} for a tokenizer.json's steps before its model; `UserError` for unknown steps."""
    rules = {"charsmap": "", "add_dummy_prefix": False, "remove_extra_whitespaces": False, "escape_whitespaces": True}
    for step in steps_of(tokenizer, "normalizer") + steps_of(tokenizer, "pre_tokenizer"):
        step_type = step["type"]
        pattern = _pattern(step)
        if step_type == "Precompiled":
            rules["charsmap"] = step["precompiled_charsmap"] or ""
        elif step_type == "Metaspace":
            older_scheme = "always" if step.get("add_prefix_space", True) else "never"  # of files without a scheme
            rules["add_dummy_prefix"] |= step.get("prepend_scheme", older_scheme) != "never"
        elif step_type == "Prepend":
            rules["add_dummy_prefix"] = True
        elif step_type == "WhitespaceSplit":
            rules["remove_extra_whitespaces"] = True
        elif step_type == "Replace" and pattern in (" {2,}", "\\s+"):
            rules["remove_extra_whitespaces"] = True
        elif step_type == "Replace" and pattern != " ":
            raise _refusal(path, f"it replaces {pattern!r} before its model")
        elif step_type not in ("Strip", "Lowercase", "Replace", "Split"):  # casing is in `vocabulary.cleaning`
            raise _refusal(path, f"texts pass {step_type} before its model")
    return rules
