"""Models and data sets by their names on the hub: what there is, fetched once, and compared with what was promised.

The one module that imports the hub's client, and only when a name needs it. Tokens, cache and mirrors are the client's
own (`hf auth login`, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE). The client compares sizes; here each file is compared once
with the sha256 or the git id of the listing. A part of a repository is handed out as a directory of links into the
client's cache, so that nothing else has to know of a hub. Blocking: call from a thread, never in an engine's process.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from node.config import default_home
from node.errors import RunFileError
from node.state.files import write_whole
from node.units import size_of
from protocol.errors import UNREADABLE

Kind = Literal["model", "dataset"]
Reach = Literal["here", "headers", "whole"]
"""How far to go for a name: nowhere; small files and the headers of weights; everything."""
MODEL_SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")
DATA_SUFFIXES = (".parquet", ".jsonl", ".json")
CONVERTED = "refs/convert/parquet"
"""Where the hub keeps each data set as parquet, whatever its owner wrote it in."""
MAIN = "main"
PUSHED = ("*.safetensors", "*.safetensors.index.json", "*.gguf", "Modelfile", "adapter_config.json")
"""Of a repository what a push replaces as a whole: weights of before would be loaded beside those of now."""
SPARE = 256 << 20
"""Bytes of disk that are left over."""
MAX_HEADER = 25_000_000
"""Bytes of the header of a file of weights, as the client has it."""
_REPOSITORY = r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?"
_NAME = re.compile(
    rf"(?P<hf>hf:)?(?P<repository>{_REPOSITORY})(?:@(?P<revision>[\w.][\w./-]{{0,127}}))?"
    r"(?:#(?P<part>[\w.][\w.+-]{0,127}(?:/[\w.][\w.+-]{0,127})?))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPLIT = re.compile(r"(?:^|[^A-Za-z])(train|test|validation|valid|val|dev)(?:ing)?(?=$|[^A-Za-z])", re.IGNORECASE)
_SHARD = re.compile(r"(?P<config>[^/]+)/(?P<split>[^/]+)/\d{4}\.parquet")
_WORDS: dict[Kind, str] = {"model": "model", "dataset": "data set"}
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class HubError(RunFileError):
    """A name that cannot be had: eight kinds, each with what to do."""


class AbsentError(HubError):
    """There is no such repository, for all that is known here."""


class SilentError(HubError):
    """The hub gives no answer now."""


class Name(msgspec.Struct, frozen=True):
    """revision: a commit, or whatever stands for one; empty: the newest. part: CONFIG/SPLIT of a data set."""

    repository: str
    kind: Kind
    revision: str = ""
    part: str = ""

    @property
    def pinned(self) -> bool:
        return bool(_COMMIT.fullmatch(self.revision))

    def __str__(self) -> str:
        """As it is written in a run file."""
        revision, part = self.revision and f"@{self.revision}", self.part and f"#{self.part}"
        return f"hf:{self.repository}{revision}{part}"


class HubFile(msgspec.Struct, frozen=True):
    """A file of a listing. digest: hex, sha256 of the bytes (64 digits) or git's id of them (40), empty if unknown."""

    size: int
    digest: str


class RepositoryListing(msgspec.Struct, frozen=True):
    """What a repository holds at one commit. licence: as its card says. configs: of a data set's card."""

    name: Name
    files: dict[str, HubFile]
    licence: str = ""
    configs: list[dict[str, Any]] = []


class Had(msgspec.Struct, frozen=True):
    """A source that is here. name: pinned; directory: of the links; bytes: of its files; missing: of these, bytes that
    are not here; checked: files compared with the listing just now; free: bytes of disk left."""

    name: Name
    directory: Path
    licence: str
    bytes: int
    missing: int
    checked: int
    free: int


def read_name(text: str, kind: Kind) -> Name | None:
    """What a text means as a name; None where it can be none. Without hf: there must be an owner."""
    found = _NAME.fullmatch(text)
    if found is None or not (found["hf"] or "/" in found["repository"]):
        return None
    if not found["hf"] and PurePosixPath(found["repository"]).suffix in (
        *DATA_SUFFIXES,
        ".toml",
        ".txt",
        ".csv",
        ".gz",
    ):
        return None  # a file's path
    return Name(found["repository"], kind, found["revision"] or "", found["part"] or "")


def name_or_path(text: str, base: Path, kind: Kind) -> Name | Path:
    """A source as people write it. base: what a path is relative to. What lies there wins over the hub."""
    path = base / Path(text).expanduser()
    if text.startswith("hf:"):
        if (name := read_name(text, kind)) is None:
            raise HubError(f"{text[:200]!r} is no name", "it is hf:OWNER/NAME, @COMMIT and #CONFIG/SPLIT", "correct it")
        return name
    try:
        is_here = path.exists()
    except OSError as error:  # too long, or in a directory that is not ours to look into
        raise HubError(f"{text[:200]!r} cannot be looked at", error.strerror or str(error), "correct it") from None
    return path if is_here or text.startswith(("/", ".", "~")) else read_name(text, kind) or path


# --- what is there -------------------------------------------------------------------------------


def pin(name: Name) -> Name:
    """The same with its commit, and of a data set with its part; asks the hub for what is not said. Raises HubError."""
    if name.pinned and (name.kind == "model" or name.part):
        return name
    listing = look(name)
    if name.kind == "dataset":
        part, listing, _ = _part_of(name, listing)
        return msgspec.structs.replace(listing.name, part=part)
    return listing.name


def look(name: Name) -> RepositoryListing:
    """The listing of a repository: kept since an earlier look at that commit, or the hub's. Raises HubError."""
    if (kept := _kept(name)) is not None:
        return kept
    if offline():
        return _cached_listing(name)
    with _told(name):
        info = (
            _client()
            .HfApi()
            .repo_info(
                name.repository, revision=name.revision or None, repo_type=name.kind, files_metadata=True, timeout=30
            )
        )
    # A branch may be called like a commit. Whoever pins one means the bytes.
    if name.pinned and info.sha != name.revision:
        raise HubError(
            f"{name.repository} has no commit {name.revision[:12]}…",
            "a branch of that name leads to another one",
            f"name the commit: {msgspec.structs.replace(name, revision=str(info.sha))}",
        )
    card = info.card_data.to_dict() if info.card_data else {}
    most_files = 100_000
    files = {
        one.rfilename: HubFile(one.size or 0, one.lfs.sha256 if one.lfs else one.blob_id or "")
        for one in (info.siblings or ())[:most_files]
    }
    licence, configs = card.get("license"), card.get("configs")
    listing = RepositoryListing(
        Name(info.id, name.kind, str(info.sha)),
        files,
        ", ".join(map(str, licence)) if isinstance(licence, list) else str(licence or ""),
        [one for one in configs if isinstance(one, dict)] if isinstance(configs, list) else [],
    )
    write_whole(_notes(listing.name) / "listing.json", msgspec.json.encode(listing))
    if not name.pinned:  # for a time without the hub; the client notes only what it was asked for by a branch's name
        write_whole(_ref(name), listing.name.revision.encode())
    return listing


def offline() -> bool:
    return bool(_client().constants.HF_HUB_OFFLINE)


def wanted(name: Name, listing: RepositoryListing) -> dict[str, str]:
    """File in the repository -> file in the directory that is handed out. Raises HubError."""
    if name.kind == "model":
        return {file: file for file in _model_files(listing)}
    _, listing, files = _part_of(name, listing)
    flat = len({PurePosixPath(file).name for file in files}) < len(files)
    return {file: file.replace("/", "-") if flat else PurePosixPath(file).name for file in files}


def _model_files(listing: RepositoryListing) -> list[str]:
    """Without pictures, and weights of other libraries that are as large again."""
    top = [file for file in listing.files if "/" not in file and PurePosixPath(file).suffix in MODEL_SUFFIXES]
    weights = sorted(file for file in top if file.endswith(".safetensors"))
    if not weights:
        others = sorted({PurePosixPath(file).suffix for file in listing.files})
        pickled = any(file.endswith(_PICKLED) for file in listing.files)
        raise HubError(
            f"{listing.name.repository} has no weights that are read here",
            "it has pickled weights only, which may run code when they are read"
            if pickled
            else f"none of its files are *.safetensors (it has {', '.join(others[:8]) or 'nothing'})",
            "name a repository with *.safetensors, or convert it and name the directory",
        )
    shards = [file for file in weights if re.fullmatch(r"model-\d+-of-\d+\.safetensors", file)]
    # The same weights in one file, or in another library's form, may lie beside. An index decides, as in the reader.
    indexed = "model.safetensors.index.json" in top and shards
    chosen = ["model.safetensors"] if "model.safetensors" in weights and not indexed else shards or weights
    return [file for file in top if not file.endswith(".safetensors") or file in chosen]


# --- parts of data sets --------------------------------------------------------------------------


def _part_of(name: Name, listing: RepositoryListing) -> tuple[str, RepositoryListing, list[str]]:
    """(CONFIG/SPLIT, the listing that has it, its files in order). Raises HubError where it is not known which."""
    parts = parts_of(listing)
    if not parts and not any(_SHARD.fullmatch(file) for file in listing.files):
        listing = look(Name(name.repository, name.kind, CONVERTED))
        parts = parts_of(listing)
    chosen = choose(name.part, parts, _default_config(listing))
    if chosen is None:
        shown = ", ".join(list(parts)[:12]) + (f" and {len(parts) - 12} more" if len(parts) > 12 else "")
        first = msgspec.structs.replace(name, part=next(iter(parts), "CONFIG/SPLIT"))
        raise HubError(
            f"{name.repository} has no part {name.part}" if name.part else f"which part of {name.repository}?",
            f"it has {shown or 'no files of ' + ', '.join(DATA_SUFFIXES)}",
            f"name one, for example {first}",
        )
    return chosen, listing, parts[chosen]


def choose(asked: str, parts: Iterable[str], default: str = "") -> str | None:
    """CONFIG/SPLIT that is meant: by itself, by its configuration or its split alone; None if that is not clear."""
    known = list(parts)
    if asked in known:
        return asked
    configs = list(dict.fromkeys(part.partition("/")[0] for part in known))
    usual = default if default in configs else "default" if "default" in configs else None
    config = asked if asked in configs else configs[0] if len(configs) == 1 else usual
    splits = [part for part in known if part.partition("/")[0] == config]
    if asked and asked not in configs:
        return f"{config}/{asked}" if f"{config}/{asked}" in splits else None
    return f"{config}/train" if f"{config}/train" in splits else splits[0] if len(splits) == 1 else None


def parts_of(listing: RepositoryListing) -> dict[str, list[str]]:
    """CONFIG/SPLIT -> its files: by the configurations of the card, else by the usual names."""
    files = sorted(file for file in listing.files if _is_data(file))
    found: dict[str, list[str]] = {}
    for config in listing.configs:
        title = str(config.get("config_name", "default"))
        folder = str(config.get("data_dir") or "").strip("/")
        for split, patterns in _splits_of(config.get("data_files"), folder):
            taken = [file for file in files if any(pattern.fullmatch(file) for pattern in patterns)]
            for at, file in _by_split(taken) if split is None else [(split, file) for file in taken]:
                found.setdefault(f"{title}/{at}", []).append(file)
    return found or usual_parts(files)


def usual_parts(files: Iterable[str]) -> dict[str, list[str]]:
    """The same by names alone: CONFIG/SPLIT/0000.parquet, or a split's name in a file's."""
    found: dict[str, list[str]] = {}
    listed = list(files)
    if listed and all(_SHARD.fullmatch(file) for file in listed):
        for file in listed:
            shard = _SHARD.fullmatch(file)
            assert shard is not None  # just looked
            found.setdefault(f"{shard['config']}/{shard['split'].removeprefix('partial-')}", []).append(file)
        return found
    folders = {PurePosixPath(file).parts[0] for file in listed if "/" in file and not _SPLIT.search(file.split("/")[0])}
    several = len(folders - {"data"}) > 1
    for split, file in _by_split(listed):
        config = PurePosixPath(file).parts[0] if several and "/" in file else "default"
        found.setdefault(f"{config}/{split}", []).append(file)
    return found


def _by_split(files: Iterable[str]) -> list[tuple[str, str]]:
    """(split, file); what names none is for training, unless others do."""
    named = [(found[1].lower() if (found := _SPLIT.search(file)) else "", file) for file in files]
    long = {"valid": "validation", "val": "validation", "dev": "validation"}
    others = any(split for split, _ in named)
    return [(long.get(split, split) or ("other" if others else "train"), file) for split, file in named]


def _splits_of(written: Any, folder: str) -> Iterator[tuple[str | None, list[re.Pattern[str]]]]:
    """(split or None, patterns) of `data_files` of a card: a pattern, several, by split, or nothing."""
    if isinstance(written, dict):
        tables: list[Any] = [{"split": split, "path": path} for split, path in written.items()]
    else:
        tables = written if isinstance(written, list) else [written if written is not None else "**"]
    for one in tables:
        split, path = (one.get("split"), one.get("path")) if isinstance(one, dict) else (None, one)
        paths = path if isinstance(path, list) else [path]
        whole = [f"{folder}/{text}" if folder else str(text) for text in paths if text is not None]
        yield (None if split is None else str(split)), [_glob(text) for text in whole]


def _glob(text: str) -> re.Pattern[str]:
    """A pattern of file names; ** crosses directories. Python's own translation comes with 3.13."""
    parts = re.split(r"(\*\*/?|\*|\?)", text)
    known = {"**": ".*", "**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(known.get(part) or re.escape(part) for part in parts))


def _is_data(file: str) -> bool:
    path = PurePosixPath(file)
    small = path.name in ("dataset_infos.json", "dataset_info.json", "state.json", "package.json", "config.json")
    return path.suffix in DATA_SUFFIXES and not small and not path.name.startswith(".")


def _default_config(listing: RepositoryListing) -> str:
    return next((str(one.get("config_name")) for one in listing.configs if one.get("default")), "")


# --- fetched and compared ------------------------------------------------------------------------


def have(name: Name, reach: Reach = "whole", on_progress: Callable[[str], object] = lambda line: None) -> Had:
    """The source in a directory of its own. Raises HubError. on_progress: hears what takes time.

    reach: "here" fetches nothing, and refuses what is not whole; "headers" leaves weights out, for which files with
    their headers and holes stand; "whole" fetches and compares everything.
    """
    if reach == "here":
        listing = _listed_here(name)
    else:
        asked, name = name, pin(name)
        if asked != name:
            on_progress(f"{asked} is now {name}")
        listing = look(name)
    files = wanted(name, listing)
    here = {file: found for file in files if (found := _cached(name, file))}
    absent = [file for file in files if file not in here]
    missing = sum(listing.files[file].size for file in absent)
    if reach == "here" and absent:
        raise _not_here(name, f"{len(absent)} of {len(files)} files are missing, {size_of(missing)}")
    hollow = [file for file in absent if file.endswith(".safetensors")] if reach == "headers" else []
    absent = [file for file in absent if file not in hollow]
    need = sum(listing.files[file].size for file in absent)
    free = _check_disk(name, need)
    if absent:
        on_progress(f"fetching {name}: {len(absent)} files, {size_of(need)}")
    with _told(name):
        for file in absent:
            here[file] = _download(name, file)
    checked = _verify(name, listing, here, on_progress)
    folder = _notes(name) / ("headers" if hollow else "files")
    folder = folder / re.sub(
        r"[^\w.-]", "-", "-".join([name.repository.rpartition("/")[2], *name.part.split("/")]).strip("-")
    )
    with _told(name):
        headers = {file: _hollow(name, file, listing.files[file].size, folder / files[file]) for file in hollow}
    _link(folder, {files[file]: path for file, path in (here | headers).items()})
    total = sum(listing.files[file].size for file in files)
    return Had(name, folder, listing.licence, total, sum(listing.files[file].size for file in hollow), checked, free)


def _listed_here(name: Name) -> RepositoryListing:
    """Raises HubError for what is not known without asking the hub."""
    if not name.pinned or (name.kind == "dataset" and not name.part):
        raise HubError(
            f"{name} names no commit" + (" with its part" if name.kind == "dataset" else ""),
            "members could be given another model or other data than its owner had",
            "write the commit into the run file: intellect-node get FILE --write",
        )
    try:
        return _kept(name) or _cached_listing(name)
    except SilentError:
        raise _not_here(name, "it was never fetched") from None


def _not_here(name: Name, why: str) -> HubError:
    remedy = f"intellect-node get '{name}'"
    return HubError(f"{name} is not here", f"{why}, and near money nothing is fetched", remedy)


def origin(directory: Path, of: Mapping[str, Path]) -> str:
    """'hf:[datasets/]OWNER/NAME@COMMIT[/FOLDER]' of a directory that `have` handed out, from whose files a member may
    fetch it; empty for any other, and where it comes from several folders. of: its files by name."""
    parts = directory.parts
    home = _home().parts
    if parts[: len(home)] != home or len(parts) != len(home) + 4 or parts[-2] != "files":
        return ""
    repository, commit = parts[len(home)], parts[len(home) + 1]
    kind, _, rest = repository.partition("--")
    prefix = "datasets/" if kind == "datasets" else ""
    # Below snapshots/COMMIT/ of the client's cache: the links say it.
    folders = {_inside(os.readlink(path), commit) for path in of.values() if path.is_symlink()}
    if len(folders) != 1 or None in folders:
        return ""
    folder = folders.pop()
    return f"hf:{prefix}{rest.replace('--', '/', 1)}@{commit}" + (f"/{folder}" if folder else "")


def from_origin(text: str, file: str) -> Path | None:
    """One file of an origin that a run names, out of the client's cache; None if it is not there."""
    name, path = _of_origin(text, file)
    return _cached(name, path)


def fetch_from_origin(text: str, file: str, size: int) -> Path:
    """The same from the hub, of a file of `size` bytes and no other. What they are worth the run's root says. Raises
    HubError."""
    name, path = _of_origin(text, file)
    with _told(name):
        # Before a byte of it: whoever wrote the run is a stranger, and could fill disks with files of others.
        listed = _client().hf_hub_download(
            name.repository, path, repo_type=name.kind, revision=name.revision, dry_run=True
        )
        if listed.file_size != size:
            raise HubError(
                f"{name.repository} has another {path}",
                f"it has {listed.file_size or 0:,} bytes, and the run's file {size:,}",
                "tell the run's owner",
            )
        _check_disk(name, size)
        return _download(name, path)


def installed() -> bool:
    """Whether the hub's client is: the extra [train] brings it."""
    return find_spec("huggingface_hub") is not None


def _of_origin(text: str, file: str) -> tuple[Name, str]:
    body, _, rest = text.removeprefix("hf:").rpartition("@")
    commit, _, folder = rest.partition("/")
    kind: Kind = "dataset" if body.startswith("datasets/") else "model"
    return Name(body.removeprefix("datasets/"), kind, commit), f"{folder}/{file}" if folder else file


def _inside(link: str, commit: str) -> str | None:
    head, mark, rest = link.partition(f"/snapshots/{commit}/")
    return str(PurePosixPath(rest).parent).removeprefix(".") if head and mark else None


def _home() -> Path:
    return default_home() / "hub"


def _notes(name: Name) -> Path:
    """Where it is noted what a commit holds and what was compared."""
    return _home() / f"{name.kind}s--{name.repository.replace('/', '--')}" / name.revision


def _ref(name: Name) -> Path:
    """Where it is noted what a branch was when it was last asked for."""
    return _notes(msgspec.structs.replace(name, revision="refs")) / (name.revision or MAIN).replace("/", "--")


def _kept(name: Name) -> RepositoryListing | None:
    if not name.pinned:
        return None
    try:
        return msgspec.json.decode((_notes(name) / "listing.json").read_bytes(), type=RepositoryListing)
    except (OSError, *UNREADABLE):
        return None  # never looked at, or damaged: the hub is asked again


def _cached_listing(name: Name) -> RepositoryListing:
    """What another program's cache holds, where the hub must not be asked: its files are named by their digests."""
    place = Path(_client().constants.HF_HUB_CACHE) / f"{name.kind}s--{name.repository.replace('/', '--')}"
    commit = name.revision
    if not name.pinned:
        noted = (_ref(name), place / "refs" / (name.revision or MAIN))
        commit = next((path.read_text(encoding="ascii").strip() for path in noted if path.is_file()), "")
        if commit and (kept := _kept(msgspec.structs.replace(name, revision=commit))):
            return kept
    folder = place / "snapshots" / commit
    if not commit or not folder.is_dir():
        raise _silent(name, "HF_HUB_OFFLINE is set, and it was never fetched")
    files: dict[str, HubFile] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            blob = path.resolve().name
            digest = blob if path.is_symlink() and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob) else ""
            files[path.relative_to(folder).as_posix()] = HubFile(path.stat().st_size, digest)
    return RepositoryListing(Name(name.repository, name.kind, commit), files)


def _cached(name: Name, file: str) -> Path | None:
    found = _client().try_to_load_from_cache(name.repository, file, revision=name.revision, repo_type=name.kind)
    return Path(found) if isinstance(found, str) else None


def _download(name: Name, file: str) -> Path:
    client = _client()
    if not sys.stderr.isatty():
        client.utils.disable_progress_bars()
    return Path(client.hf_hub_download(name.repository, file, repo_type=name.kind, revision=name.revision))


def _check_disk(name: Name, need: int) -> int:
    """Bytes that are free. Raises HubError where a source does not fit."""
    cache = Path(_client().constants.HF_HUB_CACHE)
    while not cache.exists():
        cache = cache.parent
    free = shutil.disk_usage(cache).free
    if need and need + SPARE > free:
        raise HubError(
            f"{name} does not fit on the disk",
            f"it needs {size_of(need)}, and {cache} has {size_of(free)} left",
            "free some space, or put the cache on another disk: HF_HOME=/large/disk",
        )
    return free


def _verify(
    name: Name, listing: RepositoryListing, files: Mapping[str, Path], on_progress: Callable[[str], object]
) -> int:
    """Compare what was not compared yet; returns how many files. Raises HubError for other bytes than were promised."""
    notes = _notes(name) / "compared.json"
    try:
        known = msgspec.json.decode(notes.read_bytes(), type=dict[str, list[int]])
    except (OSError, *UNREADABLE):
        known = {}
    checked = 0
    for file, path in files.items():
        about, entry = path.stat(), listing.files[file]
        stamp = [about.st_size, about.st_mtime_ns]
        if known.get(file) == stamp or not entry.digest:
            continue
        if entry.size > 1 << 30:
            on_progress(f"comparing {file}, {size_of(entry.size)}, with the hub's listing")
        if about.st_size != entry.size or _digest(path, entry) != entry.digest:
            path.resolve().unlink(missing_ok=True)  # the client would keep it for ever
            path.unlink(missing_ok=True)
            raise HubError(
                f"{name.repository} sent other bytes than it lists",
                f"{file} is not what commit {name.revision[:12]}… holds; it was deleted",
                "try again, and if HF_ENDPOINT names a mirror, another one",
            )
        known[file] = stamp
        checked += 1
    if checked:
        write_whole(notes, msgspec.json.encode(known))
    return checked


def _digest(path: Path, entry: HubFile) -> str:
    git = len(entry.digest) == 40
    found = hashlib.sha1(usedforsecurity=False) if git else hashlib.sha256()
    if git:  # what git calls a blob: its kind and size stand before it
        found.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def _hollow(name: Name, file: str, size: int, place: Path) -> Path:
    """A file with the header of weights and a hole instead of them: shapes can be read, and no disk is taken."""
    target = place.with_name(f".{place.name}.hollow")
    if not (target.exists() and target.stat().st_size == size):
        said = _client().HfApi().parse_safetensors_file_metadata(name.repository, file, revision=name.revision)
        tensors = {
            key: {"dtype": one.dtype, "shape": one.shape, "data_offsets": one.data_offsets}
            for key, one in said.tensors.items()
        }
        header = json.dumps(tensors).encode()
        end = max((one.data_offsets[1] for one in said.tensors.values()), default=0)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            out.truncate(8 + len(header) + end)
    return target


def _link(folder: Path, files: Mapping[str, Path]) -> None:
    """Links of these names and no others, as absolute paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_symlink() and old.name not in files:
            old.unlink()
    for file, path in files.items():
        link = folder / file
        if link.is_symlink() and os.readlink(link) == str(path.absolute()):
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(path.absolute())


# --- given away ----------------------------------------------------------------------------------


class Target(msgspec.Struct, frozen=True):
    """A repository that is there. commit: its newest."""

    private: bool
    files: frozenset[str]
    commit: str


def target(repository: str) -> Target | None:
    """What is there by now; None: nothing, for all that this token may see. Raises HubError."""
    name = read_name(f"hf:{repository}", "model")
    if name is None or "/" not in repository or name.revision or name.part:
        raise HubError(f"{repository[:200]!r} is no place to push to", "it is not OWNER/NAME", "correct it")
    if offline():
        raise _silent(name, "HF_HUB_OFFLINE is set")
    try:
        with _told(name):
            info = _client().HfApi().repo_info(repository, repo_type="model", timeout=30)
    # What is not there may be made; any other error must stop before something is uploaded.
    except AbsentError:
        return None
    return Target(bool(info.private), frozenset(one.rfilename for one in info.siblings or ()), str(info.sha or ""))


def push(repository: str, files: Mapping[str, Path], there: Target | None, *, private: bool, message: str) -> str:
    """Send files, by their names there, in one commit, and take out weights of before; where it is to be seen. What
    arrived before an interruption is not sent again. Raises HubError, also where somebody pushed since `there`."""
    name, client = Name(repository, "model"), _client()
    operations = [client.CommitOperationAdd(file, path) for file, path in files.items()]
    operations += [client.CommitOperationDelete(file) for file in stale(files, there)]
    try:
        with _told(name):
            if there is None:
                client.HfApi().create_repo(repository, private=private or None, exist_ok=True)
            said = client.HfApi().create_commit(
                repository, operations, commit_message=message, parent_commit=there.commit or None if there else None
            )
    except HubError as error:
        raise HubError(
            f"{repository} was not pushed",
            error.why,
            "run the command again: what arrived is not sent twice, and shows nowhere before all is there; where the "
            f"token may not write to {repository.partition('/')[0]}: hf auth login",
        ) from None
    return str(said.commit_url)


def stale(files: Iterable[str], there: Target | None) -> list[str]:
    """What lies in a repository and would be loaded beside what is pushed."""
    found = there.files - set(files) if there else ()
    return sorted(file for file in found if any(fnmatch(file, pattern) for pattern in PUSHED))


# --- what the client says, in three lines --------------------------------------------------------


def _client() -> Any:
    """Imported when a name needs it: 0.35 s. Raises HubError where it is not installed."""
    if not installed():
        raise HubError(
            "a name needs the hub's client",
            "intellect-node was installed without its extra [train]",
            "pip install 'intellect-node[train]', or name a directory",
        )
    import huggingface_hub
    import huggingface_hub.constants  # its package hands out functions by name, and these not
    import huggingface_hub.errors
    import huggingface_hub.utils

    huggingface_hub.utils.logging.set_verbosity_error()  # what it warns of is told here
    return huggingface_hub


def _silent(name: Name, why: str) -> SilentError:
    kind = "--repo-type dataset " if name.kind == "dataset" else ""
    return SilentError(
        f"{name} cannot be fetched",
        why,
        f"try again where the hub is reached (hf download {kind}{name.repository}); HF_HUB_OFFLINE=1 takes what was "
        "fetched before; HF_ENDPOINT names a mirror",
    )


@contextmanager
def _told(name: Name) -> Iterator[None]:
    """What the client raises, as one of ours."""
    errors = _client().errors
    try:
        yield
    except HubError:
        raise
    except errors.GatedRepoError:
        raise HubError(
            f"{name.repository} is gated",
            "its owner wants to be asked, or has not answered yet",
            f"open its page on the hub, accept its terms, then: hf auth login ({name.repository})",
        ) from None
    except (errors.RevisionNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise HubError(
            f"{name.repository} has no commit or file {name.revision or MAIN}",
            _first_line(error),
            "look at its history on the hub, and name a commit of it",
        ) from None
    except errors.RepositoryNotFoundError:
        raise AbsentError(
            f"there is no {_WORDS[name.kind]} {name.repository} on the hub, or it is private",
            "no directory of this name lies here either",
            "correct the name or the path; for a private one: hf auth login",
        ) from None
    except errors.HFValidationError as error:
        raise HubError(f"{name} is no name", _first_line(error), "it is OWNER/NAME") from None
    # OSError: what the client's HTTP errors are, and a full disk. The rest are its transport's, which has names of its
    # own for each; whatever it is, there was no answer.
    except (OSError, errors.SafetensorsParsingError, RuntimeError, ValueError) as error:
        raise _other(name, error) from None
    except Exception as error:
        if not type(error).__module__.startswith(("httpx", "httpcore", "huggingface_hub", "hf_xet")):
            raise
        raise _other(name, error) from None


def _other(name: Name, error: Exception) -> HubError:
    import errno

    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        why = f"{error}"[:200]
        return HubError(f"{name} does not fit on the disk", why, "free some space, or HF_HOME=/large/disk")
    status = getattr(getattr(error, "response", None), "status_code", None)
    cause = error.__cause__ or error.__context__
    if status is None and cause is not None:
        status = getattr(getattr(cause, "response", None), "status_code", None)
    said = {429: "429: too many requests from here", 401: "401: the token is not valid", 403: "403: forbidden"}
    line = _first_line(error)
    return _silent(name, line if status is None else said.get(status, f"{status}: {line}"))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
