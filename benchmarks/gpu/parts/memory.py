"""Memory that runs out, for real: 24 GiB of a card, planned for, and with settings that are too much for it.

What the planner chose must be learnt with; what it did not must end in the phase that it belongs to.
"""

from benchmarks.gpu.job import Job, Rows
from benchmarks.gpu.parts.learner import figures_of, steps_of

GIB = 24.0


def measure(job: Job) -> Rows:
    sizes = {"tiny": ["--tiny"]} if job.quick else {"0.6b": ["--size", "0.6b"], "1.5b": ["--size", "1.5b"]}
    learnt = 0
    for name, options in sizes.items():
        for way, more in (("planned", ["--default"]), ("tuned for a large card", [])):
            log = job.scratch / f"memory-{name}-{len(more)}.said"
            limits = [] if job.quick else ["--gib", str(GIB)]
            told = list(steps_of([*options, *more, *limits, "--no-checkpoint", "--steps", "2"], log))
            steps = [step for step in told if "settings" not in step]
            learnt += bool(steps) and way == "planned"
            row = {"model": name, "settings": way, "steps": len(steps)}
            if steps:
                row |= {"peak GiB": figures_of(steps[-1])["peak GiB"]}
            yield f"a card of {GIB:g} GiB", {**row, **_said(log.read_text(errors="replace"))}
    if learnt < len(sizes):
        raise RuntimeError("what was planned did not learn")


def _said(text: str) -> dict[str, str]:
    """The plan, and how it ended where memory ran out."""
    lines = text.splitlines()
    plans = [line.removeprefix("plan: ") for line in lines if line.startswith("plan: ")]
    ends = [line for line in lines if "memory ran out" in line or "OutOfMemory" in line]
    return {"plan": plans[-1] if plans else "", "ended by": ends[-1][-200:] if ends else ""}
