"""What README.md and docs/ name exists: files, links, commands and their flags, configurations, fields."""

import ast
import importlib.util
import pathlib
import re

import pytest
from absl import flags
from test_paper_configs import load
from test_rooms import ROOMS

from benchmarks import results, table_rows
from mural_tf.cli import find_command
from mural_tf.commands import COMMANDS
from mural_tf.config import base_config
from mural_tf.models import method_class, method_names, mount

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [*DOCUMENTS, *sorted((ROOT / "configs").glob("*.py")), *sorted((ROOT / "mural_tf").rglob("*.py"))]
SCRIPTS = {f"run_{name}.py": name for name in ("pretrain", "finetune", "evaluate", "export", "search")}
every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)


def prose(text):
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def code(text):
    """The lines of blocks of code, continued ones joined, and what stands in backticks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`]+)`", prose(text))
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return [*lines, *(" ".join(span.split()) for span in spans)]


def made_by(text):
    """The files that a document lets its reader write: blocks that begin with a path."""
    return set(re.findall(r"^```python\n# (\S+\.py)$", text, re.MULTILINE))


def command_lines(text):
    """The words of each call of a command or a script, without `python`; without comments and what follows a |."""
    found = []
    for line in code(text):
        for part in re.split(r"\s&&\s|\s#\s", line):
            call = re.search(r"(?:python3? -m mural_tf|(run_\w+\.py))\b(.*)", part)
            if call:
                found.append([*([SCRIPTS[call[1]]] if call[1] else []), *call[2].split()])
    return found


@every_document
def test_files_exist(path):
    roots = "mural_tf|configs|docs|benchmarks|notebooks|tests"
    named = re.findall(rf"(?<![\w/.])((?:{roots})/[\w./-]*\w)", path.read_text("utf-8"))
    rooms = "|".join(ROOMS)
    named += [
        f"mural_tf/{name}" for name in re.findall(rf"(?<![\w/.])((?:{rooms})/[\w/]*\.py)", path.read_text("utf-8"))
    ]
    named = set(named) - made_by(path.read_text("utf-8"))
    assert not [name for name in named if not (ROOT / name).exists() and not list(ROOT.glob(f"{name}*"))]


@every_document
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", prose(path.read_text("utf-8"))):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)", target.read_text("utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
        ]


@every_document
def test_modules_that_run_or_are_imported_exist(path):
    for module in re.findall(r"python3? -m ([\w.]+)", path.read_text("utf-8")):
        assert importlib.util.find_spec(module), module
    made = {name.removesuffix(".py").replace("/", ".") for name in made_by(path.read_text("utf-8"))}
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        imports = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
        for node in imports:
            if node.module.startswith("mural_tf") and node.module not in made:
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_the_table_of_configurations_names_files():
    page = (ROOT / "docs/training.md").read_text("utf-8")
    rows = re.search(r"^\| configuration \|.*?\n\n", page, re.DOTALL | re.MULTILINE)[0].splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    assert len(named) > 10 and not [name for name in named if not (ROOT / f"configs/{name}.py").is_file()]


@every_document
def test_tables_are_those_of_the_measurements(path):
    assert results.rendered(path.read_text("utf-8")) == path.read_text("utf-8"), "run python -m benchmarks.results"


def test_the_index_has_every_page():
    index = (ROOT / "docs/index.md").read_text("utf-8")
    assert not [path.name for path in DOCUMENTS[1:] if path.stem != "index" and f"({path.name})" not in index]


@pytest.fixture(scope="module")
def flags_of():
    """{command: the names of its flags}."""
    found = {}
    for name, command in COMMANDS.items():
        before = set(flags.FLAGS)
        command.define()
        found[name] = set(flags.FLAGS) - before | {"help", "verbosity"}
        for flag in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, flag)
    return found


@every_document
def test_commands_and_their_flags_exist(path, flags_of):
    found = command_lines(path.read_text("utf-8"))
    assert len(found) > 5 or path.stem != "README"
    for words in found:
        if not words or words[0] in ("COMMAND", "--help"):
            continue
        name, rest = find_command(COMMANDS, words)
        assert name in COMMANDS or name in ("search", "analyse"), words
        given = {re.match(r"--(?:no)?([\w]+)", word)[1] for word in rest if re.match(r"--\w", word)}
        assert name not in COMMANDS or given <= flags_of[name] | {f[2:] for f in flags_of[name] if f[:2] == "no"}, words


def fields(config, prefix=""):
    """The dotted names of a configuration's fields."""
    for key, value in config.items():
        yield prefix + key
        if hasattr(value, "keys"):
            yield from fields(value, f"{prefix}{key}.")


@pytest.fixture(scope="module")
def every_field():
    """Of all methods."""
    names = set(fields(base_config()))
    return names | {f"method.{key}" for method in method_names() for key in method_class(method).fields}


@every_document
def test_configurations_resolve_and_have_the_fields_that_commands_override(path):
    text = path.read_text("utf-8")
    for words in map(" ".join, command_lines(text)):
        named = re.search(r"--config=configs/(\w+)\.py(?::(\S+))?", words)
        model = re.search(r"--config\.model=(\S+)", words)
        if not named or f"configs/{named[1]}.py" in made_by(text) or (model and ":" in model[1]):
            continue  # no configuration, or one or a method that the reader writes
        config = load(":".join(filter(None, named.groups())))
        known = set(fields(mount(config, model[1] if model else config.model)))
        assert set(re.findall(r"--config\.([\w.]+)", words)) <= known, words


@every_document
def test_arguments_of_configurations_are_known(path):
    for span in code(path.read_text("utf-8")):
        named = re.fullmatch(r"(?:configs/)?(\w+)\.py:([\w=+,]+)", span)
        if named and "METHOD" not in span:
            assert load(":".join(named.groups())).model in method_names()


def test_fields_that_are_named_anywhere_exist(every_field):
    """As --config.a.b=… in documents, configurations and docstrings, and as `a.b` or `a.b=…` in documents."""
    branches = "|".join(key for key, value in base_config().items() if hasattr(value, "keys"))
    wrong = []
    for path in SOURCES:
        text = path.read_text("utf-8")
        named = set(re.findall(r"--config\.([\w.]*\w)", text)) - {"x", "x.y"}
        if path in DOCUMENTS:
            spans = (re.fullmatch(rf"((?:{branches})\.\w+)(?:=.*)?", span) for span in code(text))
            named |= {span[1] for span in spans if span}
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in named if name not in every_field]
    assert not wrong, wrong


def test_the_rows_of_the_table_override_fields_that_exist():
    for method in (*table_rows.METHODS, *table_rows.ABLATIONS):
        for stage in method.stages:
            assert {name for name, _ in stage.overrides} <= set(fields(table_rows.load(stage))), method.name
