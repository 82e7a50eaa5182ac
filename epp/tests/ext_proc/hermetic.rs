//! The hermetic tests of the llm-d router: pods with loads, a request as messages, and the
//! messages that must come back. Their texts and numbers are theirs, and so are their names.
//!
//! Differences, told in messages below: only headers that change are set, what a client may not
//! say is stripped, bodies are spliced instead of written again, an empty pool is 503 with and
//! without a body, and what an admitter refuses is 429.

use super::plane::*;
use super::pool::*;
use super::show::{ROUTED, header_set, piece, routed_to, show};
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;

/// The scorers of those tests, all of weight 1.
const SCORERS: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: prefix-cache-scorer},
  {type: lora-affinity-scorer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: kv-cache-utilization-scorer},
    {pluginRef: prefix-cache-scorer}, {pluginRef: lora-affinity-scorer}]
";
const LORA: &str = "sql-lora-1fdg2";

/// Three pods, the second of which has the shortest queue and the emptiest cache.
fn three() -> [Engine; 3] {
    [engine(0, 3, 0.2, &[]), engine(1, 0, 0.1, &[]), engine(2, 10, 0.2, &[])]
}

fn completion(model: &str, prompt: &str) -> String {
    format!(r#"{{"max_tokens":100,"model":"{model}","prompt":"{prompt}","temperature":0}}"#)
}

/// The head of their requests: an objective of the model's name, and a model to be asked for in
/// place of the body's.
fn head(model: &str, target: &str) -> ProcessingRequest {
    let headers = [
        ("hi", "mom"),
        ("x-request-id", "test-request-id"),
        (":method", "POST"),
        (":path", "/v1/completions"),
        ("x-llm-d-inference-objective", model),
        ("x-llm-d-model-name-rewrite", target),
    ];
    request_headers(&headers, false)
}

fn request(prompt: &str, model: &str, target: &str) -> [ProcessingRequest; 2] {
    [head(model, target), request_body(completion(model, prompt), true)]
}

/// What comes back for a request that goes to a pod: the head, and the body with the target's
/// name.
fn route(number: u8, target: &str, prompt: &str) -> [String; 2] {
    let body = completion(target, prompt);
    [routed_to(address(number), body.len()), format!("request_body {body:?}.")]
}

/// A request for `model` of these pods goes to the pod `number`.
async fn check(engines: &[Engine], model: &str, target: &str, number: u8) -> Bed {
    let bed = Bed::start(SCORERS, engines).await;
    let expected = route(number, target, "test");
    bed.check(request("test", model, target), &expected).await;
    bed
}

#[tokio::test]
async fn select_lower_queue_and_kv_cache() {
    let bed = check(&three(), "my-model", "my-model-12345", 1).await;
    let labels = r#"model_name="my-model",target_model_name="my-model-12345""#;
    let count = bed.served.metrics("llm_d_epp_request_total{");
    let flow = r#"fairness_id="default-flow",priority="2""#;
    assert_eq!(count, [format!("llm_d_epp_request_total{{{labels},{flow}}} 1")]);
    let twin = bed.served.metrics("inference_objective_request_total{");
    assert_eq!(twin, [format!("inference_objective_request_total{{{labels},priority=\"2\"}} 1")]);
    let ready = bed.served.metrics("llm_d_epp_ready_endpoints{");
    assert_eq!(ready, [r#"llm_d_epp_ready_endpoints{name="pool"} 3.0"#]);
}

#[tokio::test]
async fn select_active_lora_with_low_queue() {
    let engines = [
        engine(0, 0, 0.2, &["foo", "bar"]),
        engine(1, 0, 0.1, &["foo", LORA]),
        engine(2, 10, 0.2, &["foo", "bar"]),
    ];
    check(&engines, "sql-lora", LORA, 1).await;
}

#[tokio::test]
async fn select_lora_despite_higher_kv_cache() {
    let engines = [
        engine(0, 10, 0.2, &["foo", "bar"]),
        engine(1, 10, 0.4, &["foo", LORA]),
        engine(2, 10, 0.3, &["foo"]),
    ];
    check(&engines, "sql-lora", LORA, 1).await;
}

#[tokio::test]
async fn a_body_that_the_passthrough_parser_takes_goes_on_as_it_is() {
    let handler = "requestHandler: {parsers: [{pluginRef: passthrough-parser}]}\n";
    let bed = Bed::start(&format!("{SCORERS}{handler}"), &three()).await;
    let text = "passthrough-parser";
    let messages = [head("my-model", "other"), request_body(text, true)];
    let expected = [routed_to(address(1), text.len()), format!("request_body {text:?}.")];
    bed.check(messages, &expected).await;
    let requests = bed.served.metrics("llm_d_epp_request_total{");
    let labels = r#"model_name="",target_model_name="""#;
    assert!(requests.iter().all(|line| line.contains(labels)), "{requests:?}");
}

#[tokio::test]
async fn do_not_shed_requests_by_default() {
    let engines = [
        engine(0, 6, 0.2, &["foo", LORA]),
        engine(1, 0, 0.85, &["foo"]),
        engine(2, 10, 0.9, &["foo"]),
    ];
    check(&engines, "sql-lora", LORA, 0).await;
}

#[tokio::test]
async fn invalid_json_is_refused() {
    let bed = Bed::start(SCORERS, &three()).await;
    let mut stream = bed.served.open().await;
    stream.send([head("my-model", "my-model"), request_body("no healthy upstream", true)]);
    let found = show(&stream.answer().await);
    // The rest is the words of the one who parses.
    let text = "immediate 400 set(content-type=text/plain) \"inference error: BadRequest - error \
                unmarshaling request bodyMap: ";
    assert!(found.starts_with(text), "{found}");
    stream.ends("OK").await;
}

#[tokio::test]
async fn a_split_body_is_one_request() {
    let bed = Bed::start(SCORERS, &[idle(0)]).await;
    let body = completion("my-model", "test");
    let (first, second) = body.split_at(30);
    let pieces = [request_body(first, false), request_body(second, true)];
    let [head, _] = request("test", "my-model", "my-model");
    let expected = route(0, "my-model", "test");
    bed.check([vec![head], pieces.to_vec()].concat(), &expected).await;
}

/// The refusal of a pool without endpoints to choose from.
const NOBODY: &str = "immediate 503 set(x-llm-d-request-dropped-reason=rejected-no-endpoints \
                      retry-after=1 content-type=text/plain) \"inference error: \
                      ServiceUnavailable - failed to find endpoint candidates for serving the \
                      request\"";

#[tokio::test]
async fn no_backend_pods_are_available() {
    let bed = Bed::start(SCORERS, &[]).await;
    let get = request_headers(&[(":method", "GET"), (":path", "/v1/models")], true);
    bed.check([get], &[NOBODY]).await;
    bed.check(request("test", "my-model", "my-model"), &[NOBODY]).await;
}

#[tokio::test]
async fn a_missing_model_is_told_before_endpoints_are_looked_for() {
    let bed = Bed::start(SCORERS, &[]).await;
    let text = "immediate 400 set(content-type=text/plain) \"inference error: BadRequest - model \
                not found in request body\"";
    let body = request_body(r#"{"prompt":"hello world"}"#, true);
    bed.check([head("", ""), body], &[text]).await;
}

/// A request that may go to these pods only.
fn allowed(numbers: &[u8]) -> [ProcessingRequest; 2] {
    let endpoints: Vec<_> =
        numbers.iter().map(|number| text(&address(*number).to_string())).collect();
    request("test", "my-model", "my-model")
        .map(|part| with_metadata(part, SUBSET, list(&endpoints)))
}

#[tokio::test]
async fn subsets_are_obeyed() {
    let bed = Bed::start(SCORERS, &three()).await;
    for (numbers, number) in [(&[0, 1, 2][..], 1), (&[2][..], 2)] {
        let expected = route(number, "my-model", "test");
        bed.check(allowed(numbers), &expected).await;
    }
    bed.check(allowed(&[98]), &[NOBODY]).await;
    bed.check(allowed(&[]), &[NOBODY]).await;
    let get = request_headers(&[(":method", "GET"), (":path", "/v1/models")], true);
    let nowhere = with_metadata(get.clone(), SUBSET, text(&address(98).to_string()));
    bed.check([nowhere], &[NOBODY]).await;
    let third = text(&address(2).to_string());
    let mut stream = bed.served.open().await;
    stream.send([with_metadata(get, SUBSET, third)]);
    let answer = stream.answer().await;
    assert_eq!(header_set(&answer, DESTINATION), Some(address(2).to_string()));
}

#[tokio::test]
async fn a_model_without_an_objective_is_served() {
    let engines = [engine(0, 0, 0.1, &[]), engine(1, 6, 0.8, &[]), engine(2, 10, 0.9, &[])];
    let bed = check(&engines, "direct-model", "direct-model", 0).await;
    let counted = bed.served.metrics("llm_d_epp_request_total{model_name=\"direct-model\"");
    assert!(counted[0].contains("priority=\"0\""), "{counted:?}");
}

#[tokio::test]
async fn a_rewrite_of_the_pool_changes_the_model() {
    let bed = Bed::start(SCORERS, &three()).await;
    let model = "model-to-be-rewritten";
    let [_, body] = request("test", model, "");
    let id = ("x-request-id", "test-request-id");
    let head = request_headers(&[id, (":method", "POST"), (":path", "/v1/completions")], false);
    let expected = route(1, "rewritten-model", "test");
    let mut stream = bed.served.open().await;
    stream.send([head, body]);
    stream.expect(&expected).await;
    let counted = bed.served.metrics("llm_d_epp_request_total{");
    let labels = format!("model_name=\"{model}\",target_model_name=\"rewritten-model\"");
    assert!(counted[0].contains(&labels), "{counted:?}");
    let rewrites = bed.served.metrics("llm_d_epp_model_rewrite_decisions_total{");
    let labels = format!(
        "model_rewrite_name=\"rules\",model_name=\"{model}\",target_model=\"rewritten-model\"",
    );
    assert!(rewrites.len() == 1 && rewrites[0].contains(&labels), "{rewrites:?}");
    // The client reads the name that it asked for, wherever the answer is cut.
    stream.send([ok(), response_body(r#"{"model":"rewrit"#, false)]);
    stream.send([response_body(r#"ten-model","id":1}"#, true)]);
    assert_eq!(show(&stream.answer().await), "response_headers");
    assert_eq!(body_of(&mut stream).await, format!(r#"{{"model":"{model}","id":1}}"#));
}

/// The rest of a body.
async fn body_of(stream: &mut Stream) -> String {
    let mut whole = Vec::new();
    loop {
        let answer = stream.answer().await;
        let (bytes, end) = piece(&answer).expect("the body goes on");
        whole.extend_from_slice(bytes);
        if end {
            return String::from_utf8(whole).expect("the tests send text");
        }
    }
}

#[tokio::test]
async fn a_get_without_a_body_goes_to_any_pod() {
    let bed = Bed::start(SCORERS, &three()).await;
    let id = ("x-request-id", "test-request-id");
    let get = request_headers(&[id, (":method", "GET"), (":path", "/v1/models")], true);
    let mut stream = bed.served.open().await;
    stream.send([get]);
    let answer = show(&stream.answer().await);
    let any = (0..3).map(|number| ROUTED.replace("10.0.0.2:8000", &address(number).to_string()));
    assert!(any.into_iter().any(|expected| expected == answer), "{answer}");
}

/// An answer without a request, as those tests send them, comes back as it is.
async fn check_answer(content_type: &str, pieces: &[&str]) -> Bed {
    let bed = Bed::start(SCORERS, &three()).await;
    let headers = [(":status", "200"), ("content-type", content_type)];
    let mut messages = vec![response_headers(&headers, false)];
    let mut expected = vec!["response_headers".to_owned()];
    for (at, piece) in pieces.iter().enumerate() {
        let last = at + 1 == pieces.len();
        messages.push(response_body(piece, last));
        expected.push(format!("response_body {piece:?}{}", if last { "." } else { "" }));
    }
    let mut stream = bed.served.open().await;
    stream.send(messages);
    stream.expect(&expected).await;
    stream.ends("OK").await;
    bed
}

#[tokio::test]
async fn answers_come_back_piece_by_piece() {
    check_answer("application/json", &[r#"{"max_tokens":100,"model":"sql-lo"#, r#"ra"}"#]).await;
    check_answer("application/json", &["no healthy upstream", ""]).await;
    check_answer("application/json", &[""]).await;
}

const USAGE: &str = r#"{"usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}}"#;

/// The tokens of one answer are counted, under these labels.
fn check_tokens(bed: &Bed, labels: &str) {
    for (name, tokens) in [("input", 7), ("output", 10)] {
        let sum = bed.served.metrics(&format!("llm_d_epp_request_{name}_tokens_sum{{"));
        assert_eq!(sum, [format!("llm_d_epp_request_{name}_tokens_sum{{{labels}}} {tokens}.0")]);
    }
}

#[tokio::test]
async fn the_usage_of_a_streamed_answer_without_a_request_is_counted_under_no_model() {
    let pieces = ["data: {}\n\n", &format!("data: {USAGE}\n\ndata: [DONE]\n\n"), ""];
    let bed = check_answer("text/event-stream", &pieces).await;
    check_tokens(&bed, r#"model_name="",target_model_name="",fairness_id="",priority="0""#);
    let twin = bed.served.metrics("inference_objective_input_tokens_sum{");
    let labels = r#"model_name="",target_model_name="""#;
    assert_eq!(twin, [format!("inference_objective_input_tokens_sum{{{labels}}} 7.0")]);
    // Nothing else is known of it.
    for name in ["request_total", "request_duration_seconds_count", "request_running"] {
        assert_eq!(bed.served.metrics(&format!("llm_d_epp_{name}{{")), [""; 0]);
    }
}

#[tokio::test]
async fn the_usage_of_a_streamed_answer_is_counted() {
    let bed = Bed::start(SCORERS, &three()).await;
    let mut stream = bed.served.open().await;
    stream.send(request("test", "my-model", "my-model"));
    stream.expect(&route(1, "my-model", "test")).await;
    let pieces = ["data: {}\n\n".to_owned(), format!("data: {USAGE}\n\ndata: [DONE]\n\n")];
    let headers = [(":status", "200"), ("content-type", "text/event-stream")];
    stream.send([response_headers(&headers, false)]);
    stream.send(pieces.iter().map(|piece| response_body(piece, false)));
    stream.send([response_body("", true)]);
    stream.expect(&["response_headers"]).await;
    for piece in &pieces {
        stream.expect(&[&format!("response_body {piece:?}")]).await;
    }
    stream.expect(&["response_body \"\"."]).await;
    let labels = r#"model_name="my-model",target_model_name="my-model""#;
    check_tokens(&bed, &format!(r#"{labels},fairness_id="default-flow",priority="2""#));
}

/// The router answers 500 here, which tells a client that it is no use to come back.
#[tokio::test]
async fn what_an_admitter_refuses_is_429_and_not_500() {
    let config = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: probabilistic-admitter, parameters: {queueDepthThreshold: 1000, k: 1e30}}
- {type: queue-scorer}
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
";
    let bed = Bed::start(config, &[engine(0, 1, 0.1, &[])]).await;
    let mut stream = bed.served.open().await;
    stream.send(request("test", "sheddable", "sheddable"));
    let found = show(&stream.answer().await);
    let text = "immediate 429 set(x-llm-d-request-dropped-reason=rejected-saturated retry-after=1 \
                content-type=text/plain) \"inference error: ResourceExhausted - request cannot be \
                admitted: ";
    assert!(found.starts_with(text), "{found}");
    stream.ends("OK").await;
    let expected = route(0, "my-model", "test");
    let admitted = request("test", "my-model", "my-model");
    bed.check(admitted, &expected).await;
}
