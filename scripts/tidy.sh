#!/bin/sh
# clang-tidy on one file, silent where there is nothing to say. TIDY_FLAGS: the compiler's flags (make/checks.mk).
output=$(eval "clang-tidy --quiet \"\$1\" -- $TIDY_FLAGS" 2>&1) && exit 0
printf '%s\n' "$output" | grep -v 'warnings\? generated\.$'
exit 1
