#!/usr/bin/env python3
"""Makes a token file for sherd from texts and conversations; docs/tokenizing.md tells formats and rules.

    pip install -r inputs/requirements.txt
    python inputs/tokenize.py --tokenizer MODEL/ --from DATA.jsonl --to TOKENS.h5
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

# Python has a module of this file's name, which its own modules import: this folder must come after them, and whoever imports `tokenize`
# and finds this file (started in this folder) must get Python's.
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != HERE] + [HERE]
if __name__ == "tokenize":
    with open(os.path.join(os.path.dirname(os.__file__), "tokenize.py"), encoding="utf-8") as source:
        exec(compile(source.read(), source.name, "exec"), globals())

if __name__ == "__main__":
    from sherd_tokenize.command import main
    sys.exit(main())
