"""`intellect-node contract`: what people do on chain themselves. One file per subject; `frame.py` is what all share.

The subjects register their commands in the frame's groups when they are imported.
"""

from cli.contract import attest, cases, chair, deploy, earnings, invite, look, plan, pool, sources, stake
from cli.contract.frame import app, pool_app

__all__ = [
    "app",
    "attest",
    "cases",
    "chair",
    "deploy",
    "earnings",
    "invite",
    "look",
    "plan",
    "pool",
    "pool_app",
    "sources",
    "stake",
]

PANELS = {
    "Look": "params show events rewards",
    "Stake and nodes": "faucet stake unstake rebond withdraw provider node attest",
    "Pools and pay": "pool chair join leave earnings claim",
    "Faults": "slash evidence case",
    "Contracts": "deploy source",
}
"""Panel of `contract --help` -> its commands and groups."""


def _arrange() -> None:
    panel_of = {name: panel for panel, names in PANELS.items() for name in names.split()}
    for entry in (*app.registered_commands, *app.registered_groups):
        # A command that PANELS does not name fails here, at import, and is not lost in the help.
        entry.rich_help_panel = panel_of[str(entry.name)]


_arrange()
