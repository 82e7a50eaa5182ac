# The scenarios: what the load generator sends, and how fast engines answer. Sourced by `run`; needs
# $DURATION, $cache.
# Variables without an origin here are shared with the scripts that source this one.
# shellcheck shell=bash disable=SC2034,SC2154

#   idle    nothing
#   aN      N connections, prompts of 32 tokens of which half is one of 16 shared prefixes, 16 tokens out
#   aNq     the same; the client acknowledges every packet at once (TCP_QUICKACK)
#   aNp     as aN, but engines pace themselves, a token every 5 ms: each token has to be sent on its own,
#           where a proxy that falls behind an engine that takes no time may send several together
#   nN      as aN, not streamed
#   bN      N connections, prompts of 4,000 tokens of which half is one of 64 shared prefixes, 32 tokens out
#   cN      N concurrent streams of 200 tokens, one every 20 ms
#   cNs     N concurrent streams of 100 tokens, one every 200 ms
# Engines take no time in a (but aNp), n and b.
SCENARIOS_ALL="idle a1 a16 a128 a1q a16q a128p n16 b1 b16 c1000 c4000 c4000s"
SCENARIOS_QUICK="idle a16q a128 a128p b16 c4000s"
# What the peers of $PEERS_MORE are measured on.
SCENARIOS_MORE="a16q a128 a128p b16"

# step_ms SCENARIO: how long engines take for a token.
step_ms() {
    case $1 in
    c*s) echo 200 ;;
    c*) echo 20 ;;
    a*p) echo 5 ;;
    *) echo 0 ;;
    esac
}

# is_paced SCENARIO: whether engines take time in it. Such scenarios get fresh processes each, so that
# memory before and after means something.
is_paced() { (($(step_ms "$1") > 0)); }

# load_flags SCENARIO: prints the load generator's flags, one a line. The measurement begins after the
# ramp, when every connection is open and the shared prefixes have been seen.
load_flags() {
    local n=${1//[!0-9]/}
    local short=(--prompt-tokens 32 --shared-prefix-share 0.5 --prefix-groups 16)
    local long=(--prompt-tokens 4000 --shared-prefix-share 0.5 --prefix-groups 64)
    local ramp_s=2 duration_s=$DURATION flags=()
    case $1 in
    a*) flags=("${short[@]}" --output-tokens 16) ;;
    n*) flags=("${short[@]}" --output-tokens 16 --no-stream) ;;
    b*) flags=("${long[@]}" --output-tokens 32) ;;
    c*s) flags=("${short[@]}" --output-tokens 100) && ramp_s=$((n / 250 + 2)) duration_s=20 ;;
    c*) flags=("${short[@]}" --output-tokens 200) && ramp_s=$((n / 250 + 2)) duration_s=12 ;;
    esac
    if [[ $1 == *q ]]; then flags+=(--quickack); fi
    printf '%s\n' --concurrency "$n" --ramp "${ramp_s}s" --duration "${duration_s}s" \
        --words "$cache/model/words.txt" "${flags[@]}"
}
