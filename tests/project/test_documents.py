"""What documents and messages name exists: files, links, commands and their flags, configurations, fields, extras."""

import ast
import contextlib
import csv
import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import measures
import pytest
from absl import flags
from test_commands import without_new_flags
from test_paper_configs import load
from test_rooms import PACKAGES, ROOMS

from benchmarks import results, table_rows
from mural_lite.command_line import find_command
from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.commands import COMMANDS
from mural_tf.models import method_class, method_names, mount

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOK = ROOT / "notebooks/quickstart.ipynb"
PACKAGE_PAGES = [ROOT / package / "README.md" for package in PACKAGES]
OTHER_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "deploy/README.md"]
DOCUMENTS = [*PAGES, *PACKAGE_PAGES, *OTHER_PAGES, NOTEBOOK]
SOURCES = [path for room in (*PACKAGES, "benchmarks") for path in sorted((ROOT / room).rglob("*.py"))]
OTHERS = [path for room in ("deploy", "requirements") for path in (ROOT / room).rglob("*") if path.is_file()]
UNIT = (
    "(?:line|row|text|file|sentence|number|vector|name|word|caption|picture|image|question|language|product|record|"
    "example|step|pair|pass|piece|seed|shard|part|item|batch|block|table|folder|device|replica|worker|process|query|"
    "column|field|run|pixel|answer|request|page|emoji|locale|position|second|byte|time|million|ms|[GMK]i?B)s?"
)
BEFORE_WHAT = (
    "of|to|for|in|from|by|and|with|on|at|as|than|but|or|into|over|before|after|beyond|below|above|whether|only|just|"
    "without|behind"
)
AFTER_WHAT = (
    "is|are|was|were|it|they|has|have|the|a|an|there|can|may|does|do|this|that|stands?|lies|each|every|one|only|"
    "comes|came|goes|went|follows|needs|differs|we|you"
)
FLAGS_OF_OTHERS = {"worker", "spot", "runner"}  # which stand alone in a document
# Idioms that a reader stumbles over: how they are found in README, docs, docstrings, comments and messages, and how
# often each may still occur. A count may only fall: CONTRIBUTING.md has what to write instead.
IDIOMS = {
    "has none": (r"\b(?:is|are|was|were|be|has|have|had|there) none\b", 0),
    "is no noun": (r"(?<!here\x20)\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|such\b)[a-z]+", 0),
    "tells whether": (r"\b[Tt]ells? whether\b", 0),
    "those of": (r"\b[Tt]hose (?:of|that|in|which|who|with|for|on|from|by|whose)\b", 0),
    "that of": (r"\bthat of (?!\w+ing\b)", 0),
    "the one that": (r"\bthe one (?:that|which|who|of|in|with|without|on)\b", 0),
    "ones": (r"(?<![_.])\b[Oo]nes\b(?!_|\(| =|\])", 5),
    "no more": (r"\b(?:no|any) more\b(?! than)(?=[.,:;) ])", 2),
    "Of first": (r"(?:^|[.:;] |\"\"\")Of (?!course)\w+", 4),
    "whoever": (r"\b[Ww]h(?:oever|atever|ichever|om)\b|\b[Ww]ho asks\b", 2),
    "a line a text": (rf"\b(?:an?|one|two|three|\d+) {UNIT} an? {UNIT}\b", 4),
    "stands": (r"\b(?:[Ss]tands?|stood)\b", 0),
    "what is": (rf"\b(?:{BEFORE_WHAT}) what (?:{AFTER_WHAT})\b", 4),
    "beside": (r"\b[Bb]eside\b", 3),
    "so that, so that": (r"\bso that\b[^.;]*\bso that\b", 0),
}
# In a question, also an indirect one, "what" is the right word: "says what is wrong", "what to do".
QUESTION = (
    r"(?i:\b(?:says?|said|tells?|told|asks?|asked|knows?|known|knew|sees?|seen|decides?|explains?|finds? out)"
    r"(?: [\w`-]+){0,3} what\b[^.;:]*|\bwhat to [a-z]+|\bwhat\b[^.;:]*\?)"
)
# What is left of a thing that nothing else is with, "stands alone", is no "only".
BY_ITSELF = r"(?:is|are|was|were|be|been|stands?|stood|lea(?:ve|ves|ving)|left|let|served|found|loaded|used)"
# Words that took a noun's or another word's place, how they are found in docstrings and comments, without questions,
# and how often they may still occur in 1,000 words. A rate may only fall.
RATES = {
    "what, a noun": (r"(?<![\w`{.*/=-])[Ww]hat\b(?![`:=}_.(-])", 1.8),  # the aim is 2: "Returns the vectors"
    "alone, for only": (rf"\b(?<!leave )(?!{BY_ITSELF} )[\w`)\]]+ alone\b", 0.6),  # the aim is 0.3: "takes only texts"
}
# Names of variables that say nothing of their contents, and how often they may still be given.
NAMES = {"found": 2, "one": 2, "kind": 28, "place": 8, "places": 15, "known": 1, "of_": 3}
CALL = re.compile(r"(?:python3? -m mural_tf|\brun_(\w+)\.py)(?: +(.*))?$")


@functools.cache
def read(path):
    """The text of a document; of a source with its strings joined, and with … where they show a value."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = [(cell["cell_type"] == "code", "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return "\n\n".join(f"```python\n{as_python(cell)}\n```" if is_code else cell for is_code, cell in cells)
    if path.suffix == ".py":
        return re.sub(r"\{[^{}\n]*\}", "…", re.sub(r'"\n\s+f?"', "", text))
    return text


def as_python(cell):
    """A notebook's cell with the shell's commands as comments."""
    return re.sub(r"^( *)!", r"\1pass  # ", "\n".join(joined(cell)), flags=re.MULTILINE)


def prose(text):
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def code(text):
    """The lines of blocks of code, continued ones joined, and what stands in backticks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in joined(block)]
    return [*lines, *(" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text)))]


def joined(text):
    return re.sub(r"\\\n\s*", "", text).splitlines()


def made_by(text):
    """The files that a document lets its reader write: blocks that begin with a path."""
    return set(re.findall(r"^```python\n# (\S+\.py)$", text, re.MULTILINE))


def command_lines(path):
    """The words of each call of a command or a script, without `python`; in messages up to where a sentence goes on."""
    if path.suffix == ".py":
        lines, end = joined(read(path)), r'[`;]|[,.:](?:[\s"]|$)|(?=python -m mural_tf|\brun_\w)'
    else:
        lines = [re.sub(r"^mural(?= [a-z])|.*\{mural\}", "python -m mural_tf", line) for line in code(read(path))]
        end = r"\s&&\s|\s#\s"
    calls = [CALL.search(part) for line in lines for part in re.split(end, line)]
    return [[*filter(None, [call[1]]), *(call[2] or "").split()] for call in calls if call]


def every_document(check):
    """Decorates what returns a list of the mistakes of a document: no document has any."""

    def test():
        wrong = [f"{path.relative_to(ROOT)}: {mistake}" for path in DOCUMENTS for mistake in check(path)]
        assert not wrong, "\n".join(wrong)

    return test


@every_document
def test_files_exist(path):
    text, rooms = read(path), "|".join(ROOMS)
    named = re.findall(
        r"(?<![\w/.])((?:mural_lite|mural_search|mural_tf|configs|docs|benchmarks|notebooks|tests)/[\w./-]*\w)", text
    )
    named += [f"mural_tf/{name}" for name in re.findall(rf"(?<![\w/.])((?:{rooms})/[\w/]*\.py)", text)]
    return [name for name in set(named) - made_by(text) if not list(ROOT.glob(f"{name}*"))]


def test_files_that_docstrings_and_comments_name_exist():
    """`mural_lite/files.py` or, from the room or the folder, `files.py`; names in capitals are to be filled in."""
    endings = set()
    for folder in (*PACKAGES, "benchmarks", "configs", "deploy", "docs", "notebooks", "requirements", "tests", "."):
        for path in (ROOT / folder).glob("*" if folder == "." else "**/*"):
            parts = path.relative_to(ROOT).parts
            endings.update("/".join(parts[start:]) for start in range(len(parts)))
    name_of_file = re.compile(r"(?<![\w./<{:-])((?:[\w-]+/)*[\w-]*[a-z][\w-]*\.(?:py|md|ipynb))\b(?![\w(])")
    wrong = []
    for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*.py")), *ROOT.glob("*.py")]:
        if set(name_of_file.findall(path.read_text("utf-8"))) <= endings:
            continue  # also in its code: looking for comments takes long
        for line, text in measures.prose(path):
            named = set(name_of_file.findall(text))
            wrong += [f"{path.relative_to(ROOT)}:{line}: {name}" for name in sorted(named - endings)]
    assert not wrong, "\n".join(wrong)


@every_document
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", prose(read(path))):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        headings = re.findall(r"^#+ (.*)", read(target), re.MULTILINE) if anchor and target.exists() else []
        anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        if not target.exists() or anchor and anchor not in anchors:
            yield link


@every_document
def test_modules_that_run_or_are_imported_exist(path):
    text = read(path)
    made = {name.removesuffix(".py").replace("/", ".") for name in made_by(text)}
    yield from (module for module in re.findall(r"python3? -m ([\w.]+)", text) if not importlib.util.find_spec(module))
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from missing_imports(ast.parse(block), made)


def missing_imports(tree, made=()):
    """The imports from this project, but for the modules `made`, that find nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(tuple(PACKAGES)) and node.module not in made:
            try:
                module = importlib.import_module(node.module)
            except ModuleNotFoundError as error:
                if error.name.startswith(tuple(PACKAGES)):
                    yield ast.unparse(node)
                continue  # it needs a package that is not installed
            for alias in node.names:
                is_module = hasattr(module, "__path__") and importlib.util.find_spec(f"{node.module}.{alias.name}")
                if not is_module and not hasattr(module, alias.name):
                    yield ast.unparse(node)


def test_programs_in_tests_import_modules_that_exist():
    """Most of them run only in slow tests, where a module that was moved would be noticed late."""
    wrong = []
    programs = 0
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name == "test_mutants.py":  # whose programs are of a tree that it makes
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if not re.search(r"\bimport\b", text):
                continue
            with contextlib.suppress(SyntaxError):  # words, or a part of a program
                program = ast.parse(textwrap.dedent(text))
                programs += 1
                wrong += [f"{path.name}:{node.lineno}: {line}" for line in missing_imports(program)]
    assert programs > 10 and not wrong, "\n".join(wrong)


def test_the_table_of_configurations_names_files():
    page = (ROOT / "docs/training.md").read_text("utf-8")
    rows = re.search(r"^\| configuration \|.*?\n\n", page, re.DOTALL | re.MULTILINE)[0].splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    assert len(named) > 10 and not [name for name in named if not (ROOT / f"mural_tf/configs/{name}.py").is_file()]


@every_document
def test_tables_are_those_of_the_measurements(path):
    return [] if results.rendered(read(path)) == read(path) else ["run python -m benchmarks.results"]


def test_every_file_of_results_says_where_it_comes_from():
    """By a seed and a commit in every line, or by a line of `origins.csv`."""
    with open(results.RESULTS / "origins.csv", encoding="utf-8", newline="") as file:
        origins = {line["file"]: line for line in csv.DictReader(file)}
    without = set()
    for path in results.RESULTS.glob("*.csv"):
        with open(path, encoding="utf-8", newline="") as file:
            head = next(csv.reader(file))
        if path.name != "origins.csv" and not {"seed", "commit"} <= set(head):
            without.add(path.name)
    assert origins.keys() == without
    for line in origins.values():
        assert re.fullmatch("[0-9a-f]{8}", line["commit"]) and line["seeds"], line
        modules = re.findall(r"python -m ([\w.]+)", line["made by"])
        paths = re.findall(r"\b(?:configs/)?\w+\.py\b", line["made by"])
        assert modules or paths or "no program repeats it" in line["made by"], line
        assert all(importlib.util.find_spec(module) for module in modules), line
        assert all((ROOT / path).is_file() for path in paths), line


def test_the_index_has_every_page():
    index = (ROOT / "docs/index.md").read_text("utf-8")
    assert not [path.name for path in PAGES[1:] if path.stem != "index" and f"({path.name})" not in index]


def test_nothing_is_installed_by_a_name_that_is_on_no_index_and_extras_exist():
    extras = set(
        re.findall(r'^    "(\w+)": \[|EXTRAS\["(\w+)"\]', (ROOT / "setup.py").read_text("utf-8"), re.MULTILINE)
    )
    known = {name for names in extras for name in names if name}
    for path in [*DOCUMENTS, *SOURCES, *OTHERS, ROOT / "CHANGELOG.md"]:
        text = path.read_text("utf-8")
        assert not re.search(r"pip3? install[^\n]*\bmural[-_]tf\b", text), path
        named = re.findall(r"-e '?\.\[([\w,]+)\]|install_extra\(['\"](\w+)", text)
        assert {name for pair in named for name in "".join(pair).split(",")} <= known, path


@pytest.fixture(scope="module")
def flags_of():
    """{command: {flag: its parser}}."""
    parsers = {}
    for name, command in COMMANDS.items():
        with without_new_flags():
            before = set(flags.FLAGS) - {"help", "verbosity"}
            command.define()
            parsers[name] = {flag: flags.FLAGS[flag].parser for flag in set(flags.FLAGS) - before}
    return parsers


def mistakes(words, flags_of):
    """What a call names that is not there: the command, flags, or values that a flag refuses."""
    if not words or words[0] in ("COMMAND", "--help", "…"):
        return []
    try:
        name, rest = find_command(COMMANDS, words)
    except UserError as error:
        return [str(error)]
    given = [match for word in rest if (match := re.match(r"\W*--(?:no)?([\w.]+)(?:=([^\]]*))?", word))]
    names = {match[1].partition(".")[0] for match in given}
    if name not in COMMANDS:  # the first word of several commands
        return names - {"help"}
    parsers = flags_of[name]
    wrong = names - set(parsers) - {"help"} - {flag[2:] for flag in parsers if flag[:2] == "no"}
    return wrong | {match[0] for match in given if match[1] in parsers and refuses(*match.groups(), parsers[match[1]])}


def refuses(flag, value, parser):
    """Whether a flag's parser refuses a value; `…`, `$NAME` and NAME are the reader's to fill in."""
    if flag == "config" or not value or re.search(r"…|\$\w|^['\"]?[A-Z_]+['\"]?$", value):
        return False
    try:
        parser.parse(value.strip("'\""))
    except (ValueError, TypeError):
        return True


@pytest.mark.parametrize("words, expected", [
    ("serve --port=3 --prt=3", {"prt"}), ("search query red --top=3 [--sort]", set()), ("search --top", {"top"}),
    ("serv", {"Unknown command 'serv'; did you mean 'serve'?"}), ("search query --top=some --rank=all", {"--top=some"}),
    ("analyse errors --show=any --other=MODEL", {"--show=any"}), ("search query --top=N --rank=$RANK", set()),
    ("pretrain --config=emoji --config.model=mural", set()),
])  # fmt: skip
def test_mistakes_in_calls_are_found(words, expected, flags_of):
    assert set(mistakes(words.split(), flags_of)) == expected


def test_commands_and_their_flags_exist(flags_of):
    """In documents, in the notebook, in docstrings, comments and messages."""
    calls = [(path, words) for path in [*DOCUMENTS, *SOURCES, *OTHERS] for words in command_lines(path)]
    assert {"README.md", "quickstart.ipynb", "finish.py", "catalogue.py"} <= {path.name for path, _ in calls}
    wrong = [f"{path.name}: {' '.join(words)}" for path, words in calls if mistakes(words, flags_of)]
    assert len(calls) > 150 and not wrong, "\n".join(wrong)


def test_flags_that_stand_alone_exist(flags_of):
    """Flags of a benchmark are named on a page that names the benchmark."""
    known = FLAGS_OF_OTHERS.union(*flags_of.values())
    for path in DOCUMENTS:
        text = read(path)
        benchmarks = re.findall(r"-m (benchmarks\.\w+)", text)
        texts = [(ROOT / f"{name.replace('.', '/')}.py").read_text("utf-8") for name in benchmarks]
        own = set(re.findall(r'"(?:--)?(\w+)"|(\w+)=\(', "".join(texts)))
        for span in code(text):
            named = set(re.findall(r"^--(?:no)?(\w+)", span))
            if call := re.search(r"-m benchmarks\.\w+(.*)", span):
                named = set(re.findall(r" --(\w+)", call[1]))
            assert named <= known | {name for pair in own for name in pair}, f"{path.name}: {span}"


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
    for words in map(" ".join, command_lines(path)):
        named = re.search(r"--config=(?:configs/(\w+)\.py|([a-z]\w+))(?::(\S+))?(?=…|\s|$)", words)
        model = re.search(r"--config\.model=(\S+)", words)
        written = f"mural_tf/configs/{named[1] or named[2]}.py" in made_by(read(path)) if named else False
        if not named or written or (model and ":" in model[1]):
            continue  # no configuration, or one or a method that the reader writes
        config = load(":".join(filter(None, named.groups())))
        known = set(fields(mount(config, model[1] if model else config.model)))
        unknown = set(re.findall(r"--config\.([\w.]+)", words)) - known
        yield from [f"{words}: {unknown}"] if unknown else []


@every_document
def test_arguments_of_configurations_are_known(path):
    for span in code(read(path)):
        named = re.fullmatch(r"(?:configs/)?(\w+)\.py:([\w=+,]+)", span)
        if named and "METHOD" not in span and load(":".join(named.groups())).model not in method_names():
            yield span


def test_fields_that_are_named_anywhere_exist(every_field):
    """As --config.a.b=… in documents, configurations and docstrings, and as `a.b` or `a.b=…` in documents."""
    branches = "|".join(key for key, value in base_config().items() if hasattr(value, "keys"))
    wrong = []
    for path in [*DOCUMENTS, *SOURCES]:
        text = read(path)
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


def lines_with(idiom, text):
    """The numbers of the lines in which an idiom begins; it may go on in the next line or in a joined string."""
    pattern = IDIOMS[idiom][0].replace(" ", r'\s*"?\s+(?:# ?|f?")?')
    return [text.count("\n", 0, match.start()) + 1 for match in re.finditer(pattern, text, re.MULTILINE)]


@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms_do_not_grow(idiom):
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in [*PAGES, *SOURCES]}
    lines = [f"{path}:{number}" for path, text in texts.items() for number in lines_with(idiom, text)]
    assert len(lines) <= IDIOMS[idiom][1], f"{idiom}: {len(lines)} times\n" + "\n".join(lines)


def test_idioms_are_found_across_lines():
    text = '"""Of a line the\n    one that is, or ones."""\nraise E(f"a file a "\n    f"line")  # there is\n  # none'
    assert {idiom: lines for idiom in IDIOMS if (lines := lines_with(idiom, text))} == {
        "has none": [4], "the one that": [1], "ones": [2], "Of first": [1], "a line a text": [3],
    }  # fmt: skip


def times_in(rate, text):
    return len(re.findall(RATES[rate][0], re.sub(QUESTION, "", " ".join(text.split()))))


@pytest.mark.parametrize("rate", RATES)
def test_numbers_of_words_do_not_grow(rate):
    texts = []
    for path in SOURCES:
        texts += [text for _, text in measures.prose(path)]
    words = sum(len(re.findall(r"[^\W\d][\w'-]*", text)) for text in texts)
    number, most = 1000 * sum(times_in(rate, text) for text in texts) / words, RATES[rate][1]
    print(f"\n{rate:16} {number:.2f} times in 1,000 of {words:,} words; at most {most}", end="")
    assert 0 < number <= most


@pytest.mark.parametrize("text, what, alone", [
    ("Returns what a line\n    holds, of what is left.", 2, 0), ("What a worker does.", 1, 0),
    ("It says in one line what was received, what was expected and what to do.", 0, 0), ("What to do? Nothing.", 0, 0),
    ("{what: bytes}, for `what`", 0, 0), ("Says what it is: what was read", 1, 0),
    ("a model of texts alone", 0, 1), ("takes `a` alone, leave it alone", 0, 1), ("It stands alone.", 0, 0),
])  # fmt: skip
def test_rates_count_nouns_and_only(text, what, alone):
    assert (times_in("what, a noun", text), times_in("alone, for only", text)) == (what, alone)


def test_names_that_say_nothing_do_not_grow():
    """Of variables and arguments; `of_` counts all names that begin so."""
    lines = {name: [] for name in NAMES}
    for path in SOURCES:
        for node in ast.walk(measures.parsed(path)):
            given = isinstance(node, ast.arg) or isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = (node.arg if isinstance(node, ast.arg) else node.id) if given else ""
            name = "of_" if name.startswith("of_") else name
            if name in NAMES:
                lines[name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    more = {name: found for name, found in lines.items() if len(found) > NAMES[name]}
    assert not more, "\n".join(f"{name}: {len(found)} times, {' '.join(found)}" for name, found in more.items())


@pytest.mark.slow  # two commands train and evaluate; `test_siglip.py` runs the page's Python blocks
def test_a_method_from_outside_the_package_trains_as_the_page_says(tmp_path):
    """The commands of docs/a_method_in_an_hour.md, with their values, on the files that the page writes."""
    page = (ROOT / "docs/a_method_in_an_hour.md").read_text("utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        path = tmp_path / block.split("\n")[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block, "utf-8")
    commands = re.findall(r"^```bash\n(.*?)^```", page.split("## The same from outside the package")[1], re.M | re.S)
    script = "\n".join(commands).replace("run_", f"{ROOT}/run_").replace("python ", f"{sys.executable} ")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    # The files of `mural_tf/` that the page writes are read from here, the package itself from the checkout.
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "all " in done.stdout, done.stderr[-2000:]
