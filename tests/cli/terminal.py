# SPDX-License-Identifier: Apache-2.0
"""terminal.py COLUMNS ROWS STEPS COMMAND... - runs a command on a terminal of that size and prints
all that it wrote there. STEPS, separated by commas, are done one after the other: "see=TEXT"
waits until the text has been seen since the last step, "key=q" presses, "size=COLUMNSxROWS"
changes the window, "signal=15" sends. Fails unless the command ends with 0 and leaves the
terminal's settings as they were."""
import fcntl
import os
import select
import signal
import struct
import sys
import termios

SECONDS = 50
columns, rows, steps, *command = sys.argv[1:]
steps = [step.split("=", 1) for step in steps.split(",") if step]


def set_size(terminal, columns, rows):
    size = struct.pack("HHHH", int(rows), int(columns), 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


# Kept open here, so that the settings can be read after the command's end.
main, side = os.openpty()
set_size(main, columns, rows)
before = termios.tcgetattr(side)
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(side, termios.TIOCSCTTY, 0)
    for fd in range(3):
        os.dup2(side, fd)
    os.execvp(command[0], command)

seen = b""
looked = ended = status = 0
signal.alarm(SECONDS)
while True:
    while steps:
        verb, what = steps[0]
        if verb == "see":
            at = seen.find(what.encode(), looked)
            if at < 0:
                break
            looked = at + len(what)
        elif verb == "key":
            os.write(main, what.encode())
        elif verb == "size":
            set_size(main, *what.split("x"))
        elif verb == "signal":
            os.kill(child, int(what))
        looked = looked if verb == "see" else len(seen)
        steps.pop(0)
    if not ended:
        ended, status = os.waitpid(child, os.WNOHANG)
    ready = select.select([main], [], [], 0 if ended else 0.05)[0]
    if ready:
        seen += os.read(main, 65536)
    elif ended:
        break
after = termios.tcgetattr(side)
sys.stdout.write(seen.decode(errors="replace"))
if after != before:
    sys.exit("the terminal is not as it was")
if steps:
    sys.exit(f"never done: {steps}")
sys.exit(os.waitstatus_to_exitcode(status))
