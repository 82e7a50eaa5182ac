//! Requests that say which endpoints they need, in headers and bodies that `stator proxy` reads too.

use super::plane::*;
use super::pool::*;
use super::show::show;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;

const BODY: &str = r#"{"model":"m","prompt":"hello"}"#;

/// A request with these headers and this body.
fn asking(headers: &[(&str, &str)], body: &str) -> [ProcessingRequest; 2] {
    let usual = [(":method", "POST"), (":path", "/v1/completions")];
    [request_headers(&[&usual, headers].concat(), false), request_body(body, true)]
}

/// A pod with one label more.
fn labelled(number: u8, key: &'static str, value: &'static str) -> Engine {
    Engine { labels: vec![(key, value)], ..idle(number) }
}

/// The refusal of a request.
async fn refusal(bed: &Bed, headers: &[(&str, &str)]) -> String {
    let mut stream = bed.served.open().await;
    stream.send(asking(headers, BODY));
    show(&stream.answer().await)
}

#[tokio::test]
async fn labels_in_the_header_or_the_body_choose_the_endpoint() {
    let bed = Bed::start("", &[labelled(0, "zone", "a"), labelled(1, "zone", "b")]).await;
    for (zone, number) in [("zone=a", 0), ("zone=b", 1), ("zone=b", 1)] {
        let header = asking(&[("x-stator-labels", zone)], BODY);
        assert_eq!(bed.finish(header).await, address(number), "{zone}");
        let body = format!(
            r#"{{"model":"m","prompt":"hello","nvext":{{"routing_constraints":{{"required_taints":["{zone}"]}}}}}}"#
        );
        assert_eq!(bed.finish(asking(&[], &body)).await, address(number), "{zone}");
    }
    let preferred = asking(&[("x-stator-labels", "zone=b;weight=1")], BODY);
    assert_eq!(bed.finish(preferred).await, address(1));
}

#[tokio::test]
async fn a_label_that_no_endpoint_has_is_named_in_the_refusal() {
    let bed = Bed::start("", &[labelled(0, "zone", "a")]).await;
    let refused = refusal(&bed, &[("x-stator-labels", "zone=q")]).await;
    assert!(refused.starts_with("immediate 503"), "{refused}");
    assert!(refused.contains("no worker has the label"), "{refused}");
    assert!(refused.contains("zone=q"), "{refused}");
    let refused = refusal(&bed, &[("x-stator-labels", "a;q=1")]).await;
    assert!(refused.starts_with("immediate 400"), "{refused}");
}

#[tokio::test]
async fn a_request_names_its_endpoint_only_where_the_operator_lets_it() {
    for pins in [false, true] {
        let choices = Choices { pins, ..Choices::default() };
        let bed = Bed::with("", &[idle(0), engine(1, 9, 0.9, &[])], choices).await;
        let ours = worker(1).worker.to_string();
        let busy = asking(&[("x-stator-worker-id", &ours)], BODY);
        assert_eq!(bed.finish(busy).await, address(pins.into()), "{pins}");
        let decimal = worker(1).worker.0.to_string();
        let busy = asking(&[("x-dynamo-worker-instance-id", &decimal)], BODY);
        assert_eq!(bed.finish(busy).await, address(pins.into()), "{pins}");
    }
    let choices = Choices { pins: true, ..Choices::default() };
    let bed = Bed::with("", &[idle(0)], choices).await;
    let gone = refusal(&bed, &[("x-dynamo-worker-instance-id", "77")]).await;
    assert!(gone.starts_with("immediate 503") && gone.contains("is not available"), "{gone}");
}
