import json

from contracts.bindings import ARTIFACTS
from contracts.build import CONTRACTS, HERE, SIZE_LIMIT, compile_sources, differing


def test_the_checked_in_artifacts_are_what_the_sources_compile_to() -> None:
    assert differing(compile_sources()) == []


def test_every_contract_fits_into_the_size_limit() -> None:
    for name in CONTRACTS:
        code = json.loads((ARTIFACTS / f"{name}.json").read_bytes())["deployedBytecode"]
        assert 0 < len(code) // 2 - 1 < SIZE_LIMIT


def test_the_lock_files_pin_contents_and_name_no_host() -> None:
    folders = (HERE, HERE / "forge", HERE.parent / "node" / "chain" / "anvil")
    for path in (folder / "package-lock.json" for folder in folders):
        packages = json.loads(path.read_text())["packages"]
        assert all("resolved" not in entry for entry in packages.values())
        assert all(name == "" or "integrity" in entry for name, entry in packages.items())
