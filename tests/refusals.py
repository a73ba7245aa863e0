"""What the tables of refusals share: a call that ends in one line, with the words that must occur in it."""

import pytest

from mural_tf.errors import UserError


def assert_refused(call, expected, *arguments, errors=(UserError,), **named):
    """`expected`: a list of texts, each a part of the message."""
    with pytest.raises(errors) as error:
        call(*arguments, **named)
    assert all(part in str(error.value) for part in expected) and "\n" not in str(error.value), str(error.value)
