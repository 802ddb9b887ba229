"""`server`: problems of the run, replies and rewards of a server (class witnessed).

Prompts stand in the run's own file, so what a group is about never depends on the server. What it says in a turn
becomes part of the rollout file; what it pays, of the file's header. A validator plays the same answers to it and
accepts what it hears alike. A server that does not answer in time, or not in form, is undecided: nobody's fault.
"""

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from node.bounded_dict import BoundedDict
from node.environments.base import Defaults, Determinism, Problem, Reply, Tokenizer, Transcript, answer_of, reply_of
from node.environments.dataset import unusable_rows
from node.environments.errors import DatasetError, EnvironmentFault, Undecided
from node.environments.files import data_file, read_rows
from node.environments.prompts import ListedProblems, check_template, read_prompt
from node.environments.server.dial import Episode, ServerReply, split_url
from node.environments.server.mcp import SCHEMES as HTTP
from node.environments.server.mcp import STDIO, McpEpisode
from node.environments.server.openenv import SCHEMES as WEBSOCKET
from node.environments.server.openenv import OpenEnvEpisode
from node.environments.tools.form import tell_result
from node.errors import Mistake, Mistakes


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """path: below the run's assets; url: of the server; protocol: 'openenv' (ws, wss) or 'mcp' (http, https, or
    stdio:NAME, a program of each member's own); turns: most answers of a rollout; seconds: that the server may take
    over one; result_characters: of what it says that are told; action, shown: of OpenEnv, the action's field for an
    answer and the observation's that is told; score_tool: of MCP, the tool that grades; template: 'plain' or 'chat';
    held_back_share: of the problems, for evaluation."""

    path: str
    url: str
    protocol: str = "openenv"
    turns: int = 8
    seconds: float = 10.0
    result_characters: int = 2000
    action: str = "message"
    shown: str = "message"
    score_tool: str = "score"
    template: str = "plain"
    held_back_share: float = 0.05


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """reset: with what the server begins an episode, such as its seed."""

    problem_id: str
    prompt: Any
    reset: dict[str, Any] = {}


_Key = tuple[str, tuple[str, ...]]
"""(problem id, answers so far)."""


class ServerEnvironment(ListedProblems, Defaults):
    name = "server"
    determinism: Determinism = "witnessed"

    def __init__(self, rows: Sequence[_Row], tokenizer: Tokenizer, arguments: Arguments, *, at_once: int = 8) -> None:
        """Raises ValueError for a prompt that cannot be used."""
        self._at_once = at_once  # episodes that a server is asked about side by side
        self.turns = arguments.turns
        self._arguments, self._tokenizer = arguments, tokenizer
        self._chat = arguments.template == "chat"
        self._rows = {row.problem_id: row for row in rows}
        problems = [self._problem(row) for row in rows]
        self.hold(problems, arguments.held_back_share)
        self._begin()

    def _begin(self) -> None:
        self.gave_up = 0
        self._lock = threading.Lock()
        self._open: dict[_Key, Episode] = {}
        self._said: BoundedDict[_Key, ServerReply] = BoundedDict(1 << 12)

    def _problem(self, row: _Row) -> Problem:
        before, prompt = read_prompt(row.prompt)
        check_template(before, chat=self._chat)
        return Problem(row.problem_id, prompt, (), before=before)

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        """Raises Undecided."""
        heard = self._heard(problem.problem_id, self._answers(transcript))
        if heard.done:
            return None
        return self.reply_tokens(tell_result(heard.shown, self._arguments.result_characters))

    def steps(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[Reply]:
        # These threads wait and do not compute. One slow episode holds up none of the others.
        with ThreadPoolExecutor(self._at_once) as threads:
            return list(threads.map(partial(reply_of, self), problems, transcripts))

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        """The server's last reward; 0 for none, for one that is not of 0 to 1, and for answers that were cut off."""
        with ThreadPoolExecutor(self._at_once) as threads:
            found = list(threads.map(self._reward, problems, transcripts))
        self.gave_up += found.count(None)
        return [reward or 0.0 for reward in found]

    def _reward(self, problem: Problem, transcript: Transcript) -> float | None:
        # Worth nothing whatever the server would say, so the server is not asked.
        if answer_of(self._tokenizer, transcript) is None:
            return 0.0
        try:
            reward = self._heard(problem.problem_id, self._answers(transcript)).reward
        except Undecided:
            return None
        return reward if reward is not None and math.isfinite(reward) and 0 <= reward <= 1 else 0.0

    def _answers(self, transcript: Transcript) -> tuple[str, ...]:
        return tuple(self._tokenizer.decode(one.tokens) for one in transcript if one.sampled)

    def _heard(self, problem_id: str, answers: tuple[str, ...]) -> ServerReply:
        """What the server says behind the last of these answers, asked once. Raises Undecided."""
        key = problem_id, answers
        with self._lock:
            # A server may say something else the second time, and the first word already stands in the rollout file.
            known = self._said.get(key)
            # Taken out: an episode has one state, and two threads must not answer in it.
            episode = self._open.pop((problem_id, answers[:-1]), None) if known is None else None
        if known is not None:
            return known
        begun = episode is not None
        episode = episode or self._new(problem_id)
        try:
            if not begun:
                episode.begin(self._rows[problem_id].reset)
            heard = [episode.say(answer) for answer in (answers[-1:] if begun else answers)][-1]
        except Undecided:
            episode.close()
            raise
        with self._lock:
            self._said[key] = heard
        # An episode that is over has no next turn. Kept, it would hold one of the server's places.
        if heard.done:
            episode.close()
        else:
            self._keep(key, episode)
        return heard

    def _new(self, problem_id: str) -> Episode:
        one = self._arguments
        if one.protocol == "openenv":
            return OpenEnvEpisode(one.url, one.seconds, one.action, one.shown)
        return McpEpisode(one.url, one.seconds, problem_id, one.score_tool)

    def _keep(self, key: _Key, episode: Episode) -> None:
        """For its next turn; those that waited longest are given up, and would be played again."""
        with self._lock:
            # Two threads may have played the same answers at once: one episode is enough.
            spare = [self._open.pop(key)] if key in self._open else []
            self._open[key] = episode
            # Episodes that wait for their next turn.
            spare += [self._open.pop(next(iter(self._open))) for _ in range(len(self._open) - 64)]
        # Outside of the lock: a server may take its time to let go.
        for one in spare:
            one.close()

    def another(self) -> Self:
        other = copy(self)
        # Episodes and what was heard are the copy's own; rows and problems are shared.
        other._begin()
        return other

    def close(self) -> None:
        with self._lock:
            episodes, self._open = list(self._open.values()), {}
        for episode in episodes:
            episode.close()


def load(arguments: Arguments, assets: Path, tokenizer: Tokenizer) -> ServerEnvironment:
    """Read and check the whole file; the server is not asked. Raises DatasetError, EnvironmentFault."""
    _check(arguments)
    path, found, rows = data_file(assets, arguments.path), Mistakes(), {}

    def bad(line: int, what: str) -> None:
        found.add(Mistake(f"{path}, line {line}", what, "correct the row: problem_id, prompt, reset"))

    for line, raw in read_rows(path, bad):
        try:
            row = msgspec.convert(raw, _Row)
            if not row.problem_id or rows.setdefault(row.problem_id, row) is not row:
                raise ValueError(f"problem_id {row.problem_id[:80]!r} is empty, or appears a second time")
            read_prompt(row.prompt)
        except ValueError as error:
            bad(line, str(error))
    if found.total:
        raise unusable_rows(found)
    try:
        environment = ServerEnvironment(list(rows.values()), tokenizer, arguments)
    except ValueError as error:
        raise DatasetError("the dataset cannot be used", str(error), "set template = 'chat'") from None
    if not environment.size or not environment.held_back:
        why = f"{path}: {environment.size} problems to train on and {environment.held_back} held back for evaluation"
        raise DatasetError("the dataset cannot be used", why, "add rows, or change held_back_share")
    return environment


def _check(arguments: Arguments) -> None:
    schemes = {"openenv": WEBSOCKET, "mcp": HTTP}.get(arguments.protocol)
    try:
        if schemes is None:
            raise ValueError(f"protocol = {arguments.protocol[:40]!r} is neither 'openenv' nor 'mcp'")
        if arguments.protocol != "mcp" or not STDIO.fullmatch(arguments.url):
            split_url(arguments.url, schemes)
        if arguments.template not in ("plain", "chat") or not 0 < arguments.held_back_share < 1:
            raise ValueError("template is 'plain' or 'chat', held_back_share lies between 0 and 1")
        if not 1 <= arguments.turns <= 64 or not 0.1 <= arguments.seconds <= 60:
            raise ValueError("turns are 1 to 64, seconds 0.1 to 60")
        if not 16 <= arguments.result_characters <= 1 << 18:
            raise ValueError("result_characters are 16 to 262144")
    except ValueError as error:
        raise EnvironmentFault("environment 'server' cannot be loaded", str(error), "correct args") from None
