"""What the tables of refusals share: a call that ends in one line, with the words that must occur in it."""

import sys

import pytest

from mural_lite.errors import UserError


def assert_refused(call, expected, *arguments, errors=(UserError,), **named):
    """`expected`: a list of texts, each a part of the message."""
    assert not isinstance(expected, str), "a text would be looked for letter by letter"
    with pytest.raises(errors) as error:
        call(*arguments, **named)
    assert all(part in str(error.value) for part in expected) and "\n" not in str(error.value), str(error.value)


def without(module, call):
    """`call` where `module` is not installed."""

    def without_it(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, module, None)  # makes the import fail
            call(*arguments)

    return without_it


def given(files, call):
    """`call` in a folder of `files`: {name: content, or the function that makes what the name stands for}."""

    def in_it(folder):
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            content(folder / name) if callable(content) else (folder / name).write_bytes(content)
        call(folder)

    return in_it
