//! Fuzz targets: plain functions that feed a parser with outside bytes and panic where the parser
//! breaks a promise.
//!
//! Each function runs in two places. `libfuzzer` feeds it with inputs that nobody thought of, for as
//! long as asked; the test `replay` feeds it with the inputs in `seeds`, on the stable compiler.
//! Start reading at [`TARGETS`].

mod allow_list;
mod arguments;
mod body_edit;
mod body_scan;
mod connector_messages;
mod custom_tools;
mod dates;
mod discovery_records;
mod endpoints_file;
mod engine_answers;
mod engine_reports;
mod etcd_answers;
mod event_streams;
mod ext_proc_bytes;
mod ext_proc_messages;
mod forms;
mod grammars;
mod grpc_calls;
mod hand_over;
mod histories;
mod http_answers;
mod kube_answers;
mod kv_direct;
mod kv_disk;
mod kv_events;
mod kv_holders;
mod kv_objects;
mod kv_tickets;
mod kv_transfer;
mod kv_translate;
mod load_reports;
mod markup;
mod metrics_page;
mod model_files;
mod packed_answers;
mod packed_bodies;
mod parsers;
mod peer_frames;
mod picker_config;
mod pooled_answers;
mod prompt_bytes;
mod prompt_pins;
mod queries;
mod rates;
mod requests;
mod responses;
mod sidecar_bodies;
mod sidecar_chunks;
mod steering;
mod stored_responses;
mod stream;
mod templates;
mod thought_seal;
mod traces;
mod trtllm_events;
mod zmtp_frames;
mod zmtp_greeting;

use bytes::Bytes;

/// A parser of outside bytes with what must hold of it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its folder in `seeds`.
    pub name: &'static str,
    /// Feeds the parser with an input.
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident)*) => {
        /// All targets, by name.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: $name::run }),*];
    };
}

targets! {
    allow_list arguments body_edit body_scan connector_messages custom_tools dates discovery_records endpoints_file
    engine_answers engine_reports etcd_answers event_streams ext_proc_bytes ext_proc_messages forms grammars
    grpc_calls hand_over histories http_answers kube_answers kv_direct kv_disk kv_events kv_holders kv_objects
    kv_tickets kv_transfer kv_translate load_reports markup metrics_page model_files packed_answers packed_bodies
    parsers peer_frames picker_config pooled_answers prompt_bytes prompt_pins queries rates requests responses
    sidecar_bodies sidecar_chunks steering stored_responses templates thought_seal traces trtllm_events zmtp_frames
    zmtp_greeting
}

/// Splits an input at its first zero byte, which no text has: the text, and what steers the test.
/// So any text by itself is an input, and a seed.
fn split(input: &[u8]) -> (&[u8], &[u8]) {
    match input.iter().position(|byte| *byte == 0) {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &[]),
    }
}

/// Cuts `bytes` into chunks of `sizes` plus one bytes, over and over; without sizes, into chunks
/// of 7.
fn cut(bytes: &[u8], sizes: &[u8]) -> Vec<Bytes> {
    let sizes = if sizes.is_empty() { &[6] } else { sizes };
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut chunks = Vec::new();
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        chunks.push(rest.split_to((usize::from(*size) + 1).min(rest.len())));
    }
    chunks
}

/// Runs a future to its end on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without sockets can be had");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}
