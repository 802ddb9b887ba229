"""The run files that `intellect-node run new` writes: complete, commented, ready to be changed. Pure text."""

from cli.runtext import toml_value

HEAD = """# A run of intellect-node. Check it:      intellect-node run validate {file}
# Train it at this desk:                 intellect-node train --run {file}
# Every setting and where it comes from: intellect-node run show {file}
# Paths are relative to this file.

name = {name}
model = {model}        # a directory in Hugging Face form: config.json, tokenizer.json, *.safetensors
"""

DATASET = """dataset = {dataset}      # JSONL or parquet: problem_id, prompt, task_type, verification_info

[environment]
name = "dataset"
[environment.args]
{template_line}
held_back_share = 0.05          # of the problems, for evaluation; never trained on
# solve_rate_field = "solve_rate_qwen_r1_distill_7b"   # offline filter: a column with pass@k, and the range to keep
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

ROLLOUT = """
[rollout]
group_size = {group_size}                  # answers per problem; advantages are relative to their group
prompts_per_step = {prompts_per_step}            # problems that a step learns from
prompts_per_file = {prompts_per_file}             # problems in one worker's file
max_prompt_tokens = {max_prompt_tokens}
max_output_tokens = {max_output_tokens}
temperature = {temperature}
# max_turns = 0                  # where the environment takes turns: most answers in a rollout, 0 for its own
# max_environment_tokens = 1024  # and what it may say in one
"""

RECIPE = """
[recipe]
name = {recipe}        # a preset: loss, advantage, clipping; any of its values can be set below
steps = {steps}
learning_rate = {learning_rate}
warmup_steps = {warmup_steps}
decay_steps = {decay_steps}                # 0: constant after the warm-up
grad_clip = {grad_clip}
updates_per_step = {updates_per_step}            # optimiser steps that one batch is split into
{extra}max_staleness = {max_staleness}               # versions between the policy that made a token and the learner
seed = 0
# loss = "my_losses:clipped"    # functions of your own, beside this file, at a desk: docs/environments.md
# advantage = "my_losses:ranks"
# target_reward = 0.8           # stop when ten evaluations in a row average this

# [recipe.lora]                 # the policy is an adapter: its learning_rate is a few times as high
# rank = 16
# alpha = 32

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
"""

SMALL: dict[str, object] = {
    "group_size": 8, "prompts_per_step": 48, "prompts_per_file": 24, "max_prompt_tokens": 32, "max_output_tokens": 16,
    "temperature": 1.0, "steps": 150, "learning_rate": 3e-4, "warmup_steps": 0, "decay_steps": 150, "grad_clip": 1.0,
    "updates_per_step": 1, "max_staleness": 2, "online": False, "every": 1, "cores": 1, "memory": 2, "gpu": 0,
    "recipe": "dppo", "extra": "",
}  # fmt: skip
"""A tiny model on a CPU."""
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
    chat: bool = True,
) -> str:
    """The text of a new run file. kind: a key of KINDS; package: an environment's, instead of its name; chat: whether
    the model's tokenizer has a chat template."""
    values = KINDS[kind] | ({"recipe": recipe} if recipe else {})
    filled = {key: value if key in ("targets", "extra") else toml_value(value) for key, value in values.items()}
    place = {"name": toml_value(name), "model": toml_value(model), "dataset": toml_value(dataset)}
    problems = DATASET if environment == "dataset" else TASK
    parts = [HEAD, problems, ROLLOUT, RECIPE, LENGTH if "targets" in values else "", LIMITS]
    text = "".join(parts[:1]).format(file=file, **place)
    place |= {"source": "package" if package else "name", "environment": toml_value(package or environment)}
    args = toml_value(_arguments("package" if package else environment, chat))
    text += problems.format(args=args, template_line=TEMPLATES[chat], **place)
    return text + "".join(part.format(**filled) for part in parts[2:])


def _arguments(environment: str, chat: bool) -> dict[str, object]:
    template: dict[str, object] = {"template": "chat" if chat else "plain"} if environment in TEMPLATED else {}
    return ARGUMENTS.get(environment, {} if template else {"digits": 4}) | template
