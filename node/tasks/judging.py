"""A judge task for the answers of a rollout file: what it asks for, and what its judges' opinions come to. Pure, and
blocking where it reads a task's folder."""

from typing import Any

from protocol.blobs import describe
from protocol.run import Asset, RunSpec
from protocol.tasks import COPIES, SUBJECT, TaskSpec


def judge_task(run: RunSpec, file: bytes, answers: int, **fields: Any) -> TaskSpec:
    """file: the rollout file, which goes along as the asset SUBJECT; answers: in it; fields: of a TaskSpec."""
    root = describe(file).root.hex()
    asset = Asset(path=SUBJECT, root=root, size=len(file))
    # Tokens of a judge's question beside task, reference and answer.
    room = 2 * (run.rollout.max_prompt_tokens + run.rollout.max_output_tokens) + 2048
    given = {**fields, "samples": 1, "copies": COPIES, "max_prompt_tokens": room}
    return TaskSpec(kind="judge", last=answers, subject=root, assets=(asset,), **given)


def scores_by_place(scores: dict[str, float]) -> dict[tuple[int, int], float]:
    """(group, sample) -> agreed score, from a judgement's names ("group/sample")."""
    found = {tuple(map(int, name.split("/"))): score for name, score in scores.items()}
    return {(group, sample): score for (group, sample), score in found.items()}
