"""Measures of Python files that typography cannot meet: a longer line or a hidden import does not make them smaller.

A token is a name, an operator, a number or a string outside docstrings, by Python's tokenizer; a line of code is
neither blank nor of a docstring, and starts with no comment. An import counts wherever it is written, but for those of
type checkers, which never run. Modules that are found by a name, put together or in a table of names, do not count:
methods, towers, families of weights, and what is registered. Nor do the faces of packages (`mural_tf/__init__.py`),
whose imports are made on a user's first use.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import io
import pathlib
import tokenize
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def module(path: pathlib.Path) -> str:
    """The dotted name of a file: "mural_tf.models" of `mural_tf/models/__init__.py`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@dataclasses.dataclass
class Size:
    """Counts of some files."""

    lines: int = 0  # all of them, also blank ones
    code: int = 0
    tokens: int = 0
    nested: int = 0  # comprehensions that hold another one, or more than one `for`

    def __add__(self, other: Size) -> Size:
        return Size(
            self.lines + other.lines, self.code + other.code, self.tokens + other.tokens, self.nested + other.nested
        )

    @property
    def tokens_per_line(self) -> float:
        return self.tokens / self.code

    @property
    def nested_per_1000_lines(self) -> float:
        return 1000 * self.nested / self.code


def size(paths: Iterable[pathlib.Path]) -> Size:
    return sum(map(_size, paths), Size())


@functools.cache
def _size(path: pathlib.Path) -> Size:
    text = path.read_text("utf-8")
    lines = text.splitlines()
    is_code = {number for number, line in enumerate(lines, 1) if line.strip() and not line.strip().startswith("#")}
    for node in docstrings(path):
        is_code -= set(range(node.lineno, node.end_lineno + 1))
    tokens = sum(token.start[0] in is_code for token in _tokens(text))
    nested = sum(map(_is_nested, ast.walk(parsed(path))))
    return Size(len(lines), len(is_code), tokens, nested)


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens that count. An f-string is one, which Python divides from version 3.12 on."""
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            if depth == 0:
                yield token
            depth += 1
        elif name == "FSTRING_END":
            depth -= 1
        elif depth == 0 and token.type in COUNTED:
            yield token


def _is_nested(node: ast.AST) -> bool:
    if not isinstance(node, COMPREHENSIONS):
        return False
    parts = [part for part in ast.walk(node) if part is not node]
    return len(node.generators) > 1 or any(isinstance(part, COMPREHENSIONS) for part in parts)


def docstrings(path: pathlib.Path) -> Iterator[ast.Expr]:
    """The statements that are docstrings."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            yield node.body[0]


@functools.cache
def prose(path: pathlib.Path) -> list[tuple[int, str]]:
    """(line, text) of each docstring and of each comment; comments in lines that follow each other are one text."""
    texts = [(node.lineno, node.value.value) for node in docstrings(path)]
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = token.string.lstrip("#: ")
        if last and token.start[0] == last + 1:
            line, comment = texts.pop()
            texts.append((line, f"{comment}\n{words}"))
        else:
            texts.append((token.start[0], words))
        last = token.start[0]
    return texts


class Imports:
    """Which files of some packages import which.

    Args:
      packages: folders at the top of the repository, such as ["mural_tf"].
    """

    def __init__(self, packages: Iterable[str]):
        self.packages = list(packages)
        paths = [path for package in self.packages for path in sorted((ROOT / package).rglob("*.py"))]
        self.files = {name: path for path in paths if (name := module(path)) not in self.packages}

    def imported(self, path: pathlib.Path, in_functions: bool = True) -> set[pathlib.Path]:
        """The files that a file imports, at its top and, if `in_functions`, within functions."""
        imported = set()
        for name, otherwise in _names(path, in_functions):
            imported.add(self.files.get(name) or self.files.get(otherwise))
        return imported - {path, None}

    def closure(self, path: pathlib.Path, commands_too: bool = True) -> set[pathlib.Path]:
        """A file with all files that it imports, directly or through others.

        Without `commands_too` imports in functions of `commands` do not count: they are there so that `--help` is fast,
        and a command imports only what it needs.
        """
        reached, waiting = set(), [path]
        while waiting:
            current = waiting.pop()
            if current not in reached:
                reached.add(current)
                waiting += self.imported(current, commands_too or current.parent.name != "commands")
        return reached

    def circles(self) -> list[set[str]]:
        """The largest sets of modules in which each imports each other, directly or through others."""
        reached = {path: self.closure(path) for path in self.files.values()}
        circles = []
        for path, others in reached.items():
            circle = {module(other) for other in others if path in reached[other]}
            if len(circle) > 1 and circle not in circles:
                circles.append(circle)
        return circles


@functools.cache
def _names(path: pathlib.Path, in_functions: bool) -> set[tuple[str, str]]:
    """What a file imports: `from a import b` is ("a.b", "a"), the module a.b or, where b is no module, a."""
    names = set()
    for node in _nodes(parsed(path), in_functions):
        if isinstance(node, ast.Import):
            names.update((alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                source = importlib.util.resolve_name("." * node.level + source, module(path.parent / "__init__.py"))
            names.update((f"{source}.{alias.name}", source) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names.update((word.value, word.value) for word in node.args if isinstance(word, ast.Constant))
    return names


def _nodes(tree: ast.AST, in_functions: bool) -> Iterator[ast.AST]:
    """The nodes of a tree without blocks for type checkers and, if not `in_functions`, without functions' bodies."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
        elif in_functions or not isinstance(node, FUNCTIONS):
            waiting += ast.iter_child_nodes(node)
