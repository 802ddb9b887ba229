"""The page in a real Chromium: what a visitor sees, hears read out, and is safe from.

One browser for all of them, a tab of its own for each. Screenshots lie in `screenshots/`, which git ignores.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from node.web.host import bind
from node.web.listener import HttpListener
from node.web.page.page import HISTORY, WebPage
from node.web.page.series import Point, SeriesFile
from scripts.browser import find_browser
from tests.chromium import Chromium, Tab, open_tab
from tests.swarms import status, typed

PICTURES = Path(__file__).resolve().parents[4] / "screenshots"
READY = "document.getElementById('glance')?.children.length === 5"
# The members come in a message of their own, after what the glance shows.
MEMBERS = "document.querySelector('#swarm svg') && document.querySelector('#members tbody tr')"
SCRIPT = Path(__file__).with_name("accessible.js").read_text(encoding="utf-8")
HOSTILE = "<img src=x onerror='window.harmed=1'><script>window.harmed=1</script>"

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome here: see scripts/browser.py")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    browser = Chromium(str(find_browser()), tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.stop()


class Swarm:
    """What the node says; a test changes it."""

    def __init__(self, **shape: Any) -> None:
        self.shape: dict[str, Any] = {"step": 40} | shape
        self.changes: dict[str, Any] = {}

    def status(self) -> dict[str, Any]:
        return status(**self.shape) | self.changes


@asynccontextmanager
async def daemon(swarm: Swarm, folder: Path, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """One life of a node that serves its page; yields HOST:PORT."""
    listener = HttpListener(bind(address, "the page", "--page"))
    async with trio.open_nursery() as nursery:
        listener.mount(await nursery.start(WebPage(lambda: typed(swarm.status()), folder, seen=0.1).run))
        await nursery.start(listener.run)
        yield listener.place
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def visit(chromium: Chromium, swarm: Swarm, folder: Path) -> AsyncIterator[Tab]:
    """The page of a swarm, opened and drawn."""
    async with daemon(swarm, folder) as place, open_tab(chromium) as tab:
        await tab.size(1280, 900)
        await tab.go(f"http://{place}/")
        await tab.until(READY)
        yield tab


def text(id: str) -> str:
    return f"document.getElementById('{id}').textContent"


async def test_a_visitor_sees_the_swarm_and_the_browser_has_no_complaint(chromium: Chromium, tmp_path: Path) -> None:
    kept = SeriesFile(tmp_path / HISTORY)
    kept.read(Swarm().status()["run"]["run_root"])
    kept.write({"load": [Point(178_999_900 + i, (7.0, 9000.0 + i, 30.0)) for i in range(60)]}, {})
    kept.close()
    async with visit(chromium, Swarm(), tmp_path) as tab:
        await tab.says("title", "sort-four-digits")
        await tab.says("headline", "rose from")
        await tab.until("document.querySelectorAll('#members tbody tr').length === 7")
        await tab.says("members", "Left out")
        await tab.says("members-note", "left out by the trainer")
        await tab.until("document.querySelectorAll('#reward svg, #swarm svg, #load svg').length === 3")
        for id in ("reward", "swarm", "load", "split", "age", "way", "verdicts", "trust", "policies", "money", "node"):
            await tab.until(f"document.getElementById('{id}').children.length")
        assert tab.complaints == []
        assert {urlsplit(url).netloc for url in tab.requests} == {await tab.look("location.host")}


async def test_what_changes_arrives_without_a_reload(chromium: Chromium, tmp_path: Path) -> None:
    swarm = Swarm()
    async with visit(chromium, swarm, tmp_path) as tab:
        await tab.look("window.same = 1")
        swarm.shape["step"] = 41
        await tab.until(f"{text('glance')}.includes('Step41') || {text('glance')}.includes('41 of 150')")
        swarm.changes["training"] = swarm.status()["training"] | {
            "alarms": [{"name": "entropy_rise", "step": 41, "text": "entropy 2 is more than 1.5 times its lowest"}]
        }
        await tab.until("!document.getElementById('alarms').hidden && document.querySelector('#policies svg')")
        await tab.says("alarms", "entropy rise")
        assert await tab.look("window.same") == 1 and tab.complaints == []


async def test_a_run_that_pretrains_shows_its_rounds_and_no_other_run_does(chromium: Chromium, tmp_path: Path) -> None:
    swarm = Swarm()
    async with visit(chromium, swarm, tmp_path) as tab:
        assert await tab.look("document.getElementById('rounds-panel').hidden") is True
        swarm.changes["pretraining"] = {
            "round": 4, "rounds": 20, "loss": 2.5, "tokens_per_second": 2187.0, "bits_per_parameter": 4.16,
            "outer_states": {"equal": 5, "of": 6}, "losses": [(0, 3.5), (1, 3.0), (2, 2.5)],
            "peers": [{"address": HOSTILE, "replica_id": 3, "round": 4, "in": True, "equal": None}],
        }  # fmt: skip
        await tab.until("document.querySelector('#rounds svg')")
        await tab.says("rounds-note", "round 5 of 20")
        await tab.says("rounds-facts", "5 of 6")
        await tab.says("rounds-peers", "has contributed")
        assert await tab.look("window.harmed ?? 0") == 0 and tab.complaints == []


async def test_names_that_members_chose_are_text(chromium: Chromium, tmp_path: Path) -> None:
    swarm = Swarm()
    told = swarm.status()
    told["swarm"][1] |= {"role": HOSTILE, "state": HOSTILE, "activity": HOSTILE, "address": HOSTILE}
    told["contributions"]["recent"][-1] |= {"accepted": False, "reason": HOSTILE, "detail": HOSTILE, "node": HOSTILE}
    told["contributions"]["by_reason"] = {HOSTILE: 3}
    told["slashed"][0] |= {"reason": HOSTILE, "transaction": HOSTILE}
    told["run"]["name"] = told["node"]["engine"] = HOSTILE
    told["validator_audits"]["quarantined"] = [{"address": HOSTILE, "why": HOSTILE}]
    told["pay"]["warnings"] = [HOSTILE]
    told["events"] = [{"at": 1.79e9, "name": HOSTILE, "text": HOSTILE}]
    swarm.changes = told
    async with visit(chromium, swarm, tmp_path) as tab:
        await tab.until(f"{text('title')}.startsWith('<img src=x onerror')")
        await tab.until("document.body.textContent.split('<img src=x').length > 8")
        assert await tab.look("[window.harmed ?? 0, document.querySelectorAll('main img, main script').length]") == [
            0,
            0,
        ]
        assert tab.complaints == []


async def test_a_node_that_starts_again_is_found_again_with_its_history(chromium: Chromium, tmp_path: Path) -> None:
    swarm = Swarm()
    async with open_tab(chromium) as tab:
        async with daemon(swarm, tmp_path) as place:
            await tab.go(f"http://{place}/")
            await tab.until(f"{text('headline')}.includes('rose from')")  # steps may be told after the figures
        await tab.until(f"{text('link')}.startsWith('lost contact since')")
        assert await tab.look("document.getElementById('link').dataset.state") == "lost"
        await tab.says("headline", "rose from")
        later = Swarm(step=60)
        # this life's trainer remembers only its newest steps
        training = later.status()["training"]
        later.changes["training"] = training | {name: training[name][-3:] for name in ("reward_eval", "reward_train")}
        async with daemon(later, tmp_path, place):
            await tab.until(f"{text('link')} === 'live' && {text('glance')}.includes('60')")
            label = "document.querySelector('#reward svg')?.getAttribute('aria-label')"
            await tab.until(f"{label}?.includes('at step 0,') && {label}.includes('at step 60')")


async def test_a_phone_shows_all_of_it_without_scrolling_sideways(chromium: Chromium, tmp_path: Path) -> None:
    async with visit(chromium, Swarm(members=30), tmp_path) as tab:
        await tab.size(320, 700)
        await tab.until("document.querySelector('#reward svg')?.getBoundingClientRect().width < 320")
        assert await tab.look("document.documentElement.scrollWidth") == 320
        await shoot(tab, "phone")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_has_a_name_an_order_and_enough_contrast(
    scheme: str, chromium: Chromium, tmp_path: Path
) -> None:
    swarm = Swarm(members=30)
    swarm.changes["training"] = swarm.status()["training"] | {"alarms": [{"name": "mismatch", "step": 3, "text": "x"}]}
    async with visit(chromium, swarm, tmp_path) as tab:
        await tab.prefer(scheme)
        await tab.until("!document.getElementById('alarms').hidden")
        await tab.until(MEMBERS)
        await tab.look("document.querySelector('details').open = true")
        found = await tab.look(SCRIPT)
        assert found["faults"] == []
        assert found["texts"] > 150 and found["names"] > 4, "the checks have looked at something"
        await shoot(tab, scheme)


async def test_the_checks_for_contrast_and_names_find_what_is_wrong(chromium: Chromium, tmp_path: Path) -> None:
    """The control."""
    async with visit(chromium, Swarm(), tmp_path) as tab:
        wrongs = (
            "document.querySelector('.headline').style.color = '#999'",
            "document.getElementById('theme').replaceChildren()",
            "document.getElementById('theme').removeAttribute('aria-label')",
            "document.querySelector('#swarm svg').removeAttribute('aria-label')",
            "document.querySelector('h1').remove()",
        )
        await tab.until(MEMBERS)
        found = await tab.look(f"{'; '.join(wrongs)};\n{SCRIPT}")  # at once: the page draws itself anew
        faults = " ".join(found["faults"])
        for word in ("contrast", "button", "svg", "heading"):
            assert word in faults


async def test_the_chosen_colours_stay_chosen(chromium: Chromium, tmp_path: Path) -> None:
    async with visit(chromium, Swarm(), tmp_path) as tab:
        await tab.prefer("light")
        paper = "getComputedStyle(document.body).backgroundColor"
        light = await tab.look(paper)
        assert await tab.look("document.getElementById('theme').getAttribute('aria-label')") == "Use the dark colours"
        await tab.look("document.getElementById('theme').click()")
        dark = await tab.look(paper)
        await tab.ask("Page.reload")
        await tab.until(READY)
        assert dark != light and await tab.look(paper) == dark


async def test_a_keyboard_reaches_every_control_and_finds_a_member(chromium: Chromium, tmp_path: Path) -> None:
    swarm = Swarm(members=60)
    async with visit(chromium, swarm, tmp_path) as tab:
        await tab.until("document.getElementById('more') && document.querySelector('#members tbody tr')")
        reached: list[str] = []
        for _ in range(12):
            await tab.press("Tab")
            reached.append(await tab.look("document.activeElement.id || document.activeElement.className"))
        assert reached[0] == "skip" and {"theme", "find", "members", "more"} <= set(reached)
        address = swarm.status()["swarm"][40]["address"]
        await tab.look("document.getElementById('find').focus()")
        await tab.ask("Input.insertText", text=address[2:9])
        await tab.until("document.querySelectorAll('#members tbody tr').length === 1")
        await tab.says("members", address[:6])


@pytest.mark.parametrize("role", ["worker", "validator"])
async def test_what_a_role_does_not_know_is_said(role: str, chromium: Chromium, tmp_path: Path) -> None:
    async with visit(chromium, Swarm(role=role), tmp_path) as tab:
        for id in ("age", "split", "way"):
            await tab.says(id, f"this node is a {role}")
        await tab.says("reward-note", "as the trainer tells it")
        assert tab.complaints == []


async def test_a_node_that_has_just_started_says_what_it_waits_for(chromium: Chromium, tmp_path: Path) -> None:
    swarm = Swarm()
    phase = {"name": "stake", "text": "looking whether a stake answers for it", "since_seconds": 3.0, "progress": None}
    swarm.changes = {"node": {"role": "", "state": "starting", "phase": phase}, "run": {"step": -1}, "swarm": []}
    swarm.changes |= dict.fromkeys(("training", "contributions", "validator_audits", "leader", "pay")) | {"events": []}
    async with visit(chromium, swarm, tmp_path) as tab:
        await tab.says("headline", "looking whether a stake answers for it")
        assert tab.complaints == []


async def shoot(tab: Tab, name: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    await tab.picture(PICTURES / f"{name}.png")
