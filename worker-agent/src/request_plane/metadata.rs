//! Parts of a request beyond tokens and sampling.

use crate::kv::peers::KvHolder;
use serde_json::value::RawValue;
use stator_protos::worker::{self, KV_HOLDER_ADDRESS_MAX_BYTES, KV_HOLDERS_MAX};
use stator_protos::{WorkerId, WorkerRank};
use std::time::Duration;

/// Longest LoRA name and client's request id, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Longest endpoint of an agent, and longest handover that another agent tells of, in bytes.
const MAX_ENDPOINT_BYTES: usize = 1024;
pub(crate) const MAX_HANDOVER_BYTES: usize = 1 << 20;
/// Range of priorities.
const PRIORITIES: std::ops::RangeInclusive<i32> = -1_000_000..=1_000_000;
/// Longest time of a pin, in seconds.
const PIN_SECONDS_MAX: u32 = 86_400;
/// Longest trace context that is passed on, each part; a longer one is dropped.
const MAX_TRACE_BYTES: usize = 512;

/// Parts of a request beside what an engine computes; adapters and priorities are for stock engines only.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestMetadata {
    /// LoRA adapter.
    pub(crate) lora: Option<String>,
    /// Larger is more urgent.
    pub(crate) priority: i32,
    /// The prefill worker that computes the prompt, if another worker does.
    pub(crate) prefill: Option<PrefillWorker>,
    /// Agents that are said to hold KV of the prompt, the best first.
    pub(crate) kv_holders: Vec<KvHolder>,
    /// Time for which the prompt's blocks are to stay cached.
    pub(crate) pin: Option<Duration>,
    /// The client's request id, for logs.
    pub(crate) client_request_id: String,
    /// W3C trace context, empty where there is none.
    pub(crate) traceparent: String,
    /// Vendor state that accompanies `traceparent`.
    pub(crate) tracestate: String,
}

/// A worker of another agent that computes prompts.
#[derive(Clone, Debug)]
pub(crate) struct PrefillWorker {
    /// Request plane of its agent.
    pub(crate) endpoint: String,
    /// The peer's worker and rank.
    pub(crate) worker: WorkerRank,
    /// The connector's record from the peer's agent.
    pub(crate) handover: Box<RawValue>,
}

impl RequestMetadata {
    /// Takes them out of a submission.
    ///
    /// # Errors
    ///
    /// A message that names the field, its value and its limit.
    pub(crate) fn take(submit: &mut worker::Submit) -> Result<Self, String> {
        let names =
            [("lora_name", &submit.lora_name), ("client_request_id", &submit.client_request_id)];
        for (field, name) in names {
            if name.len() > MAX_NAME_BYTES {
                return Err(format!("{field}: {} bytes, limit {MAX_NAME_BYTES}", name.len()));
            }
        }
        if !PRIORITIES.contains(&submit.priority) {
            return Err(format!("priority: {} is not in {PRIORITIES:?}", submit.priority));
        }
        if submit.pin_seconds > PIN_SECONDS_MAX {
            let seconds = submit.pin_seconds;
            return Err(format!("pin_seconds: {seconds} is above {PIN_SECONDS_MAX}, the limit"));
        }
        let pin = Duration::from_secs(submit.pin_seconds.into());
        Ok(Self {
            pin: Some(pin).filter(|pin| !pin.is_zero()),
            lora: Some(std::mem::take(&mut submit.lora_name)).filter(|name| !name.is_empty()),
            priority: submit.priority,
            prefill: submit.prefill.take().map(peer).transpose()?,
            kv_holders: holders(std::mem::take(&mut submit.kv_holders)),
            client_request_id: std::mem::take(&mut submit.client_request_id),
            traceparent: trace(&mut submit.traceparent),
            tracestate: trace(&mut submit.tracestate),
        })
    }
}

/// A trace that cannot be told is no reason to refuse a request.
fn trace(said: &mut String) -> String {
    Some(std::mem::take(said)).filter(|said| said.len() <= MAX_TRACE_BYTES).unwrap_or_default()
}

/// Holders that can be asked. They only make a request faster: one that cannot be is no reason to
/// refuse it.
fn holders(said: Vec<worker::KvHolder>) -> Vec<KvHolder> {
    let usable = said.into_iter().filter(|holder| {
        (1..=KV_HOLDER_ADDRESS_MAX_BYTES).contains(&holder.address.len()) && holder.blocks > 0
    });
    let holder =
        |said: worker::KvHolder| KvHolder { address: said.address, blocks: said.blocks as usize };
    usable.take(KV_HOLDERS_MAX).map(holder).collect()
}

fn peer(given: worker::PrefillPeer) -> Result<PrefillWorker, String> {
    let worker::PrefillPeer { endpoint, worker_id, rank, handover_json } = given;
    if endpoint.is_empty() || endpoint.len() > MAX_ENDPOINT_BYTES {
        let bytes = endpoint.len();
        return Err(format!("prefill.endpoint: {bytes} bytes, 1 to {MAX_ENDPOINT_BYTES}"));
    }
    let rank = u16::try_from(rank)
        .map_err(|_| format!("prefill.rank: {rank} is above {}, the limit", u16::MAX))?;
    Ok(PrefillWorker {
        endpoint,
        worker: WorkerRank { worker: WorkerId(worker_id), rank },
        handover: handover("prefill.handover_json", handover_json)?,
    })
}

/// Opaque JSON of a connector, of bounded size.
///
/// # Errors
///
/// A message that names `field`, where it is no JSON or too long.
pub(crate) fn handover(field: &str, json: String) -> Result<Box<RawValue>, String> {
    if json.len() > MAX_HANDOVER_BYTES {
        return Err(format!("{field}: {} bytes, limit {MAX_HANDOVER_BYTES}", json.len()));
    }
    RawValue::from_string(json).map_err(|error| format!("{field}: no JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut worker::Submit)) -> Result<RequestMetadata, String> {
        let mut submit = worker::Submit {
            prefill: Some(worker::PrefillPeer {
                endpoint: "http://127.0.0.1:7000".into(),
                worker_id: 7,
                rank: 1,
                handover_json: "{\"connector\":\"x\"}".into(),
            }),
            ..worker::Submit::default()
        };
        change(&mut submit);
        RequestMetadata::take(&mut submit)
    }

    #[test]
    fn a_prefill_worker_is_taken_as_it_was_named() {
        let peer = check(|_| ()).unwrap().prefill.unwrap();
        assert_eq!(peer.worker, WorkerRank { worker: WorkerId(7), rank: 1 });
        assert_eq!(peer.handover.get(), "{\"connector\":\"x\"}");
    }

    #[test]
    fn holders_that_cannot_be_asked_are_dropped_alone_and_their_number_is_bounded() {
        let said = |address: &str, blocks| worker::KvHolder { address: address.into(), blocks };
        let metadata = check(|submit| {
            submit.kv_holders = vec![said("", 1), said(&"x".repeat(257), 1), said("a:1", 0)];
            submit.kv_holders.extend((2..9).map(|blocks| said("b:1", blocks)));
        });
        let holder = |blocks| KvHolder { address: "b:1".into(), blocks };
        assert_eq!(metadata.unwrap().kv_holders, [2, 3, 4, 5].map(holder));
    }

    #[test]
    fn an_endless_trace_is_dropped_alone() {
        let metadata = check(|submit| {
            submit.traceparent = "p".into();
            submit.tracestate = "s".repeat(513);
        });
        let metadata = metadata.unwrap();
        assert_eq!((&*metadata.traceparent, &*metadata.tracestate), ("p", ""));
    }

    #[test]
    fn absurd_values_are_refused_with_field_value_and_limit() {
        let prefill = |change: fn(&mut worker::PrefillPeer)| {
            check(move |submit| change(submit.prefill.as_mut().unwrap()))
        };
        let cases = [
            (check(|s| s.lora_name = "x".repeat(257)), "lora_name: 257 bytes, limit 256"),
            (check(|s| s.pin_seconds = 86_401), "pin_seconds: 86401 is above 86400, the limit"),
            (check(|s| s.priority = 1_000_001), "priority: 1000001 is not in -1000000..=1000000"),
            (prefill(|p| p.endpoint.clear()), "prefill.endpoint: 0 bytes, 1 to 1024"),
            (prefill(|p| p.rank = 65_536), "prefill.rank: 65536 is above 65535, the limit"),
            (
                prefill(|p| p.handover_json = "{".into()),
                "prefill.handover_json: no JSON: EOF while parsing an object at line 1 column 1",
            ),
        ];
        for (result, expected) in cases {
            assert_eq!(result.unwrap_err(), expected);
        }
    }
}
