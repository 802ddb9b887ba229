"""The engine child over its pipes: garbage, failures, the end of its input."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from node.inference import wire
from node.inference.layers import LayeredImage
from protocol import freshness
from protocol.blobs import describe
from protocol.identity import NodeKey
from protocol.policy import decode_image, describe_tensors, encode_image, policy_root
from protocol.rollout import decode
from protocol.run import RunSpec, encode_run
from tests.node.inference.test_layers import laid_out
from tests.node.training.forks import ForkedPopen

REPOSITORY = Path(__file__).resolve().parents[3]
Child = subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    process = ForkedPopen(
        [sys.executable, "-m", "node.inference.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=REPOSITORY,
        env=dict(os.environ),
    )
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()


def exchange(child: Child, frame: bytes) -> wire.Reply:
    assert child.stdin and child.stdout
    child.stdin.write(frame)
    child.stdin.flush()
    while isinstance(
        reply := wire.decode_reply(child.stdout.read(wire.body_length(child.stdout.read(4)))), wire.RequestProgress
    ):
        pass  # told once in a while: a slow machine hears it
    return reply


def test_a_child_survives_garbage_works_and_dies_with_its_input(
    child: Child, tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path
) -> None:
    for garbage in (b"", b"\xff" * 100, b"\x81\xa4type\xa4Evil", bytes(5)):
        assert isinstance(exchange(child, wire.HEADER.pack(len(garbage)) + garbage), wire.RequestFailed)

    load = wire.LoadPolicy(id=1, policy_root=bytes(32), step=0, path="x")
    early = exchange(child, wire.encode(load))
    assert isinstance(early, wire.RequestFailed) and early.id == 1 and "Prepare" in early.remedy

    broken = exchange(child, wire.encode(wire.Prepare(id=2, run=b"{}", assets_dir="/nowhere")))
    assert isinstance(broken, wire.RequestFailed)

    run = encode_run(tiny_run)
    ready = exchange(child, wire.encode(wire.Prepare(id=3, run=run, assets_dir=str(tiny_assets))))
    assert isinstance(ready, wire.EngineReady) and ready.id == 3 and ready.dtype == "float32"

    image = tiny_assets / "model" / "model.safetensors"
    root = policy_root(0, describe_tensors(decode_image(image.read_bytes())))
    node = NodeKey.generate().address
    order = wire.Produce(id=5, policy_root=root, node=node, pool=1, index=0, out_path=str(tmp_path / "file"))
    unknown = exchange(child, wire.encode(order))
    assert isinstance(unknown, wire.RequestFailed) and "LoadPolicy" in unknown.remedy

    missing = wire.LoadPolicy(id=6, policy_root=root, step=0, path=str(tmp_path / "none"))
    assert isinstance(exchange(child, wire.encode(missing)), wire.RequestFailed)
    exchange(child, wire.encode(wire.LoadPolicy(id=7, policy_root=root, step=0, path=str(image))))
    produced = exchange(child, wire.encode(order))
    assert isinstance(produced, wire.Produced) and produced.samples == 8

    inspect = wire.Inspect(
        id=8,
        policy_root=root,
        node=node,
        pool=1,
        index=0,
        units=produced.units,
        path=produced.path,
        report_path=str(tmp_path / "report"),
    )
    inspected = exchange(child, wire.encode(inspect))
    assert isinstance(inspected, wire.Inspected) and inspected.outcome == 0, inspected

    many_at_a_time(child, order, tmp_path, produced)
    by_patches(child, order, image, tmp_path)

    assert child.stdin
    child.stdin.close()
    assert child.wait(10) == 0


def many_at_a_time(child: Child, order: wire.Produce, tmp_path: Path, produced: wire.Produced) -> None:
    """A ping is answered before work, a cancelled request fails, and the same order makes the same file in company."""
    again = msgspec.structs.replace(order, id=22, out_path=str(tmp_path / "again"))
    frames = [
        msgspec.structs.replace(order, id=20, index=1, out_path=str(tmp_path / "given-up")),
        wire.Cancel(which=20),
        again,
        wire.Ping(id=24),
    ]
    assert child.stdin and child.stdout
    child.stdin.write(b"".join(map(wire.encode, frames)))
    child.stdin.flush()
    replies: list[wire.Reply] = []
    while len(replies) < 3:
        reply = wire.decode_reply(child.stdout.read(wire.body_length(child.stdout.read(4))))
        replies += [] if isinstance(reply, wire.RequestProgress) else [reply]
    by_id = {reply.id: reply for reply in replies}
    assert isinstance(by_id[20], wire.RequestFailed) and "cancelled" in by_id[20].what
    assert isinstance(by_id[22], wire.Produced) and isinstance(by_id[24], wire.Pong)
    order_of_replies = [reply.id for reply in replies]
    assert order_of_replies.index(24) < order_of_replies.index(22)
    alone, beside = Path(produced.path).read_bytes(), Path(again.out_path).read_bytes()
    assert [row.output for row in decode(alone, 8).rows] == [row.output for row in decode(beside, 8).rows]


def by_patches(child: Child, order: wire.Produce, image: Path, tmp_path: Path) -> None:
    """Policies that rest on an image are computed with from one copy in memory; one that is not what was signed for is
    refused before anything is made with it."""
    steps = [dict(decode_image(image.read_bytes()))]
    for by in (1, 2):
        steps.append({name: bits + np.uint16(by) * (bits % 97 == 0) for name, bits in steps[-1].items()})
    base, patches, _ = laid_out(tmp_path, steps)
    infos = [describe_tensors(one) for one in steps]
    produced = []
    for number, at in enumerate((1, 2, 1), start=30):
        digests = b"".join(info.digest for info in infos[at])
        load = wire.LoadPolicy(
            id=number,
            policy_root=policy_root(at, infos[at]),
            step=at,
            path=str(base),
            patches=tuple(patches[:at]),
            digests=digests,
            image_root=describe(encode_image(steps[at])).root,
        )
        lie = msgspec.structs.replace(load, policy_root=bytes([number]) * 32, digests=digests[:-32] + bytes(32))
        for wrong in (lie, msgspec.structs.replace(load, policy_root=lie.policy_root, image_root=bytes(32))):
            refused = exchange(child, wire.encode(wrong))
            assert isinstance(refused, wire.RequestFailed) and "weights cannot be used" in refused.what
        made = msgspec.structs.replace(order, id=50, policy_root=lie.policy_root, out_path=str(tmp_path / "wrong"))
        assert "LoadPolicy" in getattr(exchange(child, wire.encode(made)), "remedy", "")
        assert isinstance(exchange(child, wire.encode(load)), wire.Loaded)
        path = tmp_path / f"patched-{number}"
        made = msgspec.structs.replace(order, id=51, policy_root=load.policy_root, out_path=str(path))
        assert isinstance(exchange(child, wire.encode(made)), wire.Produced)
        produced.append(decode(path.read_bytes(), 8))
        whole = tmp_path / f"whole-{number}"
        whole.write_bytes(encode_image(steps[at]))
        content = freshness.content_digest(produced[-1].rows)
        key = freshness.challenge(load.policy_root, order.node, order.index, content)
        assert produced[-1].header.freshness == LayeredImage(whole).answer(key)
    # What a pass adds up in which order depends on who comes when, and shows in proofs; tokens are the same.
    first, other, again = ([row.output for row in file.rows] for file in produced)
    assert first == again != other
    # A child is forked, and has what tests before this one have open here.
    assert len(_copies(child.pid) - _copies(os.getpid())) == 1, "one image, and not one a policy"


def _copies(process: int) -> set[int]:
    """Inodes of the policies that a process has in memory."""
    files = [one for one in Path(f"/proc/{process}/fd").iterdir() if "intellect-policy" in _place(one)]
    return {one.stat().st_ino for one in files}


def _place(descriptor: Path) -> str:
    """Empty once it is closed: the one with which the folder was listed is."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def test_frames_longer_than_the_limit_are_not_read() -> None:
    with pytest.raises(wire.EngineWireError):
        wire.body_length(wire.HEADER.pack(wire.MAX_FRAME + 1))
