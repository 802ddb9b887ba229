import json
from pathlib import Path

import pytest
from eth_account import Account

from node.errors import KeyError_
from node.state.keystore import load_key, load_or_create, open_keystore, read_password, save_key
from protocol.identity import NodeKey

FULL = Account.encrypt


@pytest.fixture(autouse=True)
def light_scrypt(monkeypatch):
    """The format is the same with a small work factor, and the tests are fast."""
    monkeypatch.setattr(Account, "encrypt", lambda secret, password, **_: FULL(secret, password, iterations=2))


def test_a_key_is_the_same_after_a_restart_and_private(tmp_path) -> None:
    path = tmp_path / "node-key.json"
    key = load_or_create(path, "secret")
    assert load_or_create(path, "secret").secret == key.secret
    assert path.stat().st_mode & 0o777 == 0o600
    assert key.secret.hex() not in path.read_text()
    assert json.loads(path.read_text())["version"] == 3


def test_a_wrong_password_is_a_clear_error(tmp_path) -> None:
    save_key(tmp_path / "k", NodeKey.generate(), "right")
    with pytest.raises(KeyError_, match="cannot open") as refused:
        load_key(tmp_path / "k", "wrong")
    assert refused.value.why == "the password is wrong"


@pytest.mark.parametrize("kdf", ["scrypt", "pbkdf2"])
@pytest.mark.parametrize("crypto", ["crypto", "Crypto", "CRYPTO"])
def test_what_other_programs_write_is_read(kdf: str, crypto: str) -> None:
    """eth_account's keystores, and those that geth's ancestors wrote: with 0x, without an address, keys in capitals."""
    key = NodeKey.generate()
    data = dict(FULL(key.secret, "pässword", kdf=kdf, iterations=2))
    prefix = "0x" if crypto == "CRYPTO" else ""
    data[crypto] = (inner := data.pop("crypto")) | {"ciphertext": prefix + inner["ciphertext"]}
    assert open_keystore(data, "pässword", "k").address == key.address
    data.pop("address")
    assert open_keystore(data, "pässword", "k").secret == key.secret


@pytest.mark.parametrize("change", [str.lower, str.upper])
def test_a_key_derivation_that_asks_for_too_much_is_not_begun(change) -> None:
    """Capitals do not hide it."""
    data = dict(FULL(NodeKey.generate().secret, "pw", iterations=2))
    params = {change(name): value for name, value in (data["crypto"]["kdfparams"] | {"n": 2**40}).items()}
    crypto = {change(name): value for name, value in (data.pop("crypto") | {"kdfparams": params}).items()}
    data[change("crypto")] = crypto
    with pytest.raises(KeyError_, match="will not open") as refused:
        open_keystore(data, "pw", "k")
    assert "scrypt asks" in refused.value.why


def test_a_keystore_of_another_version_is_not_begun() -> None:
    """Version 4 keeps its key derivation's parameters where the bounds do not look."""
    data = dict(FULL(NodeKey.generate().secret, "pw", iterations=2)) | {"version": 4}
    with pytest.raises(KeyError_, match="will not open"):
        open_keystore(data, "pw", "k")


def test_a_file_of_nothing_but_brackets_is_a_clear_error(tmp_path) -> None:
    (tmp_path / "k").write_bytes(b"[" * 60_000)
    (tmp_path / "k").chmod(0o600)
    with pytest.raises(KeyError_, match="cannot read the key"):
        load_key(tmp_path / "k", "pw")


def test_an_exposed_key_is_not_used(tmp_path) -> None:
    save_key(tmp_path / "k", NodeKey.generate(), "pw")
    (tmp_path / "k").chmod(0o644)
    with pytest.raises(KeyError_, match="exposed"):
        load_key(tmp_path / "k", "pw")


def test_a_key_is_never_overwritten(tmp_path) -> None:
    save_key(tmp_path / "k", NodeKey.generate(), "pw")
    with pytest.raises(KeyError_, match="overwrite"):
        save_key(tmp_path / "k", NodeKey.generate(), "pw")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 3, "crypto": {}}', "\x00\xff"])
def test_a_damaged_key_file_is_a_clear_error(tmp_path, text: str) -> None:
    path = tmp_path / "k"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyError_):
        load_key(path, "pw")


def test_a_password_comes_from_the_setting_the_file_or_is_made(tmp_path) -> None:
    assert read_password("given", None, tmp_path) == "given"
    made = read_password(None, None, tmp_path)
    assert made == read_password(None, None, tmp_path) and len(made) > 20
    assert (tmp_path / "password").stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyError_, match="no key"):
        read_password(None, tmp_path / "absent", tmp_path)


@pytest.mark.parametrize("password", [None, "hunter2", "random-hunter2", "random-" + "a" * 31 + "ä"])
def test_only_a_password_that_was_made_here_is_not_stretched(
    password: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []

    def encrypt(secret: bytes, password: str, kdf: str, iterations: int | None) -> dict[str, object]:
        asked.append(iterations)
        return FULL(secret, password, kdf=kdf, iterations=iterations or 2)

    monkeypatch.setattr(Account, "encrypt", encrypt)
    key = load_or_create(tmp_path / "node-key.json", read_password(password, None, tmp_path))
    assert asked == [4096 if password is None else None]
    assert load_or_create(tmp_path / "node-key.json", read_password(password, None, tmp_path)).secret == key.secret


def test_no_password_is_made_beside_a_key_that_it_would_not_open(tmp_path) -> None:
    load_or_create(tmp_path / "node-key.json", read_password(None, None, tmp_path))
    (tmp_path / "password").unlink()
    with pytest.raises(KeyError_, match="no password for the key") as refused:
        read_password(None, None, tmp_path)
    assert str(tmp_path / "password") in refused.value.why and not (tmp_path / "password").exists()
