//! The request phase in full duplex, as gateways and the llm-d router's own tests drive it.

use super::director::Script;
use super::plane::*;
use super::show::{ROUTED, routed, show};
use stator_epp::exchange::Interest;
use stator_epp::ext_proc::ExtProcSettings;

#[tokio::test]
async fn a_request_is_answered_when_its_body_is_complete() {
    let (mut served, mut stream) = plane(Script::new()).await;
    stream.send([post(), request_body("{\"model\":\"m\"}", true)]);
    stream.expect(&[&routed(13), "request_body \"{\\\"model\\\":\\\"m\\\"}\"."]).await;
    stream.ends("OK").await;
    assert_eq!(served.logged().await, "POST /v1/completions {\"model\":\"m\"}");
}

#[tokio::test]
async fn a_split_body_goes_back_in_one_chunk() {
    let (_served, mut stream) = plane(Script::new()).await;
    stream.send([post(), request_body("{\"max\":", false), request_body("1}", true)]);
    stream.expect(&[&routed(9), "request_body \"{\\\"max\\\":1}\"."]).await;
}

#[tokio::test]
async fn large_bodies_come_back_in_chunks_that_every_build_takes() {
    let (_served, mut stream) = plane(Script::new()).await;
    let piece = "x".repeat(50_000);
    let pieces = [request_body(&piece, false), request_body(&piece, false)];
    stream.send([post()].into_iter().chain(pieces).chain([request_body("yz", true)]));
    stream.expect(&[&routed(100_002), "request_body 62000x'x'", "request_body 38002x'x'."]).await;
}

#[tokio::test]
async fn an_empty_body_is_one_empty_last_chunk() {
    let (mut served, mut stream) = plane(Script::new()).await;
    stream.send([post(), request_body("", true)]);
    stream.expect(&[ROUTED, "request_body \"\"."]).await;
    assert_eq!(served.logged().await, "POST /v1/completions");
}

#[tokio::test]
async fn a_request_without_a_body_gets_only_its_head_answered() {
    let (mut served, mut stream) = plane(Script::new()).await;
    stream.send([request_headers(&[(":method", "GET"), (":path", "/v1/models")], true)]);
    stream.expect(&[ROUTED]).await;
    stream.ends("OK").await;
    assert_eq!(served.logged().await, "GET /v1/models");
}

#[tokio::test]
async fn trailers_complete_a_body_and_are_answered_last() {
    let (_served, mut stream) = plane(Script::new()).await;
    stream.send([post(), request_body("abc", false), request_trailers()]);
    stream.expect(&[ROUTED, "request_body \"abc\"", "request_trailers"]).await;
    stream.ends("OK").await;
}

#[tokio::test]
async fn trailers_without_a_body_are_answered_after_the_head() {
    let (_served, mut stream) = plane(Script::new()).await;
    stream.send([post(), request_trailers()]);
    stream.expect(&[ROUTED, "request_trailers"]).await;
}

#[tokio::test]
async fn a_changed_body_takes_the_place_of_the_one_that_came() {
    let (mut script, log) = Script::new();
    script.body = Some("{\"model\":\"rewritten\"}");
    script.set = vec![("x-prefiller-host-port", "10.0.0.9:8000".to_owned())];
    let (_served, mut stream) = plane((script, log)).await;
    stream.send([post(), request_body("{\"model\":\"m\"}", true)]);
    let head = routed(21)
        .replace(" content-length", " x-prefiller-host-port=10.0.0.9:8000 content-length");
    stream.expect(&[&head, "request_body \"{\\\"model\\\":\\\"rewritten\\\"}\"."]).await;
}

#[tokio::test]
async fn scores_are_told_in_the_metadata() {
    let (mut script, log) = Script::new();
    let address = |text: &str| text.parse().expect("it is an address");
    script.scores = vec![(address("10.0.0.2:8000"), 0.5), (address("[fd00::1]:8000"), 1.0)];
    let (_served, mut stream) = plane((script, log)).await;
    stream.send([post(), request_body("{}", true)]);
    let line = show(&stream.answer().await);
    let metadata = "meta(envoy.lb x-gateway-destination-endpoint=10.0.0.2:8000 \
                    x-gateway-destination-endpoint-scores={10.0.0.2:8000:0.5 [fd00::1]:8000:1})";
    assert!(line.ends_with(metadata), "{line}");
}

#[tokio::test]
async fn endpoints_are_told_in_their_order() {
    for expected in ["[fd00::1]:8000", "[fd00::1]:8000,10.0.0.2:8000"] {
        let (mut script, log) = Script::new();
        let endpoints = expected.split(',').map(|text| text.parse().expect("it is an address"));
        script.say = super::director::Say::Route(endpoints.collect());
        let (_served, mut stream) = plane((script, log)).await;
        stream.send([post(), request_body("{}", true)]);
        stream.expect(&[&routed(2).replace("10.0.0.2:8000", expected)]).await;
    }
}

#[tokio::test]
async fn a_clients_routing_headers_are_taken_away_and_ours_are_not() {
    let (mut script, log) = Script::new();
    script.set = vec![("x-stator-worker-id", "7".to_owned())];
    let (_served, mut stream) = plane((script, log)).await;
    let spoofed = [
        (":path", "/v1/completions"),
        ("x-prefiller-host-port", "169.254.169.254:80"),
        ("X-Stator-Anything", "1"),
        ("x-stator-anything", "2"),
        ("x-stator-worker-id", "3"),
    ];
    stream.send([request_headers(&spoofed, false), request_body("{}", true)]);
    let head = routed(2)
        .replace(" content-length", " x-stator-worker-id=7 content-length")
        .replace(" strip", " strip +x-stator-anything");
    stream.expect(&[&head]).await;
}

#[tokio::test]
async fn hashes_of_the_prompt_are_read_from_any_message_of_the_request() {
    let hashes = ("llm-d.routing", "prefix_hashes");
    let (mut served, _stream) = plane(Script::new()).await;
    for on_head in [true, false] {
        let given = || list(&[text("7"), text("18446744073709551615")]);
        let (mut head, mut body) = (post(), request_body("{}", true));
        if on_head {
            head = with_metadata(head, hashes, given());
        } else {
            body = with_metadata(body, hashes, given());
        }
        let mut stream = served.open().await;
        stream.send([head, body]);
        let line = "POST /v1/completions {} hashes=[7, 18446744073709551615]";
        assert_eq!(served.logged().await, line);
    }
}

#[tokio::test]
async fn subsets_are_read_from_any_message_of_the_request() {
    let subset = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
    let one = || text("10.0.0.1:8000");
    let cases = [
        (Some(list(&[one(), text("10.0.0.2")])), None, " subset=[10.0.0.1:8000,10.0.0.2]"),
        (
            None,
            Some(text("10.0.0.1:8000,[fd00::1]:8000")),
            " subset=[10.0.0.1:8000,[fd00::1]:8000]",
        ),
        (Some(text("10.0.0.9:1")), Some(list(&[one()])), " subset=[10.0.0.1:8000]"),
        (Some(list(&[])), None, " subset=[]"),
        (None, None, ""),
    ];
    for (on_head, on_body, expected) in cases {
        let (mut served, mut stream) = plane(Script::new()).await;
        let put = |message, kind: Option<_>| match kind {
            Some(kind) => with_metadata(message, subset, kind),
            None => message,
        };
        stream.send([put(post(), on_head), put(request_body("{}", true), on_body)]);
        assert_eq!(served.logged().await, format!("POST /v1/completions {{}}{expected}"));
    }
}

#[tokio::test]
async fn a_subset_without_a_body_counts_too() {
    let subset = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
    let (mut served, mut stream) = plane(Script::new()).await;
    let head = request_headers(&[(":method", "GET"), (":path", "/")], true);
    stream.send([with_metadata(head, subset, text("10.0.0.1:8000"))]);
    assert_eq!(served.logged().await, "GET / subset=[10.0.0.1:8000]");
}

#[tokio::test]
async fn the_subset_filter_can_be_switched_off() {
    let subset = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
    let settings = ExtProcSettings { subset_filter: false, ..ExtProcSettings::default() };
    let (mut served, mut stream) = plane_with(Script::new(), settings).await;
    stream.send([with_metadata(post(), subset, list(&[])), request_body("{}", true)]);
    assert_eq!(served.logged().await, "POST /v1/completions {}");
}

#[tokio::test]
async fn the_stream_stays_open_for_whoever_follows_the_answer() {
    let (mut script, log) = Script::new();
    script.interest = Interest::Headers;
    let (_served, mut stream) = plane((script, log)).await;
    stream.send([post(), request_body("{}", true)]);
    stream.expect(&[&routed(2), "request_body \"{}\"."]).await;
    stream.send([ok()]);
    stream.expect(&["response_headers"]).await;
    stream.ends("OK").await;
}
