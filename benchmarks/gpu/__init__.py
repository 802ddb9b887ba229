"""Everything that wants a GPU, in one command (`python -m benchmarks.gpu`), and what each part of it needs.

**Parts** (`parts/`), each a process of its own with a deadline, whose figures are kept as far as it came:
- challenge: seconds of the matrix challenge, and whether a verifier finds the product right;
- engine: tokens per second that the torch engine draws (batches of 1, 8, 64, 256, and 256 of 32 to 512 tokens) and
  reads (2,048 and 32,768 tokens), beside transformers' `generate`; peak memory;
- proofs: TOPLOC of decoding against prefill and the sampler's statistics, honest under two attention kernels, and
  with every cheat of the calibration (int8, int4, fp8, old weights, other draws): distances, how many are caught;
- invariance: under the kernel `fixed` and the ordinary one, how many rows are equal in decoding at batch 1, 8, 64 and
  256 and in reading, and tokens per second;
- learner: tokens per second, MFU and memory at 0.6 and 1.5 B parameters, tuned and as planned, FSDP2 over one card;
- memory: a card that lends 24 GiB: what was planned learns, and in which phase what was not runs out of memory;
- costs: tokens per second with and without CUDA graphs; shares of a step of decoding that replayable drawing and
  activation proofs take;
- swap: a policy's image into a running engine, from disk and from the page cache, and what becomes of a request;
- vllm: vLLM's own tokens per second and those of our engine on it, the cost of our hooks, a policy loaded in flight;
- smollm: SmolLM2-135M-Instruct learns sums for 40 steps, with the reward on problems that are held back;
- tests: tests/node/inference/test_every_engine.py with the engines on this device.

The model is a Qwen3 of the shape of Qwen2.5-1.5B with random weights, in bfloat16; seconds are of the clock, once the
device has done what it was given. On a CPU, or with --quick, models are tiny and the figures say nothing.

**What a borrowed machine must have** beside this tree, torch, transformers (with tokenizers), safetensors and numpy:

    engine, costs, invariance   blake3, msgspec, structlog
    swap                    + platformdirs
    proofs, learner, memory + base58, coincurve (cffi), eth-hash, eth-typing, eth-utils, pycryptodome, toolz
    challenge               + psutil, pydantic-settings (python-dotenv)
    smollm                  + trio, pyarrow, latex2sympy2-extended, huggingface-hub; the model in HF_HOME (270 MB)
    tests                   those of proofs, pytest, trio
    vllm                    vllm; for our engine on it what swap needs, in the same interpreter

`--wheels DIR` fetches them for a machine with Python 3.12 (wheels.py): 11 MB for all but smollm (pyarrow: 55).
Each line has those of the lines above it. A part for which one is missing is skipped, and says which.
"""
