# What the comparison needs: the peers, a model, and the binaries. Everything is installed by package
# name below $cache, once; what is there is left as it is. Sourced by `run`.
# Variables without an origin here are shared with the scripts that source this one.
# shellcheck shell=bash disable=SC2034,SC2154

# Prints a Python 3.12, which Dynamo's wheels need, or where there is none the usual Python.
find_python() {
    local candidate
    for candidate in python3.12 "$HOME"/.pyenv/versions/3.12.*/bin/python3 python3; do
        if "$candidate" -c '' 2>/dev/null; then echo "$candidate" && return; fi
    done
}

# venv NAME PACKAGE...: makes $cache/venv-NAME with these packages. A half-made one is made anew.
venv() {
    local folder=$cache/venv-$1
    shift
    if [ -e "$folder/complete" ]; then return; fi
    rm -rf "$folder"
    "$PYTHON" -m venv "$folder" || return
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" || return
    touch "$folder/complete"
}

# Dynamo names a dependency that its frontend and its mock engine never load and that is no plain
# wheel, so its own package goes in without its dependencies, and those that are used by name.
install_dynamo() {
    venv dynamo 'ai-dynamo-runtime==1.6.1' 'aiohttp>=3.14.3,<4' certifi 'kubernetes>=32.0.1,<33' \
        'msgspec>=0.19' numpy 'prometheus-client>=0.23.1,<1' 'pyzmq>=26' 'redis>=6.2,<9' tokenizers tqdm \
        'transformers>=4.56' 'zstandard>=0.23,<1' || return
    if [ -e "$cache/venv-dynamo/complete-dynamo" ]; then return; fi
    "$cache/venv-dynamo/bin/pip" install --quiet --disable-pip-version-check --no-deps 'ai-dynamo==1.6.1' || return
    touch "$cache/venv-dynamo/complete-dynamo"
}

# install VENV: installs what a peer needs; fails where that cannot be done.
install() {
    case $1 in
    dynamo) install_dynamo ;;
    sglang) venv sglang 'sglang-router==0.3.2' ;;
    vllm) venv vllm 'vllm-router==0.1.17' ;;
    smg) venv smg 'smg==1.13.0' ;;
    esac
}

# Makes the model, and the timing of Dynamo's mock engine where that is installed.
make_model() {
    if [ ! -e "$cache/model/words.txt" ]; then
        venv tools tokenizers
        "$cache/venv-tools/bin/python" "$here/make_model.py" "$cache/model"
    fi
    local ms
    for ms in 5 20 200; do
        if [ ! -e "$cache/step$ms.npz" ] && [ -e "$cache/venv-dynamo/complete-dynamo" ]; then
            "$cache/venv-dynamo/bin/python" "$here/make_timing.py" "$cache/step$ms.npz" "$ms"
        fi
    done
}

# Builds what is measured, the load generator in it, and the pretend engine.
build() {
    # In one go: packages alone have other features, and the second build would undo the first.
    cargo build --locked --release -p stator -p stator-tests --bin stator --example fake_engine
}

# Prints what was measured and on what.
versions() {
    echo "machine: $(uname -srm), $(nproc) cores, $(awk -F': ' '/^model name/{print $2; exit}' /proc/cpuinfo)"
    echo "stator: $("$stator" --version), $(git rev-parse --short HEAD 2>/dev/null || echo 'no commit')"
    local folder
    for folder in "$cache"/venv-*; do
        "$folder/bin/pip" list --disable-pip-version-check --format freeze 2>/dev/null |
            grep -E '^(ai-dynamo|ai-dynamo-runtime|sglang-router|vllm-router|smg)==' | sed 's/^/peer: /' || true
    done
}
