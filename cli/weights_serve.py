"""`intellect-node weights serve`: policies over HTTP without joining, as an origin of files or a relay of gateways."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cli.errors import RUN, USAGE, CommandError
from cli.output import console, print_json
from node.bounded_dict import BoundedDict
from protocol.errors import IntellectError

if TYPE_CHECKING:
    from node.blobs.http.mirror import Mirror
    from node.blobs.http.server import Certificate, ServedPolicy
    from node.blobs.store import BlobStore

NEWEST = "newest"


class Fetched(msgspec.Struct, frozen=True):
    """step: of the newest policy that there is; last: whether the run has no later one."""

    step: int
    last: bool


Place = Callable[[int], Path | None]
"""Where to write the model of a step; None: it is there already."""


def follow(
    out: Path,
    fetch: Callable[[Place], Fetched],
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch until the run's last policy is there. Raises IntellectError if not even a first policy can be had; later on
    a swarm that does not answer is asked again."""
    out.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            found = fetch(lambda step: None if model_of(out, step).exists() else model_of(out, step))
        except IntellectError as error:
            if not models(out):
                raise
            say(f"{error.what}: {error.why}; asking again")
        else:
            point_to(out, found.step)
            if found.last:
                return
        sleep(15.0)  # seconds between two looks for a newer policy


def model_of(out: Path, step: int) -> Path:
    """The model directory of a step."""
    return out / f"step-{step:08d}"


def models(out: Path) -> list[Path]:
    """The model directories that an export has written here, oldest first; directories of others are left alone."""
    from node.weights.records import RECORD_NAME

    return sorted(path for path in out.glob("step-[0-9]*") if (path / RECORD_NAME).is_file())


def point_to(out: Path, step: int) -> None:
    """Let OUT/newest lead to the model of `step`, in one move, and forget the oldest ones."""
    # Made beside and renamed: a reader finds the former model or this one, never none.
    link = out / f".{NEWEST}.partial"
    link.unlink(missing_ok=True)
    link.symlink_to(model_of(out, step).name)
    os.replace(link, out / NEWEST)
    # After the link has moved: nobody is led to what is deleted here.
    for old in models(out)[:-2]:  # models that stay: who opened the one before may still be reading it
        # A run that begins anew may write a step that sorts before those of its former life.
        if old != model_of(out, step):
            shutil.rmtree(old)


EXAMPLES = (
    "Examples:  intellect-node weights serve policy-000012.safetensors   |   "
    "intellect-node weights serve --upstream http://203.0.113.7:8000 --listen 0.0.0.0:8000   |   "
    "shardcast-client --servers http://127.0.0.1:8000 --list"
)


def serve(
    images: Annotated[
        list[Path] | None, typer.Argument(help="Policy images, oldest first; digits in a name are its step.")
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(help="A gateway to follow: http://HOST:PORT or https://HOST:PORT#sha256=... Repeatable."),
    ] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT. Port 0: any free one.")] = "127.0.0.1:8000",
    store: Annotated[Path | None, typer.Option(help="Where blobs are kept. Default: this user's cache.")] = None,
    keep: Annotated[int, typer.Option(min=1, max=64, help="Policies held when following a gateway.")] = 5,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks at the upstream gateways.")] = 5.0,
    quota: Annotated[float, typer.Option(min=0.001, help="Room for blobs, GB.")] = 200.0,
    tls: Annotated[
        bool, typer.Option("--tls/--plain", help="TLS with an own certificate; SHARDCAST clients need --plain.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event on standard output.")] = False,
) -> None:
    """Serve policies over HTTP until stopped: their blobs by Range request, and the SHARDCAST 0.3 view.

    Give policy images to be an origin, --upstream to be a relay. Nothing is registered anywhere.
    """
    if not images and not upstream:
        raise CommandError(
            "there is nothing to serve",
            "neither a policy image nor --upstream was given",
            "name a file that `intellect-node weights fetch` or a trainer wrote, or a gateway to follow",
            USAGE,
        )
    import trio

    from node.blobs.http.sources import parse_source

    sources = [parse_source(text, private=True) for text in upstream or ()]
    server = _Server(list(images or ()), store, int(quota * 1e9), as_json)
    trio.run(server.run, listen, sources, keep, every, tls)


class _Server:
    """The parts of the command: store, images, mirror, gateway, and what the user sees of them."""

    def __init__(self, images: Sequence[Path], directory: Path | None, quota: int, as_json: bool) -> None:
        self._images = images
        self._directory = directory or _cache()
        self._quota = quota
        self._as_json = as_json
        self._own: list[ServedPolicy] = []
        # Bounded, for a relay may follow a run for months.
        self._shown = BoundedDict[int, None](4096)

    async def run(self, listen: str, sources: Sequence[object], keep: int, every: float, tls: bool) -> None:
        import trio

        from node.blobs.http.mirror import Mirror
        from node.blobs.http.server import Gateway, server_context
        from node.blobs.store import BlobStore
        from node.web.host import bind
        from node.web.listener import HttpListener

        store = await trio.to_thread.run_sync(BlobStore, self._directory, self._quota)
        mirror = Mirror(store, sources, keep=keep, every=every) if sources else None  # type: ignore[arg-type]
        certificate = await trio.to_thread.run_sync(_certificate, self._directory) if tls else None
        context = await trio.to_thread.run_sync(server_context, certificate) if certificate else None
        with closing(bind(listen, "the gateway", "--listen")) as bound:
            listener = HttpListener(bound, context)
            gateway = Gateway(listener, store, lambda: self._served(mirror), certificate)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
                await self._take_in(store)
                await nursery.start(listener.run)
                self._say(gateway.source(), "serving", source=gateway.source(), host=socket.gethostname())
                if mirror:
                    await nursery.start(mirror.run)
                while True:
                    self._show(mirror)
                    await trio.sleep(0.5)

    async def _take_in(self, store: "BlobStore") -> None:
        import trio

        from node.blobs.http.mirror import root_of_image
        from node.blobs.http.server import ServedPolicy
        from protocol.policy import MalformedPolicy

        for index, image in enumerate(self._images):
            step = _step_of(image, index)
            try:
                root = await trio.to_thread.run_sync(root_of_image, image, step)
            except (OSError, MalformedPolicy) as error:
                raise CommandError(
                    f"{image} cannot be served",
                    getattr(error, "why", None) or str(error),
                    "give a policy image: canonical bf16 safetensors, as trainers and `weights fetch` write them",
                    RUN,
                ) from None
            info = await store.add(image)
            # Else the mirror's fetching would push out what the owner gave, once the quota is full.
            store.pin(info.root)
            self._own.append(ServedPolicy(step, root, info.root, info.size, store.path(info.root)))
        steps = [policy.step for policy in self._own]
        # Clients ask by step, so two images of one step could not be told apart.
        if len(set(steps)) < len(steps):
            raise CommandError(
                "two images have one step", f"the steps are {steps}", "rename them: policy-000012.safetensors", USAGE
            )

    def _served(self, mirror: "Mirror | None") -> "Sequence[ServedPolicy]":
        # Own images last: they count where both have a step.
        policies = {policy.step: policy for policy in (*(mirror.policies() if mirror else ()), *self._own)}
        return [policies[step] for step in sorted(policies)]

    def _show(self, mirror: "Mirror | None") -> None:
        for policy in self._served(mirror):
            if policy.step not in self._shown:
                self._shown[policy.step] = None
                root = policy.policy_root.hex()
                text = f"step {policy.step}: {policy.image_size / 1e6:,.1f} MB, root {root}"
                self._say(text, "policy", step=policy.step, policy_root=root, bytes=policy.image_size)

    def _say(self, text: str, event: str, **fields: object) -> None:
        if self._as_json:
            print_json({"event": event, **fields})
        else:
            console().print(f"  {text}", soft_wrap=True)


async def _stop_on_signal(scope: object) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()  # type: ignore[attr-defined]
            return


def _step_of(image: Path, index: int) -> int:
    digits = "".join(part for part in image.stem.split("-")[-1:] if part.isascii() and part.isdecimal())
    # At most nine digits: a file name may hold a date or a hash, which is no step.
    return int(digits[:9]) if digits else index + 1


def _cache() -> Path:
    from node.config import default_home

    return default_home() / "gateway"


def _certificate(directory: Path) -> "Certificate":
    """Of this store; its password is that of a key made for it alone."""
    from cli.keyring import open_node_key
    from node.blobs.http.server import own_certificate

    return own_certificate(directory, open_node_key(directory, create=True))
