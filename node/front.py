"""What a node shows at its doors: the control socket, and over TCP whatever its settings ask for.

All of it is served by one host (`web`), on which services open what is theirs.
"""

from pathlib import Path

import structlog
import trio

from node.api import metrics
from node.api.metrics import Status, metrics_routes
from node.api.server import ApiServer
from node.config import NodeConfig, api_socket_path
from node.page import page
from node.web.guard import host_name
from node.web.host import HttpHost

log = structlog.get_logger()


class Front:
    """status: what /status says; directory: the state of this node."""

    def __init__(self, config: NodeConfig, status: Status, directory: Path) -> None:
        self._config = config
        self._status = status
        self._directory = directory
        self.web = HttpHost()
        self.control = ApiServer(api_socket_path(directory), status)
        self.page: str | None = None
        """Its URL, where it is served."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Raises AddressUnusable and StateError before it reports started."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.control.run)
            await nursery.start(self.web.run)
            if self._config.page:
                await self._open_page(self._config.page, nursery)
            if self._config.metrics_address:
                self.web.at(self._config.metrics_address, metrics.WHAT, metrics.FLAG).mount(
                    metrics_routes(self._status)
                )
            task_status.started()

    async def _open_page(self, address: str, nursery: trio.Nursery) -> None:
        listener = self.web.at(address, page.WHAT, page.FLAG)
        names = (*self._config.page_hosts, host_name(address))
        listener.mount(await nursery.start(page.Page(self._status, self._directory, names).run))
        self.page = f"http://{listener.place}/"
        log.info("page.serving", address=self.page)
