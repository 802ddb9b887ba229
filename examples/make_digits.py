"""Make the tutorial's own model and rows: four digits, to be put into ascending order.

`python -m examples.make_digits --out my --target 0.3` writes my/digits.jsonl, rows with the columns question and
answer, and my/model/, a tiny model in Hugging Face form that was taught by example until about a third of its answers
are right.
"""

import json
import random
from pathlib import Path

from examples.asked import arguments
from node.environments.registry import load_environment
from node.inference.tokenizer import LocalTokenizer
from node.training.warmstart import create_model, warm_start
from protocol.run import EnvironmentSpec

ALPHABET = "0123456789="
ROWS, DIGITS = 3000, 4


def rows(seed: int) -> list[dict[str, str]]:
    """{"question": "4127=", "answer": "1247"} ..., each once."""
    drawn = random.Random(seed).sample(range(10**DIGITS), ROWS)
    texts = (f"{number:0{DIGITS}d}" for number in drawn)
    return [{"question": f"{text}=", "answer": "".join(sorted(text))} for text in texts]


def main() -> None:
    asked = arguments(__doc__, "my")
    out: Path = asked.out
    (out / "digits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(asked.seed)))
    model = create_model(out / "model", ALPHABET, asked.seed)
    data = EnvironmentSpec(name="dataset", args={"path": "digits.jsonl"})
    environment = load_environment(data, out, LocalTokenizer(out / "model"))
    warm_start(
        out / "model",
        model,
        environment,
        seed=asked.seed,
        target=asked.target,
        max_output_tokens=DIGITS + 2,
        report=lambda event: print(json.dumps(event), flush=True),
    )
    environment.close()


if __name__ == "__main__":
    main()
