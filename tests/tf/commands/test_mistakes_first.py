"""Mistakes that are said before TensorFlow is imported, which takes seconds, and minutes on a busy machine."""

import json
import pathlib
import socket
import subprocess
import sys

import pytest
import toy_data
from search_data import ColorEmbedder, write_folder

from mural_lite.config_file import save_config
from mural_lite.dataset_folder import check_records
from mural_lite.errors import UserError
from mural_search.index import Index

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Each command in a process of its own, which is forked from one that has imported the commands.
COMMANDS = """
import json, os, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "keras", "tf_keras"):
            raise ImportError(f"{name} is imported")

sys.meta_path.insert(0, Refuse())
from mural_lite.command_line import run_command
from mural_tf.commands import COMMANDS

answers = []
for arguments in json.load(sys.stdin):
    reading, writing = os.pipe()
    if not os.fork():
        os.dup2(writing, 2)
        run_command(COMMANDS, arguments, "mural")
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        answers.append(pipe.read())
    os.wait()
print(json.dumps(answers))
"""


def test_no_command_imports_tensorflow_to_say_a_mistake(tmp_path):
    data, workdir, index = tmp_path / "data", tmp_path / "workdir", tmp_path / "index"
    toy_data.write_toy_data(data)
    (data / "dataset.json").write_text('{"languages": {"de": {}, "en": {}}}')
    workdir.mkdir()
    config = toy_data.toy_config(data)
    save_config(config, workdir / "config.json")
    pictures = write_folder(tmp_path / "images")
    Index.build(index, ColorEmbedder(), [str(pictures)])
    table = tmp_path / "t.csv"
    table.write_text("image,title_en\nred.png,red\n")
    cut_off = tmp_path / "cut.parquet"
    cut_off.write_bytes(b"PAR1" + bytes(99))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    model, evaluated = f"--model={workdir}", [f"--model={workdir}", f"--data_dir={data}"]
    catalogue = ["catalogue", str(table), f"--images={pictures}", f"--output={tmp_path}/out", f"--from={workdir}"]
    finetune = ["finetune", "--config=finetune", f"--from={workdir}"]
    errors = ["analyse", "errors", *evaluated, f"--output={tmp_path}/errors.html"]
    expected = {
        (*catalogue, "--train=no", "--translations=data"): "--translations teaches",
        (*catalogue, f"--translations={pictures}"): "there is no text_pairs/train-*.tfrecord",
        ("catalogue", f"{table}x", f"--output={tmp_path}/out", f"--from={workdir}"): "There is no file",
        ("search", "index", str(data), "--split=tset", model, f"--output={tmp_path}/new"): "of split 'tset'",
        ("search", "index", str(pictures), model, f"--output={data}"): "is neither empty nor an index",
        ("search", "query", "red", f"--index={index}", "--top=0"): "top must be at least 1",
        ("search", "query", "red", f"--index={index}", "--sort=price"): "no item has numbers or dates",
        ("search", "query", "red", f"--index={index}", "--weights=pics=1"): "--weights=pics=1",
        ("serve", f"--index={index}", "--port=0", "--weights=pics=1"): "--weights=pics=1",
        ("serve", f"--index={index}", "--port=0", f"--logo={table}"): "cannot be used: file that is not an image",
        ("serve", f"--index={index}", "--port=0", "--immich=ViT"): "immich has no model of this name",
        ("evaluate", *evaluated, "--split=tset"): "of split 'tset' in",
        ("evaluate", *evaluated, "--split=train", "--languages=en,xx"): "No captions in xx",
        ("evaluate", *evaluated, "--benchmark=multi30"): "did you mean multi30k?",
        ("analyse", "doctor", *evaluated, "--split=tset"): "it has train",
        (*errors, "--split=tset"): "it has train",
        (*finetune, f"--workdir={workdir}"): "is the source itself",
        (*finetune, f"--workdir={tmp_path}/new", "--config.data.directory=none"): "The data folder none does not exist",
        ("export", model, "--lite_kind=int4"): "value should be one of <|int8|float16|float32>",
        (*catalogue, "--fields=title;price", "--dry_run"): "the table has no field 'title;price'",
        ("catalogue", str(table), f"--output={table}", f"--from={workdir}"): "is a file: name a folder",
        ("catalogue", str(cut_off), f"--output={tmp_path}/out", f"--from={workdir}"): "cannot be read, at ",
        ("serve", f"--index={index}", f"--port={port}"): f"Address already in use. Try --port={port + 1}.",
        ("serve", f"--index={tmp_path}", f"--port={port}"): "is not an index",
        ("serve", f"--port={port}"): "Nothing to serve",
        ("serve", f"--index={index}", "--port=abc"): "flag --port=abc: expected a number",
        ("search", "red heart", f"--index={index}"): "Unknown command 'red heart'",
        ("search", "query", "red", f"--index={index}", f"--html={tmp_path}/no/x.html"): "no/x.html does not exist",
        ("convert", f"pairs:{table}", f"--output={tmp_path}/new"): "needs a language: pairs:",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], input=json.dumps(list(expected)), cwd=ROOT, capture_output=True, text=True
    )
    listener.close()
    assert done.returncode == 0, done.stderr
    for (arguments, words), answer in zip(expected.items(), json.loads(done.stdout.splitlines()[-1])):
        (line,) = [line for line in answer.splitlines() if line.startswith("Error: ")] or [answer[-400:]]
        assert words in line, (arguments, line)


def test_what_is_not_known_of_records_passes(tmp_path):
    """Folders of other kinds, and data sets without a description."""
    for folder in (tmp_path, tmp_path / "none", "gs://bucket/data"):
        check_records(folder, "test", ["xx"])
    toy_data.write_toy_data(tmp_path)
    check_records(tmp_path, "train", ["xx"])
    (tmp_path / "image_text/my-dev-0.tfrecord").touch()
    check_records(tmp_path, "my-dev")
    with pytest.raises(UserError, match="No image_text records of split 'tset' in .*: it has my-dev, train."):
        check_records(tmp_path, "tset")
