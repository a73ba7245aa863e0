"""Files of vectors: which model made them, and rows that have other lengths."""

import os

import pyarrow
import pyarrow.parquet
import pytest

from mural_lite.errors import UserError
from mural_lite.vectors import SMALL, model_digest, model_stamp, read_rows


def write_model(folder, weights=b"12345678"):
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "checkpoints/ckpt-6.data").write_bytes(weights)
    return folder


def test_a_model_is_its_files_contents_names_and_sizes(tmp_path):
    """The same workdir trained again has files of the same sizes, and other vectors."""
    digest = model_digest(write_model(tmp_path / "a"))
    assert model_digest(write_model(tmp_path / "b")) == digest
    assert model_digest(write_model(tmp_path / "c", b"12345679")) != digest
    (tmp_path / "b/checkpoints/ckpt-6.data").rename(tmp_path / "b/checkpoints/ckpt-7.data")
    assert model_digest(tmp_path / "b") != digest
    (tmp_path / "a/notes.txt").write_text("nothing that is loaded")
    assert model_digest(tmp_path / "a") == digest


@pytest.mark.parametrize(
    "name", ["config_sentence_transformers.json", "sentence_roberta_config.json", "added_tokens.json"]
)
def test_settings_of_prompts_and_tokens_count(tmp_path, name):
    """Of Sentence-Transformers and of tokenizers: prompts, lengths, case and numbers of tokens."""
    folder = write_model(tmp_path / "a")
    digest, stamp = model_digest(folder), model_stamp(folder)
    (folder / name).write_text('{"prompts": {"query": "query: "}}')
    assert model_digest(folder) != digest and model_stamp(folder) != stamp


def test_a_stamp_changes_with_small_contents_and_with_the_times_of_large_files(tmp_path):
    """A copy of small files has the same stamp; of large files it may have another, and never the same by chance."""
    stamp = model_stamp(write_model(tmp_path / "a"))
    assert model_stamp(write_model(tmp_path / "b")) == stamp != model_stamp(write_model(tmp_path / "c", b"12345679"))
    (tmp_path / "a/lite.json").write_text("{}")
    assert model_stamp(tmp_path / "a") != stamp
    large = tmp_path / "b/checkpoints/ckpt-6.data"
    large.write_bytes(bytes(SMALL + 1))
    stamp = model_stamp(tmp_path / "b")
    assert model_stamp(tmp_path / "b") == stamp
    os.utime(large, ns=(1, 1))
    assert model_stamp(tmp_path / "b") != stamp
    (tmp_path / "empty").mkdir()
    assert model_stamp(tmp_path / "empty") == "" == model_stamp("gs://bucket/model")


@pytest.mark.parametrize("lengths", [(2, 2, 4, 4), (4, 2, 2, 4), (1, 1, 1, 2)])
def test_vectors_of_different_lengths_are_refused(tmp_path, lengths):
    """Even where the numbers divide by the rows: every vector behind the first other length would be another row's."""
    vectors = [[1.0] * length for length in lengths]
    table = pyarrow.table({"name": [str(n) for n in range(4)], "vector": vectors})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="vectors of different lengths"):
        list(read_rows(tmp_path / "a.parquet"))
