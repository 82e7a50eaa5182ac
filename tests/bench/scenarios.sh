# The scenarios: what the load generator sends, and how fast engines answer. Sourced by `run`; needs
# $DURATION, $cache.
# Variables without an origin here are shared with the scripts that source this one.
# shellcheck shell=bash disable=SC2034,SC2154

#   idle    nothing
#   aN      N connections, prompts of 32 tokens of which half is one of 16 shared prefixes, 16 tokens out
#   aNq     the same; the client acknowledges every packet at once (TCP_QUICKACK)
#   nN      as aN, not streamed
#   bN      N connections, prompts of 4,000 tokens of which half is one of 64 shared prefixes, 32 tokens out
#   cN      N concurrent streams of 200 tokens, one every 20 ms
#   cNs     N concurrent streams of 100 tokens, one every 200 ms
# Engines take no time in a, n and b.
SCENARIOS_ALL="idle a1 a16 a128 a1q a16q n16 b1 b16 c1000 c4000 c4000s"
SCENARIOS_QUICK="idle a16q a128 b16 c4000s"
# What the peers of $PEERS_MORE are measured on.
SCENARIOS_MORE="a16q a128 b16"

# is_slow SCENARIO: whether engines take time in it. Such scenarios get fresh processes each, so that
# memory before and after means something.
is_slow() { [[ $1 == c* ]]; }

# step_ms SCENARIO: how long engines take for a token.
step_ms() {
    case $1 in
    c*s) echo 200 ;;
    c*) echo 20 ;;
    *) echo 0 ;;
    esac
}

# load_flags SCENARIO: prints the load generator's flags, one a line. Warm-up requests are many enough
# that every connection is open and every shared prefix has been seen.
load_flags() {
    local n=${1//[!0-9]/}
    local short=(--prompt-tokens 32 --shared-prefix-share 0.5 --prefix-groups 16)
    local long=(--prompt-tokens 4000 --shared-prefix-share 0.5 --prefix-groups 64)
    local closed=(--concurrency "$n" --duration "${DURATION}s" --warmup-requests $((64 + 16 * n)))
    local flags=()
    case $1 in
    a*) flags=("${closed[@]}" "${short[@]}" --output-tokens 16) ;;
    n*) flags=("${closed[@]}" "${short[@]}" --output-tokens 16 --no-stream) ;;
    b*) flags=("${closed[@]}" "${long[@]}" --output-tokens 32) ;;
    c*s) flags=("${short[@]}" --output-tokens 100 --concurrency "$n" --ramp "$((n / 250 + 2))s" --duration "$((n / 250 + 22))s") ;;
    c*) flags=("${short[@]}" --output-tokens 200 --concurrency "$n" --ramp "$((n / 250 + 2))s" --duration "$((n / 250 + 14))s") ;;
    esac
    if [[ $1 == *q ]]; then flags+=(--quickack); fi
    printf '%s\n' "${flags[@]}" --words "$cache/model/words.txt"
}
