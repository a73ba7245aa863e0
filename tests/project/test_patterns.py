"""Patterns take no more than the square of a text's length: strangers write many of the texts that they meet.

A pattern such as `(a+)+b` divides "aaa…" in 2^n ways before it fails, and `re` keeps Python's lock meanwhile: 316 bytes
once ended the server. Each pattern of the packages gets texts that its own parts make: what comes before a repetition,
then thousands of times what is repeated, then a character that ends no match.
"""

import ast
import contextlib
import importlib
import pathlib
import re
import signal

import pytest

try:
    from re import _constants as codes
    from re import _parser as parser
except ImportError:  # Python 3.10
    import sre_constants as codes
    import sre_parse as parser

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("mural_lite", "mural_search", "mural_tf")
CALLS = ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
LENGTH = 1_000  # repetitions; the million steps of a quadratic pattern take a hundredth of a second
SECONDS = 1.0  # of CPU
REPETITIONS = (codes.MAX_REPEAT, codes.MIN_REPEAT, getattr(codes, "POSSESSIVE_REPEAT", None))


def calls_of_re(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in [f"re.{name}" for name in CALLS]:
            yield node


def value_of(node, path):
    """What an expression of a file's constants is, None where it takes a function's variables."""
    with contextlib.suppress(ValueError):
        return ast.literal_eval(node)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    with contextlib.suppress(NameError, AttributeError):
        return eval(ast.unparse(node), vars(importlib.import_module(name)))
    return None


def patterns():
    """{place: (pattern, flags, name of the function)}"""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for call in calls_of_re(path):
                given = [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "flags")]
                flags = [value for value in (value_of(node, path) for node in given) if isinstance(value, re.RegexFlag)]
                pattern = value_of(call.args[0], path)
                if isinstance(pattern, (str, bytes)):
                    place = f"{path.relative_to(ROOT)}:{call.lineno}"
                    found[place] = (pattern, sum(flags), function_of(call, path))
    return found


def function_of(call, path):
    """Which function of `re` meets the texts: of a compiled pattern, what its name is followed by."""
    if call.func.attr != "compile":
        return call.func.attr
    text = path.read_text(encoding="utf-8")
    line = text.splitlines()[call.lineno - 1]
    name = re.match(r"(\w+) = re\.compile\(", line)
    used = re.search(rf"\b{name[1]}\.({'|'.join(CALLS)})\(", text) if name else None
    return used[1] if used else "search"


def sample(parsed, at_least=0):
    """A short text that a parsed pattern matches; `at_least`: how often whatever may be left out comes."""
    text = ""
    for code, value in parsed:
        if code is codes.LITERAL:
            text += chr(value)
        elif code in (codes.ANY, codes.NOT_LITERAL):
            text += "b" if code is codes.ANY or value != ord("b") else "c"
        elif code is codes.IN:
            text += member(value)
        elif code is codes.BRANCH:
            text += sample(value[1][0], at_least)
        elif code is codes.SUBPATTERN:
            text += sample(value[3], at_least)
        elif code in REPETITIONS:
            least, most, body = value
            text += sample(body, at_least) * min(max(least, at_least), int(most))
        elif getattr(codes, "ATOMIC_GROUP", None) is code:
            text += sample(value, at_least)
    return text


def member(members):
    """A character of a set."""
    candidates = "a1 -_./<>\"'\n\u00e9\u4e00"
    if members[0][0] is codes.LITERAL:
        return chr(members[0][1])
    if members[0][0] is codes.RANGE:
        return chr(members[0][1][0])
    state = parser.State()
    compiled = (
        re._compiler.compile(parser.SubPattern(state, [(codes.IN, members)])) if hasattr(re, "_compiler") else None
    )
    return next((text for text in candidates if compiled is None or compiled.match(text)), "a")


def texts(parsed, before=""):
    """Yields the texts of every repetition without an end."""
    for code, value in parsed:
        if code in REPETITIONS:
            least, most, body = value
            if most is codes.MAXREPEAT:
                for at_least in (0, 1, 2):
                    unit = sample(body, at_least) or "a"
                    yield from (before + unit * LENGTH + "\0", before + (unit + " ") * LENGTH + "\0")
            yield from texts(body, before)
        elif code is codes.SUBPATTERN:
            yield from texts(value[3], before)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from texts(branch, before)
        before += sample([(code, value)])


def give_up(*_):
    raise TimeoutError


def is_bounded(pattern, flags, function, seconds=SECONDS):
    """Whether a pattern is done with all of its texts in time."""
    compiled = re.compile(pattern, flags)
    method = getattr(compiled, {"sub": "findall", "subn": "findall"}.get(function, function))
    for text in dict.fromkeys(texts(parser.parse(pattern, flags))):
        for start in ("", "a"):
            asked = start + text
            signal.signal(signal.SIGPROF, give_up)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # `re` looks for signals in the main thread
            try:
                result = method(asked.encode("utf-8", "ignore") if isinstance(pattern, bytes) else asked)
                list(result) if function == "finditer" else None
            except TimeoutError:
                return False
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    return True


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timer of a process's seconds")
def test_no_pattern_of_the_packages_takes_more_than_the_square_of_a_text():
    found = patterns()
    assert len(found) > 100
    assert not [(place, *given) for place, given in found.items() if not is_bounded(*given)]


@pytest.mark.parametrize(
    "pattern",
    [
        rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*(<!doctype svg[^>]*>\s*)?<svg",  # as it once was here
        "(a+)+b",
        "x(a|a)*b",
        r"(\w+\s?)*$",
        r"\s*\s*\s*\s*x",
    ],
)
def test_exponential_patterns_are_noticed(pattern):
    assert not is_bounded(pattern, re.S | re.I, "match", 0.3)
