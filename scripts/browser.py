"""Finds the browser that tests of the page run in, and installs one where that is easy: on Debian, as root.

Without a browser these tests are skipped, and say so; nothing else needs one. Uses the standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
UPDATE = ("apt-get", "update")
INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", "chromium")
PATIENCE = 600.0
"""Seconds for each of the two."""


def find_browser() -> str | None:
    """$CHROMIUM, or one on PATH."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


def install() -> str | None:
    """Why it could not be installed, None where it was."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "this is no Debian, or you are not root"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (UPDATE, INSTALL):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{' '.join(command)}: {error}"
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines()
            return f"{' '.join(command)}: {words[-1] if words else 'no reason was given'}"
    return None


def main() -> int:
    if find_browser():
        return 0
    print("  - no browser for the tests of the page: installing the package chromium", flush=True)
    why = install()
    if why or not find_browser():
        print(
            f"  - tests in a browser will be skipped: {why or 'no browser is on PATH'}\n"
            "    do: install Chromium or Chrome, e.g. `apt install chromium`, or name one with CHROMIUM=PATH",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
