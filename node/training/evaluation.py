"""The evaluator process: what each policy scores on held-back problems, found beside training, after the policy is out.

`python -m node.training.evaluation --spool DIR`. Takes the policies in order as the learner publishes them and writes
one file for each. Killed at any instant it goes on where it was: a policy's evaluation follows from seed and step.
"""

# ruff: noqa: E402 - the environment must be set before torch loads

import os
import sys
import time

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from node.training.bells import ring
from node.training.orphan import stop_with_stdin

if __name__ == "__main__":
    stop_with_stdin()

import msgspec
import torch

from node.state.files import write_whole
from node.training.evaluations import Evaluations
from node.training.evaluator import Evaluator, evaluation_engine
from node.training.memory import during
from node.training.program import alone, settings_of, spool_named_on_the_command_line
from node.training.spool import Spool
from protocol.run import decode_run


def evaluate_all(spool: Spool) -> None:
    """Until the last policy that has to be evaluated is."""
    settings = settings_of(spool)
    torch.set_num_threads(settings.threads)
    run = decode_run(spool.run_path.read_bytes(), desk=True)  # the daemon has checked it
    left = Evaluations(spool, run)
    # Before the model is read: a start that finds nothing left to do takes neither time nor memory.
    if left.next() is None:
        return
    with during("evaluation", settings):
        evaluator = Evaluator(run, spool.assets, evaluation_engine(settings))
        try:
            while (step := left.next()) is not None:  # which one it is may change: a later state may be taken over
                if spool.is_complete(step):
                    _evaluate(spool, evaluator, step)
                else:
                    spool.wait()
        finally:
            evaluator.close()


def _evaluate(spool: Spool, evaluator: Evaluator, step: int) -> None:
    started = time.monotonic()
    found = evaluator.evaluate(evaluator.read(spool.policy_path(step)), step)
    found["eval_seconds"] = round(time.monotonic() - started, 4)
    write_whole(spool.answers_path(step), msgspec.json.encode(evaluator.answers()))  # first: then the step is complete
    write_whole(spool.evaluation_path(step), msgspec.json.encode(found))
    ring(spool.root)


def main() -> int:
    spool = spool_named_on_the_command_line("Evaluate the policies of a spool. Started by the daemon.")
    os.nice(5)  # how far the evaluator stands back for the learner and the samplers where they share cores (as in nice)
    said = {"event": "evaluation.failed"}
    return alone("evaluator", spool, lambda: evaluate_all(spool), spool.evaluator_error_path, said)


if __name__ == "__main__":
    sys.exit(main())
