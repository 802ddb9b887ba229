"""What one member may cost the others: so much of each kind of its own, and a little of everything else.

Everything else is what others wrote, what was said before, and what is not worth reading; it is charged to who
published it, never to who wrote it. Pure; time is an argument.
"""

from node.network.budget import Budgets
from node.swarm.rules import RULES
from protocol.identity import Address
from protocol.messages import Message

ELSE = (2.0, 128.0)
"""Of what is not its own news. A follower says the newest policies again when it starts: a few."""
HANDED = (50.0, 4096.0)
"""What one peer may hand over when we ask what we missed: a whole board at once, then what a loud pool says."""
PATIENCE = (1.0, 256.0)
"""Messages beyond these budgets that are only dropped. Whoever uses it up is not heard for MUTED seconds."""
MUTED = 60.0


class Allowance:
    """The budgets of every member."""

    def __init__(self) -> None:
        self._own = {kind: Budgets(rule.per_second, rule.burst) for kind, rule in RULES.items()}
        self._else = Budgets(*ELSE)
        self._handed = Budgets(*HANDED)
        self._patience = Budgets(*PATIENCE)

    def own(self, member: Address, kind: type[Message], now: float) -> bool:
        """Whether it may say one more message of its own."""
        return self._own[kind].take(member, 1, now)

    def other(self, member: Address, now: float) -> bool:
        """Whether it may publish one more thing that is not its own news."""
        return self._else.take(member, 1, now)

    def handed(self, peer: Address, now: float) -> bool:
        """Whether it may hand over one more message that we missed."""
        return self._handed.take(peer, 1, now)

    def bears(self, member: Address, now: float) -> bool:
        """Whether one more message beyond the budgets is borne; False: it has gone on for too long."""
        return self._patience.take(member, 1, now)
