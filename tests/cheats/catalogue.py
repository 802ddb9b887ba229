"""Every way for a worker to cheat that we know, as an engine that plugs into the real swarm.

`python -m tests.cheats.catalogue NAME [engine options]` is a drop-in for `python -m node.inference.process`:
`intellect-node join --role worker --engine-command "python -m tests.cheats.catalogue int8"`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from node.calibration import measure
from node.inference import process, server
from node.inference.produce import produce
from node.inference.session import EngineSession
from node.inference.wire import Produce, Produced
from node.state.files import write_whole
from protocol.checks import Reason
from protocol.rollout import decode
from tests.cheats import sessions, tampering, turns
from tests.cheats.other_weights import OtherWeights
from tests.cheats.own_problems import OwnProblems
from tests.cheats.sessions import (
    BestOfMany,
    HostileAnswers,
    SaysBfloat16,
    SmallModel,
    stale,
    with_sampler,
    with_weights,
)
from tests.cheats.tampering import Scene, Tamper, proofs_changed

STATISTICAL = frozenset({Reason.ACTIVATIONS, Reason.SAMPLING})


@dataclass(frozen=True, slots=True)
class Cheat:
    """reasons: those that a validator may give; units: added to what is claimed; older: how many policies back it
    reaches, so that whoever tries it loads that many before; turns: it is about what environments say, and shows what
    it can in a run of several turns (in one of a single turn it makes one up)."""

    what: str
    reasons: frozenset[Reason]
    session: type[EngineSession] = EngineSession
    tamper: Tamper | None = None
    units: int = 0
    older: int = 0
    turns: bool = False

    def produce(self, session: EngineSession, order: Produce) -> Produced:
        """An honest submission's dishonest counterpart."""
        made = produce(session, order)
        if self.tamper is not None:
            path = Path(made.path)
            forged = self.tamper(Scene(session, order, path.read_bytes()))
            write_whole(path, forged)
            if self.turns:
                made = msgspec.structs.replace(made, units=decode(forged, session.run.rollout.samples_per_file).units)
        return msgspec.structs.replace(made, units=made.units + self.units)


def _objective(*reasons: Reason) -> frozenset[Reason]:
    return frozenset(reasons)


_PROOFS = _objective(Reason.BAD_PROOF_FORM)
_FORM = _objective(Reason.MALFORMED)
_TURN = _objective(Reason.FORGED_TURN, Reason.MALFORMED)
_ENDS = _objective(Reason.TERMINATION, Reason.MALFORMED)

CHEATS: dict[str, Cheat] = {
    "other weights": Cheat("weights with 5 % noise", STATISTICAL, OtherWeights),
    "int8": Cheat("weights in int8, per channel", STATISTICAL, with_weights(measure.int8)),
    "int8, says bf16": Cheat("int8 weights; the header says bfloat16", STATISTICAL, SaysBfloat16),
    "int4": Cheat("weights in int4, groups of 128", STATISTICAL, with_weights(measure.int4)),
    "fp8": Cheat("weights in fp8 e4m3, per tensor", STATISTICAL, with_weights(measure.fp8)),
    "step k-1": Cheat("the previous step's weights", STATISTICAL, stale(1), older=1),
    "step k-4": Cheat("the weights of four steps ago", STATISTICAL, stale(4), older=4),
    "small model": Cheat("half of the layers decode, the policy prefills", STATISTICAL, SmallModel),
    "garbage": Cheat("random tokens, the policy prefills", STATISTICAL, with_sampler(measure.garbage)),
    "hostile answer": Cheat("answers that are made to hold up scorers", STATISTICAL, HostileAnswers),
    "changed prompt": Cheat("one prompt token differs", STATISTICAL, with_sampler(sessions.changed_prompt)),
    "best of many": Cheat("four tries, the best reward is handed over", STATISTICAL, BestOfMany),
    "other seed": Cheat("own random numbers", STATISTICAL, with_sampler(measure.other_draw)),
    "temperature 0.9": Cheat("samples colder", STATISTICAL, with_sampler(measure.at_temperature(0.9))),
    "greedy": Cheat("takes the likeliest token", STATISTICAL, with_sampler(measure.greedy)),
    "early stop": Cheat("ends answers half-way", STATISTICAL, with_sampler(sessions.early_stop)),
    "NaN activations": Cheat("activations that are not numbers", STATISTICAL, with_sampler(sessions.nan_activations)),
    "moved proofs": Cheat("proofs of another sample, sealed anew", STATISTICAL, tamper=tampering.moved_proofs),
    "runs on": Cheat(
        "a token after the end", _objective(Reason.TERMINATION, Reason.MALFORMED), with_sampler(sessions.runs_on)
    ),
    "over-long": Cheat("one token over the limit", _FORM | _objective(Reason.UNITS), tamper=tampering.over_long),
    "own problems": Cheat("the easy problems", _objective(Reason.WRONG_DRAW), OwnProblems),
    "skipped problems": Cheat(
        "a group left out", _objective(Reason.INCOMPLETE_GROUP), tamper=tampering.skipped_problems
    ),
    "replayed own file": Cheat(
        "another index's file", _objective(Reason.WRONG_DRAW, Reason.UNITS), tamper=tampering.replayed_own
    ),
    "copied file": Cheat(
        "another worker's tokens", _objective(Reason.WRONG_DRAW, Reason.UNITS), tamper=tampering.copied
    ),
    "copied bytes": Cheat(
        "another worker's file as it is", _objective(Reason.WRONG_IDENTITY), tamper=tampering.copied_as_it_is
    ),
    "wrong policy root": Cheat(
        "a header of another policy", _objective(Reason.WRONG_IDENTITY), tamper=tampering.wrong_policy
    ),
    "forged units": Cheat("more units than tokens", _objective(Reason.UNITS), units=100),
    "forged reward": Cheat("a reward column", _FORM, tamper=tampering.forged_column("reward", pa.float32())),
    "forged log-probs": Cheat(
        "a column of log-probabilities", _FORM, tamper=tampering.forged_column("logprobs", pa.list_(pa.float32()))
    ),
    "missing proofs": Cheat("no proofs", _PROOFS, tamper=proofs_changed(lambda core, size: b"")),
    "surplus proofs": Cheat(
        "one proof too many", _PROOFS, tamper=proofs_changed(lambda core, size: core + core[:size])
    ),
    "null proofs": Cheat("zero bytes", _PROOFS, tamper=proofs_changed(lambda core, size: bytes(len(core)))),
    "truncated proofs": Cheat("the last byte is cut", _PROOFS, tamper=proofs_changed(lambda core, size: core[:-1])),
    "non-canonical proofs": Cheat("a coefficient not reduced", _PROOFS, tamper=proofs_changed(tampering.repeated_root)),
    "bare proofs": Cheat("no envelope", _PROOFS, tamper=tampering.no_envelope),
    "zip bomb": Cheat("compressed buffers", _FORM, tamper=tampering.zip_bomb),
    "wrong types": Cheat("tokens in 64 bits", _FORM, tamper=tampering.wrong_types),
    "10^9 rows": Cheat("a header of a billion rows", _FORM, tamper=tampering.billion_rows),
    "parquet": Cheat("another file format", _FORM, tamper=tampering.a_parquet_file),
    "half a file": Cheat("cut in the middle", _FORM, tamper=tampering.cut_in_half),
    "changed turn": Cheat("the environment said another token", _TURN, tamper=turns.changed_turn, turns=True),
    "left-out turn": Cheat("ends where the environment asked on", _TURN, tamper=turns.left_out_turn, turns=True),
    "extra turn": Cheat("goes on where the environment was done", _TURN, tamper=turns.extra_turn, turns=True),
    "own turns": Cheat("tells itself the solution between turns", _TURN, turns.OwnTurns, turns=True),
    "turn as answer": Cheat("the environment's words as sampled", _ENDS, tamper=turns.turn_as_answer, turns=True),
    "answer as turn": Cheat("a sampled token as the environment's", _ENDS, tamper=turns.answer_as_turn, turns=True),
    "shortened prefix": Cheat("answers without all that was said", STATISTICAL, turns.ShortenedPrefix, turns=True),
    "shifted numbers": Cheat("later turns draw other numbers", STATISTICAL, turns.ShiftedNumbers, turns=True),
}


def main() -> None:
    """Serve as the cheat that the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1] not in CHEATS:
        sys.exit(f"which cheat? one of: {', '.join(CHEATS)}")
    cheat = CHEATS[sys.argv.pop(1)]
    server.produce = cheat.produce
    process.main(cheat.session)


if __name__ == "__main__":
    main()
