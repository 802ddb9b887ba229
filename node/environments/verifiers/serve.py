"""A `verifiers` v1 package behind OpenEnv's socket, so that a swarm can witness what it says (class witnessed).

Runs in the package's own environment, beside driver.py: `python -P serve.py`, settings as one JSON line: taskset,
config, tasks, host, port, seconds. An episode is one rollout of the package: {"type": "reset", "data": {"task": 3}},
then {"type": "step", "data": {"message": answer}}. The package asks an engine for answers; that engine is the endpoint
below, and what it is asked waits for the next step. An answer that ends with <call>{"name": ..., "arguments":
{...}}</call> calls a tool that the package offers. Prints {"tasks": [rows], "url"} once it listens.

Nothing here makes a package exact: members compare what they hear.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# (what it imports is in another environment)

import asyncio
import importlib.util
import ipaddress
import json
import math
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web


def beside(name: str) -> Any:
    """A module of this folder, by its path: nothing here is importable by name beside a stranger's package."""
    place = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"intellect_node_{name}", place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is not a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


driver = beside("driver")
MAX_MESSAGE_BYTES = 1 << 20
MAX_BODY_BYTES = 64 << 20
MOST_EPISODES, MOST_EACH = 1024, 128
"""Sockets at the same time, each with one rollout of the package: of all, and of one address. A member keeps 72. A
proxy on this machine has many members behind it, so it bounds them itself."""
OPENED, CLOSED = "<call>", "</call>"
OWN_TROUBLE, ANSWERS_FAULT = "SESSION_ERROR", "EXECUTION_ERROR"
"""OpenEnv's codes: nobody's reward follows from the first; the answer that caused the second is worth nothing."""


class Trouble(Exception):
    """What is told instead of an observation."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why[:500])
        self.code = code


class PackageRollout:
    """One rollout of the package that waits for answers. begin(rollout) plays it to its end and returns the reward."""

    def __init__(self, begin, seconds: float) -> None:
        self._seconds = seconds
        self._said: list[dict] = []
        self._tools: list[dict] = []
        self._events: asyncio.Queue = asyncio.Queue()
        self._answer: asyncio.Future | None = None
        self._playing = asyncio.create_task(self._whole(begin))

    async def first(self) -> tuple[list[dict], list[dict]]:
        """(the messages, the tools) that it begins with. Raises Trouble."""
        kind, given = await self._next()
        if kind != "asked":
            raise Trouble(OWN_TROUBLE, "a rollout ends without asking the model anything")
        self._said, self._tools = given
        return given

    async def step(self, text: str) -> tuple[str, bool, float | None]:
        """(what it says to an answer, whether it is over, its reward). Raises Trouble."""
        if self._answer is None or self._answer.done():
            raise Trouble(ANSWERS_FAULT, "the rollout is over")
        before, self._said = self._said, []
        self._answer.set_result(answer_of(text, self._tools))
        kind, given = await self._next()
        if kind == "over":
            return "", True, given
        messages, self._tools = given
        # Behind what was said before stand the answer and at least one new message.
        if messages[: len(before)] != before or len(messages) < len(before) + 2:
            raise Trouble(OWN_TROUBLE, "the package changes what was said before: it cannot be trained on")
        self._said = messages
        return "\n".join(content_of(one) for one in messages[len(before) + 1 :]), False, None

    async def asked(self, messages: list, tools: list) -> dict:
        """Of the endpoint: the assistant's message, once it is known."""
        self._answer = asyncio.get_running_loop().create_future()
        self._events.put_nowait(("asked", (messages, tools)))
        return await self._answer

    async def close(self) -> None:
        self._playing.cancel()
        await asyncio.gather(self._playing, return_exceptions=True)

    async def _whole(self, begin) -> None:
        try:
            self._events.put_nowait(("over", await begin(self)))
        except Trouble as trouble:
            self._events.put_nowait(("trouble", trouble))
        except Exception as error:
            self._events.put_nowait(("trouble", Trouble(ANSWERS_FAULT, f"{type(error).__name__}: {error}")))

    async def _next(self) -> tuple:
        try:
            kind, given = await asyncio.wait_for(self._events.get(), self._seconds)
        except TimeoutError:
            raise Trouble(OWN_TROUBLE, f"the package took more than {self._seconds:g} s") from None
        if kind == "trouble":
            raise given
        return kind, given


class RolloutServer:
    """play(task, rollout): plays one rollout of the package to its end; returns its reward. tasks: how many."""

    def __init__(self, play, tasks: int, seconds: float) -> None:
        self._play, self._tasks, self._seconds = play, tasks, seconds
        self._open: Counter[str] = Counter()

    def begin(self, task: int) -> PackageRollout:
        return PackageRollout(lambda rollout: self._play(task, rollout), self._seconds)

    async def rows(self, name: str) -> list[dict]:
        """A row of `server` for each task: its prompt is what the package asks first."""
        together = 16  # rollouts that are begun at the same time
        gate = asyncio.Semaphore(together)

        async def row(task: int) -> dict:
            async with gate:
                rollout = self.begin(task)
                try:
                    prompt = prompt_of(*await rollout.first())
                finally:
                    await rollout.close()
            return {"problem_id": f"{name}-{task}", "prompt": prompt, "reset": {"task": task}}

        return list(await asyncio.gather(*map(row, range(self._tasks))))

    async def socket(self, request: web.Request) -> web.WebSocketResponse:
        link = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, compress=False)
        await link.prepare(request)
        address = request.remote or ""
        most = MOST_EPISODES if is_loopback(address) else MOST_EACH
        if self._open.total() >= MOST_EPISODES or self._open[address] >= most:
            await link.send_json(trouble_of(Trouble("CAPACITY_REACHED", "too many episodes are open")))
            return link
        self._open[address] += 1
        rollout: PackageRollout | None = None
        idle_seconds = 600.0
        try:
            while (message := await link.receive(idle_seconds)).type is WSMsgType.TEXT:
                try:
                    kind, data = asked_for(message.data)
                    if kind == "reset":
                        if rollout is not None:
                            await rollout.close()
                        rollout = self._reset(data)
                        await rollout.first()
                        told = "", False, None
                    elif rollout is None:
                        raise Trouble("VALIDATION_ERROR", "no episode has begun: reset comes first")
                    else:
                        told = await rollout.step(data["message"])
                    await link.send_json(observation_of(*told))
                except Trouble as trouble:
                    print(f"{trouble.code}: {trouble}", file=sys.stderr, flush=True)
                    await link.send_json(trouble_of(trouble))
        except (TimeoutError, ConnectionError):
            print("an episode was left", file=sys.stderr, flush=True)
        finally:
            self._open -= Counter([address])  # in which nothing stays of an address with none
            if rollout is not None:
                await rollout.close()
            await link.close()
        return link

    def _reset(self, data: dict) -> PackageRollout:
        task = data.get("task")
        if type(task) is not int or not 0 <= task < self._tasks:
            raise Trouble("VALIDATION_ERROR", f"task is a number below {self._tasks}")
        return self.begin(task)


class PackageEngine:
    """What the package takes for an engine: POST /v1/chat/completions. rollouts: by the id of their trace."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.rollouts: dict[str, PackageRollout] = {}

    async def complete(self, request: web.Request) -> web.Response:
        driver.admit(request, self._key)
        rollout, body = self.rollouts.get(request.headers.get("X-Session-ID", "")), await request.json()
        if rollout is None or not isinstance(body, dict) or not body.get("messages") or body.get("stream"):
            raise web.HTTPBadRequest(text="no rollout of this engine's, or no plain request of a chat")
        message = await rollout.asked(body["messages"], body.get("tools") or [])
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        about = {"id": "told", "object": "chat.completion", "created": int(time.time()), "model": "policy"}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return web.json_response({**about, "choices": [choice], "usage": usage})


def asked_for(text: str) -> tuple[str, dict]:
    """(kind, data) of a message. Raises Trouble."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    data = message.get("data") if isinstance(message, dict) else None
    kind = message.get("type") if isinstance(message, dict) else None
    if kind not in ("reset", "step") or not isinstance(data, dict):
        raise Trouble("VALIDATION_ERROR", "a message is reset or step, with data")
    if kind == "step" and not isinstance(data.get("message"), str):
        raise Trouble("VALIDATION_ERROR", "a step has an answer as its message")
    return kind, data


def is_loopback(address: str) -> bool:
    return bool(address) and ipaddress.ip_address(address).is_loopback


def observation_of(text: str, done: bool, reward: float | None) -> dict:
    # json would write NaN or Infinity, which is no JSON, and the member could read nothing of the reply.
    good = reward is not None and math.isfinite(reward)
    told = {"observation": {"message": text}, "reward": reward if good else None, "done": done}
    return {"type": "observation", "data": told}


def trouble_of(trouble: Trouble) -> dict:
    return {"type": "error", "data": {"message": str(trouble), "code": trouble.code}}


def answer_of(text: str, tools: list) -> dict:
    """The assistant's message: with a call where the answer ends with one of a tool that is offered."""
    message = {"role": "assistant", "content": text}
    before, opened, call = text.rstrip().removesuffix(CLOSED).rpartition(OPENED)
    if not tools or not opened or not text.rstrip().endswith(CLOSED):
        return message
    try:
        wanted = json.loads(call)
    except (ValueError, RecursionError):
        return message
    if not isinstance(wanted, dict) or not isinstance(wanted.get("name"), str):
        return message
    function = {"name": wanted["name"], "arguments": json.dumps(wanted.get("arguments", {}))}
    calls = [{"id": "call", "type": "function", "function": function}]
    return {"role": "assistant", "content": before, "tool_calls": calls}


def content_of(message: dict) -> str:
    """The text of a message; its other parts are left out."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)


def prompt_of(messages: list[dict], tools: list[dict]) -> str | list[dict]:
    """Of a row: text, or a chat. Tools are offered in words, since a row has no other place for them."""
    told = [{"role": one["role"], "content": content_of(one)} for one in messages]
    if tools:
        offered = [one.get("function", {}) for one in tools]
        lines = [f"{one.get('name')}: {one.get('description')} {json.dumps(one.get('parameters'))}" for one in offered]
        how = f'{OPENED}{{"name": ..., "arguments": {{...}}}}{CLOSED}'
        told[-1]["content"] += f"\n\nYou may end an answer with one call, {how}, of:\n" + "\n".join(lines)
    return told[0]["content"] if len(told) == 1 else told


@asynccontextmanager
async def listening(application: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """HOST:PORT at which it is heard."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield "{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


def outer_face(server: RolloutServer) -> web.Application:
    application = web.Application()
    application.router.add_get("/ws", server.socket)
    return application


async def serve(settings: dict, replies) -> None:
    import os

    os.environ[driver.KEY] = key = secrets.token_urlsafe(32)
    from verifiers.v1.clients import EvalClientConfig, ModelContext

    environment, tasks = driver.load(settings)
    engine = PackageEngine(key)
    inner = web.Application(client_max_size=MAX_BODY_BYTES)
    inner.router.add_post("/v1/chat/completions", engine.complete)

    async def play(task: int, rollout: PackageRollout) -> float:
        ids = []

        def minted(trace) -> None:
            ids.append(trace.id)
            engine.rollouts[trace.id] = rollout

        try:
            episode = await environment.run_episode(tasks[task], context, on_trace=minted)
        finally:
            for one in ids:
                engine.rollouts.pop(one, None)
        if what := driver.failed(episode):
            # A clock that ran out is not the answer's fault, so nobody's reward follows from it.
            raise Trouble(OWN_TROUBLE if "Timeout" in what else ANSWERS_FAULT, f"the rollout failed: {what}")
        return float(episode.traces[0].reward)

    async with listening(inner, "127.0.0.1", 0) as address, environment.serving():
        client = EvalClientConfig(base_url=f"http://{address}/v1", api_key_var=driver.KEY)
        context = ModelContext(model="policy", client=client)
        server = RolloutServer(play, len(tasks), settings["seconds"])
        rows = await server.rows(settings["taskset"]) if settings["rows"] else []
        async with listening(outer_face(server), settings["host"], settings["port"]) as heard_at:
            driver.tell(replies, {"url": f"ws://{heard_at}/ws", "tasks": len(tasks), "rows": rows})
            await asyncio.to_thread(sys.stdin.read)  # until whoever started it goes


if __name__ == "__main__":
    driver.main(serve)
