"""What a demo leaves behind: DIR/report with the curve, the numbers, the chain's events and the trained model.

Reads the last snapshot and the trainer's spool; asks nobody anything. Files are written beside their final
name and renamed, so a report is never half there.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cli.demo.plot import running_mean
from cli.demo.snapshot import Snapshot
from cli.output import rounded
from node.errors import StateError
from node.inference.model_files import as_bf16, is_model_file
from node.state.files import write_whole
from node.status_schema import PretrainingPart
from node.training.spool import Spool
from node.weights.export import CONFIG_NAME, holds_adapter, write_both
from node.weights.images import mapped
from protocol.policy import decode_image


def summarise(
    snapshot: Snapshot, *, seed: int | None, report: Path | None, events: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The object that `--json` prints and summary.json holds. Rewards: means over the first and last `reward_window`
    evaluations, which share none. Pay: of the chain's events, not what members say."""
    ends, pay = snapshot.ends, _pay(events, snapshot.pool)
    schema_version = 1
    return {
        "schema_version": schema_version,
        "run": snapshot.run_name,
        "seed": seed,
        "reward_first": rounded(ends.first),
        "reward_last": rounded(ends.last),
        "reward_window": ends.window,
        "target": snapshot.target,
        "steps": snapshot.step,
        "seconds": round(snapshot.training_seconds, 2),
        "seconds_total": round(snapshot.elapsed, 2),
        "ended_by": (snapshot.training.ended_by if snapshot.training else None) or "",
        "nodes": len(snapshot.rows),
        "members": [
            {
                "name": row.participant.name,
                "role": row.participant.role,
                "address": row.participant.address,
                "cheat": row.participant.cheat,
                "files_accepted": row.files_accepted,
                "files_rejected": row.files_rejected,
                "restarts": row.process.restarts,
                "paid_wei": str(pay.by_node.get(row.participant.address.lower(), 0)),
                "owed_wei": str(row.owed_wei),
            }
            for row in snapshot.rows
        ],
        "validators": len(snapshot.validators),
        "quorum": snapshot.quorum,
        "disputes": dict(snapshot.disputes),
        "quarantined": {one.validator: one.why for one in snapshot.quarantined},
        "pay": {"tables": pay.tables, "claims": pay.claims, "paid_wei": str(sum(pay.by_node.values()))},
        "slashed": {slash.node: slash.transaction for slash in snapshot.slashed},
        "verdicts": {
            "accepted": snapshot.verdicts.accepted,
            "rejected": snapshot.verdicts.rejected,
            "by_reason": dict(snapshot.verdicts.by_reason),
        },
        "staleness": dict(snapshot.staleness),
        "pretraining": _rounds(snapshot.pretraining),
        "chain": {"chain_id": snapshot.chain_id, "pool": snapshot.pool, "block": snapshot.block},
        "report": str(report) if report else None,
    }


def _rounds(part: PretrainingPart | None) -> dict[str, Any] | None:
    """Of a run that pre-trains: how far it came, and whether its replicas are equal."""
    if part is None:
        return None
    losses = [loss for _, loss in part.losses]
    return {
        "rounds": part.round,
        "of_rollouts": part.of_rollouts,
        "loss_first": rounded(losses[0] if losses else None),
        "loss_last": rounded(losses[-1] if losses else None),
        "eval_loss": rounded(part.eval_loss),
        "bits_per_parameter": part.bits_per_parameter,
        "outer_root": part.outer_root,
        "outer_states": {"equal": part.outer_states.equal, "of": part.outer_states.of},
    }


class PoolPay(NamedTuple):
    """What the chain says of a pool's money. by_node: addresses, in lower case -> wei."""

    tables: int
    claims: int
    by_node: dict[str, int]


def _pay(events: Iterable[Mapping[str, Any]], pool: int | None) -> PoolPay:
    mine = [event for event in events if event.get("pool") == pool]
    claims = [event for event in mine if event["event"] == "Claimed"]
    by_node: dict[str, int] = {}
    for claim in claims:
        node = claim["node"].lower()
        by_node[node] = by_node.get(node, 0) + int(claim["amount_wei"])
    return PoolPay(sum(event["event"] == "EarningsPosted" for event in mine), len(claims), by_node)


def write_report(
    directory: Path,
    snapshot: Snapshot,
    *,
    spool: Path | None,
    events: Iterable[Mapping[str, Any]],
    seed: int | None,
) -> dict[str, Any]:
    """Fill `directory`; returns the summary. spool: the trainer's, None where it is not on this machine."""
    directory.mkdir(parents=True, exist_ok=True)
    metrics, events = read_metrics(spool) if spool else [], list(events)
    write_lines(directory / "metrics.jsonl", metrics or metrics_of(snapshot))
    write_lines(directory / "events.jsonl", events)
    if snapshot.rewards:
        draw_curve(directory, snapshot)
    if spool:
        copy_model(spool, directory / "model")
    summary = summarise(snapshot, seed=seed, report=directory, events=events)
    write_whole(directory / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def read_metrics(spool: Path) -> list[dict[str, Any]]:
    """One object per step, in order, as learner and evaluator wrote them."""
    held = Spool(spool)
    found = []
    for path in sorted((spool / "out").glob("step-*.json")):
        try:
            found.append(held.record(int(path.stem.removeprefix("step-"))))
        except (OSError, ValueError, StateError):
            continue  # no file of the learner's, or half of one
    return found


def metrics_of(snapshot: Snapshot) -> list[dict[str, Any]]:
    """What is known without the spool: the curves."""
    train = dict(snapshot.train_rewards)
    return [{"step": step, "eval_reward": value, "reward_mean": train.get(step)} for step, value in snapshot.rewards]


def copy_model(spool: Path, target: Path, step: int | None = None) -> bool:
    """A complete policy as a Hugging Face-format directory: the newest, or the one after `step` steps if that is still
    there. False when there is none yet.

    An adapter is merged into the start model, and stands beside it in PEFT's format.
    """
    images, source = Spool(spool).images(), spool / "assets" / "model"
    image = images.get(step if step in images else max(images, default=-1))
    if image is None or not source.is_dir():
        return False
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and is_model_file(path):
            shutil.copyfile(path, partial / path.name)
    config = partial / CONFIG_NAME
    # The start model may be float32; loaders believe its config, and would widen what is bf16.
    config.write_bytes(as_bf16(config.read_bytes(), decode_image(mapped(image))))
    if holds_adapter(image):
        write_both(image, partial, source)
    else:
        shutil.copyfile(image, partial / "model.safetensors")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return True


def draw_curve(directory: Path, snapshot: Snapshot) -> None:
    """reward.svg and reward.png."""
    os.environ.setdefault("MPLCONFIGDIR", str(directory.parent / ".matplotlib"))
    import matplotlib

    # Without a display: a server has none.
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "intellect-node"  # equal curves give equal files
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150)
    try:
        _draw(axes, snapshot)
        figure.tight_layout()
        figure.savefig(directory / "reward.svg", metadata={"Date": None})
        figure.savefig(directory / "reward.png")
    finally:
        pyplot.close(figure)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """JSON Lines."""
    write_whole(path, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode())


def _draw(axes: Any, snapshot: Snapshot) -> None:
    steps, values = _columns(snapshot.rewards)
    axes.plot(steps, values, color="#9ecae1", linewidth=1, label="held-back problems")
    mean_steps, means = _columns(running_mean(snapshot.rewards))
    axes.plot(mean_steps, means, color="#08519c", linewidth=2, label="mean of 10 steps")
    if snapshot.train_rewards:
        train_steps, train_values = _columns(snapshot.train_rewards)
        axes.plot(train_steps, train_values, color="#bdbdbd", linewidth=0.8, label="accepted rollouts", zorder=1)
    if snapshot.target is not None:
        axes.axhline(snapshot.target, color="#e6550d", linewidth=1, linestyle="--", label="goal")
    axes.set(xlabel="step", ylabel="mean reward", ylim=(0, 1), title=f"{snapshot.run_name}: reward by step")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
