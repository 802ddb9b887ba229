"""TrainerSettings: what the trainer's machine can bear. Not part of the run: it may change at every restart.

The daemon takes them from the table [trainer] of config.toml and hands them to the trainer process through the spool.
They are not in the run's recipe, so that what is named when memory runs out can be changed without another run.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from node.training.errors import TrainingError
from protocol.errors import UNREADABLE

CPU_LOGIT_CELLS = 1 << 24
"""Most logits at a time on a CPU, whatever is allowed: 64 MiB. Larger tables leave its caches, smaller ones read the
head's weights more often."""

MOST_REPLAYED = 64
"""Steps between a checkpoint and a step that validators audit: a trainer that writes fewer is audited by nobody."""


class TrainerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """world_size: processes of this machine, one per GPU; device: "auto" takes GPUs where there are some.

    dtype: what the layers compute in ("auto": bfloat16 on GPUs, float32 on CPUs); master weights, gradients'
    reduction and optimiser are float32 always, and so are embedding and output head unless fp32_logits is off;
    micro_batch_tokens: most tokens of one forward and backward pass, the first thing to lower when memory runs out;
    packing: samples end to end in one row (off: padded to equal length);
    activation_checkpointing: recompute each layer in the backward pass; offload_activations: keep what the backward
    pass needs in CPU memory; offload_parameters: keep parameters and optimiser state there;
    reshard_after_forward: free each layer's gathered weights between forward and backward pass;
    logit_cells: most logits (tokens * vocabulary) that exist at a time, on a CPU CPU_LOGIT_CELLS at most;
    milestones: the policy of every so many steps is kept for good (0: none); checkpoint_every: in steps;
    keep_checkpoints: how many; async_checkpoints: write while training goes on;
    compile: the layers, by torch's inductor ("auto": where a GPU trains and it can be; true: or not at all);
    compile_seconds: that this may take at a start;
    deterministic: the same numbers at every replay, also on GPUs, where it costs some speed: an operation that has no
    such form there ends the training; off: a replay that differs from what was published is only logged;
    evaluation_device, evaluation_dtype: of the evaluator's engine ("auto": where GPUs train, one that no process of the
    learner has or else the first, in bfloat16; on a CPU float32); evaluation_bytes: of a GPU's memory that it may take
    (0: all that is free);
    threads: CPU threads of each process; peak_tflops: of one device, for the MFU (0: by the device's name, if known);
    nodes: machines that train together, each with world_size processes; node_rank: which of them this one is, 0 being
    that of the daemon or of `train`; rendezvous: HOST:PORT at machine 0, where they meet; rendezvous_seconds: how long
    a machine looks for the first before it gives up; rendezvous_id: any word, the same on all, so that machines of two
    trainers do not take each other for their own; interface: the network interface that leads to the others (by
    default the one on the way to `rendezvous`).
    """

    world_size: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    micro_batch_tokens: int = 1 << 14
    packing: bool = True
    activation_checkpointing: bool = False
    offload_activations: bool = False
    offload_parameters: bool = False
    reshard_after_forward: bool = True
    fp32_logits: bool = True
    logit_cells: int = 1 << 26
    # No GPU has shown yet that two processes come to the same bits, and who signs others loses a stake.
    compile: Literal["auto"] | bool = False
    compile_seconds: float = 900.0
    milestones: int = 0
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    async_checkpoints: bool = True
    deterministic: bool = True
    evaluation_device: Literal["auto", "cpu", "cuda"] = "auto"
    evaluation_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    evaluation_bytes: int = 0
    threads: int = 1
    peak_tflops: float = 0.0
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str = ""
    rendezvous_seconds: float = 600.0
    rendezvous_id: str = ""
    interface: str = ""

    @property
    def forkable(self) -> bool:
        """Whether a fork server can start it: one process (several are torchrun's) of one thread, as torch was told."""
        return self.world_size == self.nodes == 1 and self.threads == 1

    def compiles(self, *, gpu: bool) -> bool:
        """Whether layers are to be compiled where they can be. gpu: whether one trains."""
        return self.compile is True or (self.compile == "auto" and gpu)

    def check(self) -> None:
        """Raises TrainingError naming the first setting that makes no sense."""
        for name, good, rule in (
            ("world_size", 1 <= self.world_size <= 1024, "must be 1 to 1024"),
            ("micro_batch_tokens", 1 <= self.micro_batch_tokens <= 1 << 24, "must be 1 to 16777216"),
            ("logit_cells", self.logit_cells >= 1, "must be at least 1"),
            ("compile_seconds", 1 <= self.compile_seconds <= 86_400, "must be 1 to 86400"),
            ("milestones", 0 <= self.milestones <= 1_000_000, "must be 0 (none) or a number of steps"),
            ("checkpoint_every", 1 <= self.checkpoint_every <= 100_000, "must be 1 to 100000"),
            ("keep_checkpoints", 1 <= self.keep_checkpoints <= 1000, "must be 1 to 1000"),
            ("evaluation_bytes", 0 <= self.evaluation_bytes < 1 << 50, "must be 0 (all that is free) or more"),
            ("threads", 1 <= self.threads <= 1024, "must be 1 to 1024"),
            ("peak_tflops", 0 <= self.peak_tflops < 1e6, "must be 0 (unknown) or more"),
            ("nodes", 1 <= self.nodes <= 1024, "must be 1 to 1024"),
            ("node_rank", 0 <= self.node_rank < self.nodes, "must be 0 to nodes - 1"),
            ("rendezvous", self.nodes == 1 or endpoint(self.rendezvous) is not None, "must be HOST:PORT with nodes"),
            ("rendezvous_seconds", 1 <= self.rendezvous_seconds <= 1e7, "must be at least 1"),
        ):
            if not good:
                raise _unusable(f"{name} {rule}, not {getattr(self, name)!r}")

    def check_auditable(self) -> None:
        """Raises TrainingError where no validator of a pool could audit a step."""
        if self.checkpoint_every > MOST_REPLAYED:
            raise TrainingError(
                "nobody could audit this trainer",
                f"trainer.checkpoint_every is {self.checkpoint_every}, and a validator replays at most {MOST_REPLAYED} "
                "steps from a checkpoint",
                f"set it to {MOST_REPLAYED} or less in config.toml: 1 where money is at stake",
            )


def eager_because(*, experts: bool, delta: bool) -> str:
    """Why the layers of a model are never compiled; empty where they can be."""
    # Which tokens an expert computes is known by the numbers alone, and what loops over packed samples would be another
    # graph for each pack.
    return "its layers have experts" if experts else "its layers remember instead of attending" if delta else ""


def endpoint(text: str) -> tuple[str, int] | None:
    """(host, port) of HOST:PORT, an IPv6 address in brackets; None if it is none."""
    host, colon, port = text.rpartition(":")
    # `isdigit` alone is true of digits of other scripts, and of superscripts, which int() refuses.
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
        return None
    bracketed = host.startswith("[") and host.endswith("]")
    return None if ":" in host and not bracketed else (host.strip("[]"), int(port))


def read_settings(values: Mapping[str, Any]) -> TrainerSettings:
    """From a table of config.toml. Raises TrainingError for unknown names and senseless values."""
    try:
        settings = msgspec.convert(dict(values), TrainerSettings)
    except msgspec.ValidationError as error:
        raise _unusable(str(error)) from None
    settings.check()
    return settings


def decode_settings(data: bytes) -> TrainerSettings:
    """From the spool's trainer.json. Raises TrainingError."""
    try:
        return read_settings(msgspec.json.decode(data, type=dict[str, Any]))
    except UNREADABLE as error:
        raise _unusable(str(error)) from None


def _unusable(why: str) -> TrainingError:
    known = ", ".join(TrainerSettings.__struct_fields__)
    return TrainingError("unusable trainer settings", why, f"correct [trainer] in config.toml; known: {known}")
