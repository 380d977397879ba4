#!/bin/sh
# Make a virtual environment with a Python that is new enough, or say what to install.
# Usage: venv.sh DIRECTORY [PYTHON]
set -eu

directory=$1
wanted=${2:-python3}

# By running it: a name on PATH may be a shim of a version manager with nothing behind it.
new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

has_pip() {
    "$directory/bin/python" -m pip --version >/dev/null 2>&1
}

if new_enough "$directory/bin/python" && has_pip; then
    exit 0
fi

python=
for candidate in "$wanted" python3.14 python3.13 python3.12 python3.11; do
    if new_enough "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    found=$("$wanted" --version 2>&1) || found="not runnable"
    echo "Holdfast needs Python 3.11 or newer, but $wanted is $found" >&2
    echo "and no python3.11 to python3.14 is on PATH. Install one, or name it: make PYTHON=/path/to/python3" >&2
    exit 1
fi
if [ "$python" != "$wanted" ]; then
    echo "$wanted is not a Python 3.11 or newer; using $python"
fi

# venv fails half-way where ensurepip is missing (Debian without python3-venv), hence the cleaning up between.
rm -rf "$directory"
if "$python" -m venv "$directory" >/dev/null 2>&1 && has_pip; then
    exit 0
fi
rm -rf "$directory"
if "$python" -m virtualenv --quiet "$directory" >/dev/null 2>&1 && has_pip; then
    exit 0
fi
rm -rf "$directory"
# By its full path: given "python3", virtualenv would take the Python that it runs on itself.
path=$("$python" -c 'import sys; print(sys.executable)')
if virtualenv --quiet --python "$path" "$directory" >/dev/null 2>&1 && has_pip; then
    exit 0
fi
rm -rf "$directory"

echo "$python can make a virtual environment neither with venv nor with virtualenv. Install one of them, for example" >&2
echo "    apt-get install python3-venv" >&2
echo "    $python -m pip install virtualenv" >&2
exit 1
