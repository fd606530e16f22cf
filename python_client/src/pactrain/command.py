"""The console command `pactrain`: the package's own pactrain-admin.

`pactrain plot RUN` draws the course of a run, and `pactrain bench` predicts what a step
takes on given links; these are done here.
`pactrain doctor` checks this node and its cluster and says what to fix; the other
commands are the operator's (`pactrain --help`).
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from . import calculator, plot
from ._abi import ADMIN


def main() -> NoReturn:
    """Becomes the program; its arguments and exit code are the command's."""
    if sys.argv[1:2] == ["plot"]:
        sys.exit(plot.main(sys.argv[2:]))
    if sys.argv[1:2] == ["bench"]:
        sys.exit(calculator.main(sys.argv[2:]))
    try:
        os.execv(ADMIN, [ADMIN.name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(
            f"pactrain: {ADMIN} cannot be run: {error.strerror}; build it with "
            "`make build`, or install the wheel again"
        )
