"""Blobs and policies over HTTP, for whoever cannot or will not speak to peers. Off unless asked for."""

from functools import partial
from pathlib import Path
from typing import Any, Self

import structlog
import trio

from node.blobs.http.server import Gateway, ServedPolicy, own_certificate, server_context
from node.blobs.store import BlobStore
from node.services.base import Service
from node.services.workplace import Workplace
from node.weights.policy_cache import PolicyCache
from node.weights.workshop import written_out

log = structlog.get_logger()
WHAT, FLAG = "the gateway", "--gateway"
"""What an error calls it, and where its address was given."""


class GatewayService(Service):
    """announce: HOST:PORT that others shall use, where it is not the one listened on. The node's HTTP host serves it
    since it was opened."""

    name = "gateway"

    def __init__(self, gateway: Gateway, announce: str | None) -> None:
        self._gateway = gateway
        self._announce = announce

    @classmethod
    async def open(cls, place: Workplace) -> Self | None:
        config = place.config
        if config.gateway is None:
            return None
        certificate = tls = None
        if config.gateway_tls:
            # Its own: its fingerprint stands in the signed heartbeat, so no authority has to vouch for it.
            certificate = await trio.to_thread.run_sync(own_certificate, place.directory, place.context.key)
            tls = await trio.to_thread.run_sync(server_context, certificate)
        listener = place.web.at(config.gateway, WHAT, FLAG, tls)
        policy_cache = place.context.policy_cache
        whole = partial(make_whole, policy_cache, place.store, place.scratch)
        gateway = Gateway(listener, place.store, lambda: served(policy_cache), certificate, whole)
        log.info("gateway.serving", source=gateway.source())
        return cls(gateway, config.gateway_announce)

    def beat(self) -> dict[str, Any]:
        return {"gateway": self._gateway.source(self._announce)}


async def make_whole(policy_cache: PolicyCache, store: BlobStore, directory: Path, root: bytes) -> None:
    """See that the image of the held policy `root` is a blob. directory: on the store's disk. Raises IntellectError."""
    held = policy_cache.by_root(root)
    if held is not None:
        await trio.to_thread.run_sync(lambda: directory.mkdir(parents=True, exist_ok=True))
        await written_out(held, store, directory)


def served(policy_cache: PolicyCache) -> list[ServedPolicy]:
    """The policies that are held, oldest first."""
    return [
        ServedPolicy(
            one.step,
            one.root,
            one.manifest.image_root,
            one.manifest.image_size,
            one.path,
            one.announcement,
            one.image if one.patches else None,
        )
        for one in policy_cache.held
    ]
