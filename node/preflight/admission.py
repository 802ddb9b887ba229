"""What a daemon looks at before it joins: everything that would fail later, or would fail others.

The stake is not among it: that is waited for (node.services.membership.participant).
"""

import tempfile
import time
from pathlib import Path

import msgspec
import trio

from contracts.bindings import PoolInfo
from node.chain.client import ChainClient
from node.chain.faucet import is_devnet
from node.config import NodeConfig, Role
from node.hardware import Hardware
from node.preflight.chain import against_chain, check_pool
from node.preflight.engines import check_class
from node.preflight.finding import Finding, PreflightFailed, worst
from node.preflight.machine import check_disk, check_gpu, check_memory
from node.preflight.reach import ask_for_spec, check_all_announced, check_listen, is_public
from protocol.identity import Address
from protocol.run import RunSpec


class Applicant(msgspec.Struct, frozen=True):
    """Who would join, with what. listen, announced: multiaddrs; chosen: announced by its owner's word; quota: bytes;
    run: None where it is not known yet."""

    directory: Path
    role: Role
    hardware: Hardware
    listen: tuple[str, ...]
    announced: tuple[str, ...]
    chosen: bool
    quota: int
    run: RunSpec | None = None


async def examine(chain: ChainClient, pool: PoolInfo, applicant: Applicant) -> list[Finding]:
    """What a look at machine and pool finds. Raises ChainError."""
    block = await chain.block()
    public = is_public(chain.profile)
    found = [against_chain(block.timestamp, time.time(), rehearsal=not public), check_pool(pool)]
    found += await trio.to_thread.run_sync(_examine_machine, applicant)
    return [*found, check_all_announced(applicant.announced, applicant.role, public, chosen=applicant.chosen)]


def _examine_machine(applicant: Applicant) -> list[Finding]:
    image = 2 * applicant.run.weight_bytes() if applicant.run else 0
    return [
        check_disk(applicant.directory, applicant.quota, image),
        check_memory(applicant.run, applicant.role, applicant.hardware),
        check_gpu(applicant.hardware),
        *(check_listen(each) for each in applicant.listen),
    ]


async def admit(chain: ChainClient, pool: PoolInfo, applicant: Applicant) -> list[Finding]:
    """The warnings. Raises PreflightFailed for a failure."""
    found = await examine(chain, pool, applicant)
    if worst(found) == "failure":
        raise PreflightFailed(found)
    return [finding for finding in found if finding.level == "warning"]


async def check_calibrated(chain: ChainClient, pool: PoolInfo, node: Address, config: NodeConfig, role: Role) -> None:
    """Before a stake is put up for a node: raise PreflightFailed where the pool's run, if its members tell it, was not
    calibrated for how this machine computes. Raises ChainError.

    Who is registered has a stake, and hears it from the engine; on a devnet it is play money.
    """
    own = bool(config.engine_command)
    if role == "trainer" or own or (await chain.node_info(node)).provider or _given(chain, config):
        return
    with tempfile.TemporaryDirectory(prefix="intellect-preflight-") as folder:
        spec = await ask_for_spec(chain, pool, Path(folder))
    if spec is not None and spec.pretraining is None:  # which no engine samples in
        finding = await check_class(spec.verification, role, config.engine_options)
        if finding.level == "failure":
            raise PreflightFailed([finding])


def _given(chain: ChainClient, config: NodeConfig) -> bool:
    return config.auto_setup and is_devnet(chain.profile)
