"""`api describe`: it is OpenAPI 3.1, it misses no route, and daemons answer as it says."""

import ast
import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Mount, Route

from cli.main import main
from node import api
from node.services.base import ServiceManager
from node.status import StatusPage
from node.web.openai import fields_of
from tests.swarms import status, typed

ROOT = Path(__file__).resolve().parents[2]
KNOWN = {
    "node/web/front.py": "control",
    "node/services/tasking/requests.py": "control",
    "node/services/environment_catalogue.py": "control",
    "node/services/auditing/step_auditor.py": "control",
    "node/services/answer_server.py": "control",
    "node/services/departure.py": "control",
    "node/services/rest_keeper.py": "control",
    "node/web/page/page.py": "page",
    "node/blobs/http/server.py": "gateway",
    "node/web/openai.py": "openai",
}
"""Where routes are made -> at which door of the document they are."""


def makers(trees: dict[str, str]) -> Iterator[str]:
    """Modules that make a route."""
    for name, source in trees.items():
        calls = (at.func for at in ast.walk(ast.parse(source)) if isinstance(at, ast.Call))
        if any(getattr(one, "id", getattr(one, "attr", "")) in ("Route", "WebSocketRoute", "Mount") for one in calls):
            yield name


def sources() -> dict[str, str]:
    found = [*(ROOT / "node").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in found}


def resolved(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}", "components": document["components"]}


def test_it_is_printed_and_valid() -> None:
    told = io.StringIO()
    with redirect_stdout(told):
        assert main(["api", "describe"]) == 0
    document = json.loads(told.getvalue())
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []
    names = [one["operationId"] for path in document["paths"].values() for one in path.values() if "operationId" in one]
    assert len(names) == len(set(names)) == sum(map(len, api.SAID.values()))


def test_every_module_that_makes_a_route_is_asked_for_it() -> None:
    assert set(makers(sources())) == KNOWN.keys() and set(KNOWN.values()) == set(api.SERVERS) == api.SAID.keys()
    # The control: a module with a route that nobody named would be found.
    assert list(makers({"node/new.py": "found = [Route('/new', new)]"})) == ["node/new.py"]


@pytest.mark.parametrize("door", list(api.SAID))
def test_a_route_that_nobody_described_is_missed(door: str) -> None:
    routes = api.served()[door]
    assert api.operations(door, routes).keys() == api.SAID[door].keys()
    with pytest.raises(LookupError, match="no word of .'POST /brand/new'"):
        api.operations(door, [*routes, Route("/brand/new", lambda _: None, methods=["POST"])])
    with pytest.raises(LookupError, match="words of no route"):
        api.operations(door, routes[:-1])
    with pytest.raises(LookupError, match="is no route with a path"):
        api.operations(door, [*routes, Mount("/below", routes=[])])


def test_a_status_is_what_the_document_says_and_another_is_not() -> None:
    document = api.describe()
    check = jsonschema.Draft202012Validator(resolved(document, "DaemonStatus"))
    for said in (typed(status()), StatusPage(ServiceManager()).render()):
        check.validate(json.loads(msgspec.json.encode(said)))
    broken = json.loads(msgspec.json.encode(typed(status()))) | {"services": "none"}
    assert not check.is_valid(broken)
    assert document["paths"]["/status"]["get"]["responses"]["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/DaemonStatus"
    }


def test_every_field_that_openais_endpoints_read_is_described() -> None:
    assert fields_of(chat=True) | fields_of(chat=False) == api.FIELDS.keys()
