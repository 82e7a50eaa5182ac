//! What the end-to-end tests of the llm-d router look at that needs no engine: who computes the
//! prompt, who encodes the images, and how requests spread. Each request is over before the next.

use super::plane::*;
use super::pool::*;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use std::collections::BTreeSet;
use std::net::SocketAddr;

const PREFILLER: &str = "x-prefiller-host-port";
const ENCODERS: &str = "x-encoder-hosts-ports";
const RANK: &str = "x-data-parallel-host-port";

/// What `manifests/epp` offers for prompts that are computed apart.
const SPLIT: &str = include_str!("../../../manifests/epp/configs/pd-disaggregation.yaml");

fn asking(path: &str, body: &str) -> [ProcessingRequest; 2] {
    let headers = [("x-request-id", "id"), (":method", "POST"), (":path", path)];
    [request_headers(&headers, false), request_body(body, true)]
}

/// A completion of a prompt of about 2,000 tokens.
fn long(n: usize) -> [ProcessingRequest; 2] {
    let prompt = format!("{n} {}", "A sentence of the document number {n}. ".repeat(200));
    asking("/v1/completions", &format!(r#"{{"model":"m","prompt":"{prompt}"}}"#))
}

/// Counts of a metric with the label `decision_type`, in the order of their names.
fn decisions(bed: &Bed, metric: &str) -> Vec<(String, u64)> {
    let lines = bed.served.metrics(&format!("{metric}{{"));
    let count = |line: &String| {
        let kind = line.split_once("decision_type=\"").expect("it has the label").1;
        let (kind, rest) = kind.split_once('"').expect("labels are quoted");
        let count = rest.rsplit_once(' ').expect("a sample has a value").1;
        (kind.to_owned(), count.parse().expect("a count"))
    };
    let mut found: Vec<_> = lines.iter().map(count).filter(|(_, count)| *count > 0).collect();
    found.sort();
    found
}

/// One computes prompts and four answer: new prompts are computed apart, and a prompt that comes
/// again is answered where it was, without help. The decisions are counted by a metric of this
/// name, under both of its prefixes.
async fn check_split(config: &str, metric: &str) {
    let roles = ["prefill", "decode", "decode", "decode", "decode"];
    let engines: Vec<_> = (0..).zip(roles).map(|(n, role)| of_role(n, role)).collect();
    let bed = Bed::start(config, &engines).await;
    let mut homes = Vec::new();
    for n in 0..4 {
        let routed = bed.route(long(n)).await;
        assert_eq!(routed.header(PREFILLER), Some(address(0).to_string()));
        assert_ne!(routed.to(), address(0));
        homes.push(routed.to());
        routed.answered().await;
    }
    for n in [0, 2] {
        let routed = bed.route(long(n)).await;
        assert_eq!((routed.to(), routed.header(PREFILLER)), (homes[n], None));
        routed.answered().await;
    }
    let expected = [("decode-only".to_owned(), 2), ("prefill-decode".to_owned(), 4)];
    for prefix in ["llm_d_epp", "llm_d_inference_scheduler"] {
        assert_eq!(decisions(&bed, &format!("{prefix}_{metric}_decision_total")), expected);
    }
}

#[tokio::test]
async fn one_prefills_for_four() {
    check_split(SPLIT, "disagg").await;
}

#[tokio::test]
async fn one_prefills_for_four_by_the_older_handler() {
    let (before, rest) = SPLIT.split_once("- type: disagg-profile-handler").expect("it is there");
    let rest = &rest[rest.find("- type: prefill-filter").expect("it is there")..];
    check_split(&format!("{before}- type: pd-profile-handler\n{rest}"), "pd").await;
}

/// A configuration of three stages whose profiles filter by role; `deciders` says who helps.
fn stages(deciders: &str) -> String {
    format!(
        "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: always-disagg-multimodal-decider}}
- {{type: always-disagg-pd-decider}}
- {{type: disagg-profile-handler, parameters: {{deciders: {deciders}}}}}
- {{type: encode-filter}}
- {{type: prefill-filter}}
- {{type: decode-filter}}
- {{type: random-picker}}
schedulingProfiles:
- {{name: encode, plugins: [{{pluginRef: encode-filter}}, {{pluginRef: random-picker}}]}}
- {{name: prefill, plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: random-picker}}]}}
- {{name: decode, plugins: [{{pluginRef: decode-filter}}, {{pluginRef: random-picker}}]}}
"
    )
}

/// A request with an image and one without, among pods of these roles: the kind of decision, the
/// pod that answers, and those that encode and prefill for it.
async fn check_stages(
    deciders: &str,
    roles: &[&'static str],
    expected: [(&str, u8, Option<u8>, Option<u8>); 2],
) {
    let engines: Vec<_> = (0..).zip(roles).map(|(n, role)| of_role(n, role)).collect();
    let bed = Bed::start(&stages(deciders), &engines).await;
    let image = r#"{"type":"image_url","image_url":{"url":"http://images/1.png"}}"#;
    let text = r#"{"type":"text","text":"What is it?"}"#;
    let contents = [format!("[{image},{text}]"), format!("[{text}]")];
    for (content, (kind, decode, encode, prefill)) in contents.iter().zip(expected) {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#);
        let before = decisions(&bed, "llm_d_epp_disagg_decision_total");
        let routed = bed.route(asking("/v1/chat/completions", &body)).await;
        assert_eq!(routed.to(), address(decode), "{content}");
        let named = |pod: Option<u8>| pod.map(|pod| address(pod).to_string());
        assert_eq!(routed.header(ENCODERS), named(encode), "{content}");
        assert_eq!(routed.header(PREFILLER), named(prefill), "{content}");
        assert_eq!(routed.body, body.as_bytes());
        routed.answered().await;
        let after = decisions(&bed, "llm_d_epp_disagg_decision_total");
        let counts = |all: &[(String, u64)]| {
            all.iter().filter(|(name, _)| name == kind).map(|(_, count)| count).sum::<u64>()
        };
        assert_eq!(counts(&after), counts(&before) + 1, "{kind}");
    }
}

#[tokio::test]
async fn images_are_encoded_apart_and_all_else_together() {
    let roles = ["encode", "prefill-decode"];
    let expected = [("encode-decode", 1, Some(0), None), ("decode-only", 1, None, None)];
    check_stages("{encode: always-disagg-multimodal-decider}", &roles, expected).await;
}

#[tokio::test]
async fn three_stages_may_have_three_pods() {
    let deciders = "{encode: always-disagg-multimodal-decider, prefill: always-disagg-pd-decider}";
    let expected =
        [("encode-prefill-decode", 2, Some(0), Some(1)), ("prefill-decode", 2, None, Some(1))];
    check_stages(deciders, &["encode", "prefill", "decode"], expected).await;
}

#[tokio::test]
async fn one_pod_may_do_all_stages() {
    let alone = ("decode-only", 0, None, None);
    check_stages("{}", &["encode-prefill-decode"], [alone, alone]).await;
}

#[tokio::test]
async fn token_ids_for_vllm_are_split_as_prompts_are() {
    let handler = "requestHandler: {parsers: [{pluginRef: vllmhttp-parser}]}\n";
    let engines = [of_role(0, "prefill"), of_role(1, "decode")];
    let bed = Bed::start(&format!("{SPLIT}{handler}"), &engines).await;
    let ids: Vec<_> = (0..1000_u32).map(|id| id.to_string()).collect();
    let body = format!(
        r#"{{"model":"m","token_ids":[{}],"sampling_params":{{"max_tokens":5}}}}"#,
        ids.join(",")
    );
    for prefiller in [Some(address(0).to_string()), None] {
        let routed = bed.route(asking("/inference/v1/generate", &body)).await;
        assert_eq!((routed.to(), routed.header(PREFILLER)), (address(1), prefiller));
        assert_eq!(routed.body, body.as_bytes());
        routed.answered().await;
    }
    let expected = [("decode-only".to_owned(), 1), ("prefill-decode".to_owned(), 1)];
    assert_eq!(decisions(&bed, "llm_d_epp_disagg_decision_total"), expected);
}

#[tokio::test]
async fn new_pods_take_their_share_and_those_that_are_gone_none() {
    let config = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: prefix-cache-scorer}]}
";
    let bed = Bed::start(config, &[idle(0)]).await;
    let spread = async |first: usize| {
        let mut served = BTreeSet::new();
        for n in first..first + 60 {
            served.insert(bed.finish(long(n)).await);
        }
        served
    };
    assert_eq!(spread(0).await, BTreeSet::from([address(0)]));
    bed.set(&[idle(0), idle(1), idle(2)]);
    assert_eq!(spread(100).await, [0, 1, 2].map(address).into());
    bed.set(&[idle(2)]);
    assert_eq!(spread(200).await, BTreeSet::from([address(2)]));
    bed.set(&[]);
    let nobody = "immediate 503 set(x-llm-d-request-dropped-reason=rejected-no-endpoints";
    let mut stream = bed.served.open().await;
    stream.send(long(0));
    let found = super::show::show(&stream.answer().await);
    assert!(found.starts_with(nobody), "{found}");
    bed.set(&[idle(1)]);
    assert_eq!(bed.finish(long(0)).await, address(1));
}

/// A pod of four ranks takes requests on all of them: at their own ports, or through the first
/// with a header that names the rank.
#[tokio::test]
async fn all_ranks_of_a_pod_are_used() {
    let handlers = ["single-profile-handler", "data-parallel-profile-handler"];
    for handler in handlers {
        let config = format!(
            "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{{type: {handler}}}, {{type: random-picker}}]
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: random-picker}}]}}]
"
        );
        let choices = Choices { ranks: 4, ..Choices::default() };
        let bed = Bed::with(&config, &[idle(0)], choices).await;
        let ranks = (0..4).map(|rank| SocketAddr::new(address(0).ip(), PORT + rank));
        let ranks: BTreeSet<_> = ranks.collect();
        let mut used = BTreeSet::new();
        for n in 0..100 {
            let routed = bed.route(long(n)).await;
            used.insert(match routed.header(RANK) {
                None => routed.to(),
                Some(rank) => {
                    assert_eq!(routed.to(), address(0));
                    rank.parse().expect("it is an address")
                }
            });
            assert_eq!(routed.header(RANK).is_some(), handler != handlers[0]);
            routed.answered().await;
        }
        assert_eq!(used, ranks, "{handler}");
    }
}
