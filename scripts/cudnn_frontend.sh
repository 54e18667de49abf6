#!/bin/bash
# Fetches the header-only frontend of cuDNN from PyPI into a folder, without installing anything, for `make test-emulation`. Where it cannot be
# had it says so in one line, which is no error. usage: scripts/cudnn_frontend.sh FOLDER; the result is FOLDER/include/cudnn_frontend.h.
set -uo pipefail
mkdir -p "$1" && cd "$1" || exit 1
[ -e include/cudnn_frontend.h ] && exit 0
PYTHON=${PYTHON:-/usr/bin/python3}

# the wheel holds more, for Python
if { "$PYTHON" -m venv venv && venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 --no-deps \
    --target wheel nvidia-cudnn-frontend==1.32.0; } >log 2>&1 && [ -e wheel/include/cudnn_frontend.h ]; then
    mv wheel/include .
else
    echo "test-emulation: no cudnn_frontend.h here, nor from PyPI: only a stand-in for cuDNN is tried ($PWD/log; CUDNN_FRONTEND_HOME= says where)"
fi
rm -rf venv wheel
