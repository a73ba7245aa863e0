"""What benchmarks and evaluations refuse, in one line each: where, the call, the words that must occur."""

import pytest
import test_evaluation_captioned as captioned
import test_evaluation_cxc as cxc
import test_evaluation_registry as registry
import test_evaluation_sentences as sentences
import test_evaluation_zero_shot as zero_shot
import test_retrieval as retrieval
from fake_embedder import FakeEmbedder, one_hot
from refusals import assert_refused
from test_evaluation_captioned import multi30k, xtd  # noqa: F401
from test_evaluation_cxc import data  # noqa: F401
from test_evaluation_zero_shot import imagenet  # noqa: F401
from test_retrieval import data_dir  # noqa: F401

from mural_tf.evaluation import report
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.evaluation.retrieval import measure_retrieval


def xtd_without_its_last_line(folder):
    path = folder / "XTD10/test_1kcaptions_es.txt"
    path.write_bytes(b"\r\n".join(path.read_bytes().split(b"\r\n")[:-1]))
    captioned.run("xtd", folder)


def few_translations(folder):
    captioned.write(folder / "translations.tsv", f"cs\t{one_hot(0)}\t{one_hot(0)}\n")
    captioned.run("multi30k", folder, translations=str(folder / "translations.tsv"))


def item_of_another_split(files):
    path = files[0] / "data/sis_test.csv"
    path.write_text(path.read_text() + "COCO_val2014_000000000000.jpg,COCO_val2014_000000000099.jpg,1,i2i_csim")
    cxc.run(files[0])


def sentences_of_two_lengths(folder, **options):
    sentences.write_tatoeba(folder, "deu", ["1 0"], ["1 0", "0 1"])
    sentences.run("tatoeba", folder, **options)


def no_benchmark(folder):
    (folder / "empty").mkdir()
    registry.evaluate(folder / "empty", folder)


def evaluated(benchmark, **options):
    def call(folder):
        protocol = default_protocol()
        protocol.update_from_flattened_dict({name.replace("__", "."): value for name, value in options.items()})
        report.evaluate_and_report("m", str(folder), benchmark=benchmark, output=str(folder), protocol=protocol)

    return call


def names(file, text):
    def call(folder):
        zero_shot.write(folder / file, text)
        zero_shot.run("imagenet", folder)

    return call


def unreadable_images(folder):
    retrieval.write(folder, [("a", "bad", [("en", retrieval.E0)]), ("b", "bad", [("en", retrieval.E1)])])
    measure_retrieval(FakeEmbedder(), folder, "test")


def output_that_is_a_file(folder):
    (folder / "file").write_text("")
    report.evaluate_and_report("model", str(folder), "test", output=str(folder / "file"))


REFUSALS = {  # the fixture that makes the folder, the call, the words
    "an unknown split": (
        "multi30k", lambda folder: captioned.run("multi30k", folder, split="test_2019"),
        ["no split 'test_2019'", "it has test_2016_flickr"]),
    "a line too few": ("xtd", xtd_without_its_last_line, ["ends before line 1000"]),
    "few translations": ("multi30k", few_translations, ["lacks 2 of the 3 captions in cs"]),
    "an item of another split": ("data", item_of_another_split, ["sis_test.csv:", "000000000099.jpg is not part"]),
    "an unknown language of classes": (
        "imagenet", lambda folder: zero_shot.run("imagenet", folder, languages=("sw",)),
        ["No class names in sw; there are en"]),
    "files of two lengths": ("tmp_path", sentences_of_two_lengths, ["has 1 lines and its English side 2"]),
    "an unknown language of sentences": (
        "tmp_path", lambda folder: sentences_of_two_lengths(folder, languages=("fra",)),
        ["No fra in", "languages: deu"]),
    "no benchmark": ("tmp_path", no_benchmark, ["holds the files of no benchmark"]),
    "an unknown benchmark": ("tmp_path", evaluated("mutli30k"), ["'mutli30k'", "did you mean multi30k"]),
    "no files of the benchmark": ("tmp_path", evaluated("multi30k"), ["lacks data/task1/raw", "git clone"]),
    "an unknown choice": ("tmp_path", evaluated("coco", coco__one_k="third"), ["one_k='third'", "folds or first"]),
    "another benchmark's option": (
        "tmp_path", evaluated("tatoeba", coco__one_k="first"), ["'tatoeba'", "--protocol.coco.one_k"]),
    "no translations": (
        "multi30k", lambda folder: captioned.run("multi30k", folder, translations="x.tsv"), ["Cannot read x.tsv"]),
    "names of two classes of three": (
        "imagenet", names("class_names.en.txt", "cat\ndog\n"), ["has 2 lines; there are 3 classes"]),
    "a template without a place": ("imagenet", names("templates.en.txt", "a photo\n"), ["has no {} for the name"]),
    "names in no language": ("imagenet", names("class_names.xx-nonsense-q.txt", "a\nb\nc\n"), ["Unknown language"]),
    "unreadable images": ("tmp_path", unreadable_images, ["None of the 2 images"]),
    "an output that is a file": ("data_dir", output_that_is_a_file, ["cannot be made"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name, request, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "open_model", lambda *_: pytest.fail("loaded the model first"))
    fixture, call, expected = REFUSALS[name]
    assert_refused(call, expected, request.getfixturevalue(fixture))
