"""Models by their names on the Hugging Face Hub: `hf://ORG/NAME`, `hf://ORG/NAME@REVISION`, `hf://ORG/NAME/FILE`.

huggingface_hub (the extra `hub`) fetches them into its cache, so its environment variables work: HF_HOME, HF_HUB_CACHE,
HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN. Only files that this package reads are fetched: first the small files that
describe a model, then the weights that they name; never pickles, nor the same weights again for other runtimes.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.util
import json
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mural_lite import __version__
from mural_lite.errors import UserError, first_line, install_extra

SCHEME = "hf://"
PACKAGE = "huggingface_hub"
EXTRA = "hub"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")
WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
# Files at the top of a repository that describe a model: its configuration, its vocabulary, its README.
DESCRIPTIONS = (
    "README.md", "config.json", "open_clip_config.json", "modules.json",
    "config_sentence_transformers.json", "sentence_*_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
    "vocabulary.txt", "model_card.json", "versions/*/model_card.json", SHARDS,
)  # fmt: skip
# Weights by the description that names them; the first description that exists decides, as in `importers.kind_of`.
LEADS_TO = {
    "model_card.json": ("image_encoder/*", "text_encoder/*", "hub/*", "versions/*"),  # an export
    "versions/*/model_card.json": ("image_encoder/*", "text_encoder/*", "versions/*"),
    "vocabulary.txt": ("checkpoints/*",),  # a workdir
    "open_clip_config.json": ("open_clip_model.safetensors",),
}
_LIBRARY = {"library_name": "mural-tf", "library_version": __version__}  # for the Hub
_fetched: dict[str, pathlib.Path] = {}  # in this process, in which a name keeps its meaning


class Name(NamedTuple):
    """The parts of a name; `file` is "" for a whole model, `revision` is "" for the newest one."""

    repository: str
    revision: str
    file: str


def is_name(text: str | os.PathLike) -> bool:
    """Whether a text is a name on the Hub."""
    return str(text).startswith(SCHEME)


def parse(text: str) -> Name:
    """Returns the parts of a name, hf://ORG/NAME@REVISION/FILE; raises `UserError` for other forms and for pickles."""
    part = r"[\w-](?:[\w.-]*[\w-])?"  # of "ORG/NAME": no dot at its beginning or end
    revision = r"refs/[a-z]+/[^/@]+|[^/@]+"  # "refs/pr/3", or a branch, tag or commit
    match = re.fullmatch(rf"hf://({part}/{part})(?:@({revision}))?(?:/([^@]+))?", text, re.ASCII)
    if not match or ".." in text or "--" in match[1]:  # the Hub allows neither in a repository's name
        raise UserError(f"{text}: expected hf://ORG/NAME, hf://ORG/NAME@REVISION, or either with /FILE at its end.")
    name = Name(match[1], match[2] or "", (match[3] or "").strip("/"))
    if name.file.endswith(PICKLES):
        raise UserError(
            f"{text} is a pickle, which can run any code when it is opened, and is not fetched: docs/checkpoints.md "
            "says how one is converted."
        )
    return name


def check(text: str) -> None:
    """Raises `UserError`, without fetching anything, for a name that cannot be fetched here."""
    parse(text)
    if importlib.util.find_spec(PACKAGE) is None:
        raise UserError(f"{text} needs the package {PACKAGE}: {install_extra(EXTRA)}.")


def suggestion(path: str | os.PathLike) -> str:
    """Returns "give hf://ORG/NAME …" for a missing path that looks like ORG/NAME on the Hub, "" for other paths."""
    text = str(path)
    looks_like_name = re.fullmatch(r"(?!workdirs/)[\w-][\w.-]*/[\w.-]*[\w-](@[^/@]+)?", text, re.ASCII)
    looks_like_file = re.search(r"\.[A-Za-z]\w*$", text)  # "data/cat.jpg"
    if not looks_like_name or looks_like_file or os.path.exists(os.path.dirname(text)):
        return ""
    return f"give {SCHEME}{text} to fetch it from the Hugging Face Hub"


def fetch(text: str) -> pathlib.Path:
    """Returns the path in the Hub's cache of the model's folder, or the single file, that `text` names.

    It fetches missing files, once per process. Raises `UserError` for a bad name, and if they cannot be fetched.
    """
    if text not in _fetched:
        check(text)
        name = parse(text)
        _fetched[text] = _fetch_file(text, name) if name.file else _fetch_model(text, name)
    return _fetched[text]


def _fetch_model(text: str, name: Name) -> pathlib.Path:
    """Fetches a model's missing files, and returns its folder in the cache; raises `UserError` without weights."""
    # The small descriptions first, because they name the weights: otherwise every copy of the weights in a repository,
    # one for each runtime, would be fetched.
    folder = _snapshot(text, name, DESCRIPTIONS)
    patterns = _weight_patterns(folder)
    # The folder's name is the commit. Both calls take the same one, because a new version may name other weights.
    pinned = name._replace(revision=folder.name)
    _snapshot(text, pinned, [*DESCRIPTIONS, *patterns])
    if not _holds_weights(folder, patterns):
        raise UserError(_no_weights(text, name, folder.name))
    return folder


def _fetch_file(text: str, name: Name) -> pathlib.Path:
    """Fetches a single file if it is missing, and returns its path in the Hub's cache; raises `UserError`."""
    import huggingface_hub

    with _failures_as_user_errors(text, name):
        path = huggingface_hub.hf_hub_download(name.repository, name.file, revision=name.revision or None, **_LIBRARY)
    return pathlib.Path(path)


def _holds_weights(folder: pathlib.Path, patterns: Sequence[str]) -> bool:
    """Whether a folder has a file of weights, by the patterns from `_weight_patterns`.

    Patterns of weights end in ".safetensors", or in "*" for all files of a folder of weights. The others are modules'
    descriptions, such as "1_Pooling/config.json", which make a model only together with weights.
    """
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    weight_patterns = [pattern for pattern in patterns if pattern.endswith((".safetensors", "*"))]
    return any(fnmatch.filter(files, pattern) for pattern in weight_patterns)


def _weight_patterns(folder: pathlib.Path) -> list[str]:
    """Returns patterns of the files of weights, and of their modules, that the descriptions in a folder name."""
    for description, patterns in LEADS_TO.items():
        if any(folder.glob(description)):
            return list(patterns)
    patterns = [WEIGHTS, *_file_names(folder / SHARDS, "weight_map")]
    for module in _file_names(folder / "modules.json", "path"):  # Sentence-Transformers has a folder for each module
        patterns += [f"{module}/{name}" for name in (*DESCRIPTIONS, WEIGHTS) if name != "README.md"]
    return patterns


def _file_names(path: pathlib.Path, key: str) -> list[str]:
    """Returns the names in a JSON file, {key: {…: name}} or [{key: name}, …], sorted, without slashes around them.

    [] for a missing or damaged file, whose reader will report the damage.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            names = content[key].values()
        else:
            names = [entry[key] for entry in content]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return sorted({name.strip("/") for name in names if isinstance(name, str) and name.strip("/")})


def _snapshot(text: str, name: Name, patterns: Sequence[str]) -> pathlib.Path:
    """Fetches the files of a revision that fit `patterns`, and returns its folder in the cache; raises `UserError`."""
    import huggingface_hub

    with _failures_as_user_errors(text, name):
        folder = huggingface_hub.snapshot_download(
            name.repository,
            revision=name.revision or None,
            allow_patterns=list(patterns),
            ignore_patterns=[f"*{ending}" for ending in PICKLES],
            **_LIBRARY,
        )
    return pathlib.Path(folder)


@contextlib.contextmanager
def _failures_as_user_errors(text: str, name: Name) -> Iterator[None]:
    """Turns every failure of the block, which fetches files of a name, into a `UserError`; `text`: the whole name."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise UserError(
            f"{text} is gated: accept its terms at {_address(name)}, then log in (`hf auth login`, or set HF_TOKEN)."
        ) from None
    except errors.RepositoryNotFoundError:
        raise UserError(_no_model(text, name)) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{text}: {name.repository} has no revision {name.revision}.") from None
    except errors.LocalEntryNotFoundError as error:
        raise UserError(_not_cached(text, error)) from None
    except errors.EntryNotFoundError:
        missing = name.file
        if name.revision:
            missing += f" at {name.revision}"
        raise UserError(f"{text}: {name.repository} has no file {missing}.") from None
    except errors.HFValidationError as error:
        raise UserError(f"{text}: no model can have this name ({_reason(error)}).") from None
    except Exception as error:  # noqa: BLE001 - the library, its HTTP client and the disk have no common class
        response = getattr(error, "response", None)
        if getattr(response, "status_code", 0) == 401:  # no such model, for a user who is not logged in
            raise UserError(_no_model(text, name)) from None
        raise UserError(
            f"{text} was not fetched completely: {_reason(error)}. The same command again fetches the rest."
        ) from None


def _no_model(text: str, name: Name) -> str:
    """Returns the message for a repository that does not exist or is private."""
    return (
        f"{text}: there is no model {name.repository} at {_address()}, or it is private: check the name; for a private "
        "one log in (`hf auth login`, or set HF_TOKEN)."
    )


def _not_cached(text: str, error: Exception) -> str:
    """Returns the message for files that are not in the cache and cannot be fetched."""
    from huggingface_hub import constants

    gap = f"is missing or incomplete in the cache {constants.HF_HUB_CACHE}"
    if constants.HF_HUB_OFFLINE:
        return f"{text} {gap}, and HF_HUB_OFFLINE is set: fetch it once without that variable."
    return (
        f"{text} cannot be fetched, and {gap}: {_reason(error.__cause__ or error)}. Check the connection to "
        f"{_address()}, or try again later."
    )


def _address(name: Name | None = None) -> str:
    """Returns the address of a repository on the Hub, or of the Hub itself without a name."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{name.repository}" if name else constants.ENDPOINT


def _reason(error: Exception) -> str:
    """Returns the first line of an exception's message; for a file's error the reason and the file."""
    if isinstance(error, OSError) and error.strerror:
        if error.filename:
            return f"{error.strerror} ({error.filename})"
        return error.strerror
    line = re.sub(r"\s*\(Request ID.*?\)", "", first_line(error))
    return line.strip().rstrip(".") or type(error).__name__


def _no_weights(text: str, name: Name, revision: str) -> str:
    """Returns the message for a repository without weights that are read here; it asks the Hub for pickles' names."""
    import huggingface_hub

    try:
        names = huggingface_hub.HfApi().list_repo_files(name.repository, revision=revision)
    except Exception:  # noqa: BLE001 - the list only completes a message
        names = []
    pickles = [file for file in names if file.endswith(PICKLES)]
    expected = f"expected {WEIGHTS}, an open_clip_model.safetensors, or an export or a workdir of this project"
    if pickles:
        return (
            f"{text} has no weights that are read here, {expected}: only pickles ({', '.join(pickles[:3])}), which can "
            "run any code when they are opened and are not fetched. docs/checkpoints.md says how one is converted."
        )
    return f"{text} has no weights that are read here: {expected}."
