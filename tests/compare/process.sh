# Processes under test: started in groups of their own, always stopped, never left behind.
# Sourced by `run`; needs $scratch, a directory for logs.
# Variables without an origin here are shared with the scripts that source this one.
# shellcheck shell=bash disable=SC2034,SC2154

started=() # Process ids, in the order of starting.
pid=''     # The process that `start` started last.

# start NAME COMMAND...: runs the command in the background, logging to $scratch/NAME.log.
start() {
    local name=$1
    shift
    setsid "$@" >"$scratch/$name.log" 2>&1 </dev/null &
    pid=$!
    started+=("$pid")
}

# Ends what was started, the latest first: SIGTERM, and SIGKILL after ten seconds.
stop_all() {
    local i p
    for ((i = ${#started[@]} - 1; i >= 0; i--)); do
        p=${started[i]}
        kill -TERM -- "-$p" 2>/dev/null || true
        for _ in {1..100}; do
            kill -0 -- "-$p" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL -- "-$p" 2>/dev/null || true
        wait "$p" 2>/dev/null || true
    done
    started=()
}

# wait_for_line FILE PATTERN: prints the first line of the file that matches, waiting up to 60 s.
wait_for_line() {
    for _ in {1..240}; do
        if grep -m1 -E -- "$2" "$1" 2>/dev/null; then return; fi
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.25
    done
    echo "no line like '$2' in $1" >&2
    return 1
}

# Waits until a chat completion comes back from $url, up to 60 s.
wait_until_serving() {
    local question='{"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"are you there"}]}'
    for _ in {1..240}; do
        if curl -sf -m 5 -o /dev/null "$url/v1/chat/completions" -H 'content-type: application/json' -d "$question"; then
            return
        fi
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.25
    done
    echo "$url does not serve" >&2
    return 1
}

# free_ports N: prints N loopback ports that nobody listens on.
free_ports() {
    python3 - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in sockets:
    one.bind(("127.0.0.1", 0))
print(*[one.getsockname()[1] for one in sockets])
PYTHON
}

# Prints two counters of the machine: ticks spent working, and ticks in all.
machine_ticks() {
    awk '/^cpu /{print $2 + $3 + $4 + $7 + $8 + $9, $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9; exit}' /proc/stat
}

# Waits until the machine is busy for at most $QUIET percent, but no longer than $QUIET_WAIT seconds:
# a run on a busy machine is recorded as such.
wait_for_quiet() {
    local before_busy before_all busy all end=$((SECONDS + QUIET_WAIT))
    while ((SECONDS < end)); do
        read -r before_busy before_all < <(machine_ticks)
        sleep 1
        read -r busy all < <(machine_ticks)
        if ((100 * (busy - before_busy) <= QUIET * (all - before_all))); then return; fi
    done
}
