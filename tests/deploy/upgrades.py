"""Whether two releases work beside each other under a running job."""

from __future__ import annotations

import subprocess

import programs


def why_none() -> str | None:
    """Why the release before cannot be built here; None if it can."""
    commit = (programs.ROOT / "tools/previous_release").read_text().strip()
    command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    done = subprocess.run(command, cwd=programs.ROOT, capture_output=True, text=True)
    return None if done.returncode == 0 else f"this clone has no commit {commit}"


def previous() -> tuple[str, str]:
    """The folder of the older daemons and package, and what went wrong."""
    done = subprocess.run(
        [programs.ROOT / "tools/previous"], cwd=programs.ROOT, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
        return "", f"tools/previous: {last[0]}"
    return lines[-1], ""
