"""Which code a stored configuration may choose.

A config.json may come with a model from anywhere, and its fields name code: `model` and `method.heads_of` a class to
import ("package.module:Class"), a tower's `handle` a TF-Hub module to fetch, which is a program too. Users may name any
code on the command line or in their own configuration. Code that a stored file names is used only if it comes with
this package, from a known host or from a local folder with an absolute path (a relative one may have come with the
file), or if the user trusts the file's author (`--trust`, `mural_tf.load(path, trust=True)`, `with trusting():`).
docs/reliability.md describes the other effects of loading.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import pathlib
import sys
import urllib.parse
from collections.abc import Iterator

from ml_collections import ConfigDict

from mural_lite.errors import UserError

# They are asked by https, on its usual port. Not Kaggle, where anybody may publish a module that would run.
KNOWN_HOSTS = ("tfhub.dev",)
TOWERS = ("image_tower", "text_tower")
_TRUSTING = contextvars.ContextVar("trusting", default=False)  # for each thread, so that others stay careful


@contextlib.contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Lets stored configurations choose code in this block, if `trust` or a block around it says so."""
    token = _TRUSTING.set(trust or _TRUSTING.get())
    try:
        yield
    finally:
        _TRUSTING.reset(token)


def is_trusting() -> bool:
    """Whether the caller is in a block of `trusting` that trusts; a process passes this on to its workers."""
    return _TRUSTING.get()


def names_code(config: ConfigDict) -> bool:
    """Whether a configuration names code of others, so that a stored model can be loaded only with trust."""
    from_outside = is_from_outside(config.model) or is_from_outside(config.method.get("heads_of", ""))
    return from_outside or any(needs_trust(handle) for handle in _handles(config).values())


def check_stored(stored: ConfigDict, path: pathlib.Path, given: ConfigDict | None = None) -> None:
    """Raises `UserError` if a stored configuration names code that the user has not vouched for.

    Args:
      stored: the configuration in the file `path`.
      path: the file, for the message.
      given: the user's own configuration, if any; code that it names, too, is the user's choice.
    """
    for name in (stored.model, stored.method.get("heads_of", "")):
        check_class(name, path, given)
    check_handles(stored, path, given)


def check_handles(stored: ConfigDict, path: pathlib.Path, given: ConfigDict | None = None) -> None:
    """Raises `UserError` if a stored configuration names TF-Hub modules of others; arguments as in `check_stored`."""
    if _TRUSTING.get():
        return
    chosen_handles = ()
    if given is not None:
        chosen_handles = _handles(given).values()
    for field, handle in _handles(stored).items():
        if needs_trust(handle) and handle not in chosen_handles:
            raise UserError(
                f"{path} names {field}={handle!r}, which would be loaded and run; without trust only modules at "
                f"https://{', '.join(KNOWN_HOSTS)} and in folders given by their whole path are loaded. If you trust "
                "its author: --trust, in Python trust=True."
            )


def check_class(name: str, path: pathlib.Path, given: ConfigDict | None = None) -> None:
    """Raises `UserError` if a stored `model`, "package.module:Class", would be imported from outside of this package.

    A module that the user's program has imported already may be used; other arguments are as in `check_stored`.
    """
    module, _, _ = name.partition(":")
    is_chosen = module in sys.modules or (given is not None and given.model == name)  # by the user's own program
    if is_from_outside(name) and not is_chosen and not _TRUSTING.get():
        raise UserError(
            f"{path} names model={name!r}, a class that would be imported, and so run, from outside of this package. "
            "If you trust its maker: --trust, in Python trust=True or import its module first."
        )


def is_from_outside(name: str) -> bool:
    """Whether a configuration's `model` is a class to import, "package.module:Class", and not a name like "mural"."""
    return ":" in name


def needs_trust(handle: str) -> bool:
    """Whether a stored TF-Hub handle is neither empty, nor a local folder's absolute path, nor at a known host."""
    if "://" not in handle:
        return handle != "" and not os.path.isabs(handle)
    try:
        parts = urllib.parse.urlsplit(handle)
    except ValueError:  # no URL at all
        return True
    return parts.scheme != "https" or parts.netloc not in KNOWN_HOSTS  # netloc: with user names and ports


def settle_handles(config: ConfigDict) -> None:
    """Makes the paths of local TF-Hub modules in a user's own configuration absolute, before it is stored."""
    for name in TOWERS:
        handle = config[name].handle
        if handle and "://" not in handle:
            config[name].handle = os.path.abspath(handle)


def _handles(config: ConfigDict) -> dict[str, str]:
    """Returns {field: handle} of a configuration's TF-Hub modules, such as {"text_tower.handle": "https://…"}."""
    return {f"{name}.handle": config[name].handle for name in TOWERS if config[name].name == "hub"}
