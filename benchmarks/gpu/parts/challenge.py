"""How long this device takes for the matrix challenge (docs/hardware.md), and whether a verifier finds it right."""

import os

import torch

from benchmarks.command import clock_of
from benchmarks.gpu.job import Job, Rows
from node.hardware.multiply import Product
from protocol.freivalds import MOST_SIZE, BadProduct, Challenge, Words, check_product, chosen_rows

DEADLINE = 2.5
"""Seconds, of which the line has half a one (node.swarm.claims.SECONDS)."""


def measure(job: Job) -> Rows:
    torch.set_float32_matmul_precision("high")  # as the child of the daemon
    clock = clock_of(job.device)
    torch.mm(*(torch.zeros(8, 8, device=job.device) for _ in range(2)))
    size = 1024 if job.quick else MOST_SIZE
    with torch.inference_mode():
        for turn in range(3):
            challenge = Challenge(os.urandom(32), size)
            started = clock()
            product = Product(challenge, job.device)
            digests = product.digests()
            seconds = clock() - started
            yield (
                "matrix challenge",
                {
                    "turn": turn + 1,
                    "size": size,
                    "seconds": seconds,
                    "TFLOP/s": 2e-12 * size**3 / seconds,
                    "in time": seconds < DEADLINE,
                    "verifier says": _verdict(challenge, product, digests),
                },
            )


def _verdict(challenge: Challenge, product: Product, digests: Words) -> str:
    asked = chosen_rows(challenge.size, os.urandom(32))
    try:
        check_product(challenge, digests, asked, product.rows(asked), os.urandom(32))
    except BadProduct as error:
        return error.why
    return "right"
