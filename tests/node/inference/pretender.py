"""An engine child without an engine: answers at once, and misbehaves when a policy's path says so.

Its class is what the file `class` in its assets says, read at every start.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from node.inference import wire

held: set[bytes] = set()
source, sink = sys.stdin.buffer, sys.stdout.buffer


def say(reply: wire.Reply) -> None:
    sink.write(wire.encode(reply))
    sink.flush()


while header := source.read(4):
    request = wire.decode_request(source.read(wire.body_length(header)))
    if isinstance(request, wire.Prepare):
        if request.assets_dir == "broken":
            say(wire.Failed(id=request.id, what="no model", why="broken", remedy="mend it"))
        else:
            told = Path(request.assets_dir) / "class"
            name = told.read_text() if told.exists() else ""
            reply = wire.Ready(id=request.id, device="none", dtype="none", engine="pretender", parameters=0)
            say(msgspec.structs.replace(reply, engine_class=name))
    elif isinstance(request, wire.LoadPolicy):
        deed, _, argument = request.path.partition(" ")
        if deed == "die":
            os._exit(9)
        if deed == "babble":
            sink.write(b"\xff" * 64)
            sink.flush()
        if deed == "hang":
            nurse = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(argument).write_text(str(nurse.pid))
            time.sleep(600)
        held.add(request.policy_root)
        say(wire.Loaded(id=request.id, seconds=0.0))
    elif isinstance(request, wire.Produce):
        if request.out_path == "die":
            os._exit(9)
        if request.policy_root not in held:
            say(wire.Failed(id=request.id, what="no such policy", why="it was not loaded", remedy="load it"))
        made = wire.Produced(path="", units=1, samples=1, tokens=1, seconds=0.0, reward_estimate=0.0)
        say(msgspec.structs.replace(made, id=request.id))
