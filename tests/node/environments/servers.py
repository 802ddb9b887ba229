"""Real servers on this machine, in the words of OpenEnv and of MCP: guess a digit from hints. As a program, MCP's over
stdio."""

import datetime
import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from websockets.exceptions import ConnectionClosedError
from websockets.sync.server import ServerConnection, serve

SECRET = "the grader's secret"
Change = Callable[[dict[str, Any]], dict[str, Any]]
"""What a hostile server makes of an observation message, before it is sent."""


@contextmanager
def openenv(change: Change = lambda told: told, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of a server as OpenEnv's `/ws`. tls: what it encrypts with."""

    def episode(link: ServerConnection) -> None:
        with suppress(ConnectionClosedError):  # whoever asks may go away in the middle
            answer(link)

    def answer(link: ServerConnection) -> None:
        goal = 0
        for raw in link:
            message = json.loads(raw)
            if message["type"] == "reset":
                goal, told = message["data"]["seed"], _observed("guess", None, False)
            elif "message" not in message["data"]:
                link.send(json.dumps({"type": "error", "data": {"message": "no", "code": "VALIDATION_ERROR"}}))
                continue
            else:
                guess = message["data"]["message"].strip()
                right = guess == str(goal)
                told = _observed("right" if right else f"not {guess[:8]}", float(right), right)
            link.send(json.dumps(change({"type": "observation", "data": told})))

    with serve(episode, "127.0.0.1", 0, ssl=tls) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{'wss' if tls else 'ws'}://127.0.0.1:{server.socket.getsockname()[1]}/ws"
        finally:
            server.shutdown()
            thread.join()


def certified(name: str, folder: Path) -> tuple[ssl.SSLContext, Path]:
    """(what a server of that name encrypts with, the certificate of the authority that signed for it)."""
    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    whose = x509.SubjectAlternativeName([x509.DNSName(name)])
    pem, chain = folder / "authority.pem", folder / "server.pem"
    pem.write_bytes(_signed("authority", authority, authority, x509.BasicConstraints(ca=True, path_length=0)))
    key = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain.write_bytes(_signed(name, own, authority, whose) + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    return context, pem


def _signed(
    subject: str, own: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey, says: x509.ExtensionType
) -> bytes:
    def named(what: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, what)])

    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    certificate = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("authority"))
    certificate = certificate.public_key(own.public_key()).serial_number(x509.random_serial_number())
    certificate = certificate.not_valid_before(now - day).not_valid_after(now + day).add_extension(says, critical=True)
    return certificate.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)


def _observed(message: str, reward: float | None, done: bool) -> dict[str, Any]:
    return {"observation": {"message": message, "solution": SECRET}, "reward": reward, "done": done}


class _Mcp(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["method"] != "initialize" and self.headers["Mcp-Session-Id"] != "s1":
            self.send_error(400)
        elif "id" not in asked:
            self.send_response(202)
            self.end_headers()
        else:
            self._tell(asked)

    def _tell(self, asked: dict[str, Any]) -> None:
        reply = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **_answered(asked)}).encode()
        events = asked["method"] == "tools/call"  # one as JSON, the other as events: a server may do either
        body = b"event: message\ndata: " + reply + b"\n\n" if events else reply
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if events else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", "s1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _answered(asked: dict[str, Any]) -> dict[str, Any]:
    if asked["method"] == "initialize":
        return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {}}}
    call = asked["params"]
    if call["name"] == "double":
        text = str(2 * call["arguments"]["n"])
    elif call["name"] == "score":
        text = "1.0" if call["arguments"]["answer"] == "8" else "0.0"
    else:
        return {"error": {"code": -32602, "message": "unknown tool"}}
    return {"result": {"content": [{"type": "text", "text": text}], "isError": False}}


def _speak() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message"}), flush=True)
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **_answered(asked)}), flush=True)


@contextmanager
def mcp() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Mcp)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    _speak()
