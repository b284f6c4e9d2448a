#!/bin/sh
# Build, update or repair an environment; quick when nothing changed.
#
#     sh tools/venv.sh                     # .venv from requirements.txt, with the first Python 3.11 to 3.13 found
#     PYTHON=python3.12 sh tools/venv.sh   # with this one
#     sh tools/venv.sh verl                # .venv-verl from requirements-verl.txt; so with vllm
#
# Three kinds of comment in a list are read here, each with what follows its names in brackets:
# `# index: URL` is asked for torch where the registry does not have it; `# remove: A B` are uninstalled at the end;
# `# optional: A B` are not to be had everywhere: without one of them the folder has a file `without` in place of
# installed.txt, the exit code is 0, and the next call tries again.
#
# installed.txt in it is the list that was installed in full. `unfinished` stands in a folder that this script has begun
# and not finished: the next call starts it afresh. A folder made by something else is only added to.
set -eu
cd "$(dirname "$0")/.."
venv=.venv${1:+-$1}
list=requirements${1:+-$1}.txt
if [ ! -f "$list" ]; then
    echo "error: got $*; expected a NAME with a requirements-NAME.txt; try sh tools/venv.sh verl" >&2
    exit 2
fi
fits='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
candidates="${PYTHON:-} python3 python3.13 python3.12 python3.11 python"

find_python() {
    for candidate in $candidates; do
        if "$candidate" -c "$fits" >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
        [ "$candidate" != "${PYTHON:-}" ] || echo "set-up: PYTHON=$PYTHON does not fit, looking for another" >&2
    done
    found=""
    for candidate in $candidates; do
        version=$("$candidate" -c 'import sys; print(sys.version.split()[0])' 2>/dev/null) || continue
        "$candidate" -c 'import venv, ensurepip' 2>/dev/null || version="$version without venv and ensurepip"
        found="$found $candidate ($version)"
    done
    echo "error: got${found:- no Python}; expected Python 3.11, 3.12 or 3.13 with its venv module;" >&2
    echo "       try installing one (Debian, Ubuntu: python3-venv too), or make PYTHON=/path/to/python3.12" >&2
    exit 1
}

pip_install() {
    $venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@"
}

# uv does not read pip's settings: the values of one of them, from its files and PIP_ variables, each behind a flag
from_pip() {
    $venv/bin/python -m pip config list | sed -n "s/^[^']*\.$1='\(.*\)'$/\1/p" | sed 's/\\n/ /g' | tr ' ' '\n' | sort -u |
        sed -n "s|.|$2 &|p"
}

# Install the list in a third of pip's time. False where uv is not to be had or cannot: then pip does it, which says why.
uv_install() {
    uv=$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements.txt)
    [ -n "$uv" ] && pip_install "$uv" 2>/dev/null || return 1
    echo "set-up: installing $list with uv"
    # as pip: the newest that fits, wherever it lies; compiled now, as PYTHONDONTWRITEBYTECODE may forbid it later
    # shellcheck disable=SC2046  # several flags
    $venv/bin/uv pip install --quiet --python $venv/bin/python --compile-bytecode --index-strategy unsafe-best-match \
        $(from_pip index-url --default-index) $(from_pip extra-index-url --index) $(from_pip find-links --find-links) \
        $(from_pip constraint --constraint) -r "$list" 2>/dev/null
}

if cmp -s "$list" $venv/installed.txt && $venv/bin/python -c 'import pip' 2>/dev/null; then
    exit 0
fi
started=$(date +%s)
if [ -e $venv/unfinished ] || ! $venv/bin/python -c '' 2>/dev/null; then
    python=$(find_python)
    echo "set-up: making $venv with $("$python" --version)"
    if ! rm -rf "$venv"; then
        echo "error: got files in $venv that cannot be removed; another set-up may still run; try when it has ended" >&2
        exit 1
    fi
    mkdir "$venv"
    : >$venv/unfinished
    "$python" -m venv "$venv"
elif ! $venv/bin/python -c "$fits" 2>/dev/null; then
    echo "error: got $venv with $($venv/bin/python --version); expected Python 3.11, 3.12 or 3.13; try rm -r $venv" >&2
    exit 1
elif ! $venv/bin/python -c 'import pip' 2>/dev/null; then
    $venv/bin/python -m ensurepip >/dev/null
fi
rm -f $venv/installed.txt
said() {
    sed -n "s/^# $1: \([^(]*\).*/\1/p" "$list"
}

optional=$(said optional)
unwanted=$(said remove)
index=$(said index)
torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$list")

attempt() {
    if [ -z "$optional" ]; then
        pip_install "$@"
    else
        pip_install "$@" 2>$venv/pip.err
    fi
}

install_list() {
    echo "set-up: installing $torch, the largest download"
    attempt "$torch" || { [ -n "$index" ] && pip_install --index-url $index "$torch" 2>/dev/null; } || return 1
    echo "set-up: installing the rest of $list"
    attempt -r "$list"
}

rm -f $venv/without
if ! uv_install && ! install_list; then
    for name in $optional; do
        if grep -q "No matching distribution found for $name" $venv/pip.err; then
            ! grep -q "connection broken" $venv/pip.err || break
            echo "set-up: $name is not to be had from the package registry for this machine; $venv is without it"
            echo "$name" >$venv/without
            rm -f $venv/unfinished
            exit 0
        fi
    done
    [ -z "$optional" ] || cat $venv/pip.err >&2
    exit 1
fi
# shellcheck disable=SC2086  # names
[ -z "$unwanted" ] || $venv/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes $unwanted
cp "$list" $venv/installed.txt
rm -f $venv/unfinished
echo "set-up: done in $(($(date +%s) - started)) s"
