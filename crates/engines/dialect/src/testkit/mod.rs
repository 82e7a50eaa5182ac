//! What the tests of all dialects use: requests, recorded answers, and a server that gives them.

mod server;

pub(crate) use server::{Reply, Seen, Server};

use crate::{Answer, Ask, Delta, Fault, Hand, SharedRequest};
use serde_json::Value;
use serde_json::value::RawValue;
use stator_protos::worker::Sampling;
use std::path::Path;
use std::sync::Arc;

/// A greedy request for an answer to these tokens.
pub(crate) fn ask(tokens: &[u32]) -> Ask {
    Ask {
        id: "request-1".into(),
        tokens: tokens.into(),
        sampling: Arc::new(Sampling::neutral()),
        cache_salt: None,
        lora: None,
        priority: 0,
        rank: None,
        trace: None,
        kv_hint: None,
        hand: Hand::Whole,
    }
}

/// A request that rank `rank` of another engine computes the prompt of.
pub(crate) fn shared(request: u64, rank: u16) -> SharedRequest {
    SharedRequest { request, rank, logprobs: false }
}

pub(crate) fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

/// All of an answer in one delta, and the number of deltas that it came in.
pub(crate) async fn read(mut answer: Box<dyn Answer>) -> Result<(Delta, usize), Fault> {
    let (mut all, mut deltas) = (Delta::default(), 0);
    while let Some(delta) = answer.next().await? {
        deltas += 1;
        merge(&mut all, delta);
    }
    assert!(answer.next().await?.is_none(), "an end stays one");
    Ok((all, deltas))
}

/// A recorded body: `vllm-0.32.0/main/31-generate-tokens-stream.response.sse`.
pub(crate) fn fixture(path: &str) -> Vec<u8> {
    let path = format!("{}/fixtures/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All recorded answers of an engine, by their names, in order.
pub(crate) fn recordings(engine: &str) -> Vec<(String, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(engine);
    let mut found = Vec::new();
    for folder in std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        let files = folder.read_dir().into_iter().flatten().map(|entry| entry.unwrap().path());
        let name = |file: &Path| file.display().to_string();
        let answers = files.map(|file| (name(&file), file)).filter(|(name, _)| {
            let head = name.ends_with(".head.json");
            !head && (name.contains(".response.json") || name.contains(".response.sse"))
        });
        found.extend(answers.map(|(name, file)| (name, std::fs::read(file).unwrap())));
    }
    found.sort();
    found
}

/// What an answer says, read without any decoder of ours: its events, or the one object that it is;
/// nothing where its last event was cut.
pub(crate) fn plainly(body: &[u8]) -> Option<Vec<Value>> {
    let text = std::str::from_utf8(body).unwrap();
    if !text.starts_with("data: ") {
        return Some(vec![serde_json::from_str(text).ok()?]);
    }
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    events
        .filter(|event| *event != "[DONE]")
        .map(|event| serde_json::from_str(event).ok())
        .collect()
}

/// The kind of fault that an error without a status of its own stands for, by the code that it says.
pub(crate) fn is_fault_of(fault: &Fault, code: Option<u64>) -> bool {
    match code {
        Some(400 | 404) => matches!(fault, Fault::Invalid(_)),
        _ => matches!(fault, Fault::Failed(_)),
    }
}

/// A recorded answer, with the status it had where that was recorded.
pub(crate) fn recorded(path: &str) -> Reply {
    #[derive(serde::Deserialize)]
    struct Head {
        status: u16,
    }
    let (stem, _) = path.rsplit_once('.').unwrap();
    let head = format!("{}/fixtures/{stem}.head.json", env!("CARGO_MANIFEST_DIR"));
    let head = std::fs::read(head).ok().map(|head| serde_json::from_slice::<Head>(&head).unwrap());
    Reply::recorded(head.map_or(200, |head| head.status), fixture(path))
}

/// All that a decoder makes of a body that comes in pieces of `size` bytes.
pub(crate) fn decode(
    decoder: impl crate::answer::Decoder,
    body: &[u8],
    size: usize,
) -> Result<Delta, Fault> {
    let mut all = Delta::default();
    for delta in crate::replay::run(decoder, body.chunks(size.max(1)))? {
        merge(&mut all, delta);
    }
    Ok(all)
}

fn merge(all: &mut Delta, delta: Delta) {
    assert_eq!(all.finish, None, "nothing follows the finish");
    all.tokens.extend(delta.tokens);
    all.logprobs.extend(delta.logprobs);
    all.prompt_logprobs.extend(delta.prompt_logprobs);
    all.pooled.extend(delta.pooled);
    all.cached_tokens = delta.cached_tokens.or(all.cached_tokens);
    all.handover = delta.handover.or(all.handover.take());
    all.finish = delta.finish;
}
