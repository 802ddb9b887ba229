"""A start model for small runs: a tiny Qwen3 with a character tokenizer, taught a little by example.

`python -m node.training.warmstart --out DIR --seed S` writes a model directory in Hugging Face form that
solves `sort` now and then (with `--tries N`, `retry`): enough for reinforcement learning to have something to
reinforce. Real runs start from a real model and do not need this. Progress goes to stdout as one JSON object per line.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from node.environments.base import Environment, EnvironmentSettings, Problem, Segment, Transcript, decided, mean_of
from node.environments.errors import EnvironmentFault
from node.environments.registry import load_environment
from node.inference.engine import GenerationRequest, generate
from node.inference.tokenizer import LocalTokenizer
from node.inference.torch_engine import TorchEngine, bf16_bits, build_model
from node.inference.turns import play, reply, unbounded
from protocol.policy import encode_image
from protocol.run import EnvironmentSpec
from protocol.sampling import uniforms

PAD, EOS = "<pad>", "<eos>"
SORT_ALPHABET = "0123456789="


def write_tokenizer(out: Path, alphabet: str) -> None:
    """tokenizer.json: one token per character of `alphabet`, after <pad> (0) and <eos> (1)."""
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *dict.fromkeys(alphabet)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    # A word of WordLevel is a character here. `.` would leave line breaks together.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    # Without a decoder the library puts blanks between tokens.
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([PAD, EOS])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD}
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def write_config(out: Path, vocabulary: int, hidden: int, layers: int, experts: int = 0) -> None:
    """config.json and generation_config.json of an untied Qwen3; heads have 32 dimensions. experts: of each layer, two
    of which compute a token."""
    heads = max(hidden // 32, 2)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": hidden // heads,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    if experts:
        kind = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "norm_topk_prob": True}
        counts = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": hidden}
        config |= kind | counts
    (out / "config.json").write_text(json.dumps(config, indent=1))
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "pad_token_id": 0}, indent=1))


def write_weights(out: Path, model: Any) -> None:
    """model.safetensors: the canonical bf16 image, which is also policy 0 of a run."""
    bits = {name: bf16_bits(tensor.detach()) for name, tensor in model.named_parameters()}
    (out / "model.safetensors").write_bytes(encode_image(bits))


def create_model(out: Path, alphabet: str, seed: int, hidden: int = 128, layers: int = 3, experts: int = 0) -> Any:
    """An untrained model directory; returns its fp32 model."""
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(out, alphabet)
    write_config(out, len(dict.fromkeys(alphabet)) + 2, hidden, layers, experts)
    torch.manual_seed(seed)
    model = build_model(out)
    write_weights(out, model)
    return model


Solution = Callable[[Problem, Transcript], str]
"""What to say to a problem, after what was said so far (nothing at first)."""
Example = tuple[list[int], list[int]]
"""Tokens, and the same with IGNORED in place of those that are not to be learnt."""
# The label that cross_entropy of torch leaves out by default.
IGNORED = -100


@dataclass(frozen=True, slots=True)
class WorkedSolution:
    """How problems are solved, turn by turn."""

    environment: Environment
    tokenizer: LocalTokenizer
    solution: Solution

    def example(self, problem: Problem) -> Example:
        tokens = self.environment.prompt_tokens(problem)
        learnt = [IGNORED] * len(tokens)
        for segment in self._transcript(problem):
            tokens = [*tokens, *segment.tokens]
            learnt += segment.tokens if segment.sampled else [IGNORED] * len(segment.tokens)
        return tokens, learnt

    def _transcript(self, problem: Problem) -> Transcript:
        said: list[Segment] = []
        bounds, end = unbounded(self.environment), self.tokenizer.end
        while True:
            answer = self.tokenizer.encode(self.solution(problem, said))
            said.append(Segment([*answer, end], sampled=True))
            replied = reply(self.environment, problem, said, bounds, room=1)
            if replied is None:
                return said
            said.append(Segment(replied, sampled=False))


def at_once(problem: Problem, so_far: Transcript) -> str:
    """The right answer."""
    return problem.answer[0]


def warm_start(
    out: Path,
    model: Any,
    environment: Environment,
    *,
    seed: int,
    target: float,
    solution: Solution = at_once,
    learning_rate: float = 1e-3,
    batch_size: int = 64,
    max_steps: int = 2000,
    check_every: int = 2,
    max_output_tokens: int = 16,
    report: Callable[[dict[str, Any]], None] = lambda event: None,
) -> float:
    """Teach by example until sampled accuracy on training problems reaches `target`; returns the accuracy."""
    worked = WorkedSolution(environment, LocalTokenizer(out), solution)
    engine = TorchEngine(out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
    random = np.random.default_rng(seed)
    accuracy, started = 0.0, time.monotonic()
    for step in range(1, max_steps + 1):
        problems = [environment.problem(int(i)) for i in random.integers(environment.size, size=batch_size)]
        loss = _imitation_loss(model, [worked.example(problem) for problem in problems])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % check_every == 0 or step == max_steps:
            # Rounded as policy 0 will be: it is that policy which has to reach the target.
            engine.load({name: tensor.to(torch.bfloat16) for name, tensor in model.named_parameters()})
            trial = [environment.problem(int(i)) for i in random.integers(environment.size, size=256)]
            accuracy = mean_reward(engine, environment, trial, random.bytes(32), max_output_tokens)
            numbers = {"loss": float(loss.detach()), "accuracy": accuracy, "seconds": time.monotonic() - started}
            report({"step": step, **{name: round(value, 4) for name, value in numbers.items()}})
            if accuracy >= target:
                break
    write_weights(out, model)
    return accuracy


def _imitation_loss(model: Any, examples: Sequence[Example]) -> torch.Tensor:
    """Mean cross-entropy of the tokens that are to be learnt; padding on the right."""
    width = max(len(tokens) for tokens, _ in examples)
    tokens = torch.zeros(len(examples), width, dtype=torch.long)
    labels = torch.full((len(examples), width), IGNORED)
    for i, (said, learnt) in enumerate(examples):
        tokens[i, : len(said)] = torch.tensor(said)
        labels[i, : len(learnt)] = torch.tensor(learnt)
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def mean_reward(
    engine: TorchEngine, environment: Environment, problems: Sequence[Problem], seed: bytes, max_output_tokens: int
) -> float:
    """Mean score of one sampled rollout (temperature 1) of each problem. Raises EnvironmentFault where this machine can
    judge too few of them: a model would be taught on for ever, or called worse than it is."""
    drawn = uniforms(seed, len(problems) * max_output_tokens).reshape(len(problems), max_output_tokens)
    requests = [GenerationRequest(environment.prompt_tokens(p), u) for p, u in zip(problems, drawn, strict=True)]
    rollouts = play(partial(generate, engine), environment, problems, requests, 1.0, unbounded(environment))
    scores = decided(environment, problems, [rollout.transcript for rollout in rollouts], most=len(problems) // 10)
    mean = mean_of(scores)
    if mean is None:
        why = f"{scores.count(None)} of {len(scores)} answers got no verdict in time"
        raise EnvironmentFault("the answers cannot be judged", why, "see whether this machine is overloaded")
    return mean


def with_a_slip(problem: Problem, so_far: Transcript) -> str:
    """Every other problem is got wrong first: its digits as they stand. So there are second tries to learn from."""
    digits = problem.prompt[:-1]
    return digits if not so_far and int(digits[-1]) % 2 else problem.answer[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the model directory to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--digits", type=int, default=4, help="digits of the sort task")
    parser.add_argument("--tries", type=int, default=1, help="answers to one problem; more than 1: the task is retry")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model")
    parser.add_argument("--layers", type=int, default=3, help="its layers")
    parser.add_argument("--experts", type=int, default=0, help="of each layer, two of which compute a token; 0: none")
    parser.add_argument("--target", type=float, default=0.25, help="sampled accuracy at which to stop")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    def report(event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    model = create_model(
        arguments.out, SORT_ALPHABET, arguments.seed, arguments.hidden, arguments.layers, arguments.experts
    )
    settings: EnvironmentSettings = EnvironmentSpec(name="sort", args={"digits": arguments.digits})
    if arguments.tries > 1:
        settings = EnvironmentSpec(name="retry", args={"digits": arguments.digits, "tries": arguments.tries})
    environment = load_environment(settings, arguments.out.parent, LocalTokenizer(arguments.out))
    accuracy = warm_start(
        arguments.out,
        model,
        environment,
        seed=arguments.seed,
        target=arguments.target,
        solution=with_a_slip if arguments.tries > 1 else at_once,
        max_output_tokens=16 * arguments.tries,
        report=report,
    )
    report({"done": True, "accuracy": accuracy, "parameters": sum(p.numel() for p in model.parameters())})


if __name__ == "__main__":
    main()
