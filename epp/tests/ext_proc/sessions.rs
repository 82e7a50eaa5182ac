//! What else the hermetic tests of the llm-d router look at: scores for the gateway, sessions
//! that stay where they are, and numbers about an answer.

use super::plane::*;
use super::pool::*;
use super::show::{header_set, piece, show};
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;

const ID: (&str, &str) = ("x-request-id", "test-request-id");
const TOKEN: &str = "x-session-token";
const PREFILL_TOKEN: &str = "x-session-token-prefill";

/// A request with these headers.
fn asking(headers: &[(&str, &str)]) -> [ProcessingRequest; 2] {
    let usual = [ID, (":method", "POST"), (":path", "/v1/completions")];
    let body = request_body(r#"{"model":"m","prompt":"hello"}"#, true);
    [request_headers(&[&usual, headers].concat(), false), body]
}

/// A configuration with one profile of these plug-ins.
fn config(plugins: &[&str], profile: &[&str]) -> String {
    let refs: Vec<_> = profile.iter().map(|name| format!("{{pluginRef: {name}}}")).collect();
    format!(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{}]\n\
         schedulingProfiles: [{{name: default, plugins: [{}]}}]\n",
        plugins.join(", "),
        refs.join(", "),
    )
}

#[tokio::test]
async fn all_candidates_scores_are_told_where_they_are_wanted_alone() {
    let config = config(&["{type: queue-scorer}"], &["queue-scorer"]);
    let engines = [engine(0, 0, 0.0, &[]), engine(1, 5, 0.0, &[]), engine(2, 10, 0.0, &[])];
    for scores in [false, true] {
        let choices = Choices { scores, ..Choices::default() };
        let bed = Bed::with(&config, &engines, choices).await;
        let mut stream = bed.served.open().await;
        stream.send(asking(&[]));
        let shown = show(&stream.answer().await);
        let expected = "x-gateway-destination-endpoint-scores={192.168.1.1:8000:1 \
                        192.168.1.2:8000:0.5 192.168.1.3:8000:0}";
        assert_eq!(shown.contains(expected), scores, "{shown}");
        assert_eq!(shown.contains("-scores="), scores, "{shown}");
    }
}

/// With the token that an answer brought, a request goes where the first one went, whatever else
/// speaks for another endpoint.
async fn check_token(kind: &str) {
    let plugins = [format!("{{type: {kind}}}"), "{type: queue-scorer}".to_owned()];
    let plugins: Vec<_> = plugins.iter().map(String::as_str).collect();
    // Scorers weigh 1 unless they say more; the session outweighs the queue.
    let config = config(&plugins, &[kind, "queue-scorer"]);
    let weighed = format!("pluginRef: {kind}, weight: 3");
    let config = config.replace(&format!("pluginRef: {kind}"), &weighed);
    let bed = Bed::start(&config, &[engine(0, 9, 0.0, &[]), engine(1, 0, 0.0, &[])]).await;
    let routed = bed.route(asking(&[])).await;
    assert_eq!(routed.to(), address(1));
    let token = header_set(&routed.answered().await, TOKEN).expect("the answer carries it");
    assert_eq!(token, "ZGVmYXVsdC9wb2QxLXJhbmstMA==", "default/pod1-rank-0");
    // Now all else speaks for the other.
    bed.set(&[engine(0, 0, 0.0, &[]), engine(1, 9, 0.0, &[])]);
    assert_eq!(bed.finish(asking(&[])).await, address(0));
    assert_eq!(bed.finish(asking(&[(TOKEN, &token)])).await, address(1));
    // A token of nobody, and one that is none, bind to nothing.
    for wrong in ["ZGVmYXVsdC9wb2Q5LXJhbmstMA==", "%%%"] {
        assert_eq!(bed.finish(asking(&[(TOKEN, wrong)])).await, address(0));
    }
}

#[tokio::test]
async fn the_session_affinity_filter_follows_the_token_of_an_answer() {
    check_token("session-affinity-filter").await;
}

#[tokio::test]
async fn the_session_affinity_scorer_follows_the_token_of_an_answer() {
    check_token("session-affinity-scorer").await;
}

/// A session's prompt is computed where it was before, and its answers come from where they did.
#[tokio::test]
async fn the_prefill_endpoint_of_a_session_has_a_token_of_its_own() {
    let config = format!(
        "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: prefix-based-pd-decider, parameters: {{nonCachedTokens: 100}}}}
- type: disagg-profile-handler
  parameters: {{deciders: {{prefill: prefix-based-pd-decider}}}}
- {{type: prefill-filter}}
- {{type: decode-filter}}
- {{name: decodes, type: session-affinity-filter}}
- name: prefills
  type: session-affinity-filter
  parameters: {{header: {PREFILL_TOKEN}, profileName: prefill}}
- {{type: random-picker}}
schedulingProfiles:
- name: prefill
  plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: prefills}}, {{pluginRef: random-picker}}]
- name: decode
  plugins: [{{pluginRef: decode-filter}}, {{pluginRef: decodes}}, {{pluginRef: random-picker}}]
"
    );
    let engines = [0, 1, 2].map(|n| of_role(n, "prefill")).into_iter();
    let engines: Vec<_> = engines.chain([3, 4, 5].map(|n| of_role(n, "decode"))).collect();
    let bed = Bed::start(&config, &engines).await;
    let long = |headers: &[(&str, &str)], n: u8| {
        let body = format!(r#"{{"model":"m","prompt":"{n} {}"}}"#, "many words ".repeat(200));
        let [head, _] = asking(headers);
        [head, request_body(body, true)]
    };
    let first = bed.route(long(&[], 0)).await;
    let (decode, prefill) = (first.to(), first.header("x-prefiller-host-port"));
    let answer = first.answered().await;
    let tokens = [TOKEN, PREFILL_TOKEN].map(|name| header_set(&answer, name).expect("it is set"));
    let headers = [(TOKEN, &*tokens[0]), (PREFILL_TOKEN, &*tokens[1])];
    for n in 1..10 {
        let next = bed.route(long(&headers, n)).await;
        assert_eq!((next.to(), next.header("x-prefiller-host-port")), (decode, prefill.clone()));
        next.answered().await;
    }
    // A short prompt has no prefill endpoint to tell of.
    let short = bed.route(asking(&headers)).await;
    assert_eq!(short.header("x-prefiller-host-port"), None);
    assert_eq!(header_set(&short.answered().await, PREFILL_TOKEN), None);
}

#[tokio::test]
async fn the_identity_of_a_session_keeps_it_where_it_was() {
    let sources = "[{header: x-my-session}, {attribute: session-id, producer: ids}]";
    let plugins = [
        "{name: ids, type: session-id-producer, parameters: {cookieName: sid}}".to_owned(),
        format!(
            "{{type: session-affinity-filter, parameters: {{strategy: session_id, \
             sessionIdConfig: {{sources: {sources}}}}}}}"
        ),
        "{type: random-picker}".to_owned(),
    ];
    let plugins: Vec<_> = plugins.iter().map(String::as_str).collect();
    let config = config(&plugins, &["session-affinity-filter", "random-picker"]);
    let engines: Vec<_> = (0..8).map(idle).collect();
    let bed = Bed::start(&config, &engines).await;
    let mut homes = Vec::new();
    for id in ["a", "b", "c", "d"] {
        let home = bed.finish(asking(&[("x-my-session", id)])).await;
        for _ in 0..10 {
            let routed = bed.route(asking(&[("x-my-session", id)])).await;
            assert_eq!(routed.to(), home);
            assert_eq!(header_set(&routed.answered().await, TOKEN), None, "nothing is written");
        }
        homes.push(home);
    }
    // The first source wins; without it the next one counts.
    let cookie = ("cookie", "x=1; sid=b");
    for _ in 0..10 {
        let both = bed.finish(asking(&[("x-my-session", "a"), cookie])).await;
        assert_eq!(both, homes[0]);
        assert_eq!(bed.finish(asking(&[cookie])).await, homes[1]);
    }
}

/// The number of an answer reaches the gateway with its last piece.
async fn check_reported(content_type: &str, pieces: &[&str]) {
    let reporter = "{type: request-attribute-reporter, parameters: {attributes: [{key: {name: \
                    x-gateway-inference-request-cost}, expression: usage.completion_tokens}]}}";
    let config = config(&[reporter, "{type: queue-scorer}"], &["queue-scorer"]);
    let bed = Bed::start(&config, &[idle(0)]).await;
    let mut routed = bed.route(asking(&[])).await;
    let headers = [(":status", "200"), ("content-type", content_type)];
    routed.stream.send([response_headers(&headers, false)]);
    for (at, piece) in pieces.iter().enumerate() {
        routed.stream.send([response_body(piece, at + 1 == pieces.len())]);
    }
    routed.stream.expect(&["response_headers"]).await;
    for (at, bytes) in pieces.iter().enumerate() {
        let answer = routed.stream.answer().await;
        let last = at + 1 == pieces.len();
        assert_eq!(piece(&answer), Some((bytes.as_bytes(), last)));
        let cost = "meta(envoy.lb x-gateway-inference-request-cost=10)";
        assert_eq!(show(&answer).contains(cost), last, "{}", show(&answer));
    }
}

#[tokio::test]
async fn the_cost_of_an_answer_is_told_with_its_last_piece() {
    let usage = r#","usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}}"#;
    check_reported("application/json", &[r#"{"id":1"#, usage]).await;
    let event = format!("data: {{\"id\":1{usage}\n\n");
    check_reported("text/event-stream", &["data: {}\n\n", &event, "data: [DONE]\n\n", ""]).await;
}
