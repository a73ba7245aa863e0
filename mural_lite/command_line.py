"""Commands: a command is found by its name, its flags are parsed, and the user's mistakes are reported in one line.

`python -m mural_tf COMMAND …`, `python -m mural_search COMMAND …` and the scripts at the top of the repository call
`run_command` with a table of commands; a script with a single purpose calls `run(main)`. Main functions import what
they need themselves, so that `--help` is fast.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import io
import logging as python_logging
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from absl import app, flags, logging

from mural_lite import __version__, hugging_face
from mural_lite.errors import UserError, is_out_of_memory
from mural_lite.files import as_path, check_readable
from mural_lite.progress import announcing
from mural_lite.quiet import quiet_imports
from mural_lite.remote_folders import display_name, remove_copies
from mural_lite.trust import trusting

INTERRUPTED = 130  # what shells report for Ctrl-C: 128 + SIGINT
HELP = {"--help", "-help", "--helpshort", "-h", "-?"}

flags.disclaim_key_flags()  # flags that are defined here belong to the module that asks for them


@dataclasses.dataclass(frozen=True)
class Command:
    """A function of a program, which a user names on the command line."""

    main: Callable[..., int | None]  # takes the flags' values by name, returns an exit code; its docstring is the help
    positional: bool  # whether `main` takes first the list of arguments that are not flags, which are otherwise refused
    entries: Mapping[str, object]  # the arguments of `define`

    @property
    def summary(self) -> str:
        """One line for the list of commands."""
        return inspect.getdoc(self.main).splitlines()[0]

    def define(self) -> Callable[[list[str]], int | None]:
        """Defines the command's flags, and returns a function to call after they are parsed.

        The function takes the list of arguments that are not flags, calls `main`, and returns its exit code.
        """
        holders = define(**self.entries)
        define_trust()

        def run_with(arguments: list[str]) -> int | None:
            values = {name: holder.value for name, holder in holders.items()}
            if self.positional:
                return self.main(arguments, **values)
            return self.main(**values)

        return run_with


def command(positional: bool = False, **entries) -> Callable[[Callable[..., int | None]], Command]:
    """Returns a decorator that makes a `Command` of a main function; the arguments are the command's attributes."""
    return lambda main: Command(main, positional, entries)


def run_command(commands: Mapping[str, Command], arguments: Sequence[str], program: str) -> None:
    """Runs the command at the start of the arguments, or prints help, and exits as `run` does; never returns.

    Only this command's flags are defined, so two commands may have a flag of the same name. `--help` after a command
    describes it; without a command, or after the first word of several commands, it lists them.

    Args:
      commands: {name: command}; a name may have several words, "search index".
      arguments: the command line without the program.
      program: the user's call, for the help: "python -m mural_tf".
    """
    with _mistakes_in_one_line():
        if "--version" in arguments:
            print(f"mural_tf {__version__}")
            sys.exit(0)
        name, arguments = find_command(commands, arguments)
        wants_help = bool(HELP & set(arguments))
        if name not in commands:
            command_list = describe_commands(commands, name, program)
            if not wants_help:
                print(command_list, file=sys.stderr)
                raise UserError(f"No command is given after {f'{program} {name}'.strip()!r}: expected one of these.")
            print(command_list)
            sys.exit(0)
        command = commands[name]
        sys.argv = [f"{program} {name}", *arguments]  # where ml_collections looks for overrides
        with _mistakes_in_flags():
            main = command.define()
        if wants_help:
            print(_describe_command(command, program))
            sys.exit(0)
        run(lambda argv: main(argv[1:]), command.positional)


def _describe_command(command: Command, program: str) -> str:
    """Returns the help of a command whose flags are defined: its docstring, and its flags as absl describes them."""
    description = inspect.getdoc(command.main).replace("python -m mural_tf", program)
    module = flags.FLAGS.find_module_defining_flag("trust")  # `Command.define` defines this flag for every command
    _, _, flag_descriptions = flags.FLAGS.module_help(module).partition(":\n")  # without absl's heading
    return f"{description}\n\nflags:\n{flag_descriptions}"


def run_and_exit(commands: Mapping[str, Command], words: Sequence[str], program: str) -> None:
    """Runs `run_command` with `words`, such as ["search"], before the arguments of this process; never returns."""
    try:
        run_command(commands, [*words, *sys.argv[1:]], program)
    except SystemExit as end:
        if "tensorflow_io" in sys.modules:  # its client of s3:// aborts the process at its end
            remove_copies()
            sys.stdout.flush()
            sys.stderr.flush()
            status = end.code if isinstance(end.code, int) else 0  # `None` is success
            os._exit(status)
        raise


def find_command(commands: Mapping[str, Command], arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the command's name and the arguments without its words; flags may come before and between the words.

    ["--top=3", "search", "query", "red"] gives ("search query", ["--top=3", "red"]). If the arguments end too early,
    the name is only the start of a name in `commands`, or empty. Raises `UserError` for a word with which no command
    goes on.
    """
    name = ""
    rest = list(arguments)
    while name not in commands:
        words = [argument for argument in rest if not argument.startswith("-")]
        if not words:
            return name, rest
        rest.remove(words[0])
        longer_name = f"{name} {words[0]}".strip()
        # The spaces compare whole words: "search index" does not begin with the words "search in".
        if not any(f"{command} ".startswith(f"{longer_name} ") for command in commands):
            raise UserError(_unknown(commands, name, words[0]))
        name = longer_name
    return name, rest


def _unknown(commands: Mapping[str, Command], before: str, word: str) -> str:
    """Returns the message for an unknown `word` after `before`, the start of a command's name, or ""."""
    words_before = before.split()
    number = len(words_before)
    full_names = [name.split() for name in commands]
    expected = list(dict.fromkeys(words[number] for words in full_names if words[:number] == words_before))
    near = difflib.get_close_matches(word, expected, n=1)
    if near:
        return f"Unknown command {word!r}; did you mean {near[0]!r}?"
    return f"Unknown command {word!r}: expected {', '.join(expected)}, and then {word!r}."


def describe_commands(commands: Mapping[str, Command], name: str, program: str) -> str:
    """Returns a usage line and, per command whose name begins with `name`, a line with its name and summary."""
    full_names = [full_name for full_name in commands if full_name.startswith(name)]
    width = max(map(len, full_names))
    lines = [f"  {full_name:<{width}}  {commands[full_name].summary}" for full_name in full_names]
    return "\n".join([f"{program} COMMAND … [--help]", "", *lines])


def run(main: Callable[[Sequence[str]], int | None], positional: bool = False) -> None:
    """Parses the flags, calls `main(argv)` and exits with its return value (None is 0); never returns.

    With `positional`, `argv[1:]` holds the arguments that are not flags; otherwise such arguments are refused.

    A `UserError`, unusable flags or a failed file operation becomes one line on stderr and exit code 1;
    `--verbosity=1` shows the stack trace as well. Any other exception is a bug and keeps its stack trace.
    """
    quiet_imports()
    # TensorFlow reads this when it is imported, and by default leaves oneDNN's kernels off on processors without
    # AVX512-VNNI, where they are faster too; the figures are in docs/speed.md.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

    def run_with_settings(argv: Sequence[str]) -> int | None:
        """Calls `main` with a command's logging, announcements and trust."""
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # of libraries too
        # TensorFlow warns in a hundred lines where a checkpoint does not fit; the one error says it.
        python_logging.getLogger("tensorflow").setLevel(python_logging.ERROR)
        if len(argv) > 1 and not positional:
            raise UserError(f"Unexpected argument {argv[1]!r}: only --flag=value is taken here.")
        is_trusted = "trust" in flags.FLAGS and flags.FLAGS["trust"].value
        with announcing(), trusting(is_trusted):
            return main(argv)

    with _mistakes_in_one_line():
        app.run(run_with_settings, flags_parser=_parse_flags)


def _parse_flags(arguments: Sequence[str]) -> list[str]:
    """Parses a command line, and returns the arguments that are not flags; raises `UserError` for unusable flags."""
    with _mistakes_in_flags():
        return flags.FLAGS(list(arguments))


def require(**values: str) -> None:
    """Raises `UserError` for the first flag whose value is empty or None: `require(output=OUTPUT.value)`."""
    for flag, value in values.items():
        if not value:
            raise UserError(_missing(flag))


def _missing(flag: str) -> str:
    """Returns the message for a flag without a value."""
    return f"--{flag} is missing; --help shows how it is used."


_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    list: flags.DEFINE_list,
    tuple: flags.DEFINE_multi_string,
}


def define(**entries) -> dict[str, flags.FlagHolder]:
    """Defines flags, and returns {name: holder of the flag's value}.

    An entry is (default, help) or (default, help, allowed): `define(top=(10, "How many.", 1), name=(None, "Which."))`.
    The flag has the default's type: a list is given as "a,b", the flag of a tuple may be repeated, and None is a text
    that must be given. `allowed` is a list of choices, the least number, a tuple of the least and the largest number,
    or a function that raises `UserError` for other values, such as `check_path`. A function in place of an entry
    defines its flag itself: `define_config`.
    """
    holders = {}
    for name, entry in entries.items():
        if callable(entry):
            holders[name] = entry()
        else:
            holders[name] = _define(name, *entry)
    return holders


def _define(name: str, default, help_text: str, allowed=None) -> flags.FlagHolder:
    """Defines one flag, whose type is its default's; the last three arguments are an entry of `define`."""
    if callable(allowed):
        holder = _define(name, default, help_text)

        def is_allowed(value) -> bool:  # absl expects an answer; `allowed` raises instead
            allowed(name, value)
            return True

        flags.register_validator(name, is_allowed)
        return holder
    if default is None:
        return flags.DEFINE_string(name, None, help_text, required=True)
    if isinstance(allowed, list):
        return flags.DEFINE_enum(name, default, allowed, help_text)
    bounds = {}
    if isinstance(allowed, tuple):
        bounds["lower_bound"], bounds["upper_bound"] = allowed
    elif allowed is not None:
        bounds["lower_bound"] = allowed
    define_flag = _DEFINE[type(default)]
    if isinstance(default, tuple):
        default = list(default)  # absl's default of a repeated flag
    return define_flag(name, default, help_text, **bounds)


def _values_of(value: str | list[str] | None) -> list[str]:
    """Returns the list of a flag's values, whether it was given once, repeatedly or not at all."""
    if isinstance(value, str):
        return [value]
    return value or []


def check_path(flag: str, value: str | list[str] | None) -> None:
    """Raises `UserError` for a path in a store that no client here reads; whether it exists is not checked."""
    for name in _values_of(value):
        check_readable(name)


def check_exists(flag: str, value: str | list[str] | None) -> None:
    """Raises `UserError` for a file or folder that does not exist here; a store is not asked."""
    check_path(flag, value)
    for name in _values_of(value):
        if name and "://" not in name and not os.path.exists(os.path.expanduser(name)):
            raise UserError(f"--{flag}={name}: there is no such file or folder.")


def check_local_path(flag: str, value: str | None) -> None:
    """Raises `UserError` for a path in a store; a path on this machine need not exist."""
    check_path(flag, value)
    if value and not isinstance(as_path(value), pathlib.Path):
        raise UserError(f"--{flag}={value}: expected a folder of this machine; it cannot be in a store.")


def check_model(flag: str, value: str | None) -> None:
    """Raises `UserError` for a value that can be no model: a missing folder, or a bad name on the Hub or in a store.

    For ORG/NAME the message says that hf://ORG/NAME is meant.
    """
    if hugging_face.is_name(value or ""):
        hugging_face.check(value)
        return
    if value and "://" not in value and not os.path.exists(value):
        remedy = hugging_face.suggestion(value)
        if remedy:
            raise UserError(f"--{flag}={value}: there is no such folder: {remedy}.")
    check_exists(flag, value)


def define_trust() -> None:
    """Defines `--trust`, a flag of every command, which `run` applies."""
    help_text = "Let a stored config.json name classes to import and TF-Hub modules to fetch from any place."
    flags.DEFINE_bool("trust", False, help_text)


class BadFlagFile(Exception):
    """A file that a flag names could not be used: its cause is reported in place of absl's error."""


@contextlib.contextmanager
def _mistakes_in_flags() -> Iterator[None]:
    """Turns the errors of absl and ml_collections about flags into `UserError`s, and a `BadFlagFile` into its cause."""
    try:
        yield
    except BadFlagFile as failure:
        raise failure.__cause__ from None
    except flags.Error as error:
        missing = re.search(r"Flag --(\S+) must have a value other than None", str(error))
        if missing:
            raise UserError(_missing(missing[1])) from error
        number = re.match(r"(flag --\S+: )(?:invalid literal for int|could not convert string to float)", str(error))
        if number:
            raise UserError(f"{number[1]}expected a number, such as 1000 or 0.001.") from error
        raise UserError(f"{error} (--help lists the flags)") from error
    except (AttributeError, KeyError, TypeError) as error:  # ml_collections', for --config.x
        # Python writes the message of a `KeyError` as a literal, 'Did you mean \'x\'?\n'.
        reason = str(error).strip("'\"").replace("\\n", " ").replace("\\'", "'")
        raise UserError(f"Unknown field, or a value of another type, in the flags: {reason}") from error


@contextlib.contextmanager
def _mistakes_in_one_line() -> Iterator[None]:
    """Prints a mistake of the user's in one line and exits with 1, `INTERRUPTED` for Ctrl-C; raises other errors."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a terminal may know only ASCII
    try:
        yield
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Interrupted.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - everything that is not the user's mistake is raised again
        message = _message_for_user(error)
        if message is None:
            raise
        logging.debug("The error below was raised here:", exc_info=True)
        print(f"Error: {message}", file=sys.stderr)
        sys.exit(1)


def _message_for_user(error: Exception) -> str | None:
    """Returns an error's message in one line, or None for an error that the user cannot correct."""
    # TensorFlow wraps errors of traced code, and writes twenty lines around their messages.
    while type(error).__name__ == "StagingError" and isinstance(error.__context__, Exception):
        error = error.__context__
    if isinstance(error, UserError):
        return " ".join(display_name(error).split())
    if isinstance(error, OSError) and error.strerror:
        failure = error.strerror
        if error.filename is not None:
            failure = f"{failure}: {os.fspath(error.filename)!r}"
        return f"{failure}. Check the path, its permissions and the free space on its disk."
    tensorflow = sys.modules.get("tensorflow")  # TensorFlow reports failed file operations by classes of its own
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
        if "No space left" in error.message or isinstance(error, tensorflow.errors.PermissionDeniedError):
            return f"{' '.join(error.message.split())}. Check the path, its permissions and the free space on its disk."
        if is_out_of_memory(error):
            return "A device of this machine has too little memory: take fewer items at a time, --batch_size=N."
    return None
