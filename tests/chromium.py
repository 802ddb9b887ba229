"""A real Chromium, driven over its DevTools protocol: as much of it as tests of the page need."""

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

FLAGS = (
    "--headless",
    "--no-sandbox",  # for root, who has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
START = 60.0
MOST = 64 << 20


class Chromium:
    """One browser with a profile of its own in `folder`. Blocking."""

    def __init__(self, program: str, folder: Path) -> None:
        self._log = (folder / "chromium.log").open("wb")
        profile = folder / "profile"
        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self.port = self._port(profile / "DevToolsActivePort")
        except BaseException:
            self.stop()
            raise

    def _port(self, file: Path) -> int:
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and self._process.poll() is None:
            if file.exists() and (lines := file.read_text().splitlines()):
                return int(lines[0])
            time.sleep(0.05)
        raise RuntimeError(f"the browser did not start: see {self._log.name}")

    def stop(self) -> None:
        """End it and all of its children."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended by itself
        self._process.wait()
        self._log.close()


class Tab:
    """One page in the browser. complaints: what it said on its console and what it could not load."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._asked = 0
        self._answers: dict[int, Any] = {}
        self._news = trio.Condition()
        self.complaints: list[str] = []
        self.requests: list[str] = []

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; raises RuntimeError for one that fails."""
        self._asked += 1
        number = self._asked
        await self._socket.send_message(json.dumps({"id": number, "method": method, "params": parameters}))
        with trio.fail_after(60):
            async with self._news:
                while number not in self._answers:
                    await self._news.wait()
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    async def listen(self) -> None:
        try:
            while True:
                told = json.loads(await self._socket.get_message())
                if "id" in told:
                    async with self._news:
                        self._answers[told["id"]] = told
                        self._news.notify_all()
                else:
                    self._note(told["method"], told["params"])
        except ConnectionClosed:
            return

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"].get("exception", told["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Network.responseReceived" and told["response"]["status"] >= 400:
            self.complaints.append(f"{told['response']['status']} {told['response']['url']}")
        elif method == "Network.loadingFailed" and not told.get("canceled"):
            self.complaints.append(f"{told['errorText']}")

    async def go(self, url: str) -> None:
        """Open a page and wait until its document is there."""
        await self.ask("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def look(self, script: str) -> Any:
        """The value of an expression in the page; a promise's, once it has one."""
        told = await self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{script}: {told['exceptionDetails']['exception'].get('description')}")
        return told["result"].get("value")

    async def until(self, script: str, seconds: float = 20.0) -> None:
        """Wait for an expression to be true. Raises TimeoutError that names it."""
        with trio.move_on_after(seconds):
            while not await self.look(f"Boolean({script})"):
                await trio.sleep(0.03)
            return
        raise TimeoutError(script)

    async def says(self, id: str, words: str) -> None:
        """Wait for an element to contain words: each panel is drawn when what it tells has arrived."""
        await self.until(f"document.getElementById('{id}').textContent.includes({json.dumps(words)})")

    async def size(self, width: int, height: int) -> None:
        """CSS pixels of the window."""
        phone = width < 500
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    async def prefer(self, scheme: str) -> None:
        """light or dark, as the system would have it."""
        await self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def press(self, key: str) -> None:
        """One key, down and up."""
        for kind in ("keyDown", "keyUp"):
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=9)

    async def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        shot = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        await trio.Path(path).write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def open_tab(browser: Chromium) -> AsyncIterator[Tab]:
    """A tab of its own."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{browser.port}", timeout=30) as client:
        target = (await client.put("/json/new?about:blank")).json()
        async with open_websocket_url(target["webSocketDebuggerUrl"], max_message_size=MOST) as socket:
            tab = Tab(socket)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tab.listen)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.ask(f"{domain}.enable")
                yield tab
                nursery.cancel_scope.cancel()
        await client.get(f"/json/close/{target['id']}")
