"""`intellect-node contract`: what people do on chain themselves. One file per subject; `frame.py` is what all share.

The subjects register their commands in `groups.py` when they are imported.
"""

from cli.contract import attest, cases, deploy, earnings, judge, look, nodes, plan, pool, source, stake
from cli.contract.groups import app

__all__ = ["app", "attest", "cases", "deploy", "earnings", "judge", "look", "nodes", "plan", "pool", "source", "stake"]
