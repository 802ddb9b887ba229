"""A worker's submission: draw, sample, prove, write."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from node.environments.base import Environment, Problem, Transcript
from node.environments.errors import Undecided
from node.inference.engine import GenerationRequest as Sample
from node.inference.errors import EngineError
from node.inference.proofs import ProofRows, prove_all
from node.inference.session import EngineSession
from node.inference.tasks import DrawnTasks, heard
from node.inference.turns import PlayedRollout, play
from node.inference.wire import Produce, Produced
from node.state.files import write_whole
from protocol.checks import subject_of
from protocol.envelope import seal
from protocol.recipe import ALIKE
from protocol.rollout import MAX_FILE_BYTES, RolloutBatch, RolloutHeader, SampleRow, encode
from protocol.sampling import uniforms


def produce(session: EngineSession, order: Produce) -> Produced:
    """Write the rollout file that `order` asks for. session: at that order. Raises EngineError."""
    started = time.monotonic()
    tasks = _tasks(session, order.capacity)
    _check_size(session)
    samples = _requests(session, tasks)
    groups = [i // session.run.rollout.group_size for i in range(len(samples))]
    rollouts = _play(session, tasks, groups, samples)
    about, engine = session.submission, session.engine.name
    root = about.policy_root.hex()
    header = RolloutHeader(order.pool, about.node, root, about.index, capacity=order.capacity, engine=engine)
    rows = tuple(_rows(session, header, tasks, rollouts))
    # The rows choose which bytes of the policy are asked for: nobody can answer before they are fixed.
    answer = session.answer(session.challenge(rows))
    rewards, sure = _rewards(session, tasks, groups, rollouts)
    told = heard(tasks.witnessed(session.environment), rewards, session.run.rollout.group_size)
    header = msgspec.structs.replace(header, freshness=answer, heard=told)
    batch = RolloutBatch(header, rows)
    write_whole(Path(order.out_path), encode(batch))
    return Produced(
        id=order.id,
        path=order.out_path,
        units=batch.units,
        samples=len(rollouts),
        tokens=sum(len(row.prompt) + len(row.output) for row in rows),
        seconds=time.monotonic() - started,
        reward_estimate=float(np.mean(rewards)) if sure else None,
        informative=_informative(rewards, len(tasks.prompts)) if sure else None,
    )


def _informative(rewards: Sequence[float], groups: int) -> float:
    return float(np.mean(np.ptp(np.reshape(rewards, (groups, -1)), axis=1) > ALIKE))


def _rewards(
    session: EngineSession, tasks: DrawnTasks, groups: Sequence[int], rollouts: Sequence[PlayedRollout]
) -> tuple[list[float], bool]:
    """By this node's own reckoning, and whether it could tell all of them. Raises EngineError where a server did not
    say them: the file could not tell what it paid, so nobody would take it."""
    environment = session.environment
    # Counted for this thread (node.inference.guarded): other jobs' undecided answers are not this file's.
    before = environment.gave_up
    rewards = tasks.rewards(environment, groups, [rollout.transcript for rollout in rollouts])
    sure = environment.gave_up == before
    if not sure and tasks.witnessed(environment):
        raise EngineError("a server does not say its rewards", "it did not answer in time", "see whether it is up")
    return rewards, sure


def _tasks(session: EngineSession, capacity: int) -> DrawnTasks:
    try:
        tasks = session.tasks(capacity)
    except ValueError as error:
        raise EngineError("a submission cannot be made", str(error), "report this: the daemon sent it") from None
    most = session.run.rollout.max_prompt_tokens
    for problem, prompt in zip(tasks.problems, tasks.prompts, strict=True):
        if not 1 <= len(prompt) <= most:
            raise EngineError(
                "a problem does not fit the run",
                f"the prompt of {problem.problem_id[:80]} has {len(prompt)} tokens, "
                f"rollout.max_prompt_tokens is {most}",
                "the run's owner must raise the limit or shorten the problem",
            )
    return tasks


def _check_size(session: EngineSession) -> None:
    """A record of experts may be most of a file: whether the longest that the run allows is one that others read."""
    rollout, routing = session.run.rollout, session.engine.routing
    if routing is None:
        return
    said = rollout.max_environment_tokens if session.bounds.turns > 1 else 0
    tokens = rollout.max_prompt_tokens + rollout.max_output_tokens + said
    size = rollout.samples_per_file * tokens * (routing.width * routing.entry + 4)
    if size > MAX_FILE_BYTES:
        raise EngineError(
            "this run's rollout files could become too large",
            f"{rollout.samples_per_file} samples of {tokens:,} tokens with {routing.chosen} experts in "
            f"{routing.layers} layers are {size / 2**20:,.0f} MiB, a file has {MAX_FILE_BYTES >> 20} at most",
            "the run's owner must lower rollout.prompts_per_file, group_size or max_output_tokens",
        )


def _requests(session: EngineSession, tasks: DrawnTasks) -> list[Sample]:
    return [
        Sample(prompt, uniforms(session.seed(group, i), tasks.limits[group]))
        for group, prompt in enumerate(tasks.prompts)
        for i in range(session.run.rollout.group_size)
    ]


def _play(
    session: EngineSession, tasks: DrawnTasks, groups: Sequence[int], samples: Sequence[Sample]
) -> list[PlayedRollout]:
    problems, temperature = [tasks.problems[group] for group in groups], session.run.rollout.temperature
    answers = session.generator()
    rules = session.run.verification
    keep = partial(ProofRows, rules.toploc_k, rules.toploc_batch)
    return play(answers, session.environment, problems, samples, temperature, session.bounds, strict=True, keep=keep)


def _states(environment: Environment, problem: Problem, transcript: Transcript) -> bytes:
    """Raises EngineError where this machine cannot say them again."""
    if len(transcript) == 1:
        return b""
    try:
        return environment.states(problem, transcript)
    except Undecided as undecided:
        raise EngineError("a session's states cannot be told", undecided.why, undecided.remedy) from undecided


def _rows(
    session: EngineSession, header: RolloutHeader, tasks: DrawnTasks, rollouts: Sequence[PlayedRollout]
) -> list[SampleRow]:
    rules, size = session.run.verification, session.run.rollout.group_size
    proofs = prove_all([rollout.rows for rollout in rollouts], rules.toploc_k, rules.toploc_batch)
    rows: list[SampleRow] = []
    for i, one in enumerate(rollouts):
        group, sample = divmod(i, size)
        problem, prompt = tasks.problems[group], tasks.prompts[group]
        states = _states(session.environment, problem, one.transcript)
        experts = b"" if one.experts is None else one.experts.tobytes()
        said = one.output, one.finished, proofs[i], one.segments, states, experts
        bare = SampleRow(group, sample, problem.problem_id, prompt, *said)
        # The envelope says nothing of freshness and of what servers paid: the header has neither yet.
        sealed = seal(bare.proofs, subject_of(header, bare), rules.toploc_k, rules.toploc_batch)
        rows.append(msgspec.structs.replace(bare, proofs=sealed))
    return rows
