"""A model's card: what a training earned, in the words and the fields that the hub reads. Pure.

Prompts and answers are strangers' text: they stand in fences that they cannot end.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

CHECKED = (
    "Whoever has the weights can check them; who trained whom, and whether the numbers above are true, they do not say."
)


class CardAnswer(NamedTuple):
    """To a held-back problem. reward: what it was worth."""

    prompt: str
    answer: str
    reward: float


@dataclass
class ModelCard:
    """base: the model that it began as, a name on the hub where it has one; tied: whether the hub knows that name;
    curve: (step, mean reward on held-back problems); before, after: answers of policy 0 and of this one; verdicts:
    what a node of its pool counted; signed: whether the pool's record lies beside it; root: of the policy, hex."""

    title: str
    repository: str
    base: str = ""
    tied: bool = False
    licence: str = ""
    adapter: bool = False
    run: str = ""
    step: int | None = None
    run_root: str = ""
    root: str = ""
    signed: bool = False
    curve: Sequence[tuple[int, float]] = ()
    problems: int = 0
    before: Sequence[CardAnswer] = ()
    after: Sequence[CardAnswer] = ()
    verdicts: Mapping[str, object] = field(default_factory=dict)
    gguf: str = ""
    run_file: str = ""

    def text(self) -> str:
        parts = [self._head(), f"# {self.title}", self._sentence(), self._curve(), self._answers(), self._origin()]
        parts += [self._check(), self._use(), self._limits(), self._run()]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _head(self) -> str:
        fields = {"license": self.licence, "library_name": "peft" if self.adapter else "transformers"}
        fields["pipeline_tag"] = "text-generation"
        if self.tied:
            fields |= {"base_model": self.base, "base_model_relation": "adapter" if self.adapter else "finetune"}
        # JSON's texts are YAML's: nothing that somebody typed becomes a field of its own.
        lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items() if value]
        return "\n".join(["---", *lines, "tags: [intellect-node, reinforcement-learning]", "---"])

    def _sentence(self) -> str:
        kind = "An adapter to" if self.adapter else "A policy that began as"
        said = f"{kind} {_line(self.base) or 'a model'}"
        if self.run:
            said += f", trained in the run {_line(self.run)!r}" + (
                f", step {self.step}." if self.step is not None else "."
            )
        else:
            said += "."
        if len(self.curve) > 1:
            (first, begun), (last, ended) = self.curve[0], self.curve[-1]
            said += (
                f" On problems that it was never trained on its mean reward was {begun:.2f} at step {first} and "
                f"{ended:.2f} at step {last}" + (f" ({self.problems} problems at a time)." if self.problems else ".")
            )
        return said

    def _curve(self) -> str:
        if len(self.curve) < 2:
            return ""
        every = max(1, -(-len(self.curve) // 24))  # of the curve, at most
        shown = sorted({*self.curve[::every], self.curve[-1]})
        rows = [f"| {step} | {reward:.3f} |" for step, reward in shown]
        return "\n".join(["## Reward on held-back problems", "", "| step | mean reward |", "|---|---|", *rows])

    def _answers(self) -> str:
        said: list[str] = []
        known = {one.prompt: one for one in self.before}
        shown = 3
        common = [(known[one.prompt], one) for one in self.after if one.prompt in known][:shown]
        for before, after in common:
            said += [_fenced(after.prompt), f"Before, worth {before.reward:.2f}:", _fenced(before.answer)]
            said += [f"After, worth {after.reward:.2f}:", _fenced(after.answer)]
        if not common:  # other problems were drawn: each by itself
            for word, some in (("Before", self.before), ("After", self.after)):
                for one in some[:shown]:
                    said += [f"{word}, worth {one.reward:.2f}:", _fenced(f"{one.prompt}\n---\n{one.answer}")]
        return "\n\n".join(["## Answers to held-back problems", *said]) if said else ""

    def _origin(self) -> str:
        rows = [("run root", self.run_root), ("policy root", self.root), ("base", _line(self.base))]
        rows += [(name, str(value)) for name, value in self.verdicts.items()]
        lines = [f"- {name}: `{value}`" for name, value in rows if value]
        where = (
            "The policy was signed in a pool; its record lies beside the weights."
            if self.signed
            else "It was trained at one desk, from rollouts of that machine's own: nobody else judged them."
            if self.run
            else ""
        )
        return "\n".join(["## Where it is from", "", *lines, *(["", where] if where else [])]) if lines or where else ""

    def _check(self) -> str:
        if not self.root:
            return ""
        place = "DIR/policy" if self.adapter else "DIR"
        check = (
            "--network NETWORK --pool POOL`, which asks the chain who led that pool"
            if self.signed
            else f"--root {self.root}`"
        )
        return f"## How to check it\n\n`intellect-node weights verify {place} {check}. {CHECKED}"

    def _use(self) -> str:
        name, lines = self.repository, [f"intellect-node chat {self.repository}"]
        if self.adapter:
            base = self.base or "BASE"
            lines = [
                f"intellect-node chat {base} --adapter {name}",
                f"vllm serve {base} --enable-lora --lora-modules mine={name}",
            ]
            python = f'AutoPeftModelForCausalLM.from_pretrained("{name}")  # from peft'
        else:
            lines += [f"vllm serve {name}"]
            python = f'AutoModelForCausalLM.from_pretrained("{name}")  # from transformers'
        if self.gguf:
            lines += [f"llama-cli -hf {name}", f"ollama run hf.co/{name}"]
        return "\n".join(["## How to run it", "", "```", *lines, "```", "", "```python", python, "```"])

    def _limits(self) -> str:
        return (
            "## What it was not tested for\n\nOnly problems of its run were scored: no other tasks or languages, not "
            "safety, bias or privacy, not how it answers people. What its base does wrong it may do, too."
        )

    def _run(self) -> str:
        return "## The run\n\n" + _fenced(self.run_file, "toml", most=20_000) if self.run_file else ""


def _line(text: str) -> str:
    """Of somebody's text what may stand in a line of prose."""
    return re.sub(r"[^\w ./@:+,#-]", "", text)[:200]


def _fenced(text: str, kind: str = "", most: int = 700) -> str:
    """In a fence that is longer than any in it."""
    cut = text if len(text) <= most else text[:most] + "…"
    mark = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", cut)), default=0))
    return f"{mark}{kind}\n{cut}\n{mark}"
