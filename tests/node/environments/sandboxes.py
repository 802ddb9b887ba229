"""A sandbox without walls for tests: a process that has imported the module, forked once for each call."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.sandbox import CallOutcome, CallStatus, SandboxCall, SandboxError, SandboxLimits, Undecided

SERVER = """
import contextlib, io, json, os, sys
sys.path.insert(0, sys.argv[2])
try:
    module = __import__(sys.argv[1])
except BaseException as error:
    print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
    sys.exit(1)
print("null", flush=True)
for line in sys.stdin:
    function, arguments, stdin = json.loads(line)
    mine, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        printed = io.StringIO()
        sys.stdin = io.StringIO(stdin)
        try:
            with contextlib.redirect_stdout(printed):
                value = getattr(module, function)(*arguments)
            reply = json.dumps(["ok", value, "", printed.getvalue()], allow_nan=False)
        except SystemExit as error:
            reply = json.dumps(["exited", error.code or 0, "", printed.getvalue()])
        except BaseException as error:
            reply = json.dumps(["raised", None, f"{type(error).__name__}: {error}", printed.getvalue()])
        os.write(theirs, reply.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(mine) as answer:
        reply = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(reply or json.dumps(["exited", status, "", ""]), flush=True)
"""


class OpenSandbox:
    """As node.sandbox.Sandbox. fail_with: what every call comes to, where a test wants that."""

    def __init__(self, files: Mapping[str, bytes], entry: str, limits: SandboxLimits) -> None:
        self.calls: list[SandboxCall] = []
        self.fail_with: dict[str, CallOutcome | Undecided] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="open-sandbox-")
        for name, data in files.items():
            path = Path(self._folder.name, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        command = [sys.executable, "-S", "-c", SERVER, entry, self._folder.name]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        why = json.loads(self._child.stdout.readline())
        if why is not None:
            self.close()
            raise SandboxError("the module does not load", why, "correct it")

    def call(self, function: str, *arguments: Any) -> CallOutcome:
        outcome = self.call_all(function, [arguments])[0]
        if isinstance(outcome, Undecided):
            raise outcome
        return outcome

    def call_all(self, function: str, calls: Sequence[Sequence[Any]]) -> list[CallOutcome | Undecided]:
        return list(self.run(SandboxCall(function, arguments) for arguments in calls))

    def run(self, calls: Iterable[SandboxCall]) -> Iterator[CallOutcome | Undecided]:
        for call in calls:
            self.calls.append(call)
            yield self.fail_with.get(call.function) or self._answer(call)

    def _answer(self, call: SandboxCall) -> CallOutcome:
        self._child.stdin.write(json.dumps([call.function, list(call.arguments), call.stdin.decode()]) + "\n")
        self._child.stdin.flush()
        status, value, error, printed = json.loads(self._child.stdout.readline())
        return CallOutcome(CallStatus(status), value, error, 0, printed.encode())

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate()
        self._folder.cleanup()
