"""An evaluation as a job of the engine's process: the figures of a loaded policy, written as JSON."""

import time
from pathlib import Path

import msgspec

from node.inference.evaluation import Evaluation
from node.inference.session import Session
from node.inference.wire import Evaluate, Evaluated
from node.state.files import write_whole


def evaluate(session: Session, order: Evaluate) -> Evaluated:
    """Raises EngineError."""
    started = time.monotonic()
    others = session.evaluation_environments()
    evaluation = Evaluation(session.run, session.environment, others, session.generator(order.policy_root))
    figures = evaluation.figures(order.step)
    write_whole(Path(order.out_path), msgspec.json.encode(figures))
    return Evaluated(id=order.id, path=order.out_path, samples=evaluation.samples, seconds=time.monotonic() - started)
