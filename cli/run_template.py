"""The run files that `intellect-node run new` writes: complete, commented, ready to be changed. Pure text."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from cli.fit import Fit
    from node.run.file import RunFile

# Keys that TOML takes without quotes.
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def render_run(run: "RunFile") -> str:
    """Every setting, defaults included; what is None is left out."""
    return "\n".join(_table(msgspec.to_builtins(run), "")).lstrip("\n") + "\n"


def with_real_paths(run: "RunFile", base: Path) -> "RunFile":
    """The same run with paths that do not depend on where its file lies. base: the file's directory."""
    from node.run import packages
    from node.run.own_code import placed
    from node.run.sources import whole, with_sources

    def environment(one: Any) -> Any:
        return msgspec.structs.replace(one, package=packages.placed(one.package, base), reward=placed(one.reward, base))

    run = with_sources(run, lambda text, kind: whole(text, kind, base))
    recipe, evaluation = run.recipe, run.evaluation
    own = {name: placed(getattr(recipe, name), base) for name in ("loss", "advantage") if getattr(recipe, name)}
    return msgspec.structs.replace(
        run,
        # What [warm_start] makes is a path, which `with_sources` leaves alone.
        model=str(base / run.model) if run.warm_start else run.model,
        environment=environment(run.environment) if run.environment else None,
        environments=tuple(map(environment, run.environments)),
        recipe=msgspec.structs.replace(recipe, **own),
        evaluation=msgspec.structs.replace(evaluation, environments=tuple(map(environment, evaluation.environments))),
    )


def settings_of(run: "RunFile") -> dict[str, Any]:
    """Path of each setting ("recipe.steps") -> its value, defaults included; lists and `args` are one value."""
    return dict(leaves(msgspec.to_builtins(run)))


def leaves(table: dict[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """("recipe.steps", 150) ..., in order, of nested tables; lists and `args` are one value."""
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        place = f"{path}.{name}" if path else name
        if isinstance(value, dict) and name != "args":
            found += leaves(value, place)
        else:
            found.append((place, value))
    return found


def _table(table: dict[str, Any], path: str) -> list[str]:
    """Plain values first, then tables, as TOML wants it. `args` of an environment stays on one line."""
    lines: list[str] = []
    later: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict) and name != "args" or _is_tables(value):
            later.append((name, value))
        elif value is not None:
            lines.append(f"{_key(name)} = {toml_value(value)}")
    for name, value in later:
        place = f"{path}.{_key(name)}" if path else _key(name)
        for one in [value] if isinstance(value, dict) else value:
            head = f"[{place}]" if isinstance(value, dict) else f"[[{place}]]"
            lines += ["", head, *_table(one, place)]
    return lines


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict)


def toml_value(value: Any) -> str:
    """Strings, numbers, booleans and lists of JSON are TOML's too; a table goes on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {toml_value(one)}" for name, one in value.items()) + " }"
    return json.dumps(value)


HEAD = """# A run of intellect-node. Check it:      intellect-node run validate {file}
# Train it at this desk:                 intellect-node train {file}
# Every setting and where it comes from: intellect-node run show {file}
# Paths are relative to this file.

name = {name}
model = {model}        # a directory in Hugging Face form, or hf:OWNER/NAME@COMMIT
"""

DATASET = """dataset = {dataset}      # JSONL or parquet: a file, a directory, a pattern, or hf:OWNER/NAME#CONFIG/SPLIT

[environment]
name = "dataset"
[environment.args]
{template_line}
{arguments}# solve_rate_field = "solve_rate_qwen_r1_distill_7b"   # offline filter: a column with pass@k, and its range
# solve_rate_min = 0.1
# solve_rate_max = 0.8
"""

TASK = """
[environment]
{source} = {environment}
args = {args}
# reward = "my_rewards:score"   # a function in my_rewards.py beside this file scores instead; at a desk, not in a swarm

# Several environments instead, drawn by weight:
# [[environments]]
# name = "sort"
# weight = 2
# args = {{ digits = 4 }}
# [[environments]]
# name = "reverse"
# weight = 1
"""

SERVED = """dataset = {dataset}      # JSONL: problem_id, prompt, reset (with what the server begins an episode)

[environment]
name = "server"
[environment.args]
url = {url}
protocol = {protocol}            # OpenEnv's socket, or MCP's tools over HTTP or stdio
turns = 4                       # answers of a rollout, at most
seconds = 10                    # that the server may take over one
{template_line}
held_back_share = 0.05          # of the problems, for evaluation; never trained on

[audit]
witnessed = "alone"             # a quorum of validators must hear the same; "mixed" beside exact environments
"""

ROLLOUT = """
[rollout]
group_size = {group_size}                  # answers per problem; advantages are relative to their group
prompts_per_step = {prompts_per_step}            # problems that a step learns from
prompts_per_file = {prompts_per_file}             # problems in one worker's file
max_prompt_tokens = {max_prompt_tokens}{why_prompt}
max_output_tokens = {max_output_tokens}{why_output}
temperature = {temperature}
# max_turns = 0                  # where the environment takes turns: most answers in a rollout, 0 for its own
# max_environment_tokens = 1024  # and what it may say in one
"""

RECIPE = """
[recipe]
name = {recipe}        # a preset: loss, advantage, clipping; any of its values can be set below
steps = {steps}
learning_rate = {learning_rate}{why_rate}
warmup_steps = {warmup_steps}
decay_steps = {decay_steps}                # 0: constant after the warm-up
grad_clip = {grad_clip}
updates_per_step = {updates_per_step}            # optimiser steps that one batch is split into
{extra}max_staleness = {max_staleness}               # versions between the policy that made a token and the learner
seed = 0
# loss = "my_losses:clipped"    # functions of your own, beside this file, at a desk: docs/environments.md
# advantage = "my_losses:ranks"
# target_reward = 0.8           # stop when ten evaluations in a row average this

# [warm_start]                  # `model` is made from another by example first: intellect-node run warm-start FILE
# model = "models/base"
# data = "answers.jsonl"        # columns prompt and answer
# steps = 200

# adapter = "peft/mine"         # (at the top) go on with an adapter to `model`, PEFT's directory; [recipe.lora] follows
# [recipe.lora]                 # the policy is an adapter: its learning_rate is a few times as high
# rank = 16
# alpha = 32

# [distill]                     # a teacher's probabilities of what was sampled are learnt from, too
# teacher = "models/larger"     # same tokenizer
# coefficient = 1.0
# rewards = 0.0                 # above 0: rewards count beside it
# tasks = false                 # true: in a swarm workers ask the teacher, and the trainer needs none
# pay = 0.25                    # units for each token of such a task

[filters]
online = {online}                  # leave groups with equal rewards out and wait for others
refill = 4                      # ... but look at no more than four times prompts_per_step
keep_surplus = true             # verified groups wait for the next batch while they are fresh

[evaluation]
problems = 128
every = {every}
# [[evaluation.environments]]   # scored on besides, never trained on: name or package, args, dataset
# name = "reverse"
# label = "backwards"
"""

LENGTH = """
[length_budget]                 # answers of a wanted length; slow or small workers are dealt the short ones
targets = [{targets}]
alpha = 0.0003                  # reward lost per token beside the target
mode = "exact"                  # or "max", "clip"
seconds = 600                   # how long a worker's file may take: decides which targets a machine is dealt
"""

LIMITS = """
[requirements.worker]           # a machine with less is sent away with an explanation
cores = {cores}
memory_gib = {memory}
gpu_memory_gib = {gpu}

[budget]                        # the trainer ends the run when one is used up; 0: no limit
hours = 0
tokens = 0

[alarms]                        # named events, shown in the status; 0 switches one off
window = 10
entropy_rise = 2.0
mismatch = 0.25
grad_norm = 10.0
reward_drop = 0.5
no_signal = 10
stop = false                    # true: end the run when one rings

[chair]                         # of a pool with several trainers
silence_seconds = 20.0          # without a heartbeat of who leads, until a standby may take over; longer than a restart
stall_seconds = 3600.0          # without a policy of who leads, though enough is accepted; longer than a step takes
bytes_per_second = 1_000_000    # at which who leads hands a drawn step over to each validator; its line does more
"""


def rate_for(parameters: int) -> float:
    """A learning rate that suits a model of this size, to one digit: 3e-4 for the demo's 0.6 million, which learns with
    it; 2e-5 for 135 million (SmolLM2: 0.33 -> 0.51 in ten steps, and at 3e-4 -> 0.11 in four); 2e-6 for 7 billion, as
    published recipes have. A power law between; LoRA takes ten times as much."""
    most_rate = 3e-4
    of_parameters = 6e5
    fall = 0.55
    rate = most_rate * (of_parameters / max(parameters, 1)) ** fall
    least_rate = 1e-7
    return float(f"{min(most_rate, max(least_rate, rate)):.0e}")


SMALL: dict[str, object] = {
    "group_size": 8, "prompts_per_step": 48, "prompts_per_file": 24, "max_prompt_tokens": 32, "max_output_tokens": 16,
    "temperature": 1.0, "steps": 150, "learning_rate": 3e-4, "warmup_steps": 0, "decay_steps": 150, "grad_clip": 1.0,
    "updates_per_step": 1, "max_staleness": 2, "online": False, "every": 1, "cores": 1, "memory": 2, "gpu": 0,
    "recipe": "dppo", "extra": ""
}  # fmt: skip
"""A small model."""
TINY: dict[str, object] = {
    "recipe": "intellect2", "prompts_per_step": 96, "extra": "clip_high = 0.28\n",
}  # fmt: skip
"""A toy, as the demo's: held-back reward 0.38 -> 0.78 and 0.73 in 50 steps (two seeds), where `dppo` with half as many
problems came to 0.60."""
LARGE: dict[str, object] = SMALL | {
    "group_size": 16, "prompts_per_step": 64, "prompts_per_file": 8, "max_prompt_tokens": 1024,
    "max_output_tokens": 4096, "learning_rate": 1e-6, "warmup_steps": 10, "decay_steps": 0, "grad_clip": 0.5,
    "steps": 300, "online": True, "every": 5, "memory": 16, "gpu": 16,
}  # fmt: skip
"""A model of about a billion parameters or more on GPUs."""
INTELLECT2: dict[str, object] = LARGE | {
    "recipe": "intellect2", "prompts_per_step": 256, "prompts_per_file": 16, "max_prompt_tokens": 2048,
    "max_output_tokens": 16384, "temperature": 0.6, "learning_rate": 3e-7, "warmup_steps": 3, "grad_clip": 0.1,
    "updates_per_step": 8, "steps": 350, "cores": 8, "memory": 64, "gpu": 80,
    "targets": "2000, 4000, 6000, 8000, 10000",
    "extra": "reference_kl = 0.001            # KL to the start model\nentropy_bonus = 0.001\n",
}  # fmt: skip
"""What the INTELLECT-2 report names (arXiv 2505.07291): 256 problems of 16 answers, eight optimiser steps of 512,
async level 2, hard clipping, length budgets."""
TEMPLATES = {
    True: 'template = "chat"               # or "plain": the prompt as it stands',
    False: 'template = "plain"              # the prompt as it stands; "chat" needs a tokenizer with a chat template',
}
"""By whether the tokenizer has a chat template."""
ARGUMENTS = {
    "retry": {"digits": 4, "tries": 2},
    "reasoning_gym": {"dataset": "chain_sum"},
    "verifiers": {"taskset": "my_taskset", "turns": 1},
}
"""By environment; the others sort digits or are packages."""
TEMPLATED = ("reasoning_gym", "package")
"""Whose arguments say how the model is asked."""
PRETRAINING = """# A run of intellect-node that pre-trains. Check it:  intellect-node run validate {file}
# Train it at this desk, with four peers:             intellect-node train --run {file} --peers 4
# Every setting and where it comes from:              intellect-node run show {file}
# Paths are relative to this file.

name = {name}
model = {model}        # a directory in Hugging Face form: config.json, tokenizer.json, *.safetensors

[pretraining]
sequence = 1024                 # tokens of a row
held_back = 64                  # rows of each data set that are evaluated and never trained on
optimizer = "adamw"             # or "muon": the layers' matrices with Muon, the rest with AdamW
learning_rate = 3e-4            # its peak: linear warm-up, constant, then 1 - sqrt(progress) to 0
warmup_steps = 100              # inner steps
decay_from = 0.8                # share of all inner steps, from which the rate falls and `annealing` is the mix
z_loss = 1e-4                   # weight of log(Z)^2

[[pretraining.data]]            # a mix by weight: 55, 20, 20, 5 of each hundred rows
name = "text"
file = {text}      # .txt, .jsonl with "text", .parquet with a column "text", or .tokens
weight = 55
# [[pretraining.data]]
# name = "code"
# file = "code.jsonl"
# weight = 45
# annealing = 20                # weight while the learning rate falls; left out: as before

[diloco]
inner_steps = 30                # H: steps of a peer between two meetings
batch_tokens = 65536            # of one peer and inner step; a multiple of sequence
exchange = "int4"               # 4.1 bits a parameter and round; or "int8", "float32", "sparse" (0.23, for long runs)
outer_rate = 1.0                # 1 and 0 average; 0.7 and 0.9 (Nesterov) are for hundreds of rounds
outer_momentum = 0.0
inner_state = "kept"            # or "reset": the optimiser's moments begin anew each round
max_contributions = 24          # of a round; also the number of replicas that share out the rows

[recipe]
steps = 100                     # rounds
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.95
grad_clip = 1.0
seed = 0

[evaluation]
every = 1                       # rounds

[budget]                        # the run ends when one is used up; 0: no limit
hours = 0
tokens = 0
"""


def pretraining_template(*, file: str, name: str, model: str, text: str | None) -> str:
    """The text of a new run file that pre-trains. text: its first data set."""
    quoted = {"name": toml_value(name), "model": toml_value(model), "text": toml_value(text or "text.jsonl")}
    return PRETRAINING.format(file=file, **quoted)


KINDS = {"small": SMALL, "large": LARGE, "intellect2": INTELLECT2}


def template(
    kind: str,
    *,
    file: str,
    name: str,
    model: str,
    environment: str,
    dataset: str | None,
    recipe: str | None,
    package: str | None = None,
    server: str = "",
    fit: "Fit",
) -> str:
    """The text of a new run file. kind: a key of KINDS; package: an environment's, instead of its name; server:
    an address, of class witnessed; fit: what follows from model and data."""
    values, chat = KINDS[kind] | ({"recipe": recipe} if recipe else {}), fit.chat
    tiny_parameters = 5_000_000
    if kind == "small" and not recipe and 0 < fit.parameters < tiny_parameters:
        values = values | TINY
    values = values | {name: value for name, (value, _) in fit.numbers.items()}
    why: dict[str, str] = {"why_rate": ""}
    why |= {short: _why(fit.numbers.get(name, ("", ""))[1]) for short, name in WHY.items()}
    if fit.parameters and kind != "intellect2":  # whose rate is published
        values = values | {"learning_rate": rate_for(fit.parameters)}
        why["why_rate"] = _why(f"for {fit.parameters:,} parameters; an adapter takes ten times as much")
    # These two are TOML already: a list without its brackets, and whole lines.
    filled = {key: value if key in ("targets", "extra") else toml_value(value) for key, value in values.items()} | why
    place = {"name": toml_value(name), "model": toml_value(model), "dataset": toml_value(dataset)}
    problems = SERVED if server else DATASET if environment == "dataset" else TASK
    place |= {"url": toml_value(server), "protocol": toml_value("openenv" if server.startswith("ws") else "mcp")}
    parts = [HEAD, problems, ROLLOUT, RECIPE, LENGTH if "targets" in values else "", LIMITS]
    text = "".join(parts[:1]).format(file=file, **place)
    place |= {"source": "package" if package else "name", "environment": toml_value(package or environment)}
    args = toml_value(_arguments("package" if package else environment, chat))
    given = fit.arguments or {"held_back_share": (0.05, "of the problems, for evaluation; never trained on")}
    arguments = "".join(f"{f'{name} = {toml_value(value)}{_why(reason)}'}\n" for name, (value, reason) in given.items())
    text += problems.format(args=args, template_line=TEMPLATES[chat], arguments=arguments, **place)
    return text + "".join(part.format(**filled) for part in parts[2:])


def with_sets(text: str, sets: Sequence[str]) -> str:
    """The text with NAME=VALUE words in it, its comments where they were."""
    import tomlkit

    from node.run.settings import with_words

    return tomlkit.dumps(with_words(tomlkit.parse(text), sets)) if sets else text


WHY = {"why_prompt": "max_prompt_tokens", "why_output": "max_output_tokens"}


def _why(reason: str) -> str:
    """A reason as a comment behind its value."""
    return f"       # {' '.join(reason.split())}" if reason else ""


def _arguments(environment: str, chat: bool) -> dict[str, object]:
    template: dict[str, object] = {"template": "chat" if chat else "plain"} if environment in TEMPLATED else {}
    return ARGUMENTS.get(environment, {} if template else {"digits": 4}) | template
