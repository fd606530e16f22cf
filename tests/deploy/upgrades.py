"""Whether two releases work beside each other under a running job."""

from __future__ import annotations

import subprocess

import programs


def previous() -> tuple[str, str]:
    """The folder of the release before, and why there is none."""
    done = subprocess.run(
        [programs.ROOT / "tools/previous"], cwd=programs.ROOT, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
        return "", f"tools/previous: {last[0]}"
    return lines[-1], ""
