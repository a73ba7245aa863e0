"""A folder's tokenizer_config.json and tokenizer.json, apart from the pieces: how a text becomes words.

A tokenizer is read by its own description: every key that changes the ids is used here, or the folder is refused in a
line that names the key. Keys without effect on ids, such as `clean_up_tokenization_spaces`, are passed over.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence

from absl import logging

from mural_lite.errors import UserError
from mural_lite.files import check_json, json_field, read_json
from mural_tf.pretrained.keys import json_or_empty
from mural_tf.text.piece_models import steps_of
from mural_tf.text.words import WHOLE_CHINESE

TOKENIZER = "tokenizer.json"  # Hugging Face's fast tokenizer: pieces and steps in one file
SETTINGS = "tokenizer_config.json"
ADDED = "added_tokens.json"  # {token: id} of older folders

# Classes whose whole description is `tokenizer.json`, in transformers up to 4 and from 5 on; None: no class is named.
_ANY = (None, "PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer")
_CLASSES = {
    "WordPiece": ("Bert", "DistilBert", "Electra", "MobileBert"),
    "xlm_roberta": ("XLMRoberta",),
    "siglip": ("Siglip", "Siglip2", "Gemma", "T5"),
    "clip": ("CLIP",),
    "gemma": ("Gemma", "Gemma2", "Gemma3"),
}
# Keys with the only values that are done here; a key that is missing or null is the first.
_EXPECTED: dict[str, tuple] = {
    "do_basic_tokenize": (True,),
    "never_split": ([],),
    "word_tokenizer_type": ("basic",),
    "subword_tokenizer_type": ("wordpiece",),
    "padding_side": ("right",),
    "truncation_side": ("right",),
    "sp_model_kwargs": ({},),
}
_NAMES = {
    "WordPiece": {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"},
    "xlm_roberta": {"unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"},
    "clip": {"unk_token": "<|endoftext|>", "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"},
}


def read_settings(folder: pathlib.Path) -> dict:
    """Returns the content of tokenizer_config.json, {} without that file."""
    return json_or_empty(folder / SETTINGS)


def check_settings(folder: pathlib.Path, family: str) -> None:
    """Raises `UserError` for a class or setting in a folder's tokenizer_config.json that is not supported.

    `family` is a key of `_CLASSES`. A folder without the file passes.
    """
    path = folder / SETTINGS
    settings = read_settings(folder)
    tokenizer_class = settings.get("tokenizer_class")
    classes = [f"{prefix}Tokenizer" for prefix in _CLASSES[family]]
    fast_classes = [f"{class_name}Fast" for class_name in classes]
    if tokenizer_class not in (*_ANY, *classes, *fast_classes):
        raise UserError(
            f"{path}: tokenizer_class is {tokenizer_class!r}, which is not supported: expected {' or '.join(classes)}."
        )
    for key, values in _EXPECTED.items():
        value = settings.get(key)
        if key == "padding_side" and family == "gemma":
            continue  # rotations know only how far tokens are from each other
        if value is not None and value not in values:
            raise UserError(f"{path}: {key} is {value!r}, and only {values[0]!r} is supported.")
    for key, expected in _NAMES.get(family, {}).items():
        value = settings.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if value is not None and value != expected:
            raise UserError(f"{path}: {key} is {value!r}, and only {expected!r} is supported.")


def max_length(folder: pathlib.Path) -> int | None:
    """Returns how many tokens a folder's tokenizer_config.json allows; `None` if it has no limit, or says 10^30."""
    value = read_settings(folder).get("model_max_length")
    if value is None:
        return None
    value = check_json(value, float, "model_max_length", folder / SETTINGS)
    if abs(value) < 10**9:  # more means "no limit"
        return int(value)
    return None


def read_tokenizer(folder: pathlib.Path) -> dict:
    """Returns the content of a folder's tokenizer.json, {} without that file."""
    return json_or_empty(folder / TOKENIZER)


def word_settings(folder: pathlib.Path, pieces: Sequence[str]) -> dict:
    """Returns how a text becomes the words that word pieces divide, as fields of `config.vocabulary`.

    {"lower_case": bool, "strip_accents": bool, "cleaning": tuple of names}. The tokenizer's files or, without such
    files, the pieces say it: BERT strips accents when it lowers case, unless its settings say otherwise, and pieces
    without any capital letter belong to an uncased BERT.

    Raises `UserError` for steps that are not supported.
    """
    check_settings(folder, "WordPiece")
    settings = read_settings(folder)
    tokenizer = read_tokenizer(folder)
    path = folder / TOKENIZER
    normalizer = {"lowercase": None, "strip_accents": None, "handle_chinese_chars": True}  # `None`: not said
    if tokenizer:
        check_template(tokenizer, "[CLS]", "[SEP]", path)
        normalizer = _normalizer(tokenizer, path)
        _check_words(tokenizer, path)
    for key in ("do_lower_case", "tokenize_chinese_chars"):
        if settings.get(key) is not None:
            check_json(settings[key], bool, key, folder / SETTINGS)
    if settings and settings.get("tokenizer_class") not in _ANY[1:]:  # a file that names no class is a BERT's
        normalizer = _by_bert_class(settings, normalizer)
    lower_case = normalizer["lowercase"]
    if lower_case is None and not settings and not tokenizer:
        lower_case = not any(re.search("[A-Z]", piece) for piece in pieces if piece[0] != "[")  # not [CLS]
    strip_accents = normalizer["strip_accents"]
    if strip_accents is None:
        strip_accents = lower_case
    cleaning = ()
    if not normalizer["handle_chinese_chars"]:
        cleaning = (WHOLE_CHINESE,)
    return {"lower_case": bool(lower_case), "strip_accents": bool(strip_accents), "cleaning": cleaning}


def _by_bert_class(settings: Mapping, normalizer: Mapping[str, bool | None]) -> dict[str, bool | None]:
    """Returns a normalizer's settings as a BERT's own tokenizer class has them.

    The class takes them from tokenizer_config.json, `settings`, and only settings that are missing there from
    tokenizer.json, `normalizer`, which has the keys of `_normalizer`.
    """
    lower_case = normalizer["lowercase"]
    if lower_case is None:
        lower_case = True
    handle_chinese = settings.get("tokenize_chinese_chars", normalizer["handle_chinese_chars"])
    return {
        "lowercase": settings.get("do_lower_case", lower_case),
        "strip_accents": settings.get("strip_accents", normalizer["strip_accents"]),
        "handle_chinese_chars": handle_chinese is not False,  # null means yes
    }


def _normalizer(tokenizer: Mapping, path: pathlib.Path) -> dict[str, bool | None]:
    """Returns the settings of a BertNormalizer that does the same as the normalizer in a tokenizer.json.

    They are {"lowercase": bool, "strip_accents": bool or `None`, "handle_chinese_chars": bool}; `None` means that
    accents are stripped if texts are lower-cased. Raises `UserError` for steps that no BertNormalizer does; `path` is
    the file, for the message.
    """
    if "normalizer" not in tokenizer:
        return {"lowercase": False, "strip_accents": False, "handle_chinese_chars": True}
    lowercase = False
    strip_accents = False
    chinese = False
    is_decomposed = False  # accents are characters of their own, as StripAccents needs them
    steps = steps_of(tokenizer, "normalizer")
    for step in steps:
        step_type = step.get("type")
        if step_type == "BertNormalizer":
            if step.get("clean_text") is False:
                raise UserError(f"{path}: BertNormalizer's clean_text is false, and only true is supported.")
            lowercase |= bool(step.get("lowercase", True))
            chinese |= bool(step.get("handle_chinese_chars", True))
            strip_accents = strip_accents or _strips_accents(step, is_only_step=len(steps) == 1)
        elif step_type == "Lowercase":
            lowercase = True
        elif step_type == "NFD":
            is_decomposed = True
        elif step_type == "StripAccents" and is_decomposed:
            strip_accents = True
        elif step_type != "Strip":
            raise UserError(
                f"{path}: its normalizer has the step {step_type}, which is not supported: expected BertNormalizer, or "
                "Lowercase, NFD and StripAccents."
            )
    if is_decomposed and not strip_accents:
        raise UserError(f"{path}: its normalizer has NFD without StripAccents, which is not supported.")
    return {"lowercase": lowercase, "strip_accents": strip_accents, "handle_chinese_chars": chinese}


def _strips_accents(step: Mapping, is_only_step: bool) -> bool | None:
    """Returns whether the step BertNormalizer strips accents.

    `None`, which means that it does if texts are lower-cased, is returned only where it is the only step: other steps
    may lower-case, too.
    """
    strip_accents = step.get("strip_accents")
    if strip_accents is None and not is_only_step:
        return step.get("lowercase", True)
    return strip_accents


def _check_words(tokenizer: Mapping, path: pathlib.Path) -> None:
    """Raises `UserError` unless a tokenizer.json divides words at white space and punctuation, as BERT does.

    Its pre_tokenizer is missing, or BertPreTokenizer, or WhitespaceSplit and then Punctuation.
    """
    if "pre_tokenizer" not in tokenizer:
        return
    pre_tokenizers = steps_of(tokenizer, "pre_tokenizer")
    steps = [step.get("type") for step in pre_tokenizers]
    if any(step.get("behavior", "Isolated") != "Isolated" for step in pre_tokenizers):
        raise UserError(f"{path}: its pre_tokenizer joins punctuation to words: only Isolated is supported.")
    if steps not in (["BertPreTokenizer"], ["WhitespaceSplit", "Punctuation"]):
        raise UserError(
            f"{path}: its pre_tokenizer is {' and '.join(map(str, steps)) or 'none'}, which is not supported: expected "
            "BertPreTokenizer."
        )


def check_template(tokenizer: Mapping, begin: str, end: str, path: pathlib.Path) -> None:
    """Raises `UserError` if a tokenizer.json, the content of `path`, says that rows are not `begin`, text, `end`."""
    names = template_of(tokenizer, path)
    if "post_processor" in tokenizer and names != [begin, "", end]:
        raise UserError(
            f"{path}: its post_processor makes rows of {names or 'text alone'}; only {begin} text {end} is supported."
        )


def template_of(tokenizer: Mapping, path: pathlib.Path) -> list[str] | None:
    """Returns the tokens of a row, for example ["[CLS]", "", "[SEP]"] with "" for the text.

    `None` where the tokenizer.json, the content of `path`, does not say them.
    """
    names = None
    for step in steps_of(tokenizer, "post_processor"):
        if step.get("type") == "TemplateProcessing":
            single = check_json(step.get("single"), list[dict], "post_processor.single", path)
            names = [part.get("SpecialToken", {}).get("id", "") for part in single]
        elif step.get("type") in ("BertProcessing", "RobertaProcessing"):
            begin = check_json(step.get("cls") or [""], list, "post_processor.cls", path)  # [token, id]
            end = check_json(step.get("sep") or [""], list, "post_processor.sep", path)
            names = [str(begin[0]), "", str(end[0])]
    return names


def xlm_roberta_cleaning(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns the steps of `config.vocabulary.cleaning` that an XLM-RoBERTa's folder asks for.

    Raises `UserError` for steps that are not supported.
    """
    check_settings(folder, "xlm_roberta")
    tokenizer = read_tokenizer(folder)
    path = folder / TOKENIZER
    if not tokenizer:
        return ()
    check_template(tokenizer, "<s>", "</s>", path)
    cleaning: tuple[str, ...] = ()
    is_behind_charsmap = False  # SentencePiece's own table of characters, the step Precompiled
    for step in steps_of(tokenizer, "normalizer") + steps_of(tokenizer, "pre_tokenizer"):
        step_type = step.get("type")
        if step_type == "Lowercase" and not is_behind_charsmap:
            cleaning = ("lower_characters",)
        elif step_type in ("Lowercase", "Split", "Prepend"):
            raise UserError(f"{path}: the step {step_type} is not supported at its place before the model.")
        is_behind_charsmap = is_behind_charsmap or step_type == "Precompiled"
    return cleaning


def warn_of_added_tokens(folder: pathlib.Path, pieces: Sequence[str]) -> None:
    """Logs a warning if a folder's tokenizer adds tokens that are not among the pieces.

    They are letters in a text here, and the original finds them whole.
    """
    tokens = json_field(read_tokenizer(folder), "added_tokens", list, folder / TOKENIZER, [])
    added_tokens = {str(token.get("content")) for token in tokens if isinstance(token, dict)}
    if (folder / ADDED).is_file():
        added_tokens |= set(read_json(folder / ADDED))
    missing = sorted(added_tokens - set(pieces))
    if missing:
        logging.warning(
            "%s adds %d tokens, among them %r: in a text they are letters here, and one token in the original.",
            folder,
            len(missing),
            missing[0],
        )
