#!/usr/bin/env bash
# A card that is lent for a quarter of an hour, used to the second: benchmarks/gpu/lease.sh OUT [--device cpu]
#
# Run from the tree. OUT: an empty folder that is brought home; each part's figures are there as soon as it has some.
# Beside the tree, in carried/, if the machine has no network: wheels/ (python -m benchmarks.gpu --wheels carried/wheels
# --only learner,engine,costs,invariance,proofs,memory: 11 MB), and SmolLM2's cache of the hub in halves (tar hub |
# split -n 2 - carried/smollm-). Parts are run in order of value, with deadlines of 740 s together. --device cpu
# rehearses all of it under the same deadlines. At home: python -m benchmarks.gpu --merge OUT/*.json
set -euo pipefail

out=${1:?give an empty folder for what is brought home}
shift
mkdir -p "$out"
began=$(date +%s)
say() { echo "lease $(($(date +%s) - began)) s: $*"; }

packages=$(mktemp -d)
hub=$(mktemp -d)
trap 'rm -rf "$packages" "$hub"' EXIT
if compgen -G "carried/wheels/*.whl" >/dev/null; then
  python3 -m pip install --quiet --no-index --no-deps --target "$packages" carried/wheels/*.whl
  export PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}"
  say "$(find carried/wheels -name '*.whl' | wc -l) wheels are there"
fi
if compgen -G "carried/smollm-*" >/dev/null; then
  cat carried/smollm-* | tar -x -C "$hub"
  export HF_HOME="$hub/hub"
  say "SmolLM2 is there"
fi
python3 -m benchmarks.gpu --lease --out "$out" "$@" 2>&1 | tee "$out/lease.log" || say "some parts did not end well"
say "done: $(find "$out" -name '*.json' | wc -l) result(s) in $out"
