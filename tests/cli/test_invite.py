"""A list of people to invite, and the file that they are given: no chain is asked."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.contract.invite import _for_others, _text_of, is_private, read_people
from cli.errors import CommandError
from contracts.bindings import NOBODY, Addresses
from node.chain.profile import SHIPPED, NetworkProfile, read_profile
from protocol.identity import NodeKey
from tests.node.chain.test_invitations import JUDGE, NODE, POOL, PROVIDER, STRANGER


def test_a_list_is_read_as_people_write_it() -> None:
    sheet = f"name;address\nAnn;{NODE.address}\n\n# later\nBob;{PROVIDER.address.lower()}\n"
    assert read_people(sheet, POOL, 9) == ([(NODE.address, "Ann"), (PROVIDER.address, "Bob")], [])
    plain = f'{NODE.address},"Ann, of Rome"\n{PROVIDER.address}'
    assert read_people(plain, POOL, 9)[0] == [(NODE.address, "Ann, of Rome"), (PROVIDER.address, "")]


def test_all_mistakes_of_a_list_are_told_with_their_lines() -> None:
    wrong = NODE.address[:-1] + ("0" if NODE.address[-1] != "0" else "1")
    sheet = "\n".join(
        [NODE.address, f"{STRANGER.address}, Eve", "Bob", "0x12", wrong, NODE.address.lower(), NOBODY, JUDGE.address]
    )
    people, mistakes = read_people(sheet, POOL, 1)
    assert [one.line for one in mistakes] == [3, 4, 5, 6, 7, 8, 8]
    for mistake, says in zip(
        mistakes,
        ["no address", "no address", "no address", "line 1 already", "nobody's", "own trainer", "at most 1"],
        strict=True,
    ):
        assert says in mistake.what and mistake.remedy
    assert len(people) == 2
    assert "names nobody" in read_people("name,address\n", POOL, 9)[1][0].what


@pytest.mark.parametrize("raw", [b"\xff\xfe0x", b"x" * 70_000])
def test_a_file_that_is_no_list_is_refused(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "people.csv"
    file.write_bytes(raw)
    with pytest.raises(CommandError):
        _text_of(file)


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("https://sepolia.base.org", False),
        ("https://1rpc.io/base", False),
        ("https://base-sepolia-rpc.publicnode.com", False),
        ("https://base-sepolia.g.alchemy.example/v2/AbCdEfGhIjKlMnOpQrStUv", True),
        ("https://user:secret@rpc.example", True),
        ("https://rpc.example/?apikey=1", True),
        ("http://127.0.0.1:8545", True),
        ("http://10.0.0.4:8545", True),
    ],
)
def test_an_endpoint_with_a_key_or_of_this_network_is_not_given_away(url: str, private: bool) -> None:
    assert is_private(url) == private


def test_others_get_the_public_endpoints_of_the_chain_in_place_of_those_with_a_key() -> None:
    base: dict[str, Any] = {"name": "mine", "contracts": Addresses(*[NodeKey.generate().address] * 6)}
    keyed = NetworkProfile(**base, chain_id=84532, rpc_urls=("https://x.example/v2/" + "a" * 32,))
    assert _for_others(keyed, ()) == read_profile(SHIPPED / "base-sepolia.toml").rpc_urls
    assert _for_others(keyed, ("https://mine.example",)) == ("https://mine.example",)
    both = msgspec.structs.replace(keyed, rpc_urls=(*keyed.rpc_urls, "https://open.example"))
    assert _for_others(both, ()) == ("https://open.example",)
    devnet = NetworkProfile(**base, chain_id=31337, rpc_urls=("http://127.0.0.1:8545",))
    assert _for_others(devnet, ()) == devnet.rpc_urls, "of a devnet there is no other"
    with pytest.raises(CommandError, match="endpoint"):
        _for_others(msgspec.structs.replace(keyed, chain_id=999), ())
