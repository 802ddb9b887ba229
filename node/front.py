"""What a node shows at its doors: the control socket, and over TCP whatever its settings ask for.

All of it is served by one host (`web`), on which services open what is theirs.
"""

from pathlib import Path

import trio

from node.api.metrics import FLAG, WHAT, Status, metrics_routes
from node.api.server import ApiServer
from node.config import NodeConfig, api_socket_path
from node.web.host import HttpHost


class Front:
    """status: what /status says; directory: the state of this node."""

    def __init__(self, config: NodeConfig, status: Status, directory: Path) -> None:
        self._config = config
        self._status = status
        self._directory = directory
        self.web = HttpHost()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Raises AddressUnusable and StateError before it reports started."""
        async with trio.open_nursery() as nursery:
            await nursery.start(ApiServer(api_socket_path(self._directory), self._status).run)
            await nursery.start(self.web.run)
            if self._config.metrics_address:
                self.web.at(self._config.metrics_address, WHAT, FLAG).mount(metrics_routes(self._status))
            task_status.started()
