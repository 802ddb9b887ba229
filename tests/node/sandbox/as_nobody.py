"""Plays attacks in a process of another user: `python as_nobody.py KIND NAME...`. Prints the names that got through."""

import json
import sys

from node.sandbox import SandboxCall, attacks
from node.sandbox.opening import open_confined, open_wasi
from node.sandbox.runtime import find_runtime

kind, *names = sys.argv[1:]
opened = (
    open_wasi(attacks.FILES, attacks.ENTRY, attacks.LIMITS, find_runtime())
    if kind == "wasi"
    else open_confined(attacks.FILES, attacks.ENTRY, attacks.LIMITS)
)
with opened as sandbox:
    got = {name: attacks.breach(outcome) for name in names for outcome in sandbox.run([SandboxCall(name)])}
    got["traces"] = sandbox.call("traces").value
print(json.dumps({name: what for name, what in got.items() if what}))
