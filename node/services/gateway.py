"""Blobs and policies over HTTP, for whoever cannot or will not speak to peers. Off unless asked for."""

from typing import Any, Self

import trio

from node.blobs.http.certificate import own_certificate
from node.blobs.http.server import Gateway, ServedPolicy
from node.services.base import Service
from node.services.workplace import Workplace
from node.weights.keeper import PolicyShelf


class Serving(Service):
    """announce: HOST:PORT that others shall use, where it is not the one listened on."""

    name = "gateway"

    def __init__(self, gateway: Gateway, announce: str | None) -> None:
        self._gateway = gateway
        self._announce = announce

    @classmethod
    async def open(cls, place: Workplace) -> Self | None:
        config = place.config
        if config.gateway is None:
            return None
        certificate = None
        if config.gateway_tls:
            certificate = await trio.to_thread.run_sync(own_certificate, place.directory, place.station.key)
        store, shelf = place.member.stock.store, place.station.shelf
        return cls(Gateway(config.gateway, store, lambda: served(shelf), certificate), config.gateway_announce)

    async def start(self, nursery: trio.Nursery) -> None:
        await nursery.start(self._gateway.run)

    def beat(self) -> dict[str, Any]:
        return {"gateway": self._gateway.source(self._announce)}


def served(shelf: PolicyShelf) -> list[ServedPolicy]:
    """The policies that are held, oldest first."""
    return [
        ServedPolicy(held.step, held.root, held.manifest.image_root, held.manifest.image_size, held.path)
        for held in shelf.held
    ]
