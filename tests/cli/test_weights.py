"""`weights` on a state directory as a node leaves it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from cli.main import main
from contracts.bindings import ChairInfo
from node.blobs.store import BlobStore
from node.weights.policy_cache import HeldPolicy
from node.weights.records import PolicyRecords
from protocol.identity import NodeKey
from protocol.messages import seal
from protocol.policy import PolicyManifest, describe_tensors, encode_image, image_size, policy_root
from protocol.statements import Domain
from tests.words import announced as policy_announced

RUN = b"\x05" * 32
KEY, DOMAIN = NodeKey.generate(), Domain(1, "0x" + "11" * 20)


@pytest.fixture
def state(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node that holds the policies of steps 3 and 4."""
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    directory = tmp_path / "home" / "nodes" / "local" / "worker"
    records = PolicyRecords(directory / "weights" / "held")

    async def fill() -> None:
        store = BlobStore(directory / "blobs", 1 << 24)
        for step in (3, 4):
            tensors = {"a.weight": np.full((20, 30), step, np.uint16), "b.weight": np.arange(50, dtype=np.uint16)}
            info = await store.add(encode_image(tensors))
            infos = describe_tensors(tensors)
            manifest = PolicyManifest(RUN, step, policy_root(step, infos), infos, info.root, image_size(infos))
            message = policy_announced(step, manifest.policy_root, KEY, DOMAIN, manifest_root=b"m" * 32)
            raw = seal(KEY, DOMAIN, message)
            records.write(HeldPolicy(step, manifest.policy_root, store.path(info.root), manifest, b"m" * 32, raw), 5)

    trio.run(fill)
    model = directory / "run" / RUN.hex()[:16] / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "x"}')
    (model / "model.safetensors").write_bytes(b"the first weights")
    return directory


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_shows_what_the_nodes_of_this_machine_hold(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "weights", "list")["policies"]
    assert [row["step"] for row in rows] == [3, 4]
    assert rows[0]["image_bytes"] == Path(rows[0]["path"]).stat().st_size
    assert main(["weights", "list", "--state-dir", str(state)]) == 0
    assert rows[1]["policy_root"] in capsys.readouterr().out
    assert main(["weights", "list", "--state-dir", str(state / "nowhere")]) == 3


def test_export_writes_the_newest_and_verify_believes_it(state: Path, tmp_path: Path, capsys) -> None:
    result = answer(capsys, "weights", "export", str(tmp_path / "out"))
    assert result["step"] == 4 and result["files"] == ["model.safetensors"]
    assert json.loads((tmp_path / "out" / "config.json").read_bytes()) == {"model_type": "x", "dtype": "bfloat16"}
    (verified,) = answer(capsys, "weights", "verify", str(tmp_path / "out"))["verified"]
    assert verified["policy_root"] == result["policy_root"] and verified["signer"] is None
    assert main(["weights", "export", str(tmp_path / "again")]) == 0
    assert main(["weights", "verify", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert told.count(result["policy_root"]) == 2, "--root wants the whole of it"
    file = tmp_path / "out" / "model.safetensors"
    answer(capsys, "weights", "verify", str(file), "--root", result["policy_root"])
    assert main(["weights", "verify", str(file)]) == 6
    assert main(["weights", "verify", str(file), "--root", "ab" * 32]) == 6
    assert "another policy" in capsys.readouterr().err
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert main(["weights", "verify", str(tmp_path / "out")]) == 6


def test_export_takes_the_step_that_is_named_and_overwrites_nothing(state: Path, tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "out")
    assert answer(capsys, "weights", "export", out, "--step", "3", "--state-dir", str(state))["step"] == 3
    assert main(["weights", "export", out]) == 3
    assert main(["weights", "export", str(tmp_path / "other"), "--step", "9"]) == 6
    assert "weights list" in capsys.readouterr().err


def test_verify_hashes_what_is_held_and_finds_a_damaged_image(state: Path, capsys) -> None:
    verified = answer(capsys, "weights", "verify")["verified"]
    assert [entry["step"] for entry in verified] == [3, 4]
    damaged = Path(verified[0]["path"])
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    assert main(["weights", "verify"]) == 6
    assert "step 3 is damaged" in capsys.readouterr().err


def test_fetch_says_what_is_missing_before_it_does_anything(state: Path, tmp_path: Path, capsys) -> None:
    assert main(["weights", "fetch", "--out", str(tmp_path)]) == 3
    assert main(["weights", "fetch", "--out", str(tmp_path / "new"), "--network", "nowhere"]) in (3, 4)
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("leads", [True, False])
def test_a_policy_is_its_pools_where_whoever_held_the_chair_signed_it(
    leads: bool, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the manager, which opened the pool, nor a trainer that stands by."""
    other = NodeKey.generate().address
    order = (KEY.address, other) if leads else (other, KEY.address)
    seating = (1, order, 200, 30, (), 0)

    class Chain:
        async def pool(self, pool: int) -> Any:
            return SimpleNamespace(manager=NodeKey.generate().address)

        async def chair(self, pool: int) -> ChairInfo:
            return ChairInfo(*seating, 0, 0, False, 900, 0, 0, bytes(32))

    profile = SimpleNamespace(chain_id=DOMAIN.chain_id, contracts=SimpleNamespace(swarm=DOMAIN.contract))
    monkeypatch.setattr("cli.weights._profile", lambda *_: (profile, 1))
    monkeypatch.setattr("cli.contract.frame.read", lambda _, action: trio.run(action, Chain()))
    code = main(["weights", "verify", "--state-dir", str(state), "--network", "x", "--json"])
    out, err = capsys.readouterr()
    if leads:
        assert code == 0 and {one["signer"] for one in json.loads(out)["verified"]} == {KEY.address}
    else:
        assert code != 0 and "not signed by who led the pool then" in err


def test_an_export_is_also_one_file_for_llama_cpp_and_a_line_for_ollama(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    from gguf import GGUFReader

    from tests.node.weights.test_gguf import configurations, model_dir

    config, split, _ = configurations()["llama"]
    spool = tmp_path / "run" / "spool"
    model = model_dir(spool / "assets" / "model", config(), split)
    (spool / "out").mkdir()
    (model / "model.safetensors").rename(spool / "out" / "policy-000003.safetensors")
    (spool / "out" / "step-000003.json").write_text("{}")
    arguments = ("weights", "export", "--trained", str(tmp_path / "run"), "--gguf")
    assert main([*arguments, "q9", str(tmp_path / "none")]) != 0 and "bf16, f16, q8_0" in capsys.readouterr().err
    told = answer(capsys, *arguments, "q8_0", str(tmp_path / "Sums"))
    assert (told["gguf"], told["modelfile"]) == ("Sums-q8_0.gguf", "Modelfile")
    assert (tmp_path / "Sums" / "Modelfile").read_text() == "FROM .\n"
    names = {tensor.name for tensor in GGUFReader(tmp_path / "Sums" / told["gguf"]).tensors}
    assert {
        "token_embd.weight",
        "blk.3.ffn_down.weight",
        "output_norm.weight",
    } <= names and "output.weight" not in names

    # What cannot be one leaves nothing behind.
    (model / "config.json").write_text((model / "config.json").read_text().replace('"llama"', '"gemma2"'))
    assert main([*arguments, "bf16", str(tmp_path / "other")]) != 0
    assert "'gemma2' is not written here" in capsys.readouterr().err and not (tmp_path / "other").exists()
