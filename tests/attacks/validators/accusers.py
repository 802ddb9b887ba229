"""Validators that accuse honest workers."""

from typing import Any

from node.inference.wire import Inspected
from node.services.judging.judge import Validator
from node.services.judging.lots import Lot
from node.swarm.register import RegisteredWork
from protocol.checks import Reason
from protocol.statements import VerdictOutcome
from tests.attacks.validators.court import changed


class FalseAccuser(Validator):
    """Says of every file that it solves the wrong problems."""

    async def _inspect(self, work: RegisteredWork, path: Any, lot: Lot | None) -> Inspected:
        found = await super()._inspect(work, path, lot)
        return changed(found, outcome=int(VerdictOutcome.SLASH), reason=int(Reason.WRONG_DRAW), detail="invented")


class StatisticalAccuser(Validator):
    """Says of every file that its activations are another model's."""

    async def _inspect(self, work: RegisteredWork, path: Any, lot: Lot | None) -> Inspected:
        found = await super()._inspect(work, path, lot)
        return changed(
            found, outcome=int(VerdictOutcome.REJECT), reason=int(Reason.ACTIVATIONS), detail="invented", group=0
        )
