//! Names and values that requests bring in their heads.

use crate::exchange::RequestHead;
use stator_epp_plugins::settings::VideoFacts;
use stator_epp_scheduler::Endpoint;
use stator_protos::duration;
use std::time::Duration;

/// A header's canonical name and its deprecated one; the canonical name wins.
///
/// Source: the request headers of the llm-d router.
pub(crate) type HeaderNames = [&'static str; 2];

/// Name of an objective.
pub(crate) const OBJECTIVE: HeaderNames =
    ["x-llm-d-inference-objective", "x-gateway-inference-objective"];
/// The request's flow.
pub(crate) const FAIRNESS_ID: HeaderNames =
    ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"];
/// The model to be asked for in place of the body's.
pub(crate) const REWRITE: HeaderNames =
    ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"];
/// Objective for the time per output token, in milliseconds.
const SLO_TPOT: HeaderNames = ["x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"];

/// Headers with the client's facts about its videos: seconds, frames of a second, and `WxH`.
const VIDEO: [&str; 3] =
    ["x-llm-d-video-duration-seconds", "x-llm-d-video-fps", "x-llm-d-video-resolution"];

/// Label of pods whose sidecar reads token ids in `nvext.token_data`.
const TOKEN_IDS_LABEL: &str = "stator.dev/token-ids";

/// The value of a header under its canonical name, else under its deprecated one; an empty one is
/// none.
pub(crate) fn header_of(head: &RequestHead, names: HeaderNames) -> Option<&str> {
    let value = names.iter().find_map(|name| head.header(name))?.trim();
    (!value.is_empty()).then_some(value)
}

/// The objective for the time per output token.
pub(crate) fn slo_tpot(head: &RequestHead) -> Option<Duration> {
    header_of(head, SLO_TPOT).and_then(duration::milliseconds)
}

/// The client's facts about its videos; a fact that cannot be read is left out.
pub(crate) fn video(head: &RequestHead) -> VideoFacts {
    let [seconds, fps, resolution] = VIDEO.map(|name| head.header(name).map(str::trim));
    let number = |text: &str| text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    let pixels = |text: &str| {
        let (width, height) = text.split_once(['x', 'X'])?;
        let side = |text: &str| text.trim().parse().ok().filter(|n: &u32| *n > 0).map(u64::from);
        Some(side(width)? * side(height)?)
    };
    VideoFacts {
        seconds: seconds.and_then(number),
        fps: fps.and_then(number),
        pixels: resolution.and_then(pixels),
    }
}

/// Whether the client wants an endpoint that holds a part of its prompt, or none.
pub(crate) fn if_available(head: &RequestHead) -> bool {
    head.header("prefer").is_some_and(|prefer| {
        prefer.split(',').any(|choice| choice.trim().eq_ignore_ascii_case("if-available"))
    })
}

/// Whether the request is a call of gRPC.
pub(crate) fn is_call(head: &RequestHead) -> bool {
    head.header("content-type").is_some_and(|kind| kind.starts_with("application/grpc"))
}

/// The headers whose values are text.
pub(crate) fn readable(head: &RequestHead) -> Vec<(&str, &str)> {
    let headers = head.headers.iter();
    let mut readable = Vec::with_capacity(head.headers.len());
    readable
        .extend(headers.filter_map(|(name, value)| Some((name, std::str::from_utf8(value).ok()?))));
    readable
}

/// Whether an endpoint reads the token ids that a picker adds.
pub(crate) fn takes_token_ids(endpoint: &Endpoint) -> bool {
    endpoint.label(TOKEN_IDS_LABEL) == Some("true")
}

/// A random UUID (version 4) for a request that came without an identity, as the llm-d router makes
/// them; the proxy's own are the 32 digits of a trace.
pub(crate) fn request_id(chance: u64) -> String {
    let random = (u128::from(rand::random::<u64>()) << 64) | u128::from(chance.rotate_left(17));
    let bits = (random & !(0xf << 76) & !(0x3 << 62)) | (4 << 76) | (2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canonical_name_wins_and_the_empty_value_is_none() {
        let head = |headers: &[(&str, &str)]| RequestHead {
            headers: headers.iter().copied().collect(),
            ..RequestHead::default()
        };
        let both = head(&[(OBJECTIVE[1], "old"), (OBJECTIVE[0], "new")]);
        assert_eq!(header_of(&both, OBJECTIVE), Some("new"));
        assert_eq!(header_of(&head(&[(OBJECTIVE[1], "old")]), OBJECTIVE), Some("old"));
        assert_eq!(header_of(&head(&[(OBJECTIVE[0], " ")]), OBJECTIVE), None);
        assert_eq!(header_of(&head(&[]), OBJECTIVE), None);
    }

    #[test]
    fn what_a_client_tells_of_its_videos_is_read_or_passed_over() {
        let told = |values: [&str; 3]| {
            video(&RequestHead {
                headers: VIDEO.into_iter().zip(values).collect(),
                ..RequestHead::default()
            })
        };
        let all = VideoFacts { seconds: Some(2.5), fps: Some(30.0), pixels: Some(1280 * 720) };
        assert_eq!(told(["2.5", " 30", "1280x720"]), all);
        for odd in [["-1", "0", "1280"], ["NaN", "inf", "0x720"], ["", "x", "1280x-720"]] {
            assert_eq!(told(odd), VideoFacts::default(), "{odd:?}");
        }
    }

    #[test]
    fn a_request_id_is_a_random_uuid() {
        let id = request_id(u64::MAX);
        let groups: Vec<_> = id.split('-').collect();
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(groups[2].starts_with('4') && "89ab".contains(&groups[3][..1]), "{id}");
        assert_ne!(id, request_id(u64::MAX));
    }
}
