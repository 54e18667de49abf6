#!/bin/sh
# Installs the Debian packages named that are missing. Whatever is left to do by hand is said, and is not an error: a library may lie
# elsewhere, and the build tells what it does not find.
missing=
for package; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "deps: everything needed is installed"
elif ! command -v apt-get >/dev/null; then
    echo "deps: there is no apt-get here; needed, under Debian's names:$missing (docs/build.md)"
elif [ "$(id -u)" != 0 ]; then
    echo "deps: not root; ask for:$missing (docs/build.md tells how to build without root)"
else
    echo "deps: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    if ! apt-get update -qq || ! apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
        for package in $missing; do
            dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || echo "deps: could not install $package"
        done
    fi
fi
