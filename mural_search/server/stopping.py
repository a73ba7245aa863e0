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

# Its standard input is the server's line to it: a byte is the signal, the end of the line is the end of the server.
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
    """Has this process ended `deadline` seconds after a SIGTERM at the latest; not on Windows, which has no SIGTERM.

    To be called after the process's own handler of SIGTERM is set, which still runs.
    """
    if not hasattr(faulthandler, "register"):
        return
    read_end, write_end = os.pipe()
    command = [sys.executable, "-S", "-E", "-c", _PROGRAM, str(os.getpid()), str(deadline)]
    try:
        subprocess.Popen(command, stdin=read_end, start_new_session=True)  # Ctrl-C of a terminal is not for it
    except OSError as error:
        log.warning("SIGTERM may not end the server at once: %s", error)
        return
    finally:
        os.close(read_end)
    # All threads: if a thread of a C library gets the signal, it has no lines of Python that could be written.
    faulthandler.register(signal.SIGTERM, write_end, all_threads=True, chain=True)
