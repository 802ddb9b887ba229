"""Where a browser for tests comes from on a machine that has none."""

import os
import subprocess
from pathlib import Path

import pytest

from scripts import browser


def test_a_browser_on_the_path_is_found_and_a_named_one_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("google-chrome", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    assert browser.find_browser() == str(tmp_path / "google-chrome")
    monkeypatch.setenv("CHROMIUM", "mine")
    assert browser.find_browser() == str(tmp_path / "mine")


def test_without_one_it_is_installed_where_that_is_easy_and_else_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 100, "", "E: Unable to locate package chromium\n")

    monkeypatch.setattr(browser, "find_browser", lambda: None)
    monkeypatch.setattr(browser.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(browser.subprocess, "run", run)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert browser.main() == 0, "no browser is no reason to fail"
    assert asked == [browser.UPDATE] and "Unable to locate" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert browser.main() == 0
    assert len(asked) == 1 and "apt install chromium" in capsys.readouterr().err
