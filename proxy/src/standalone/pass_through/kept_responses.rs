//! Responses that engines keep themselves: which engine has which, as answers told.
//!
//! A client comes back to a response by its id alone, and one engine of its model knows it.

use parking_lot::Mutex;
use stator_api::space::PrefixSpace;
use stator_protos::WorkerRank;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Responses whose engines are remembered; the oldest is forgotten first.
const RESPONSES_MAX: usize = 65_536;
/// Longest id that is remembered, in bytes.
const ID_MAX_BYTES: usize = 128;
/// Bytes of an answer within which its id is looked for.
const HEAD_MAX_BYTES: usize = 16 << 10;
/// Beginning of the ids of responses.
///
/// Source: the ids of OpenAI's API, vLLM 0.32 and SGLang 0.5.23.
const ID_PREFIX: &[u8] = b"resp_";
const ID_KEY: &[u8] = b"\"id\"";

/// The engine that keeps a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseHome {
    /// The model that answered.
    pub model: Arc<str>,
    /// The worker that has it.
    pub worker: WorkerRank,
    /// The tenant whose response it is.
    pub tenant: PrefixSpace,
}

/// The engines of responses, by id.
#[derive(Default)]
pub(crate) struct KeptResponses(Mutex<Known>);

#[derive(Default)]
struct Known {
    homes: HashMap<Arc<str>, ResponseHome>,
    /// Ids, the oldest first.
    order: VecDeque<Arc<str>>,
}

impl KeptResponses {
    /// Remembers the engine of a response.
    fn learn(&self, id: &str, home: ResponseHome) {
        let mut known = self.0.lock();
        let id: Arc<str> = id.into();
        if known.homes.insert(id.clone(), home).is_some() {
            return;
        }
        known.order.push_back(id);
        if known.order.len() > RESPONSES_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.homes.remove(&oldest);
        }
    }

    /// The engine of a tenant's response, if it is known.
    pub(crate) fn find(&self, id: &str, tenant: PrefixSpace) -> Option<ResponseHome> {
        let known = self.0.lock();
        known.homes.get(id).filter(|home| home.tenant == tenant).cloned()
    }
}

/// Reads the id of a response from its answer, which begins to pass by.
pub(crate) struct ResponseLearner {
    responses: Arc<KeptResponses>,
    /// The engine that answers; none once the id is known, or was looked for long enough.
    home: Option<ResponseHome>,
    head: Vec<u8>,
}

impl ResponseLearner {
    pub(crate) fn new(responses: Arc<KeptResponses>, home: ResponseHome) -> Self {
        Self { responses, home: Some(home), head: Vec::new() }
    }

    /// Takes the next part of the answer.
    pub(crate) fn push(&mut self, part: &[u8]) {
        if self.home.is_none() {
            return;
        }
        let room = HEAD_MAX_BYTES - self.head.len();
        self.head.extend_from_slice(&part[..part.len().min(room)]);
        let found = find_id(&self.head);
        if found.is_none() && self.head.len() < HEAD_MAX_BYTES {
            return;
        }
        if let (Some(id), Some(home)) = (found, self.home.take()) {
            self.responses.learn(id, home);
        }
        self.head = Vec::new();
    }
}

/// The first member `id` of JSON, or of events, that is a response's.
fn find_id(text: &[u8]) -> Option<&str> {
    memchr::memmem::find_iter(text, ID_KEY).find_map(|at| {
        let rest = text[at + ID_KEY.len()..].trim_ascii_start().strip_prefix(b":")?;
        let id = rest.trim_ascii_start().strip_prefix(b"\"")?;
        let id = &id[..memchr::memchr(b'"', id)?];
        let is_plain = id.len() <= ID_MAX_BYTES && id.iter().all(u8::is_ascii_graphic);
        let is_response = is_plain && id.starts_with(ID_PREFIX) && !id.contains(&b'\\');
        is_response.then(|| str::from_utf8(id).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::WorkerId;

    fn home(worker: u64) -> ResponseHome {
        let worker = WorkerRank { worker: WorkerId(worker), rank: 0 };
        ResponseHome { model: "m".into(), worker, tenant: PrefixSpace::default() }
    }

    #[test]
    fn an_id_is_found_however_its_answer_is_cut() {
        for (answer, id) in [
            (r#"{"id":"resp_1","object":"response"}"#, Some("resp_1")),
            (r#"{"tools":[{"id":"x"}], "id" : "resp_2"}"#, Some("resp_2")),
            (
                "event: response.created\ndata: {\"response\":{\"id\":\"resp_3\"}}\n\n",
                Some("resp_3"),
            ),
            (r#"{"previous_response_id":"resp_4","id":"other"}"#, None),
        ] {
            for cut in 0..answer.len() {
                let responses = Arc::new(KeptResponses::default());
                let mut learner = ResponseLearner::new(responses.clone(), home(7));
                learner.push(&answer.as_bytes()[..cut]);
                learner.push(&answer.as_bytes()[cut..]);
                let tenant = PrefixSpace::default();
                let known = responses.0.lock().homes.keys().next().map(|id| id.to_string());
                assert_eq!(known.as_deref(), id, "{answer} at {cut}");
                let found = id.and_then(|id| responses.find(id, tenant));
                assert_eq!(found, id.map(|_| home(7)));
            }
        }
    }

    #[test]
    fn an_answer_without_an_id_is_read_up_to_a_bound() {
        let responses = Arc::new(KeptResponses::default());
        let mut learner = ResponseLearner::new(responses.clone(), home(7));
        learner.push(&vec![b' '; HEAD_MAX_BYTES + 9]);
        learner.push(br#"{"id":"resp_1"}"#);
        assert_eq!((learner.head.capacity(), responses.0.lock().order.len()), (0, 0));
    }

    #[test]
    fn the_oldest_response_is_forgotten_first() {
        let responses = KeptResponses::default();
        for at in 0..=RESPONSES_MAX as u64 {
            responses.learn(&format!("resp_{at}"), home(at));
        }
        let found = |at| responses.find(&format!("resp_{at}"), PrefixSpace::default());
        assert_eq!((found(0), found(1)), (None, Some(home(1))));
        assert_eq!(found(RESPONSES_MAX as u64), Some(home(RESPONSES_MAX as u64)));
    }
}
