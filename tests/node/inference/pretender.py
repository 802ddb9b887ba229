"""An engine child without an engine: answers at once, and misbehaves when a policy's path or a file's name says so.

A file's name: `die-once FILE` ends it unless FILE is there, `end` with a reason, `never` is not
answered, `keep` not even when it is cancelled, `after` not before something else is asked. Its class is what the file
`class` in its assets says, read at every start. A policy whose path is `alone` is the only one that it keeps.

It is started often, and imports nothing of ours: it says by itself what `node.inference.wire` reads and writes.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

held: set[bytes] = set()
kept: set[int] = set()
source, sink = sys.stdin.buffer, sys.stdout.buffer
put_off: list[dict[str, Any]] = []


def heard() -> SimpleNamespace | None:
    header = source.read(4)
    return SimpleNamespace(**msgspec.msgpack.decode(source.read(int.from_bytes(header, "little")))) if header else None


def say(reply: dict[str, Any]) -> None:
    body = msgspec.msgpack.encode(reply)
    sink.write(len(body).to_bytes(4, "little") + body)
    sink.flush()


def failed(id: int, what: str, why: str, remedy: str) -> dict[str, Any]:
    return {"type": "RequestFailed", "id": id, "what": what, "why": why, "remedy": remedy}


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


def produce(request: SimpleNamespace) -> None:
    deed, _, argument = request.out_path.partition(" ")
    amounts = {"units": 1, "samples": 1, "tokens": 1, "seconds": 0.0, "reward_estimate": 0.0}
    made = {"type": "Produced", "id": request.id, "path": "", **amounts}
    if deed == "end":
        during = [request.id] if argument != "others" else []
        ending = {
            "type": "ChildEnding",
            "what": "the engine lost its GPU",
            "why": "it fell off the bus",
            "remedy": "sit",
        }
        say({**ending, "during": during})
        os._exit(4)
    if deed == "after":
        say({"type": "RequestProgress", "id": request.id, "done": 1, "of": 2})
        put_off.append(made)
        return
    if deed in ("never", "keep"):
        kept.update({request.id} if deed == "keep" else ())
        return
    misbehave(deed, argument)
    if request.policy_root not in held:
        say(failed(request.id, "no such policy", "it was not loaded", "load it"))
        return
    say(made)
    time.sleep(0.05 * bool(put_off))
    while put_off:
        say(put_off.pop())


def prepare(request: SimpleNamespace) -> None:
    if request.assets_dir == "broken":
        say(failed(request.id, "no model", "broken", "mend it"))
        return
    told = Path(request.assets_dir) / "class"
    engine = {"device": "none", "dtype": "none", "engine": "pretender", "parameters": 0}
    name = told.read_text() if told.exists() else ""
    say({"type": "EngineReady", "id": request.id, **engine, "engine_class": name})


def load(request: SimpleNamespace) -> None:
    deed, _, argument = request.path.partition(" ")
    misbehave(deed, argument)
    if deed == "alone":
        held.clear()
    held.add(request.policy_root)
    say({"type": "Loaded", "id": request.id, "seconds": 0.0})


while request := heard():
    if request.type == "Ping":
        say({"type": "Pong", "id": request.id, "beats": 0})
    elif request.type == "Cancel":
        if request.which not in kept:
            say(failed(request.which, "cancelled", "it was", "none"))
    elif request.type == "Prepare":
        prepare(request)
    elif request.type == "LoadPolicy":
        load(request)
    elif request.type == "Produce":
        produce(request)
