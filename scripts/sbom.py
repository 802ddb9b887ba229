"""`python scripts/sbom.py [FILE]`: what the program consists of, as CycloneDX 1.6 (by default into dist/).

Names, versions and hashes are those of locked/*.txt, of npm's lock files for what is compiled into the contracts or
fetched for the local chain, and of the sandbox's interpreter. A licence is what the metadata of the installed package
says, if that very version is installed here; the last line says of how many it is unknown. Two calls in one
environment write the same bytes.
"""

import argparse
import base64
import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
SCOPES = {"node": "required", "train": "optional", "devnet": "optional", "dev": "excluded"}
"""File of locked/ -> CycloneDX's word: what runs everywhere, by choice, or at nobody who installs the wheel."""
NPM = {"contracts": ("@openzeppelin/",), "node/chain/anvil": ("@foundry-rs/",)}
"""Folder with a lock file -> what of it becomes part of what runs. The compiler does not."""
Component = dict[str, Any]


def locked(name: str) -> Iterator[Component]:
    """The packages of one file of locked/."""
    text = (ROOT / "locked" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", "")
    for line in text.splitlines():
        if not line.startswith("#"):
            head, *hashes = line.split("--hash=sha256:")
            one = Requirement(head)
            version = next(iter(one.specifier)).version
            yield python(
                one.name, version, SCOPES[name], sorted(each.strip() for each in hashes), str(one.marker or "")
            )


def unhashed() -> Iterator[Component]:
    """torch: its wheel comes from an index or a folder of one's own, so the version alone is known."""
    found = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        sys.exit("error: constraints.txt has no torch\n  why: it is a part of [train]\n  do:  pin it there")
    yield python("torch", found.group(1), "optional", [], "")


def python(name: str, version: str, scope: str, hashes: list[str], marker: str) -> Component:
    """hashes: sha256 of each file that an installation may take."""
    where = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    made: Component = {
        "type": "library",
        "bom-ref": where,
        "name": name,
        "version": version,
        "scope": scope,
        "purl": where,
    }
    if hashes:
        made["hashes"] = [{"alg": "SHA-256", "content": one} for one in hashes]
    if licences := licence(name, version):
        made["licenses"] = licences
    if marker:
        made["properties"] = [{"name": "intellect-node:only-where", "value": marker}]
    return made


def licence(name: str, version: str) -> list[dict[str, Any]]:
    """What the installed package says; nothing where it is of another version, or says nothing."""
    try:
        told = metadata(name)
    except PackageNotFoundError:
        return []
    if told["Version"].partition("+")[0] != version:
        return []
    said = next((told[name].strip() for name in ("License-Expression", "License") if name in told), "")
    try:
        return [{"expression": str(canonicalize_license_expression(said))}]
    except InvalidLicenseExpression:
        pass  # words of its own, which stand in the place of an expression
    kinds = [one.split(" :: ")[-1] for one in told.get_all("Classifier") or [] if one.startswith("License :: ")]
    names = kinds or ([said.splitlines()[0][:100]] if said else [])
    return [{"license": {"name": one}} for one in names]


def javascript(folder: str, names: tuple[str, ...]) -> Iterator[Component]:
    packages = json.loads((ROOT / folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for place, told in packages.items():
        name = place.rpartition("node_modules/")[2]
        if not name.startswith(names):
            continue
        where = f"pkg:npm/{quote(name)}@{told['version']}"
        digest = base64.b64decode(told["integrity"].removeprefix("sha512-")).hex()
        yield {
            "type": "library",
            "bom-ref": where,
            "name": name,
            "version": told["version"],
            "scope": "optional" if told.get("optional") else "required",
            "purl": where,
            "hashes": [{"alg": "SHA-512", "content": digest}],
            "licenses": [{"expression": told["license"]}]
            if " " in told["license"]
            else [{"license": {"id": told["license"]}}],
        }


def interpreter() -> Component:
    """CPython for WASI, in which strangers' code runs; `sandbox install` fetches it and goes by its hash."""
    from node.sandbox.runtime import SHA256

    about: Component = {
        "type": "file",
        "bom-ref": f"file:sha256:{SHA256}",
        "name": "python-3.12.0.wasm",
        "version": "3.12.0",
    }
    return about | {"scope": "optional", "hashes": [{"alg": "SHA-256", "content": SHA256}]}


def bill() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [one for name in SCOPES for one in locked(name)]
    components += [
        *unhashed(),
        *(one for folder, names in NPM.items() for one in javascript(folder, names)),
        interpreter(),
    ]
    components.sort(key=lambda one: one["bom-ref"])
    direct = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    below = sorted(one["bom-ref"] for one in components if canonicalize_name(one["name"]) in direct)
    made: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            },
        },
        "components": components,
        # what each package needs in turn stands in its own metadata, and not here
        "dependencies": [{"ref": own, "dependsOn": below}],
        "compositions": [{"aggregate": "incomplete", "dependencies": [own]}],
    }
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).digest()
    return {**made, "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="where to (dist/intellect-node-VERSION.cdx.json)")
    made = bill()
    about = made["metadata"]["component"]
    file = parser.parse_args().file or ROOT / "dist" / f"{about['name']}-{about['version']}.cdx.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    unknown = [one["name"] for one in made["components"] if "licenses" not in one]
    bare = [one["name"] for one in made["components"] if "hashes" not in one]
    print(
        f"{file.name}: {len(made['components'])} components, without a known licence {len(unknown)}"
        f" ({', '.join(unknown[:6])}{', ...' if len(unknown) > 6 else ''}), without a hash {', '.join(bare)}"
    )


if __name__ == "__main__":
    main()
