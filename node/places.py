"""Where this user's files lie, and whether the environment names places at all.

$INTELLECT_NODE_HOME, $INTELLECT_NODE_CACHE, $XDG_STATE_HOME, $XDG_CACHE_HOME, $HOME. A container often runs as a number
that no list of users knows: then nothing but the variables says where its home is.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from node.errors import ConfigError

NAME = "intellect-node"
PLACES = ("HOME", "TMPDIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")
OURS = "INTELLECT_NODE_"


def default_home() -> Path:
    """Networks, caches and nodes of this user: $INTELLECT_NODE_HOME or the platform's state directory. Raises
    ConfigError."""
    override = os.environ.get("INTELLECT_NODE_HOME")
    if override:
        return Path(override)
    try:
        return Path(platformdirs.user_state_path(NAME))
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home directory",
            f"HOME is not set, and the system knows no user with the number {os.getuid()}",
            "set INTELLECT_NODE_HOME to a directory that this user may write",
        ) from error


def default_cache() -> Path:
    """What can be fetched again: $INTELLECT_NODE_CACHE, or this user's cache directory, or one in the home. Raises
    ConfigError."""
    override = os.environ.get("INTELLECT_NODE_CACHE")
    if override:
        return Path(override)
    try:
        return Path(platformdirs.user_cache_path(NAME))
    except RuntimeError:
        return default_home() / "cache"


def check_words(words: Iterable[str]) -> None:
    """Refuse names of files that no text can hold: they go into logs, settings and databases. words: of the command
    line. Raises ConfigError."""
    named = {name: value for name, value in os.environ.items() if name in PLACES or name.startswith(OURS)}
    said = [
        *((f"the variable {name}", value) for name, value in named.items()),
        *(("the word", word) for word in words),
    ]
    for what, text in said:
        if not _is_text(text):
            raise ConfigError(
                "a name is no UTF-8",
                f"{what} {ascii(text)[1:-1]} holds bytes that are no text in {sys.getfilesystemencoding()}",
                "rename the file or directory, or name another one",
            )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
