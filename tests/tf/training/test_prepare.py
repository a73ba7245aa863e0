"""A run's vocabulary: kept in its workdir, with its digest in config.json from the first start on."""

import json

import pytest
import toy_data

from mural_lite.config_file import load_config, save_config
from mural_lite.errors import UserError
from mural_tf.text.vocabulary_file import digest
from mural_tf.training.prepare import prepare_tokenizer
from mural_tf.training.workdir import open_workdir

PIECES = toy_data.toy_tokenizer().vocabulary


def start(folder):
    """What a run does before its first step, each time the same command is given."""
    config = toy_data.toy_config("")
    config.vocabulary.file = str(folder / "given.txt")
    open_workdir(folder / "w", config)
    return prepare_tokenizer(config, folder / "w"), config


@pytest.fixture
def folder(tmp_path):
    toy_data.toy_tokenizer().save(tmp_path / "given.txt")
    return tmp_path


def recorded(folder):
    return json.loads((folder / "w/config.json").read_text())["vocabulary"]["sha256"]


def test_the_digest_is_written_once_and_resuming_is_no_other_configuration(folder):
    tokenizer, config = start(folder)
    assert tokenizer.vocabulary == PIECES and config.vocabulary.sha256 == recorded(folder) == digest(PIECES)
    (folder / "given.txt").write_text("not read again")
    (folder / "w/metrics.jsonl").write_text("")  # something was trained
    before = (folder / "w/config.json").read_bytes()
    tokenizer, config = start(folder)
    assert tokenizer.vocabulary == PIECES and config.vocabulary.sha256 == digest(PIECES)
    assert (folder / "w/config.json").read_bytes() == before


def swap_lines(text):
    lines = text.splitlines()
    lines[-1], lines[-2] = lines[-2], lines[-1]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("change", [swap_lines, lambda text: text.replace("ding", "dinf")], ids=["swapped", "one bit"])
def test_another_vocabulary_is_refused_at_the_next_start(folder, change):
    start(folder)
    own = folder / "w/vocabulary.txt"
    own.write_text(change(own.read_text()))
    with pytest.raises(UserError) as error:
        start(folder)
    message = str(error.value)
    assert str(own) in message and digest(PIECES) in message and digest(own.read_text().split()) in message


def test_a_given_file_that_is_not_the_expected_one_is_refused(folder):
    config = toy_data.toy_config("")
    config.vocabulary.update(dict(file=str(folder / "given.txt"), sha256=digest(PIECES[:-1])))
    open_workdir(folder / "w", config)
    with pytest.raises(UserError, match="given.txt is not the model.s"):
        prepare_tokenizer(config, folder / "w")
    assert not (folder / "w/vocabulary.txt").exists()


def test_a_run_from_before_there_were_digests_gets_one(folder):
    start(folder)
    config = load_config(folder / "w/config.json")  # also what a kill between the two files leaves
    config.vocabulary.sha256 = ""
    save_config(config, folder / "w/config.json")
    assert start(folder)[1].vocabulary.sha256 == recorded(folder) == digest(PIECES)


def test_a_damaged_record_leaves_its_texts_out_of_the_vocabulary(tmp_path):
    """And nothing else: training counts it, too."""
    data = toy_data.write_toy_data(tmp_path / "data", count=8)
    (path, *_) = sorted((tmp_path / "data/image_text").glob("train-*"))
    content = bytearray(path.read_bytes())
    content[20] ^= 1  # in the first record
    path.write_bytes(content)
    config = toy_data.toy_config(data)
    config.vocabulary.file = ""
    open_workdir(tmp_path / "w", config)
    assert len(prepare_tokenizer(config, tmp_path / "w").vocabulary) > 5
