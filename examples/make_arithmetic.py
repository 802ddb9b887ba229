"""Make what examples/arithmetic.toml needs: a small dataset of INTELLECT-2 shape, and a tiny start model.

`python -m examples.make_arithmetic` writes, beside this file, arithmetic/train.jsonl, arithmetic/train.parquet
(the same rows) and arithmetic/model/ (Hugging Face form, warm-started so that some answers are right).
Rows are `verifiable_math`: sums, differences and linear equations with small whole numbers.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from examples.asked import arguments
from node.environments.registry import load_environment
from node.inference.tokenizer import LocalTokenizer
from node.training.warmstart import create_model, warm_start
from protocol.run import EnvironmentSpec

ALPHABET = "0123456789+-=x "
LARGEST = 20


def problems() -> Iterator[tuple[str, int]]:
    """(prompt, answer): a+b, a-b >= 0, and x+a=b for a, b below 20."""
    for a in range(LARGEST):
        for b in range(LARGEST):
            yield f"{a}+{b}=", a + b
            if a >= b:
                yield f"{a}-{b}=", a - b
                yield f"x+{b}={a} x=", a - b


def rows() -> list[dict[str, Any]]:
    return [
        {
            "problem_id": f"arithmetic-{number}",
            "task_type": "verifiable_math",
            "prompt": prompt,
            "verification_info": json.dumps({"ground_truth": str(answer)}),
        }
        for number, (prompt, answer) in enumerate(problems())
    ]


def main() -> None:
    asked = arguments(__doc__, "arithmetic")
    out: Path = asked.out
    table = rows()
    (out / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    pq.write_table(pa.Table.from_pylist(table), out / "train.parquet")
    model = create_model(out / "model", ALPHABET, asked.seed)
    environment = load_environment(
        EnvironmentSpec(name="dataset", args={"path": "train.jsonl"}), out, LocalTokenizer(out / "model")
    )
    print(f"{len(table)} problems, {environment.held_back} held back")
    warm_start(
        out / "model",
        model,
        environment,
        seed=asked.seed,
        target=asked.target,
        max_output_tokens=3,
        report=lambda event: print(json.dumps(event), flush=True),
    )
    environment.close()


if __name__ == "__main__":
    main()
