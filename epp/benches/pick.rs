//! Cost of a pick without sockets: `cargo bench -p stator-epp --bench pick`.
//!
//! A whole stream each time: the messages of a data plane in, the answers out, from the frames of
//! gRPC to the booking and back. The figures are nanoseconds of one thread. Prompts are compared as
//! text; of a conversation all but the last message was seen before.

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Part;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProtocolConfiguration,
};
use futures::{StreamExt, stream};
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use prost::Message;
use stator_api::UnknownFields;
use stator_body::ParserSet;
use stator_epp::director::PoolDirector;
use stator_epp::director::settings::DirectorSettings;
use stator_epp::exchange::Interest;
use stator_epp::ext_proc::{ExtProc, ExtProcSettings};
use stator_epp::observe::Observe;
use stator_epp::pool::Pool;
use stator_epp_config::LoadOptions;
use stator_epp_metrics::{Build, EppMetrics};
use stator_epp_plugins::settings::MediaEstimate;
use stator_epp_pool::{Pod, PoolSpec, PoolView, endpoints_of};
use stator_epp_scheduler::{Scheduler, SchedulerSettings};
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;

/// Time for which each line is measured.
const MEASURE: Duration = Duration::from_secs(2);
/// Picks of one batch. The quickest batch is the one that nothing else on the machine disturbed.
const BATCH: u64 = 200;
/// Conversations, whose requests have all but the last message in common.
const CONVERSATIONS: u64 = 64;
/// Largest piece of a body in one message.
const CHUNK_BYTES: usize = 64 << 10;
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

fn pool(endpoints: u8) -> Arc<Pool> {
    let plan = stator_epp_config::load("", LoadOptions::default()).expect("the defaults are sound");
    let spec = PoolSpec::standalone("app=model", &[8000]).expect("it is sound");
    let labels = Arc::new(BTreeMap::from([("app".to_owned(), "model".to_owned())]));
    let pod = |number: u8| Pod {
        name: format!("pod{number}").into(),
        namespace: "default".into(),
        uid: "1".into(),
        labels: labels.clone(),
        node: None,
        active_ports: None,
        ip: Some([10, 0, 0, number].into()),
        ready: true,
        deleting: false,
    };
    let all = (1..=endpoints).flat_map(|number| endpoints_of(&pod(number), &spec)).map(Arc::new);
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|endpoint| endpoint.worker);
    let view = PoolView { endpoints: all, synced: true, ..PoolView::default() };
    let scheduler = Scheduler::new(plan.plan.program, SchedulerSettings::default());
    let (_, view) = watch::channel(Arc::new(view));
    let pool = Arc::new(Pool::new("default/pool".into(), view, scheduler, 7));
    pool.follow_view();
    pool
}

fn service(endpoints: u8) -> ExtProc<PoolDirector> {
    let pool = pool(endpoints);
    let settings = DirectorSettings {
        unknown_fields: UnknownFields::Refuse,
        refuse_unscreened: false,
        parsers: ParserSet::default(),
        fields: stator_body::FieldRules::default().with_extensions(),
        interest: Interest::Body,
        leaves_early: false,
        scores: false,
        fallbacks: false,
        token_ids: true,
        in_flight: Default::default(),
        identities: Vec::new(),
        media: MediaEstimate::default(),
        renderer: None,
        verify_served: false,
        reads_text: false,
        pins: false,
    };
    let metrics = EppMetrics::register(Build::default(), &mut Default::default());
    let observe = Observe::new(pool.name(), metrics, Vec::new(), None);
    ExtProc::new(
        Arc::new(PoolDirector::new(pool, settings, observe)),
        ExtProcSettings::default(),
        None,
    )
}

/// A chat of about `size` bytes that belongs to a conversation and ends like no other.
fn chat(size: usize, number: u64) -> Vec<u8> {
    let word = |at: u64| format!("word{:05x} ", at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44);
    let text = |seed: u64, bytes: usize| -> String {
        (0..bytes as u64 / 10).map(|at| word(seed.wrapping_add(at))).collect()
    };
    let turn = |role: &str, content: String| serde_json::json!({"role": role, "content": content});
    let last = 200.min(size / 4);
    let first = text((number % CONVERSATIONS) << 32, size - last - 150);
    let messages = [turn("system", first), turn("user", text(number << 20 | 1, last))];
    let body = serde_json::json!({"model": "bench/model", "stream": true, "messages": messages});
    body.to_string().into_bytes()
}

/// The messages of one request as a data plane sends them.
fn sent(body: &[u8]) -> Bytes {
    let header = |(name, value): (&str, String)| HeaderValue {
        key: name.to_owned(),
        raw_value: value.into_bytes(),
        ..HeaderValue::default()
    };
    let headers = [
        (":method", "POST".to_owned()),
        (":path", "/v1/chat/completions".to_owned()),
        (":authority", "gateway.example".to_owned()),
        (":scheme", "http".to_owned()),
        ("content-type", "application/json".to_owned()),
        ("content-length", body.len().to_string()),
        ("user-agent", "bench/1.0".to_owned()),
        ("accept", "*/*".to_owned()),
        ("x-forwarded-for", "10.1.2.3".to_owned()),
        ("x-forwarded-proto", "http".to_owned()),
        ("x-request-id", "5bd3c2f0-7d0c-4a1e-9a52-2f6f3a1c9f10".to_owned()),
    ];
    let head = HttpHeaders {
        headers: Some(HeaderMap { headers: headers.map(header).into() }),
        ..HttpHeaders::default()
    };
    let modes = ProtocolConfiguration {
        request_body_mode: 4,
        response_body_mode: 4,
        ..ProtocolConfiguration::default()
    };
    let mut out = BytesMut::new();
    let mut send = |part: Part, protocol_config| {
        let message =
            ProcessingRequest { request: Some(part), protocol_config, ..Default::default() };
        out.put_u8(0);
        out.put_u32(message.encoded_len() as u32);
        message.encode(&mut out).expect("the buffer grows");
    };
    send(Part::RequestHeaders(head), Some(modes));
    let mut chunks = body.chunks(CHUNK_BYTES).peekable();
    while let Some(chunk) = chunks.next() {
        let end_of_stream = chunks.peek().is_none();
        let body = HttpBody { body: chunk.to_vec(), end_of_stream, ..HttpBody::default() };
        send(Part::RequestBody(body), None);
    }
    out.freeze()
}

/// Asks once, until `size` bytes and so the whole body have come back. The stream stays open as
/// long: who ends it early does not want an answer any more.
async fn pick(service: &ExtProc<PoolDirector>, messages: Bytes, size: usize) {
    let messages = stream::once(ready(Ok::<_, Status>(Frame::data(messages))));
    let body = Body::new(StreamBody::new(messages.chain(stream::pending())));
    let request = Request::post(PROCESS).body(body).expect("it is a request");
    let mut answers = service.answer(request).into_body();
    let mut came = 0;
    while came < size {
        let frame = answers.frame().await.expect("the body comes back");
        came += frame.expect("all is well").into_data().expect("no trailers yet").len();
    }
}

async fn measure(endpoints: u8, size: usize) {
    let service = service(endpoints);
    let (start, mut number, mut best) = (Instant::now(), 0, f64::MAX);
    while start.elapsed() < MEASURE {
        let batch: Vec<_> = (0..BATCH).map(|at| sent(&chat(size, number + at))).collect();
        number += BATCH;
        let begun = Instant::now();
        for messages in batch {
            pick(&service, messages, size).await;
        }
        best = best.min(begun.elapsed().as_secs_f64() * 1e9 / BATCH as f64);
    }
    println!("{endpoints:>3} endpoints, {size:>6} bytes {best:>10.0} ns/pick");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for endpoints in [8, 100] {
        for size in [1 << 10, 20 << 10, 220 << 10] {
            measure(endpoints, size).await;
        }
    }
}
