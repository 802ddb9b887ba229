"""Plays the rollouts of a `verifiers` v1 package. Runs in the package's own environment: nothing of ours is imported.

`python -P driver.py`, settings as the first JSON line. A package drives its rollouts itself and asks an engine for
tokens in between; ours asks the environment. So each rollout is *replayed*: the endpoint below answers with the tokens
that were sampled so far, and what the package asks for next, or its reward, is the reply. The endpoint is the one that
v1 trains on: POST /inference/v1/generate, token ids in and out, and GET /v1/models; it listens on the loopback address
and wants a token. Requests carry the trace's id in X-Session-ID, by which they find their rollout.

In: {"id", "task", "said": [[tokens before it, sampled tokens, finished], ...]}. Out: {"id", "asked": [tokens]}, which
stand behind all that was said; {"id", "reward"}; {"id", "broken": why} where it cannot go on from the last answer;
{"id", "late": why} where a clock ran out on the way; or {"id", "wrong": why}. The first line is {"tasks": [prompts]}.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# (what it imports is in another environment)

import asyncio
import itertools
import json
import secrets
import sys
import types
from dataclasses import dataclass, field

from aiohttp import web

MAX_BODY_BYTES = 64 << 20
MAX_TOKENS = 1 << 20
MAX_TURNS = 256
KEY = "INTELLECT_NODE_ENGINE_KEY"
HARNESS = "intellect_node_harness"


class NotExact(Exception):
    """A package that did not do again what it did before."""


class Broken(Exception):
    """A next turn that does not begin with the tokens of the turns before it."""


@dataclass
class ReplaySession:
    """One replay. said: the sampled turns; tokens: all up to here."""

    said: list
    tokens: list = field(default_factory=list)
    turn: int = 0
    outcome: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, **outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def asked(self, tokens: list) -> list | None:
        """The turn that was sampled here, None if it is still to be sampled. Raises NotExact or Broken."""
        if self.turn and not self.said[self.turn - 1][2]:
            raise Broken("the last answer was cut off")
        if tokens[: len(self.tokens)] != self.tokens or (self.turn and len(tokens) == len(self.tokens)):
            raise Broken(
                f"turn {self.turn + 1} does not begin with the tokens of the turns before it: the package or its "
                "renderer changes what was said"
            )
        behind, self.tokens = tokens[len(self.tokens) :], tokens
        if self.turn == len(self.said):
            self.end(asked=behind)
            return None
        before, *turn = self.said[self.turn]
        if behind != before:
            raise NotExact(f"before turn {self.turn + 1} it says something else than the last time: it is not exact")
        self.turn += 1
        self.tokens = tokens + turn[0]
        return turn


class Endpoint:
    """What the package takes for an engine. sessions: by the id of their trace."""

    def __init__(self, key: str, longest: int) -> None:
        self._key = key
        self._longest = longest
        self.sessions: dict[str, ReplaySession] = {}
        self.port = 0

    async def start(self) -> None:
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.router.add_post("/inference/v1/generate", self._generate)
        application.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]

    async def _models(self, request: web.Request) -> web.Response:
        admit(request, self._key)
        return web.json_response({"object": "list", "data": [{"id": "policy", "max_model_len": self._longest}]})

    async def _generate(self, request: web.Request) -> web.Response:
        admit(request, self._key)
        session = self.sessions.get(request.headers.get("X-Session-ID", ""))
        tokens = checked(await request.json())
        if session is None or tokens is None:
            raise web.HTTPBadRequest(text="no rollout of this engine's, or no list of token ids")
        try:
            turn = session.asked(tokens)
        except (NotExact, Broken) as error:
            session.end(**{"broken" if isinstance(error, Broken) else "wrong": str(error)})
            raise web.HTTPBadRequest(text=str(error)) from error
        if turn is None:
            return await asyncio.get_running_loop().create_future()  # never: the rollout has said what was wanted of it
        said, finished = turn
        # the sampler's own log-probs are the trainer's business; whoever reads these here learns nothing
        logprobs = {"content": [{"token": f"token_id:{token}", "logprob": 0.0} for token in said]}
        choice = {"index": 0, "token_ids": said, "finish_reason": "stop" if finished else "length"}
        return web.json_response({"request_id": "replayed", "choices": [{**choice, "logprobs": logprobs}]})


def admit(request: web.Request, key: str) -> None:
    # Every user of this machine reaches the loopback address.
    said = request.headers.get("Authorization", "")
    if not secrets.compare_digest(said.encode(), f"Bearer {key}".encode()):
        raise web.HTTPUnauthorized


def checked(body: object) -> list | None:
    """The token ids of a generate request, None if it is none."""
    tokens = body.get("token_ids") if isinstance(body, dict) and isinstance(body.get("sampling_params"), dict) else None
    if not isinstance(tokens, list) or not 0 < len(tokens) <= MAX_TOKENS:
        return None
    # Not isinstance: a bool is an int in Python.
    good = all(type(token) is int and 0 <= token < 1 << 31 for token in tokens)
    return tokens if good else None


def harness_class() -> type:
    """v1's own tool-less or MCP chat loop, in this process: the one that it ships prepares a script from a network."""
    from contextlib import AsyncExitStack

    from openai import AsyncOpenAI
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.null import NullHarness
    from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
    from verifiers.v1.runtimes import ProgramResult

    class Harness(NullHarness):
        SUPPORTS_TOOL_INTERCEPTION = False

        async def setup(self, runtime) -> None:
            """Nothing to prepare."""

        async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
            system, prompt = self.resolve_prompt(data)
            messages = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [message_to_wire(message) for message in prompt or []]
            async with (
                AsyncExitStack() as stack,
                # No retries and no clock: the last request is never answered, and the end of the replay cancels it.
                AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None) as model,
            ):
                tools, dispatch, servers = [], {}, {}
                if mcp_urls:
                    config = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
                    tools, dispatch, servers = await connect_mcp(config, stack, set())
                offered = {"tools": tools} if tools else {}
                for _ in range(MAX_TURNS):
                    reply = await model.chat.completions.create(model=ctx.model, messages=messages, **offered)
                    message = reply.choices[0].message
                    messages.append(message.model_dump(exclude_none=True))
                    if not message.tool_calls:
                        break
                    for call in message.tool_calls:
                        given = await called(call, dispatch, servers, call_mcp)
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": given})
            return ProgramResult(exit_code=0, stdout="", stderr="")

    return Harness


async def called(call, dispatch: dict, servers: dict, call_mcp) -> str:
    """What a tool says, or why it was not asked."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as error:
        return f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
    if not isinstance(arguments, dict) or call.function.name not in dispatch:
        return f"error: unknown tool {call.function.name!r}, or arguments that are no JSON object"
    return await call_mcp(servers, dispatch, call.function.name, arguments)


def load(settings: dict):
    """(the package's environment, its tasks). Raises ValueError for one of several agents."""
    module = types.ModuleType(HARNESS)
    module.Harness = harness_class()
    module.__all__ = ["Harness"]
    # A harness is named in the configuration and imported by that name. This one stands in no file.
    sys.modules[HARNESS] = module

    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    config = resolve_env_config(
        {
            "taskset": {**settings["config"], "id": settings["taskset"]},
            "agent": {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}},
        }
    )
    if list(agent_config_fields(config)) != ["agent"]:
        raise ValueError("it plays several agents; only packages of one can be trained on here")
    environment = load_environment(config)
    return environment, list(itertools.islice(environment.taskset, settings["tasks"]))


async def play(environment, task, context, session: ReplaySession, endpoint: Endpoint) -> dict:
    """One replay: until the package asks for what was not sampled yet, or is through."""

    def minted(trace) -> None:
        endpoint.sessions[trace.id] = session

    async def whole() -> None:
        episode = await environment.run_episode(task, context, on_trace=minted)
        if what := failed(episode):
            # A clock of the package's own says something else on every machine: that decides nothing.
            session.end(**{"late" if "Timeout" in what else "wrong": f"the rollout failed: {what}"[:500]})
        elif session.turn < len(session.said):
            session.end(wrong=f"it ended after turn {session.turn} of {len(session.said)}: it is not exact")
        else:
            session.end(reward=float(episode.traces[0].reward))

    rollout = asyncio.create_task(whole())
    # A rollout that ends in an error would leave the replay waiting for an outcome.
    rollout.add_done_callback(lambda done: session.end(wrong=failure(done)))
    try:
        return await session.outcome
    finally:
        rollout.cancel()
        await asyncio.gather(rollout, return_exceptions=True)
        endpoint.sessions = {key: one for key, one in endpoint.sessions.items() if one is not session}


def failed(episode) -> str:
    """What went wrong in a rollout of the package; empty: nothing."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        return f"{errors[0].type}: {errors[0].message}"
    return "" if len(episode.traces) == 1 else f"{len(episode.traces)} traces"


def failure(task: asyncio.Task) -> str:
    error = None if task.cancelled() else task.exception()
    return f"{type(error).__name__}: {error}"[:500] if error else "the rollout ended without a word"


async def serve(settings: dict, replies) -> None:
    import os

    os.environ[KEY] = key = secrets.token_urlsafe(32)
    from verifiers.v1.clients import ModelContext, TrainClientConfig

    environment, tasks = load(settings)
    endpoint = Endpoint(key, settings["longest"])
    await endpoint.start()
    renderer = {"renderer": {"name": settings["renderer"]}} if settings["renderer"] else {}
    client = TrainClientConfig(
        base_url=f"http://127.0.0.1:{endpoint.port}/v1",
        api_key_var=KEY,
        renderer_model_name=settings["model"],
        **renderer,
    )
    context = ModelContext(model="policy", client=client)
    gate = asyncio.Semaphore(16)

    async def answer(order: dict) -> None:
        async with gate:
            session = ReplaySession(order["said"])
            outcome = await play(environment, tasks[order["task"]], context, session, endpoint)
        tell(replies, {"id": order["id"], **outcome})

    async with environment.serving():
        tell(replies, {"tasks": [prompt_of(task) for task in tasks]})
        async with asyncio.TaskGroup() as group:
            while line := await asyncio.to_thread(sys.stdin.readline):
                group.create_task(answer(json.loads(line)))


def prompt_of(task) -> str:
    prompt = task.data.prompt
    return prompt if isinstance(prompt, str) else json.dumps(prompt, default=str)[:4096]


def tell(replies, message: dict) -> None:
    print(json.dumps(message), file=replies, flush=True)


def main(serve=serve) -> None:
    """serve(settings, replies): what this process does until its input ends."""
    replies, sys.stdout = sys.stdout, sys.stderr  # packages print
    try:
        asyncio.run(serve(json.loads(sys.stdin.readline()), replies))
    except Exception as error:
        tell(replies, {"wrong": f"{type(error).__name__}: {error}"[:500]})
        raise


if __name__ == "__main__":
    main()
