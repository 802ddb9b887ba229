"""What both makers of examples are asked for on their command lines."""

import argparse
from pathlib import Path

import torch


def arguments(about: str | None, folder: str) -> argparse.Namespace:
    """about: the text of --help; folder: beside this file, where the example goes by default. One compute thread."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / folder)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=0.25, help="sampled accuracy at which the warm start stops")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    return asked
