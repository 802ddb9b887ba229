"""What a release consists of: fragments of the changelog, and the script that joins and checks."""

import importlib.metadata
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from scripts import release, sbom
from tests.test_locked import SETS, locked

OLDER = "# Changelog\n\n## [0.1.0] - 2026-01-01\n\nThe first.\n\n### Added\n\n- One.\n"


def put(folder: Path, **texts: str) -> Path:
    """texts: name and kind, joined by two underscores -> what the file says."""
    for name, text in texts.items():
        (folder / f"{name.replace('__', '.')}.md").write_text(text, encoding="utf-8")
    return folder


def test_what_waits_here_has_kinds() -> None:
    assert {one.kind for one in release.fragments(release.ROOT / "changes")} <= set(release.KINDS)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("pools.md", "Pools.", "has no kind"),
        ("pools.new.md", "Pools.", "has no kind"),
        ("Pools.added.md", "Pools.", "has no kind"),
        ("pools.added.txt", "Pools.", "has no kind"),
        ("pools.added.md", " \n", "is no line of a changelog"),
        ("pools.added.md", "- Pools.", "is no line of a changelog"),
        ("pools.added.md", "words " * 81, "is no line of a changelog"),
    ],
)
def test_a_fragment_without_a_kind_or_a_line_is_refused(tmp_path: Path, name: str, text: str, told: str) -> None:
    put(tmp_path, README="what stands here", good__fixed="It works.")
    assert [one.kind for one in release.fragments(tmp_path)] == ["fixed"], "the control"
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(release.Refused, match=told):
        release.fragments(tmp_path)


def test_fragments_become_a_section_by_kind_or_join_that_of_the_version(tmp_path: Path) -> None:
    found = release.fragments(put(tmp_path, b__fixed="Mended\nagain.", a__added="Two.", c__fixed="Three."))
    new = release.joined(OLDER, "0.2.0", "2026-02-02", found)
    section = "## [0.2.0] - 2026-02-02\n\n### Added\n\n- Two.\n\n### Fixed\n\n- Mended again.\n- Three.\n\n"
    assert new == OLDER.replace("## [0.1.0]", f"{section}## [0.1.0]")
    same = release.joined(new, "0.2.0", "2026-03-03", [release.Fragment(tmp_path, "added", "Four.")])
    assert same == new.replace("- Two.", "- Two.\n- Four.")
    assert release.joined(OLDER, "0.1.0", "", found).count("The first.\n\n### Added\n\n- One.\n- Two.") == 1


def test_the_changelog_is_one_page_that_holds_this_version() -> None:
    text = (release.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = release.SECTION.search(text)
    assert newest and newest.group(1) == release.version_of(release.ROOT)
    assert len(text.split()) < 3000


def test_a_check_that_fails_is_named_and_one_that_cannot_be_asked_is_no_success(capsys: pytest.CaptureFixture) -> None:
    def refused() -> str:
        raise release.Refused("it is wrong", "it was changed", "change it back")

    def skipped() -> str:
        raise release.Skipped("no compiler here")

    failed, untold = release.check({"good": lambda: "all there", "bad": refused, "none": skipped})
    assert (failed, untold) == (["bad"], ["none"])
    told = capsys.readouterr().out
    assert "ok      good: all there" in told and "do:  change it back" in told and "skipped none: no compiler" in told
    with pytest.raises(release.Refused, match="ended with 3"):
        release.program("-c", "print('why'); raise SystemExit(3)")()


def test_one_version_is_named_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert release.versions().startswith(release.version_of(release.ROOT))
    monkeypatch.setattr(release, "version_of", lambda _: "9.9.9")
    with pytest.raises(release.Refused, match=r"CHANGELOG.md names \d"):
        release.versions()


def test_a_tag_is_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "fragments", lambda _: [])
    monkeypatch.setattr(release, "output", lambda *_: "")
    assert release.tagged(f"v{release.version_of(release.ROOT)}")
    with pytest.raises(release.Refused, match="the tag is v9"):
        release.tagged("v9.9.9")
    monkeypatch.setattr(release, "output", lambda *_: " M node/daemon.py\n")
    with pytest.raises(release.Refused, match="not what is tagged"):
        release.tagged(f"v{release.version_of(release.ROOT)}")


def test_the_bill_of_materials_has_every_locked_package_with_all_its_hashes() -> None:
    bill = sbom.bill()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {one["bom-ref"]: one for one in bill["components"]}
    assert len(parts) == len(bill["components"]), "each once"
    for name in SETS:
        for package, (version, hashes) in locked(name).items():
            told = {f"sha256:{one['content']}" for one in parts[f"pkg:pypi/{package}@{version}"]["hashes"]}
            assert told == set(hashes)
    assert [name for name, one in parts.items() if "hashes" not in one] == [next(n for n in parts if "/torch@" in n)]
    assert any(name.startswith("pkg:npm/%40openzeppelin/") for name in parts), "it is in the contracts' code"
    root = bill["metadata"]["component"]
    assert root["version"] == release.version_of(release.ROOT) and bill["dependencies"][0]["ref"] == root["bom-ref"]
    assert set(bill["dependencies"][0]["dependsOn"]) < set(parts)
    assert sbom.bill() == bill, "the same in the same environment"


def test_a_licence_is_that_of_the_very_version() -> None:
    version = importlib.metadata.version("packaging")
    assert sbom.licence("packaging", version) and sbom.licence("packaging", "0.0.1") == []
    assert sbom.licence("no-such-package", "1") == []


GITHUB = release.ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
MAKE = re.compile(r'make ([a-z-]+)(?: PYTHON=python3)?(?: ARGS="([^"]*)")?')


def read(file: Path) -> dict[str, Any]:
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def faults(workflow: dict[Any, Any], makefile: str) -> list[str]:
    """What a forge, or whoever calls the same by hand, would stumble over."""
    found = [] if workflow.get("permissions") == {"contents": "read"} else ["it may write"]
    # YAML 1.1 reads the word `on` as true
    found += [] if workflow.get(True) else ["nothing starts it"]
    found += [] if "TORCH_INDEX" in workflow.get("env", {}) else ["make would refuse torch's CUDA build"]
    for name, job in workflow["jobs"].items():
        found += [] if {"runs-on", "timeout-minutes", "steps"} <= set(job) else [f"{name} lacks a runner or a limit"]
        for step in job["steps"]:
            if ("uses" in step) == ("run" in step):
                found.append(f"{name} has a step that does nothing, or two things")
            elif "uses" in step and not re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", step["uses"]):
                found.append(f"{name} uses {step['uses']}, of no version")
            elif "run" in step:
                call = MAKE.fullmatch(step["run"])
                if call is None or not re.search(rf"^{call.group(1)}:", makefile, re.MULTILINE):
                    found.append(f"{name} runs what is no target: {step['run']}")
                elif missing := [one for one in (call.group(2) or "").split() if "/" in one and not Path(one).exists()]:
                    found.append(f"{name} names what is not there: {missing}")
    return found


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_has_a_form_and_calls_what_the_makefile_has(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(release.ROOT)
    makefile = (release.ROOT / "Makefile").read_text(encoding="utf-8")
    workflow = read(file)
    assert faults(workflow, makefile) == []
    job = next(iter(workflow["jobs"].values()))
    for wrong in (
        {"run": "make nothing"},
        {"run": "curl x | sh"},
        {"uses": "a/b@main"},
        {},
        {"run": "make test", "uses": "a/b@v1"},
    ):
        assert len(faults({**workflow, "jobs": {"one": {**job, "steps": [wrong]}}}, makefile)) == 1
    assert len(faults({**workflow, "permissions": "write-all"}, makefile)) == 1


def test_every_python_that_is_supported_is_tried_on_both_processors_and_a_release_is_checked() -> None:
    jobs = read(GITHUB / "workflows" / "ci.yml")["jobs"]
    classifier = tomllib.loads((release.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in SpecifierSet(classifier["requires-python"])]
    assert jobs["test"]["strategy"]["matrix"] == {"python": wanted, "system": ["ubuntu-24.04", "ubuntu-24.04-arm"]}
    assert set(jobs) == {"lint", "test", "macos", "contracts", "tutorials", "docs", "gpu"}
    steps = read(GITHUB / "workflows" / "release.yml")["jobs"]["build"]["steps"]
    assert any(step.get("run", "").startswith("make release ") for step in steps)


def test_templates_for_issues_are_forms() -> None:
    for file in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml"):
        form = read(file)
        if file.name == "config.yml":
            continue
        assert {"name", "description", "labels", "body"} == set(form)
        names = [part["id"] for part in form["body"]]
        assert len(set(names)) == len(names)
        assert {part["type"] for part in form["body"]} <= {"textarea", "input", "checkboxes"}
        assert all(part["attributes"]["label"] for part in form["body"])


def test_a_machine_without_a_gpu_says_that_the_job_was_skipped(tmp_path: Path) -> None:
    make = shutil.which("make")
    assert make is not None
    bare = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = subprocess.run([make, "test-gpu"], cwd=release.ROOT, env=bare, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("::notice") and "skipped: this machine has no NVIDIA GPU" in done.stdout


INSTRUCTIONS = set("ARG FROM RUN COPY ENV USER WORKDIR VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD".split())


def test_the_container_file_has_a_form_and_names_what_is_there() -> None:
    """No base image is at hand here, so it is not built: its form, its shell and its files are looked at."""
    lines = (release.ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    assert {word for word, _ in steps} <= INSTRUCTIONS and [word for word, _ in steps][:2] == ["ARG", "FROM"]
    sh = shutil.which("sh")
    assert sh is not None
    for word, rest in steps:
        if word == "RUN":
            subprocess.run([sh, "-n", "-c", rest], check=True)
    ignored = (release.ROOT / ".containerignore").read_text(encoding="utf-8").split()
    for name in re.findall(r"/source/([\w./-]+\w)", text.replace("$EXTRAS", "train")):
        assert (release.ROOT / name).is_file() and name.split("/")[0] not in ignored
    assert "--require-hashes" in text and "gcc" not in text
