"""What is installed from a wheel works in any folder, with no checkout in sight; and the notebook's form."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks/quickstart.ipynb"
PACKAGES = ("mural_lite", "mural_search", "mural_tf")
SOURCES = ("setup.py", "pyproject.toml", "README.md", *PACKAGES)
BRIEF = ["--config.train.steps=2", "--config.train.image_text_batch=16", "--config.train.text_text_batch=16"]


def test_the_notebook_is_kept_without_outputs():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells and not any(cell["outputs"] or cell["execution_count"] for cell in cells)


def test_the_package_imports_nothing_that_only_a_checkout_has():
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            assert not re.findall(r"^ *(?:from|import) +(?:configs|benchmarks|tests)\b", text, re.M), path


@pytest.mark.parametrize("name", ["server", "worker"])
def test_images_are_built_of_the_sources_alone(name):
    """No environment, data or workdirs lie in a layer, whatever lies beside the sources."""
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / f"deploy/Dockerfile.{name}").read_text("utf-8"), re.M)
    assert sorted(" ".join(copied).split()) == sorted(SOURCES)
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert ignored[1] == "*" and {line[1:] for line in ignored if line[0] == "!"} == set(SOURCES)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of processes that find the package in a folder that a wheel was installed into, and only there.

    The wheel is built from a copy: building leaves files in the folder of the sources, which get into later wheels.
    """
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "sources").mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / "sources" / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "sources"]
    subprocess.run(build, check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "target", wheel], check=True, cwd=folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "MURAL_"))}
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(ROOT))]
    environment["PYTHONPATH"] = os.pathsep.join([str(folder / "target"), *others])
    return {**environment, "CUDA_VISIBLE_DEVICES": "-1"}


def call(installed, folder, *words, program=(sys.executable, "-m", "mural_tf")):
    """Runs a command to its end and returns what it printed."""
    done = subprocess.run([*program, *map(str, words)], env=installed, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stdout


CONFIGURATIONS = """
import importlib, pathlib, mural_tf
for path in sorted(pathlib.Path(mural_tf.__file__).parent.glob("configs/*.py")):
    module = importlib.import_module(f"mural_tf.configs.{path.stem}")
    if hasattr(module, "get_config"):
        print(path.stem, module.get_config().model)
"""


@pytest.mark.slow
def test_every_configuration_is_there(installed, tmp_path):
    printed = call(installed, tmp_path, "-c", CONFIGURATIONS, program=[sys.executable])
    names = {path.stem for path in (ROOT / "mural_tf/configs").glob("*.py")} - {"__init__"}
    assert {line.split()[0] for line in printed.splitlines()} == names


@contextlib.contextmanager
def served(installed, folder, index):
    """The address of a server that ends well."""
    command = [sys.executable, "-u", "-m", "mural_tf", "serve", f"--index={index}", "--port=0"]
    process = subprocess.Popen(command, env=installed, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"(http://\S+)/search", process.stdout.readline())[1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def ask(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_a_wheel_trains_evaluates_exports_searches_and_serves(installed, tmp_path):
    found = call(installed, tmp_path, "-c", "import mural_tf; print(mural_tf.__file__)", program=[sys.executable])
    target = pathlib.Path(installed["PYTHONPATH"].split(os.pathsep)[0])
    assert pathlib.Path(found.strip()).is_relative_to(target) and (target / "mural_tf/py.typed").exists()
    script = [sys.executable, target / "bin" / "mural"]
    train = ["--workdir=run", "--config.data.directory=shapes", "--config.train.export=False", *BRIEF]
    call(installed, tmp_path, "pretrain", "--config=shapes_smoke", *train, program=script)  # draws the data
    on_test = ["--data_dir=shapes", "--split=test"]
    assert "all" in call(installed, tmp_path, "evaluate", "--model=run", *on_test, program=script)
    assert "Exported to exported" in call(installed, tmp_path, "export", "--model=run", "--output=exported")
    index = ["shapes", "--split=test", "--model=run", "--output=index"]
    assert "150 images" in call(installed, tmp_path, "search", "index", *index)
    query = ["a red circle", "--index=index", "--html=found.html", "--model=exported"]
    call(installed, tmp_path, "search", "query", *query, program=script)
    assert (tmp_path / "found.html").exists()
    with served(installed, tmp_path, "index") as address:
        assert ask(f"{address}/healthz") == {"status": "ok"}
        assert len(ask(f"{address}/search/answer?sentence=a+red+circle&k=3")["hits"]) == 3


@pytest.mark.slow
def test_the_notebook_runs_from_a_wheel(installed, tmp_path):
    for name in ("ipykernel", "nbclient", "nbformat"):
        pytest.importorskip(name, reason=f"needs {name}: pip install -e '.[notebook]'")
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=installed)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert sum("<iframe" in "".join(output.get("data", {}).get("text/html", "")) for output in outputs) == 2
    printed = "".join(output.get("text", "") for output in outputs)
    assert "after: " in printed and "Error" not in printed, printed[-3000:]
