#!/usr/bin/env bash
# Makes the virtual environment that the Makefile's targets run in: requirements/setup.sh PYTHON FOLDER
# Needs Debian or Ubuntu's python3-venv, python3-dev and g++ (DeepSpeed compiles an extension at first use).
set -euo pipefail
python=$1
venv=$2
here=$(cd "$(dirname "$0")" && pwd)

stop() {
    echo "setup: $*" >&2
    exit 1
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    stop "there is no '$python' here: sudo apt-get install -y python3 python3-venv python3-dev g++"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' ||
    stop "Python 3.11 to 3.14 is needed and '$python' is $version; name another one: make PYTHON=python3.12"
missing=()
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=("python$version-venv")
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    missing+=("python$version-dev")
command -v g++ >/dev/null || missing+=(g++)
[ ${#missing[@]} -eq 0 ] || stop "Debian packages are missing: sudo apt-get install -y ${missing[*]}"

# A folder left by another Python version cannot be used again.
if [ -x "$venv/bin/python" ] && [ "$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" != "$version" ]; then
    rm -rf "$venv"
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq)
uv=("$venv/bin/uv" pip install -q --no-deps --python "$venv/bin/python")
export UV_HTTP_RETRIES=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${pip[@]}" uv==0.13.9 >"$log" 2>&1 || stop "pip cannot reach a package index: $(tail -n 1 "$log")"

echo "setup: torch, CPU build (about 190 MB)"
# Where pip's own configuration knows the CPU build, pip installs it. Else uv does, which knows PyTorch's index.
# Both answer within seconds: pip does not retry, uv retries once.
"${pip[@]}" --no-deps --no-compile --retries 0 --timeout 20 -r "$here/torch-cpu.txt" >"$log" 2>&1 ||
    "${uv[@]}" --torch-backend cpu -r "$here/torch-cpu.txt" >>"$log" 2>&1 || {
    cat "$log" >&2
    stop "the CPU build of torch cannot be had: neither pip as configured here nor PyTorch's own index has it"
}

echo "setup: $(grep -c == "$here/cpu.txt") packages at their tested versions (about 700 MB)"
# uv downloads side by side; pip knows mirrors and certificates that a user may have configured for it alone.
"${uv[@]}" -r "$here/cpu.txt" >"$log" 2>&1 || "${pip[@]}" --no-deps --no-compile -r "$here/cpu.txt"
"${pip[@]}" --no-deps --no-build-isolation -e "$here/.."
"$venv/bin/python" -c 'import torch; assert torch.version.cuda is None, torch.__version__' ||
    stop "torch in $venv is not the CPU build: rm -r $venv and run this again"
echo "setup: done"
