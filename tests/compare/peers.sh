# The peers: which there are, and how each is started. Everything listens on loopback.
# Sourced by `run` after process.sh; needs $cache, $stator, $fake_engine, $ENGINES and $scratch.
# Variables without an origin here are shared with the scripts that source this one.
# shellcheck shell=bash disable=SC2034,SC2154

# Measured on every scenario by default; with --quick; and those that only show what a policy costs.
PEERS_MAIN="direct stator-kv dynamo-kv dynamo-kv-fast sglang-cache vllm-cache smg-cache"
PEERS_QUICK="direct stator-kv dynamo-kv-fast sglang-cache vllm-cache"
PEERS_MORE="stator-rr dynamo-rr sglang-rr vllm-rr smg-rr"

workers=()    # Addresses of the pretend engines.
discovery=''  # Where stator's and Dynamo's engines register.
url=''        # Where the peer serves.
router_pid='' # The process under test; that of the engines where there is none in between.
engine_pid='' # What is behind it.

# peer_venv PEER: the name of the virtual environment that a peer needs; nothing where it needs none.
peer_venv() {
    case $1 in
    dynamo-*) echo dynamo ;;
    sglang-*) echo sglang ;;
    vllm-*) echo vllm ;;
    smg-*) echo smg ;;
    esac
}

# start_peer PEER STEP_MS: starts engines that give a token every STEP_MS (0: at once) and the peer
# before them, and waits until it serves.
start_peer() {
    local peer=$1 step_ms=$2 port metrics_port
    read -r port metrics_port < <(free_ports 2)
    url=http://127.0.0.1:$port
    discovery=$(mktemp -d "$scratch/discovery.XXXXXX")
    case $peer in
    stator-*) start_sim_agent "$step_ms" ;;
    dynamo-*) start_mocker "$step_ms" ;;
    *) start_fake_engine "$step_ms" || return ;;
    esac
    engine_pid=$pid
    case $peer in
    direct) url=${workers[0]} ;;
    stator-kv) start_stator kv "$port" ;;
    stator-rr) start_stator round-robin "$port" ;;
    dynamo-kv) start_dynamo info kv "$port" ;;
    dynamo-kv-fast) start_dynamo warn kv "$port" --tokenizer fastokens ;;
    dynamo-rr) start_dynamo warn round-robin "$port" ;;
    sglang-cache) start_router cache_aware "$port" "$metrics_port" "$cache/venv-sglang/bin/python" -m sglang_router.launch_router ;;
    sglang-rr) start_router round_robin "$port" "$metrics_port" "$cache/venv-sglang/bin/python" -m sglang_router.launch_router ;;
    vllm-cache) start_router cache_aware "$port" "$metrics_port" "$cache/venv-vllm/bin/vllm-router" ;;
    vllm-rr) start_router round_robin "$port" "$metrics_port" "$cache/venv-vllm/bin/vllm-router" ;;
    smg-cache) start_router cache_aware "$port" "$metrics_port" "$cache/venv-smg/bin/smg" launch ;;
    smg-rr) start_router round_robin "$port" "$metrics_port" "$cache/venv-smg/bin/smg" launch ;;
    *) echo "no such peer: $peer" >&2 && return 1 ;;
    esac
    router_pid=$pid
    wait_until_serving || return
    # Several of the routers finish their registration and first health checks after they answer.
    sleep 2
}

# Engines that only stream words, one port each; sets $workers to their addresses.
start_fake_engine() { # STEP_MS
    start engine "$fake_engine" --engines "$ENGINES" --step-ms "$1" --model tiny --model-path "$PWD/$cache/model"
    read -r -a workers < <(wait_for_line "$scratch/engine.log" '^http://')
}

# The limits of a worker, for stator's simulated engine and Dynamo's mock engine alike: large enough
# that nothing ever waits for a block or for its turn.
BLOCKS=262144 SEQUENCES=4096 STEP_TOKENS=65536

start_sim_agent() { # STEP_MS
    local pace=()
    if (($1 > 0)); then pace=(--sim-step-ms "$1"); fi
    start engine "$stator" agent --engine sim --sim-preset none "${pace[@]}" --workers "$ENGINES" \
        --block-size 16 --total-blocks "$BLOCKS" --max-running "$SEQUENCES" --max-batched-tokens "$STEP_TOKENS" \
        --model "$cache/model" --model-name tiny --discovery-dir "$discovery" \
        --listen 127.0.0.1:0 --events-listen tcp://127.0.0.1:0 --replay-listen tcp://127.0.0.1:0 --metrics-port 0
}

start_stator() { # ROUTER_MODE PORT
    start router "$stator" proxy --http-host 127.0.0.1 --http-port "$2" --router-mode "$1" \
        --discovery-dir "$discovery" --metrics-port 0
}

# start_with_dynamo NAME LEVEL MODULE ARGUMENT...: a part of Dynamo, with the environment that its
# frontend and its engines share.
start_with_dynamo() {
    local name=$1 level=$2
    shift 2
    start "$name" env DYN_LOG="$level" DYN_DISCOVERY_BACKEND=file DYN_FILE_KV="$discovery" \
        DYN_REQUEST_PLANE=tcp DYN_EVENT_PLANE=zmq DYN_TCP_RPC_HOST=127.0.0.1 \
        DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1 DYN_EVENT_PLANE_HOST=127.0.0.1 HF_HUB_OFFLINE=1 \
        "$cache/venv-dynamo/bin/python" -m "$@"
}

start_mocker() { # STEP_MS
    local pace=(--speedup-ratio 1e6)
    if (($1 > 0)); then pace=(--planner-profile-data "$cache/step$1.npz"); fi
    start_with_dynamo engine warn dynamo.mocker --model-path "$cache/model" --model-name tiny \
        --num-workers "$ENGINES" --block-size 16 --num-gpu-blocks-override "$BLOCKS" \
        --max-num-seqs "$SEQUENCES" --max-num-batched-tokens "$STEP_TOKENS" "${pace[@]}"
}

start_dynamo() { # LOG_LEVEL ROUTER_MODE PORT ARGUMENT...
    local level=$1 mode=$2 port=$3
    shift 3
    start_with_dynamo router "$level" dynamo.frontend --router-mode "$mode" --http-host 127.0.0.1 --http-port "$port" "$@"
}

# The SGLang router and those that descend from it take the same flags.
start_router() { # POLICY PORT METRICS_PORT COMMAND...
    local policy=$1 port=$2 metrics_port=$3
    shift 3
    start router "$@" --host 127.0.0.1 --port "$port" --worker-urls "${workers[@]}" --policy "$policy" \
        --prometheus-host 127.0.0.1 --prometheus-port "$metrics_port" --worker-startup-check-interval 1
}
