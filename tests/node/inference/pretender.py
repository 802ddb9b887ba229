"""An engine child without an engine: answers at once, and misbehaves when a policy's path or a file's name says so.

A file's name: `die-once FILE` ends it unless FILE is there, `end` with a reason, `never` is not
answered, `keep` not even when it is cancelled, `after` not before something else is asked. Its class is what the file
`class` in its assets says, read at every start. A policy whose path is `alone` is the only one that it keeps.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from node.inference import wire

held: set[bytes] = set()
kept: set[int] = set()
source, sink = sys.stdin.buffer, sys.stdout.buffer
put_off: list[wire.Reply] = []


def say(reply: wire.Reply) -> None:
    sink.write(wire.encode(reply))
    sink.flush()


def misbehave(deed: str, argument: str) -> None:
    if deed == "die" or (deed == "die-once" and not Path(argument).exists()):
        Path(argument or os.devnull).touch()
        os._exit(9)
    if deed == "babble":
        sink.write(b"\xff" * 64)
        sink.flush()
    if deed == "hang":
        nurse = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(argument).write_text(str(nurse.pid))
        os.kill(os.getpid(), signal.SIGSTOP)


def produce(request: wire.Produce) -> None:
    deed, _, argument = request.out_path.partition(" ")
    made = wire.Produced(id=request.id, path="", units=1, samples=1, tokens=1, seconds=0.0, reward_estimate=0.0)
    if deed == "end":
        during = (request.id,) if argument != "others" else ()
        say(wire.Ending(what="the engine lost its GPU", why="it fell off the bus", remedy="sit", during=during))
        os._exit(4)
    if deed == "after":
        say(wire.Progress(id=request.id, done=1, of=2))
        put_off.append(made)
        return
    if deed in ("never", "keep"):
        kept.update({request.id} if deed == "keep" else ())
        return
    misbehave(deed, argument)
    if request.policy_root not in held:
        say(wire.Failed(id=request.id, what="no such policy", why="it was not loaded", remedy="load it"))
        return
    say(made)
    time.sleep(0.05 * bool(put_off))
    while put_off:
        say(put_off.pop())


while header := source.read(4):
    request = wire.decode_request(source.read(wire.body_length(header)))
    if isinstance(request, wire.Ping):
        say(wire.Pong(id=request.id, beats=0))
    elif isinstance(request, wire.Cancel):
        if request.which not in kept:
            say(wire.Failed(id=request.which, what="cancelled", why="it was", remedy="none"))
    elif isinstance(request, wire.Prepare):
        if request.assets_dir == "broken":
            say(wire.Failed(id=request.id, what="no model", why="broken", remedy="mend it"))
        else:
            told = Path(request.assets_dir) / "class"
            name = told.read_text() if told.exists() else ""
            reply = wire.Ready(id=request.id, device="none", dtype="none", engine="pretender", parameters=0)
            say(msgspec.structs.replace(reply, engine_class=name))
    elif isinstance(request, wire.LoadPolicy):
        deed, _, argument = request.path.partition(" ")
        misbehave(deed, argument)
        if deed == "alone":
            held.clear()
        held.add(request.policy_root)
        say(wire.Loaded(id=request.id, seconds=0.0))
    elif isinstance(request, wire.Produce):
        produce(request)
