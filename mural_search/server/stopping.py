"""SIGTERM ends the server within seconds, whatever it does.

Python runs no signal handler while a thread keeps its lock, as a C library may over a picture that a stranger sent,
nor does it end before its threads do. So a small process waits for the signal, too: `faulthandler`, which needs no
lock, tells it of the signal, and it ends the server by SIGKILL, unless the server ended by itself.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys

from absl import logging as log

# The small process. Its standard input is a pipe from the server: a byte says that the signal came, and the pipe ends
# when the server ends.
_PROGRAM = """
import os, select, signal, sys, time
if os.read(0, 1):
    deadline = time.monotonic() + float(sys.argv[2])
    while (left := deadline - time.monotonic()) > 0 and select.select([0], [], [], left)[0]:
        if not os.read(0, 4096):
            sys.exit()
    os.kill(int(sys.argv[1]), signal.SIGKILL)
"""


def end_on_sigterm(deadline: float) -> None:
    """Starts a process that ends this process if it still runs `deadline` seconds after a SIGTERM.

    To be called after this process has set its own handler of SIGTERM, which still runs. Does nothing on Windows, which
    has no SIGTERM.
    """
    if not hasattr(faulthandler, "register"):
        return
    read_end, write_end = os.pipe()
    command = [sys.executable, "-S", "-E", "-c", _PROGRAM, str(os.getpid()), str(deadline)]
    try:
        subprocess.Popen(command, stdin=read_end, start_new_session=True)  # which a terminal's Ctrl-C does not end
    except OSError as error:
        log.warning("SIGTERM may not end the server at once: %s", error)
        return
    finally:
        os.close(read_end)
    # `faulthandler` writes the stack of each thread into the pipe: of all threads, because a thread of a C library, if
    # it gets the signal, has no stack of Python to be written.
    faulthandler.register(signal.SIGTERM, write_end, all_threads=True, chain=True)
