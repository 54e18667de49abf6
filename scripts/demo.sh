#!/bin/bash
# Fine-tunes the small story model in inputs/ on verses of Genesis with two ranks, goes on from the checkpoint, and exports the result.
# SHERD_BUILD: the build folder (build). The deck, inputs/demo.ini, names build/demo and checkpoints/demo.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${SHERD_BUILD:-build}
made=build/demo
run=checkpoints/demo
# containers often forbid one process to read another's memory; Open MPI then fails instead of copying
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}

say() { printf '\n== %s\n' "$*"; }
show() { echo "\$ $*"; "$@"; }
ranks() {
    local root=()
    if [ "$(id -u)" = 0 ]; then root=(--allow-run-as-root); fi
    echo "\$ mpirun -np 2 $*"
    mpirun "${root[@]}" --oversubscribe -np 2 "$@"
}

say "Two files to start from: weights and tokens"
rm -rf "$made" "$run"
mkdir -p "$made"
show "$build/sherd" import --from inputs/stories260k-hf --to "$made/stories260k.h5"
show "$build/tools/make_tokens" inputs/genesis_tokens.safetensors "$made/genesis.h5" 512 stories260k

say "Training on two ranks"
ranks "$build/sherd" train --config inputs/demo.ini

say "The same run again, longer: it goes on from the checkpoint of step 80"
ranks "$build/sherd" train --config inputs/demo.ini --run.steps=120

say "Export, and the exported model's loss on the validation verses"
show "$build/sherd" export --from "$run/latest" --to "$made/stories-genesis-hf"
show "$build/sherd" eval --config inputs/demo.ini --model.weights="$made/stories-genesis-hf"

say "What came of it"
/usr/bin/env python3 scripts/demo_result.py "$run/metrics.jsonl"
cat <<END
weights and tokens        $made/stories260k.h5, $made/genesis.h5
metrics and checkpoints   $run/metrics.jsonl, $run/latest
a Hugging Face folder     $made/stories-genesis-hf
END
