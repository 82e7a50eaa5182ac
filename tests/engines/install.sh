# Installs an engine that computes on the CPU, and makes a tiny model for it, all under
# `.cache/ENGINE/` of the checkout: `venv`, `model` and `adapter`. Does nothing where they are
# there. Sourced by the scripts that are named after the engines, which say what is special: a
# function `complete VENV` that does what is left once the packages are installed, and `further`,
# the files that decide about it.
#
# What an engine needs is in ENGINE-requirements.txt, what it asks for in vain in
# ENGINE-overrides.txt. The versions that were last tested are pinned in constraints.txt and, where
# engines want different ones, in ENGINE-constraints.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The version of a distribution that an engine's requirements pin.
pinned() { sed -n "s/^$2==//p" "$1-requirements.txt"; }

# Where a virtual environment has its packages.
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

# Downloads and compiles for minutes: at low priority, so that other work goes on.
install_packages() {
    local engine=$1 venv=$2
    echo "installing $engine for the tests; the first time takes some minutes" >&2
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    nice "$venv/bin/pip" install --quiet --disable-pip-version-check -r installer.txt
    # Without compiled files each start of an engine takes 20 s longer. Beside a build one of them may
    # take longer than a minute, and two engines wait for each other's downloads of the same package: the
    # installer is to wait longer than it does by itself.
    UV_COMPILE_BYTECODE_TIMEOUT=900 UV_LOCK_TIMEOUT=1800 nice "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --compile-bytecode \
        --override "$engine-overrides.txt" --constraint constraints.txt \
        --constraint "$engine-constraints.txt" -r "$engine-requirements.txt"
}

install_engine() {
    local engine=$1
    mkdir -p "../../.cache/$engine"
    local cache
    cache=$(cd "../../.cache/$engine" && pwd)
    local inputs=(
        install.sh "$engine" installer.txt constraints.txt "${further[@]}"
        "$engine-requirements.txt" "$engine-overrides.txt" "$engine-constraints.txt"
    )
    if ! sha256sum --check --status "$cache/installed.sha256" 2>/dev/null; then
        install_packages "$engine" "$cache/venv"
        complete "$cache/venv"
        sha256sum "${inputs[@]}" >"$cache/installed.sha256"
    fi
    if ! sha256sum --check --status "$cache/model.sha256" 2>/dev/null; then
        rm -rf "$cache/model" "$cache/adapter"
        nice "$cache/venv/bin/python" tiny_model.py "$cache/model" "$cache/adapter"
        sha256sum tiny_model.py "$cache/installed.sha256" >"$cache/model.sha256"
    fi
}
