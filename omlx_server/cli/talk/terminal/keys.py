"""Keys that are typed while no prompt waits for them."""

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

_INPUT_FLAGS, _LOCAL_FLAGS = 0, 3  # of what tcgetattr returns


@contextmanager
def kept_for_the_prompt() -> Iterator[None]:
    """Keep the terminal from echoing what is typed into an answer; the next prompt gets it. Ctrl-C
    still interrupts."""
    before = termios.tcgetattr(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[_INPUT_FLAGS] &= ~termios.ICRNL  # else Enter would come as Ctrl-J
    silent[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
