"""The chain as the daemon sees it: async reads and writes in the words of the protocol."""

from collections.abc import Sequence
from pathlib import Path

import structlog
import trio

from contracts.bindings import PoolCreated, PoolParams
from node.chain.bonds import Bond, read_bond, require
from node.chain.cases import Case, FileCase, write_case
from node.chain.connection import Receipt
from node.chain.errors import RpcRefused
from node.chain.faucet import DevnetFaucet, is_devnet
from node.chain.invitations import Invited, admission
from node.chain.profile import NetworkProfile
from node.chain.sender import SendLimits
from node.chain.views import Views
from protocol.identity import Address, NodeKey
from protocol.statements import Earnings, NodeRegistration, TermSilent, Verdict, WorkCommitment, sign
from protocol.upkeep import Patience

logger = structlog.get_logger()


class ChainClient(Views):
    """Reads and writes of one network. cases: a folder in which a punishment is written down before it is carried;
    the other arguments are a Connection's."""

    def __init__(
        self,
        profile: NetworkProfile,
        key: NodeKey | None = None,
        *,
        outbox: Path | None = None,
        tells: bool = False,
        cases: Path | None = None,
        timeout: float = 8.0,
        limits: SendLimits | None = None,
    ) -> None:
        super().__init__(profile, key, outbox=outbox, tells=tells, timeout=timeout, limits=limits)
        self._cases = cases

    async def faucet(self, to: Address, amount: int, *, key: NodeKey | None = None) -> Receipt:
        """Mint test tokens; only where the token is a TestToken."""
        return await self._write("mint test tokens", self._contracts.mint(to, amount), key)

    async def bond(self, provider: Address, amount: int, *, key: NodeKey | None = None) -> Receipt:
        """Add the key's tokens to the provider's stake; approves first where that is needed."""
        await self._approve(self.profile.contracts.vault, amount, key)
        return await self._write("bond stake", self._contracts.bond(provider, amount), key)

    async def register_node(
        self, node: Address, units: int, deadline: int, node_signature: bytes, *, key: NodeKey | None = None
    ) -> Receipt:
        """key: the provider's. The signature is from `register_node_signature`."""
        call = self._contracts.register_node(node, units, deadline, node_signature)
        return await self._write("register the node", call, key)

    async def register_node_signature(
        self,
        node_key: NodeKey,
        provider: Address,
        units: int,
        *,
        deadline: int | None = None,
        registration_seconds: int = 3600,
    ) -> tuple[int, bytes]:
        """The node's consent: (deadline, signature), with its present nonce and, by default, an hour to use it."""
        # The nonce makes an old consent worthless: a node that was removed must agree anew.
        info = await self.node_info(node_key.address)
        until = deadline if deadline is not None else (await self.block()).timestamp + registration_seconds
        statement = NodeRegistration(provider, node_key.address, units, info.nonce, until)
        return until, sign(node_key, self.domain, statement)

    async def create_pool(self, params: PoolParams, *, key: NodeKey | None = None) -> int:
        """Open a pool; returns its number."""
        receipt = await self._write("open a pool", self._contracts.create_pool(params), key)
        for event in receipt.events:
            if isinstance(event, PoolCreated):
                return event.pool
        raise RpcRefused("open a pool", f"transaction {receipt.transaction} has no PoolCreated event")

    async def fund_pool(self, pool: int, amount: int, *, key: NodeKey | None = None) -> Receipt:
        """Add the key's tokens to the pool's escrow; approves first where that is needed."""
        await self._approve(self.profile.contracts.payroll, amount, key)
        return await self._write(f"fund pool {pool}", self._contracts.fund_pool(pool, amount), key)

    async def sweep(self, pool: int, *, key: NodeKey | None = None) -> Receipt:
        return await self._write(f"sweep pool {pool}", self._contracts.sweep(pool), key)

    async def join(
        self, pool: int, contact: str, *, key: NodeKey | None = None, patience: Patience | None = None
    ) -> Receipt:
        """Join, renew the lease, or tell a new contact."""
        return await self._write(f"join pool {pool}", self._contracts.join(pool, contact), key, patience)

    async def admit(self, node: Address, by: Invited, *, key: NodeKey | None = None) -> Receipt:
        """Let a node into its pool by an invitation; its `join` comes after that."""
        call = admission(self._contracts, self.domain, node, by)
        return await self._write(f"enter pool {by.pool} by invitation", call, key)

    async def leave(self, pool: int, *, key: NodeKey | None = None) -> Receipt:
        return await self._write(f"leave pool {pool}", self._contracts.leave(pool), key)

    async def post_earnings(
        self, earnings: Earnings, signatures: Sequence[bytes], *, key: NodeKey | None = None
    ) -> Receipt:
        """Put a table of earnings on chain. signatures: of a quorum of validators."""
        call = self._contracts.post_earnings(earnings, signatures)
        return await self._write(f"post the earnings of epoch {earnings.epoch}", call, key)

    async def claim(
        self,
        pool: int,
        node: Address,
        units: int,
        proof: Sequence[bytes],
        *,
        key: NodeKey | None = None,
        patience: Patience | None = None,
    ) -> Receipt:
        """Pay the node's provider what its line of the newest table says and was not paid yet; of an evicted node, give
        it back to the pool. Anybody may."""
        call = self._contracts.claim(pool, node, units, proof)
        return await self._write(f"claim the pay of {node}", call, key, patience)

    async def expel(self, node: Address, *, key: NodeKey | None = None) -> Receipt:
        """Remove a node whose provider's stake no longer covers its nodes."""
        return await self._write(f"expel {node}", self._contracts.expel(node), key)

    async def finalize(self, case: int, *, key: NodeKey | None = None) -> Receipt:
        """End a case whose time for an appeal is over."""
        return await self._write(f"finalize case {case}", self._contracts.finalize(case), key)

    async def carry(self, case: Case, *, key: NodeKey | None = None) -> Receipt:
        """Punish who is accused by a quorum's verdicts, or by two statements of its own. The case is a file first: its
        owner can carry it again by hand (`contract slash FILE`), whatever becomes of the transaction."""
        if self._cases is not None:
            path = self._cases / f"{case.name}.json"
            try:
                await trio.to_thread.run_sync(write_case, path, case)
            except OSError as error:
                logger.warning("case.not_kept", path=str(path), why=str(error))  # the case still goes to the chain
        if isinstance(case, FileCase):
            await self._put_up(case, key)
        return await self._write(case.action, case.call(self._contracts), key)

    async def _put_up(self, case: FileCase, key: NodeKey | None) -> None:
        """Let the vault take the bond that a quorum's slash needs, out of what the carrier's provider lends it where it
        has too little; on a devnet whoever carries one is given it."""
        if (carrier := key or self.key) is None:
            return  # the write that follows says so
        bond = await self._bond_of(case, carrier.address)
        if not bond.is_there and is_devnet(self.profile):
            await DevnetFaucet(self).fund(carrier.address, token=bond.borrowed)
        elif bond.borrowed:
            require(bond)
            assert bond.provider is not None, "it lends"
            lent = self._contracts.transfer_from(bond.provider, carrier.address, bond.borrowed)
            await self._write("take a bond of the provider's", lent, key)
        await self._approve(self.profile.contracts.vault, bond.needed, key)

    async def _bond_of(self, case: FileCase, carrier: Address) -> Bond:
        contracts, commitment = self._contracts, case.commitment

        def read() -> Bond:
            slash = contracts.slash_of(commitment.pool, commitment.node)
            return read_bond(contracts, carrier, contracts.node_info(carrier).provider, slash)

        return await self._read("read a bond", read)

    async def collect(self, who: Address, *, key: NodeKey | None = None) -> Receipt:
        """Have the vault pay what it owes somebody. Anybody may."""
        return await self._write(f"collect what is owed to {who}", self._contracts.collect(who), key)

    async def seat_trainers(
        self, pool: int, trainers: Sequence[Address], lease: int, grace: int, *, key: NodeKey | None = None
    ) -> Receipt:
        """As the manager, once: who trains, in the order of their turn. lease, grace: seconds."""
        call = self._contracts.seat_trainers(pool, trainers, lease, grace)
        return await self._write(f"seat the trainers of pool {pool}", call, key)

    async def hold_chair(self, pool: int, step: int, policy_root: bytes, *, key: NodeKey | None = None) -> Receipt:
        """As who leads: for another lease."""
        return await self._write("hold the chair", self._contracts.hold_chair(pool, step, policy_root), key)

    async def take_chair(
        self, pool: int, term: int, from_step: int, parent: bytes, *, key: NodeKey | None = None
    ) -> Receipt:
        """As a trainer whose turn it is: lead from policy from_step on, which comes after `parent`."""
        return await self._write("take the chair", self._contracts.take_chair(pool, term, from_step, parent), key)

    async def end_term(
        self, silent: Sequence[TermSilent], signatures: Sequence[bytes], *, key: NodeKey | None = None
    ) -> Receipt:
        """A quorum's words about one lease, and their signatures: the greatest step first."""
        return await self._write("end the term of a silent trainer", self._contracts.end_term(silent, signatures), key)

    async def end_term_by_verdicts(
        self,
        term: int,
        commitment: WorkCommitment,
        verdicts: Sequence[Verdict],
        signatures: Sequence[bytes],
        *,
        key: NodeKey | None = None,
    ) -> Receipt:
        """End the term of the trainer that committed to a step. verdicts, signatures: a quorum's against it."""
        call = self._contracts.end_term_by_verdicts(term, commitment, verdicts, signatures)
        return await self._write(f"end the term of {commitment.node} by verdicts", call, key)
