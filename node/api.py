"""Every HTTP route of a node, as OpenAPI 3.1: the control socket, the page, the gateway, and OpenAI's endpoints.

The routes are asked of those who serve them, and bodies and answers are the structs that they read and write. What is
said of a route stands here; a route of which nothing is said is an error, and so is a word about none.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from node.audit.findings import Audit
from node.blobs.http.server import Gateway
from node.blobs.http.sources import PolicyListing
from node.config import program_version
from node.services.answer_server import AnswerOrder, AnswerServer
from node.services.auditing.step_auditor import StepAuditor
from node.services.departure import Departure
from node.services.environment_catalogue import EnvironmentCatalogue, PublishRequest
from node.services.rest_keeper import PauseRequest, RestKeeper
from node.services.tasking.requests import TaskRequest, routes
from node.status_schema import DaemonStatus, TaskPart
from node.swarm.catalogue import CatalogueEntry, Offer
from node.web.front import ApiServer
from node.web.openai import OpenAi, fields_of
from node.web.page.page import load_assets, page_routes

TEXT, BYTES = "text/plain", "application/octet-stream"
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
REF = "#/components/schemas/{name}"
_DIGITS = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_WHOLE, _NUMBER, _FLAG, _WORDS = ({"type": kind} for kind in ("integer", "number", "boolean", "string"))
FIELDS: Mapping[str, dict[str, Any]] = {
    "model": _WORDS,
    "messages": {
        "type": "array",
        "items": {"type": "object", "properties": {"role": _WORDS, "content": {}}, "required": ["role", "content"]},
    },
    "prompt": {"type": ["string", "array"], "description": "text, token ids, or several of either"},
    "max_tokens": _WHOLE,
    "max_completion_tokens": _WHOLE,
    "temperature": {**_NUMBER, "minimum": 0, "maximum": 2},
    "n": {**_WHOLE, "minimum": 1},
    "stop": {"type": ["string", "array"], "items": _WORDS},
    "seed": {**_WHOLE, "description": "the same seed draws the same answer"},
    "stream": _FLAG,
    "stream_options": {"type": "object", "properties": {"include_usage": _FLAG}},
    "return_token_ids": _FLAG,
    "logprobs": {"type": ["boolean", "integer"]},
    "top_logprobs": {**_WHOLE, "minimum": 0},
    "proofs": {**_FLAG, "description": "with proofs for `audit answer`; needs a seed"},
    "echo": _FLAG,
}
"""Of a request to OpenAI's endpoints: what stands in a field that `node.web.openai` reads."""


class ApiRefusal(msgspec.Struct, frozen=True):
    """Why the control socket does not do what was asked: what happened, why, and what to do."""

    what: str
    why: str
    remedy: str


class TaskTaken(msgspec.Struct, frozen=True):
    """task: its id, 64 hex digits."""

    task: str


class TaskCancelled(msgspec.Struct, frozen=True):
    cancelled: bool


class OfferedTasks(msgspec.Struct, frozen=True):
    """Those that this node offers, oldest first."""

    tasks: list[TaskPart]


class Environments(msgspec.Struct, frozen=True):
    """found: how many, of which the first are shown."""

    environments: list[CatalogueEntry]
    found: int


class EnvironmentFetched(CatalogueEntry, frozen=True):
    """file: its archive on this machine; differs: in what the archive says otherwise than its offer."""

    file: str
    differs: list[str]


class Ruled(msgspec.Struct, frozen=True):
    outcome: str
    detail: str


class StepAudited(msgspec.Struct, frozen=True):
    """audit: what was recomputed, None where nothing had to be; verdict: what follows from it."""

    audit: Audit | None
    verdict: Ruled | None


class LeavingSaid(msgspec.Struct, frozen=True):
    leaving: bool


class Paused(msgspec.Struct, frozen=True):
    """why: in words; until: unix seconds, None: until it is resumed."""

    why: str
    until: float | None


class Resumed(msgspec.Struct, frozen=True):
    """why: it rests all the same, or empty."""

    why: str


class Operation(msgspec.Struct, frozen=True):
    """body, answer: a struct, a schema of its own, or of an answer the kind of what is no JSON; query: name -> what."""

    summary: str
    answer: Any = None
    body: Any = None
    query: Mapping[str, str] = {}
    refuses: bool = False


_MODELS = {"type": "object", "properties": {"object": _WORDS, "data": {"type": "array", "items": {"type": "object"}}}}
_CHOICES = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("id", "object", "model"), _WORDS),
        "created": _WHOLE,
        "choices": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": "object"},
    },
}


def _asked(*, chat: bool) -> dict[str, Any]:
    names = sorted(fields_of(chat=chat))
    needed = "messages" if chat else "prompt"
    return {"type": "object", "properties": {name: FIELDS[name] for name in names}, "required": [needed]}


SAID: Mapping[str, Mapping[str, Operation]] = {
    "control": {
        "GET /status": Operation("What the node is, has and does", DaemonStatus),
        "GET /metrics": Operation("The same as Prometheus gauges and counters", TEXT),
        "GET /livez": Operation("Whether the daemon's loop turns", TEXT),
        "POST /tasks": Operation("Have the swarm do a task", TaskTaken, TaskRequest, refuses=True),
        "GET /tasks": Operation("The tasks that this node offers", OfferedTasks),
        "POST /tasks/{id}/cancel": Operation("Wait for no more results of a task", TaskCancelled, refuses=True),
        "POST /environments": Operation("Offer an environment package", Offer, PublishRequest, refuses=True),
        "GET /environments": Operation("Packages that members offer", Environments, query={"word": "part of a name"}),
        "GET /environments/{text}": Operation("Fetch a package: NAME@ROOT", EnvironmentFetched, refuses=True),
        "POST /answer": Operation(
            "Have the newest policy answer: a line a token, and what came of it", LINES, AnswerOrder
        ),
        "POST /leave": Operation("Take no new work, and leave once everything is paid", LeavingSaid),
        "POST /pause": Operation("Take no new work for a while", Paused, PauseRequest, refuses=True),
        "POST /resume": Operation("Work again, if nothing else stands against it", Resumed),
        "POST /audit/step/{step}": Operation("Look again at a step of the trainer", StepAudited, refuses=True),
    },
    "page": {
        "GET /{file}": Operation("The page: its document, style, scripts and icon", "text/html"),
        "GET /events": Operation("What the page shows, and what changes", EVENTS, query={"after": "a change seen"}),
    },
    "gateway": {
        "GET /": Operation("What is served here", TEXT),
        "GET /v1/policies": Operation("The policies held, with the trainer's announcements", PolicyListing),
        "GET /v1/blobs/{root}": Operation("A blob's bytes; takes Range", BYTES),
        "GET /v1/blobs/{root}/info": Operation("A blob's piece list, MessagePack", BYTES),
        "GET /distribution.txt": Operation("SHARDCAST: versions, digests and shards", TEXT),
        "GET /data1.bin": Operation("SHARDCAST: bytes to measure a line with", BYTES),
        "GET /{version}/{shard}": Operation("SHARDCAST: a shard of a version", BYTES),
    },
    "openai": {
        "GET /v1/models": Operation("The models served", _MODELS),
        "POST /v1/chat/completions": Operation("An answer to messages", _CHOICES, _asked(chat=True)),
        "POST /v1/completions": Operation("How a text goes on", _CHOICES, _asked(chat=False)),
        "POST /tokenize": Operation(
            "The tokens of a prompt, or of messages",
            {"type": "object", "properties": {"tokens": {"type": "array", "items": _WHOLE}, "count": _WHOLE}},
            {"type": "object", "properties": {name: FIELDS[name] for name in ("prompt", "messages")}},
        ),
    },
}


def served() -> dict[str, list[BaseRoute]]:
    """The routes of each door, as those who serve them make them."""
    nobody: Any = None
    control = ApiServer(Path(), DaemonStatus)
    control.mount(routes(nobody))
    for kind in (EnvironmentCatalogue, StepAuditor, AnswerServer, Departure, RestKeeper):
        control.mount(object.__new__(kind).routes())
    return {
        "control": control.routes,
        "page": list(page_routes(load_assets(), nobody, ())),
        "gateway": list(Gateway.routes(object.__new__(Gateway))),
        "openai": list(OpenAi(nobody, {}).routes()),
    }


def operations(door: str, found: Iterable[BaseRoute]) -> dict[str, Operation]:
    """'GET /status' -> what is said of it. Raises LookupError for a route of which nothing is said, and the reverse."""
    said = SAID[door]
    names = {name for route in found for name in _names(door, route)}
    if names != said.keys():
        unsaid, vain = sorted(names - said.keys()), sorted(said.keys() - names)
        raise LookupError(f"{door}: no word of {unsaid}; words of no route: {vain}")
    return {name: said[name] for name in said}


def _names(door: str, route: BaseRoute) -> Iterable[str]:
    if not isinstance(route, Route):
        raise LookupError(f"{door}: {route} is no route with a path")
    path = route.path_format
    if door == "page" and (path == "/" or "." in path):
        path = "/{file}"  # one of its own files, or nothing for the document
    return [f"{method} {path}" for method in (route.methods or {"GET"}) - {"HEAD"}]


def describe() -> dict[str, Any]:
    """One OpenAPI 3.1 document; `servers` of a path say which door has it."""
    doors = {door: operations(door, found) for door, found in served().items()}
    kinds = [one for said in doors.values() for each in said.values() for one in (each.body, each.answer)]
    structs = sorted({one for one in (*kinds, ApiRefusal) if isinstance(one, type)}, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(structs, ref_template=REF)
    paths: dict[str, dict[str, Any]] = {}
    for door, said in doors.items():
        for name, operation in said.items():
            method, _, path = name.partition(" ")
            place = paths.setdefault(path, {"servers": [SERVERS[door]]})
            place[method.lower()] = _described(door, name, operation)
    about = {"title": "intellect-node", "version": program_version(), "description": ABOUT}
    whole = {"openapi": "3.1.0", "info": about, "paths": paths, "components": {"schemas": schemas}}
    return msgspec.json.decode(msgspec.json.encode(whole))  # defaults as JSON has them: a tuple is a list


ABOUT = "What a node answers. Who may open the control socket may do what the node's owner may."
SERVERS: Mapping[str, dict[str, str]] = {
    "control": {"url": "http://daemon", "description": "the Unix socket of a daemon"},
    "page": {"url": "http://127.0.0.1:8080", "description": "--page HOST:PORT"},
    "gateway": {"url": "https://127.0.0.1:8443", "description": "--gateway HOST:PORT"},
    "openai": {"url": "http://127.0.0.1:8000", "description": "intellect-node serve"},
}


def _described(door: str, name: str, operation: Operation) -> dict[str, Any]:
    method, _, path = name.partition(" ")
    placed = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": one, "in": "path", "required": True, "schema": _DIGITS if one == "root" else _WORDS} for one in placed
    ]
    parameters += [
        {"name": one, "in": "query", "description": what, "schema": _WORDS} for one, what in operation.query.items()
    ]
    told: dict[str, Any] = {
        "operationId": f"{door}_{method.lower()}_{path.strip('/').replace('/', '_').translate(_PLAIN)}".rstrip("_"),
        "tags": [door],
        "summary": operation.summary,
        "responses": {"200": {"description": operation.summary, "content": _content(operation.answer)}},
    }
    if parameters:
        told["parameters"] = parameters
    if operation.body is not None:
        told["requestBody"] = {"required": True, "content": _content(operation.body)}
    if operation.refuses:
        told["responses"]["400"] = {"description": "why it is not done", "content": _content(ApiRefusal)}
    return told


_PLAIN = str.maketrans(dict.fromkeys("{}.", ""))


def _content(of: Any) -> dict[str, Any]:
    if isinstance(of, str):
        return {of: {}}
    schema = {"$ref": REF.format(name=of.__name__)} if isinstance(of, type) else of
    return {"application/json": {"schema": schema}}
