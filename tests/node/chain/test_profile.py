from pathlib import Path

import msgspec
import pytest

from contracts.bindings import Addresses
from node.chain.errors import ProfileError
from node.chain.profile import (
    NetworkProfile,
    load_profile,
    local_profile_path,
    read_profile,
    user_profile_path,
    write_profile,
)
from protocol.identity import Address, NodeKey

PROFILE = NetworkProfile(
    name="local",
    chain_id=31337,
    rpc_urls=("http://127.0.0.1:8545", "https://rpc.example.org/v1"),
    contracts=Addresses(*(NodeKey.generate().address for _ in range(5))),
    pool=3,
)


def written(tmp_path: Path, change: tuple[str, str] = ("", "")) -> Path:
    path = tmp_path / "net.toml"
    write_profile(path, PROFILE)
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change) if change[0] else text + change[1])
    return path


def test_a_profile_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_profile(written(tmp_path)) == PROFILE


def test_a_profile_is_found_by_path_and_by_name(tmp_path: Path) -> None:
    write_profile(local_profile_path(tmp_path), PROFILE)
    assert load_profile("local", home=tmp_path) == PROFILE
    assert load_profile(str(local_profile_path(tmp_path)), home=tmp_path) == PROFILE
    assert load_profile(local_profile_path(tmp_path), home=tmp_path) == PROFILE


def test_without_a_local_chain_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("local", home=tmp_path)
    assert "intellect-node devnet up" in caught.value.remedy


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    write_profile(tmp_path / "networks" / "sepolia.toml", PROFILE)
    with pytest.raises(ProfileError) as caught:
        load_profile("sepolai", home=tmp_path)
    assert "sepolia" in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (("chain_id =", "chainid ="), "chain_id"),
        (("rpc_urls =", "rpc_url ="), "rpc_urls"),
        (("vault =", "valt ="), "contracts.vault"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(tmp_path: Path, change: tuple[str, str], hint: str) -> None:
    with pytest.raises(ProfileError) as caught:
        read_profile(written(tmp_path, change))
    assert f"did you mean {hint}?" in caught.value.why


@pytest.mark.parametrize(
    "change",
    [
        ("chain_id = 31337", 'chain_id = "31337"'),
        ("chain_id = 31337", "chain_id = 0"),
        ("chain_id = 31337", ""),
        ('"http://127.0.0.1:8545"', '"ftp://127.0.0.1"'),
        ('["http://127.0.0.1:8545", "https://rpc.example.org/v1"]', "[]"),
        (PROFILE.contracts.vault, Address("0x1234")),
        ("", "\n[contracts\n"),
        ("", "\nx = " + "[" * 5000),
        ("", "# " + "x" * 70_000),
    ],
)
def test_a_broken_profile_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    with pytest.raises(ProfileError):
        read_profile(written(tmp_path, change))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read"):
        load_profile(str(tmp_path / "none.toml"), home=tmp_path)


@pytest.mark.parametrize(("name", "chain_id"), [("base-sepolia", 84532), ("base", 8453), ("local", 31337)])
def test_the_shipped_networks_can_be_read_and_have_no_contracts_yet(tmp_path: Path, name: str, chain_id: int) -> None:
    profile = load_profile(name, home=tmp_path, deployed=False)
    assert (profile.name, profile.chain_id, profile.deployed) == (name, chain_id, False)
    assert name == "local" or (len(profile.rpc_urls) >= 3 and profile.confirmations > 0 and profile.explorer)
    with pytest.raises(ProfileError) as caught:
        load_profile(name, home=tmp_path)
    assert "contract deploy" in caught.value.remedy or "devnet up" in caught.value.remedy


def test_a_users_own_copy_comes_before_the_shipped_network(tmp_path: Path) -> None:
    shipped = load_profile("base-sepolia", home=tmp_path, deployed=False)
    own = msgspec.structs.replace(shipped, contracts=PROFILE.contracts, deployed_block=7)
    write_profile(user_profile_path("base-sepolia", tmp_path), own)
    assert load_profile("base-sepolia", home=tmp_path) == own


def test_a_profile_links_to_the_explorer_of_its_network(tmp_path: Path) -> None:
    assert PROFILE.link("tx", "0x12") is None
    assert load_profile("base", home=tmp_path, deployed=False).link("tx", "0x12") == "https://basescan.org/tx/0x12"


@pytest.mark.parametrize(
    ("urls", "lan"),
    [
        (["http://127.0.0.1:8545"], True),
        (["http://localhost:8545", "http://192.168.1.5:8545", "http://[fd00::1]:8545"], True),
        (["http://192.168.1.5:8545", "https://mainnet.base.org"], False),
        (["http://8.8.8.8"], False),
    ],
)
def test_members_may_be_in_a_private_network_where_all_of_the_chain_is(urls: list[str], lan: bool) -> None:
    assert NetworkProfile(name="x", chain_id=1, rpc_urls=tuple(urls)).lan is lan
