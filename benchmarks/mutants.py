"""Mistakes drawn at random in the code, and the share that the nearest tests notice: a number to steer tests by.

    python -m benchmarks.mutants --seed=1 --rooms=data,text,training --each=10 --output=mutants.csv

In a room every operator (comparison, slice, guard removed, …) is as likely as another, then a place at random. What
cannot change a result is left out by rule: messages, docstrings, annotations, `__repr__`, `raise`, logging, sizes of
buffers, and arguments such as `flush`.

Each mistake is put alone into a copy of the tree in a temporary folder. Its nearest tests run there in one process:
the files that import its module, say the name of its function, or are named as the module is. Each was run before
without a mistake, which gives its processor seconds; a file that fails then is not asked. Where these files pass, the
next files run, within as many seconds again. A "survivor" is a mistake that all of them pass; tests farther away may
notice it. The same command goes on with the rows that the .csv file lacks.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import copy
import functools
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks import results

ROOT = pathlib.Path(__file__).resolve().parents[1]
MEMORY = 8 * 2**30  # bytes of data that a process of tests may have
FILES = 8  # test files that run at once, at most
FAILS = -1  # in place of the seconds of a test file that fails, or takes too long, without a mistake
KEY = ("file", "line", "operator", "before", "after")  # which distinguish mistakes
FIELDS = ("seed", *KEY, "function", "outcome", "tests")


class Mistake(NamedTuple):
    """A part of a file, bytes [begin, end), and the text that replaces it."""

    file: str
    line: int
    function: str  # "" at the top of a file
    operator: str
    begin: int
    end: int
    before: str
    after: str


# Operators: from a node of a syntax tree to (operator, the node that takes its place).

OPERATIONS = {"Lt": "LtE", "Gt": "GtE", "Eq": "NotEq", "In": "NotIn", "Is": "IsNot", "And": "Or", "Add": "Sub",
              "Mult": "Div", "BitAnd": "BitOr", "LShift": "RShift"}  # fmt: skip
NAMES = {"min": "max", "any": "all", "reduce_min": "reduce_max", "reduce_any": "reduce_all", "argmin": "argmax",
         "minimum": "maximum", "floor": "ceil", "reduce_sum": "reduce_mean", "sum": "mean"}  # fmt: skip
ONLY_METHODS = {"floor", "ceil", "sum", "mean"}  # not of Python itself: `sum` has another meaning there
for pairs in (OPERATIONS, NAMES):
    pairs.update({after: before for before, after in pairs.items()})
OPERATIONS.update(FloorDiv="Mult", Mod="Mult", Pow="Mult")
Changes = Iterator[tuple[str, ast.AST]]


def _changed(node: ast.AST, **fields) -> ast.AST:
    """Returns a copy of a node in which `fields`, {name: value}, are set."""
    changed = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _other_operation(operation: ast.AST) -> ast.AST | None:
    """Returns the operation that takes the place of another by `OPERATIONS`, or `None`."""
    other = OPERATIONS.get(type(operation).__name__)
    return getattr(ast, other)() if other else None


def _is_text(node: ast.AST) -> bool:
    """Whether a node is a literal of text or bytes, f-strings included."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, ast.JoinedStr)


def _changes_of_expression(node: ast.AST, is_condition: bool) -> Changes:
    """Yields (operator, changed expression) for each mistake in an expression; for calls see `_changes_of_call`.

    `is_condition`: whether an `if` or a `while` asks the expression.
    """
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield "comparison", _changed(node, ops=[_other_operation(node.ops[0])])
    elif isinstance(node, ast.BinOp) and _other_operation(node.op):
        if not _is_text(node.left) and not _is_text(node.right):
            yield "arithmetic", _changed(node, op=_other_operation(node.op))
    elif isinstance(node, ast.BoolOp):
        yield "and, or", _changed(node, op=_other_operation(node.op))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "true, false", _changed(node, value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield "constant", _changed(node, value=node.value + 1)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice):
        for part in ("lower", "upper", "step"):
            if getattr(node.slice, part) is not None:
                yield "slice", _changed(node, slice=_changed(node.slice, **{part: None}))
    if is_condition:
        yield "condition negated", ast.UnaryOp(ast.Not(), node)


def _changes_of_call(node: ast.Call) -> Changes:
    """Yields (operator, changed call) for each mistake in a call's arguments or in its function's name."""
    if len(node.args) > 1:
        first, second, *rest = node.args
        is_starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
        is_symmetric = isinstance(node.func, ast.Attribute) and node.func.attr in SYMMETRIC
        if not is_starred and not is_symmetric and ast.unparse(first) != ast.unparse(second):
            yield "swapped arguments", _changed(node, args=[second, first, *rest])
    for number, keyword in enumerate(node.keywords):
        before = node.keywords[:number]
        after = node.keywords[number + 1 :]
        if keyword.arg == "axis" and isinstance(keyword.value, (ast.Constant, ast.UnaryOp)):
            other_axis = 1 if ast.unparse(keyword.value) == "0" else 0
            changed_keyword = ast.keyword("axis", ast.Constant(other_axis))
            yield "axis", _changed(node, keywords=[*before, changed_keyword, *after])
        elif keyword.arg and keyword.arg not in UNSEEN:
            yield "keyword dropped", _changed(node, keywords=[*before, *after])
    if isinstance(node.func, ast.Name) and node.func.id in NAMES.keys() - ONLY_METHODS:
        yield "minimum, maximum", _changed(node, func=ast.Name(NAMES[node.func.id]))
    elif isinstance(node.func, ast.Attribute) and node.func.attr in NAMES:
        yield "minimum, maximum", _changed(node, func=_changed(node.func, attr=NAMES[node.func.attr]))


def _changes_of_statement(node: ast.stmt) -> Changes:
    """Yields (operator, changed statement) for each mistake in a statement as a whole."""
    if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1:
        if isinstance(node.body[0], (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            yield "guard removed", ast.Pass()
    targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else ()
    # Assignments to names stay: a name without its assignment is an error that any test notices.
    changes_object = any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_call or changes_object or isinstance(node, ast.AugAssign):
        yield "statement removed", ast.Pass()
    if isinstance(node, ast.AugAssign) and _other_operation(node.op) and not _is_text(node.value):
        yield "arithmetic", _changed(node, op=_other_operation(node.op))
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        value = node.value
        other = ast.Constant(None)
        if isinstance(value, ast.Tuple) and len(value.elts) > 1:
            other = _changed(value, elts=[value.elts[1], value.elts[0], *value.elts[2:]])
        elif isinstance(value, (ast.Compare, ast.BoolOp)):
            other = ast.UnaryOp(ast.Not(), value)
        yield "return changed", _changed(node, value=other)


def _changes(node: ast.AST, is_condition: bool) -> Changes:
    """Yields (operator, changed node) for each mistake in a node itself, not in the nodes within it.

    For `is_condition` see `_changes_of_expression`.
    """
    if isinstance(node, ast.stmt):
        yield from _changes_of_statement(node)
    elif isinstance(node, ast.expr):
        yield from _changes_of_expression(node, is_condition)
    if isinstance(node, ast.Call):
        yield from _changes_of_call(node)


# Mistakes that change no result.

# Keyword arguments of names, of speed and of the platform's defaults.
UNSEEN = {"name", "flush", "encoding", "num_parallel_calls", "max_workers", "daemon", "exist_ok", "autograph",
          "newline", "total", "desc", "indent", "ensure_ascii", "reduce_retracing", "maxsize",
          "show_progress"}  # fmt: skip
SYMMETRIC = {"equal", "not_equal", "maximum", "minimum", "add", "multiply", "array_equal", "isclose", "allclose"}
# Calls that print, or that only save time and memory.
SAID = {"print", "warn", "warning", "info", "debug", "error", "announce", "brief", "prefetch", "TypeVar", "flush",
        "release_pages", "freeze", "setswitchinterval", "ThreadPoolExecutor", "fsync"}  # fmt: skip
SPEED = {"AT_ONCE", "BUFFER", "REMOTE_BUFFER", "PARALLEL", "REQUESTS"}  # constants on which no result depends


def _left_out(node: ast.AST) -> list[ast.AST]:
    """Returns the parts of a node in which no mistake is put, [node] for all of it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if node.name == "__repr__":
            return [node]
        parameters = node.args
        arguments = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]
        arguments += [parameters.vararg, parameters.kwarg]  # either may be None
        annotations = [argument.annotation for argument in arguments if argument]
        return [part for part in [*annotations, node.returns, *node.decorator_list] if part]
    if isinstance(node, ast.ClassDef):
        return node.decorator_list
    if isinstance(node, ast.AnnAssign):
        return [node.annotation]
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in SAID:
            return [node]
        return [keyword for keyword in node.keywords if keyword.arg in UNSEEN]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return [node] if _left_out(node.value) == [node.value] else []
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        is_filler = isinstance(getattr(node.operand, "value", None), float)  # -1.0, where there is no score
        return [node.operand] if is_filler else []
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in SPEED:
        return [node.value]
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and node.col_offset == 0:
        # A table at the top of a file has facts, which a test could only repeat.
        return [part for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
        return [node]
    return [node] if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)) else []


def mistakes_in(file: str, text: str) -> list[Mistake]:
    """Returns all mistakes that may be put into a Python file, by its path and its text."""
    finder = _Finder(file, text.encode())
    finder.visit(ast.parse(text), function="")
    return finder.mistakes


class _Finder:
    """Collects the mistakes that may be put into a file in `mistakes`, while it visits the nodes of its syntax tree.

    Args:
      file: the file's path, for the mistakes.
      content: the file's bytes in UTF-8.
    """

    def __init__(self, file: str, content: bytes):
        self.mistakes: list[Mistake] = []
        self._file = file
        self._content = content
        self._line_begins = [0]  # in bytes, as the columns of nodes are
        for line in content.splitlines(keepends=True):
            self._line_begins.append(self._line_begins[-1] + len(line))
        self._excluded: set[int] = set()  # `id` of the nodes in which no mistake is put

    def visit(self, node: ast.AST, function: str, is_condition: bool = False) -> None:
        """Adds the mistakes of a node and of all nodes within it.

        Args:
          node: the node; the nodes around it have been visited.
          function: the name of the function or class around it, "" at the top of the file.
          is_condition: whether an `if` or a `while` asks the node.
        """
        # `_left_out` names the node itself or parts of it, which are visited after it.
        self._excluded.update(map(id, _left_out(node)))
        if id(node) in self._excluded:
            return
        for operator, changed in _changes(node, is_condition):
            mistake = self._mistake(node, function, operator, changed)
            if not mistake.before.startswith("elif"):  # which cannot be left out
                self.mistakes.append(mistake)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            function = node.name
        condition = None
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            condition = node.test
        for child in ast.iter_child_nodes(node):
            self.visit(child, function, is_condition=child is condition)

    def _mistake(self, node: ast.AST, function: str, operator: str, changed: ast.AST) -> Mistake:
        """Returns the mistake by which `changed` takes a node's place."""
        begin = self._line_begins[node.lineno - 1] + node.col_offset
        end = self._line_begins[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(ast.fix_missing_locations(changed))
        if isinstance(node, ast.expr):
            after = f"({after})"  # its neighbours may bind more strongly than its own operators
        return Mistake(
            file=self._file,
            line=node.lineno,
            function=function,
            operator=operator,
            begin=begin,
            end=end,
            before=self._content[begin:end].decode(),
            after=after,
        )


def drawn(mistakes: list[Mistake], count: int, draw: random.Random) -> list[Mistake]:
    """Returns `count` different mistakes drawn at random, or all if there are fewer.

    Each draw chooses an operator first, each as likely as another, and then a mistake of this operator.
    """
    by_operator = collections.defaultdict(list)
    for mistake in mistakes:
        by_operator[mistake.operator].append(mistake)
    chosen = []
    while by_operator and len(chosen) < count:
        operator = draw.choice(sorted(by_operator))
        candidates = by_operator[operator]
        chosen.append(candidates.pop(draw.randrange(len(candidates))))
        if not candidates:
            del by_operator[operator]
    return chosen


# The nearest tests.


class Words(NamedTuple):
    """The modules that a Python file imports, "mural_tf.text" and "mural_tf.text.tokens", and all its words."""

    path: str
    modules: set[str]
    words: set[str]


def read_words(root: pathlib.Path, pattern: str) -> list[Words]:
    """Returns the words of each file that fits a pattern below `root`, such as "tests/**/test_*.py"."""
    files = []
    for path in sorted(root.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        modules = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module)
                modules.update(f"{node.module}.{alias.name}" for alias in node.names)
        files.append(Words(path.relative_to(root).as_posix(), modules, set(re.findall(r"\w+", text))))
    return files


def module_of(path: str) -> str:
    """Returns the dotted name of a package's file: "mural_tf/text/tokens.py" is "mural_tf.text.tokens"."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def nearest(mistake: Mistake, tests: list[Words], package: list[Words]) -> list[str]:
    """Returns the paths of the test files that may notice a mistake, the nearest first.

    Args:
      mistake: the mistake.
      tests: the words of all test files.
      package: the words of all files of the packages.
    """
    module = module_of(mistake.file)
    folder, _, stem = module.rpartition(".")
    # Without "tf": tests/tf/ is of all rooms of mural_tf.
    rooms = {part.removeprefix("mural_") for part in folder.split(".")} - {"tf"}
    users = {module_of(file.path) for file in package if module in file.modules}  # which import the mistake's module
    their_users = {module_of(file.path) for file in package if users & file.modules} - users
    points = collections.Counter()  # {path: points}, which weigh the signs of nearness by judgement
    for test in tests:
        path = pathlib.PurePath(test.path)
        if module in test.modules:
            points[test.path] += 4
        if mistake.function in test.words:
            points[test.path] += 3
        if stem in path.stem:
            points[test.path] += 3
        if users & test.modules:
            points[test.path] += 2
        if rooms.intersection(path.parts):
            points[test.path] += 2
        if their_users & test.modules:
            points[test.path] += 1
    return [path for path, count in points.most_common() if count >= 3]  # a strong sign, or two weak signs


class Trial:
    """A copy of a git working tree, in which tests run with and without a mistake.

    Args:
      root: the working tree; it is only read.
      folder: an empty folder for the copy.
      limit: processor seconds that test files which run at once may take together without a mistake; they do not grow
        where other work shares the processors.
      seconds_file: a JSON file that keeps the processor seconds of each test file without a mistake, {path: seconds};
        `FAILS` for a file that fails or takes too long.
    """

    def __init__(self, root: pathlib.Path, folder: pathlib.Path, limit: float, seconds_file: pathlib.Path):
        self.tree = folder / "tree"
        self._limit = limit
        self._seconds_file = seconds_file
        self.seconds = json.loads(seconds_file.read_text("utf-8")) if seconds_file.exists() else {}
        copy_tree(root, self.tree)

    def tests_for(self, near: list[str]) -> list[str]:
        """Runs new files of `near` without a mistake, and returns the files that pass and fit into the limit.

        The seconds of new files are written. The first files of `near` fit in first; the quickest is returned first.
        """
        for path in near:
            if path not in self.seconds:
                begin = _seconds_of_children()
                exit_code = self._run([path], 3 * self._limit)
                self.seconds[path] = _seconds_of_children() - begin if exit_code == 0 else FAILS
                self._seconds_file.write_text(json.dumps(self.seconds, indent=1), "utf-8")
        total = 0.0
        chosen = []
        for path in near:
            seconds = self.seconds[path]
            if seconds > 0 and total + seconds <= self._limit:
                total += seconds
                chosen.append(path)
        chosen.sort(key=self.seconds.get)
        return chosen

    def try_mistake(self, mistake: Mistake, near: list[str]) -> tuple[str, list[str]]:
        """Runs the nearest test files with a mistake and, if they pass, the next files.

        Returns the outcome, as `outcome`, and the test files that were run. A mistake that the nearest files pass has
        survived, too, if the next files are slow.
        """
        tests = self.tests_for(near[:FILES])
        outcome = self.outcome(mistake, tests)
        if outcome not in ("survived", "untested"):
            return outcome, tests
        next_files = [path for path in near if path not in tests and self.seconds.get(path) != FAILS]
        further = self.tests_for(next_files[:FILES])
        further_outcome = self.outcome(mistake, further)
        if further_outcome == "noticed" or outcome == "untested":
            outcome = further_outcome
        return outcome, tests + further

    def outcome(self, mistake: Mistake, tests: list[str]) -> str:
        """Runs test files with a mistake in the tree, and returns what became of it.

        Returns "noticed" if a test fails, "survived" if all pass, "slow" if they take more than three times the limit,
        or "untested" if there are no test files.
        """
        if not tests:
            return "untested"
        path = self.tree / mistake.file
        before = path.read_bytes()
        path.write_bytes(before[: mistake.begin] + mistake.after.encode() + before[mistake.end :])
        try:
            exit_code = self._run(tests, 3 * self._limit)
        finally:
            path.write_bytes(before)
        if exit_code is None:
            return "slow"
        return "survived" if exit_code == 0 else "noticed"

    def _run(self, tests: list[str], limit: float) -> int | None:
        """Runs test files by pytest in an empty folder; returns its exit code, `None` after `limit` seconds.

        Processes that the tests have started end with it.
        """
        # As a worker of pytest-xdist, whose settings `tests/conftest.py` makes quicker; the base's folder is shared.
        base = self.tree.parent / "run/base"
        shutil.rmtree(base.parent, ignore_errors=True)
        base.parent.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "TMPDIR": str(base.parent)}
        environment["PYTEST_XDIST_WORKER"] = "gw0"
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", f"--basetemp={base}", *tests]
        process = subprocess.Popen(
            command, cwd=self.tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_limit_process,
        )  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _seconds_of_children() -> float:
    """Returns the processor seconds of all processes that this process has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def copy_tree(root: pathlib.Path, tree: pathlib.Path) -> None:
    """Copies the files of a git working tree that git does not ignore, as they are now, into the folder `tree`."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if (root / name).is_file():  # not a file that was removed and is still in the index
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)


def _limit_process() -> None:
    """Lowers the priority of the process of tests that calls it, and bounds its memory to `MEMORY`."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


# Shares.


def wilson(noticed: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Returns the ends of Wilson's interval of a share, in 0..1: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n).

    Args:
      noticed: how many of the mistakes were noticed; p is noticed / count.
      count: the number n of mistakes; (0, 1) is returned for 0 mistakes.
      z: the quantile of the normal distribution, 1.96 for an interval of 95%.
    """
    if not count:
        return 0.0, 1.0
    share = noticed / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return (middle - half) / scale, (middle + half) / scale


# The command.


def rooms_of(root: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """Returns {room: its Python files}; rooms are the folders of `mural_tf`, and the packages "search" and "lite"."""
    folders = {path.name: path for path in sorted((root / "mural_tf").glob("*")) if path.is_dir()}
    folders.update(search=root / "mural_search", lite=root / "mural_lite")
    files = {room: sorted(folder.rglob("*.py")) for room, folder in folders.items()}
    return {room: paths for room, paths in files.items() if paths}


def rows_by_key(path: pathlib.Path, seed: int) -> dict[tuple[str, ...], dict[str, str]]:
    """Returns {cells of `KEY`: row} of a .csv file's rows with a seed, {} if there is no file."""
    rows = {}
    for row in results.read_rows(path):
        if row["seed"] == str(seed):
            key = tuple(row[name] for name in KEY)
            rows[key] = row
    return rows


def try_room(trial: Trial, chosen: list[Mistake], near, seed: int, output: pathlib.Path) -> list[str]:
    """Tries a room's mistakes, writes their rows, prints unnoticed mistakes, and returns the outcome of each.

    Args:
      trial: the copy of the tree.
      chosen: the mistakes.
      near: a function (mistake) -> paths of its nearest test files, the nearest first.
      seed: the seed that the mistakes were drawn with.
      output: the .csv file, to which new rows are added; mistakes that it has are not tried again.
    """
    earlier_rows = rows_by_key(output, seed)
    outcomes = []
    for mistake in chosen:
        key = tuple(str(getattr(mistake, name)) for name in KEY)
        row = earlier_rows.get(key)
        if row is None:
            outcome, test_files = trial.try_mistake(mistake, near(mistake))
            row = {**mistake._asdict(), "seed": seed, "outcome": outcome, "tests": " ".join(test_files)}
            results.add_row(output, {name: row[name] for name in FIELDS})
        outcomes.append(row["outcome"])
        if row["outcome"] != "noticed":
            before = " ".join(row["before"].split())[:200]  # characters; code may have many lines
            after = " ".join(row["after"].split())[:200]
            print(f"{row['outcome']}: {row['file']}:{row['line']} {row['operator']}: {before} -> {after}", flush=True)
    return outcomes


def main(arguments: list[str] | None = None, root: pathlib.Path = ROOT) -> None:
    """Draws and tries mistakes in each room, writes the .csv file, and prints the shares that tests noticed.

    Args:
      arguments: the command line's arguments; `None`: of this process.
      root: the working tree whose code gets the mistakes.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="of the draws")
    parser.add_argument("--rooms", default="", help="folders of mural_tf, search, lite; with commas; empty: all")
    parser.add_argument("--each", type=int, default=10, help="mistakes drawn in each room")
    parser.add_argument("--seconds", type=float, default=90, help="of tests that run at once")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("mutants.csv"), help="a .csv file")
    options = parser.parse_args(arguments)
    rooms = rooms_of(root)
    names = options.rooms.split(",") if options.rooms else list(rooms)
    unknown = sorted(set(names) - set(rooms))
    if unknown:
        parser.error(f"unknown rooms {', '.join(unknown)}; known: {', '.join(rooms)}")
    near = functools.partial(
        nearest, tests=read_words(root, "tests/**/test_*.py"), package=read_words(root, "mural_*/**/*.py")
    )
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(root, pathlib.Path(folder), options.seconds, options.output.with_suffix(".seconds.json"))
        for name in names:
            mistakes = []
            for path in rooms[name]:
                mistakes += mistakes_in(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
            chosen = drawn(mistakes, options.each, random.Random(f"{options.seed} {name}"))
            outcomes = try_room(trial, chosen, near, options.seed, options.output)
            lines.append(share_line(name, outcomes))
            print(lines[-1], flush=True)
    print("\n".join(["", f"seed {options.seed}, 95% by Wilson:", *lines]))


def share_line(room: str, outcomes: list[str]) -> str:
    """Returns a room's line: how many of its mistakes with tests that ended were noticed, and Wilson's interval.

    `outcomes`: what `Trial.outcome` returned for its mistakes.
    """
    counts = collections.Counter(outcomes)
    noticed = counts["noticed"]
    tried = noticed + counts["survived"]
    low, high = wilson(noticed, tried)
    share = f"{noticed} of {tried} noticed"
    return f"{room:12} {share:22} {100 * low:3.0f} to {100 * high:3.0f}%, {counts['untested']} untested"


if __name__ == "__main__":
    main()
