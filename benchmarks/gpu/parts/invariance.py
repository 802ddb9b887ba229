"""Whether batch-invariant arithmetic is that on this device, and what it costs beside the ordinary kind."""

import torch

from benchmarks.fixed import rows
from benchmarks.gpu.job import Job, Rows
from benchmarks.gpu.models import SIZES


def measure(job: Job) -> Rows:
    """Rows that decoding at this batch size, decoding alone and reading agree about; one that is not 1 for `fixed`
    means that the device's kernels are not what the class promises."""
    batches, new, length = ((1, 8), 8, 600) if job.quick else ((1, 8, 64, 256), 64, 2048)
    for row in rows(SIZES[job.size].config, getattr(torch, job.dtype), job.device, batches, new, length):
        yield "rows equal and tokens per second", row
