//! A request's wishes for its worker, and its urgency, as the proxy and the endpoint picker read
//! them; their headers are in [`stator_protos::header`].
//!
//! Labels come in the header `x-stator-labels` or in `nvext.routing_constraints`, the priority in
//! `priority` or `nvext.agent_hints`, which says how long the answer may get, too; in headers, which count
//! before the body, it is `x-dynamo-request-priority`. The fields of the body are read only where its
//! bytes name them, so that all other requests are read once. How long it may wait stands in
//! `x-llm-d-inference-ttl`, and its objective in `x-llm-d-slo-ttft-ms`: what cannot be read of these
//! two counts as not said.

mod pins;

pub use pins::{Pins, pin_headers};

use crate::field_notes::{FieldNotes, UnknownFields};
use crate::object::client_object;
use crate::openai::ApiError;
use crate::openai::body::{AgentHints, parse_as};
use crate::openai::options::integer;
use memchr::memmem;
use stator_placement::{Constraint, InvalidWeights, Label, Needs, PickError, Weights};
use stator_protos::duration;
use stator_protos::header::{LABELS, SESSION, SLO_TTFT, TTL};
use stator_protos::worker::KvHolder;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Labels of one request.
const LABELS_MAX: usize = 16;
/// Longest label, in bytes.
const LABEL_MAX_BYTES: usize = 256;
/// Urgency of a request in headers: integers, larger is sooner; the second before any other priority.
///
/// Source: the headers of NVIDIA Dynamo.
pub(crate) const PRIORITY: &str = "x-dynamo-request-priority";
pub(crate) const STRICT_PRIORITY: &str = "x-dynamo-request-strict-priority";
/// Codex's name of a session. It counts after those of [`SESSION`]: it is nobody's own.
const THREAD: &str = "thread-id";
/// Fields that steer, as a body writes them.
const PRIORITY_FIELD: &str = r#""priority""#;
const CONSTRAINTS_FIELD: &str = r#""routing_constraints""#;
const HINTS_FIELD: &str = r#""agent_hints""#;
/// Path of the labels in a body, in the words of error messages.
const CONSTRAINTS: &str = "nvext.routing_constraints";
/// Paths of an agent's hints, in the words of error messages.
const STRICT: &str = "nvext.agent_hints.strict_priority";
const EXPECTED: &str = "nvext.agent_hints.osl";

/// A request's wishes for its worker, and its urgency.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steering {
    /// Larger is sooner.
    pub priority: i32,
    /// Head start among requests of the same priority, in seconds.
    pub jump_s: u32,
    /// Tokens that the answer is expected to have, at least 1.
    pub expected_tokens: Option<u32>,
    /// Whether the conversation's next turn is to be computed once the answer is complete.
    pub speculates: bool,
    /// Labels that it wants of its worker.
    pub needs: Option<Arc<Needs>>,
    /// The labels that they must have, as they were written.
    pub labels: Vec<String>,
    /// Longest wait for a worker.
    pub ttl: Option<Duration>,
    /// Objective for its TTFT.
    pub objective: Option<Duration>,
    /// The workers that it names.
    pub pins: Pins,
    /// Agents that a picker names as lenders of the prompt's KV.
    pub holders: Vec<KvHolder>,
}

/// The steering headers, as they are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct SteeringHeaders<'a> {
    labels: Option<&'a str>,
    ttl: Option<&'a str>,
    objective: Option<&'a str>,
    session: Option<&'a str>,
    priority: Option<&'a str>,
    strict_priority: Option<&'a str>,
}

impl<'a> SteeringHeaders<'a> {
    /// Reads the headers of a request; `header` finds the text of one.
    pub fn of(header: impl Fn(&'static str) -> Option<&'a str>) -> Self {
        Self {
            labels: header(LABELS),
            ttl: header(TTL),
            objective: SLO_TTFT.into_iter().find_map(&header),
            session: SESSION.into_iter().chain([THREAD]).find_map(&header).map(str::trim),
            priority: header(PRIORITY),
            strict_priority: header(STRICT_PRIORITY),
        }
    }

    /// The session that the request belongs to, in the client's words.
    pub fn session(self) -> Option<&'a str> {
        self.session.filter(|text| !text.is_empty())
    }

    /// The meaning of headers with these values.
    pub fn written(
        labels: Option<&'a str>,
        ttl: Option<&'a str>,
        objective: Option<&'a str>,
    ) -> Self {
        Self { labels, ttl, objective, ..Self::default() }
    }

    fn ttl(self) -> Option<Duration> {
        self.ttl.and_then(|text| duration::parse(text.trim())).filter(|ttl| !ttl.is_zero())
    }

    fn objective(self) -> Option<Duration> {
        self.objective.and_then(duration::milliseconds)
    }
}

client_object! {
    /// The fields of a body that steer.
    ///
    /// Source: vLLM's `priority`, and the request extensions of NVIDIA Dynamo.
    struct SteeringFields<'a> {
        /// Smaller is sooner, as in vLLM.
        priority: Option<i64>,
        nvext: Option<SteeringExtensions<'a>>,
    }
}

client_object! {
    /// Members of `nvext` that steer.
    struct SteeringExtensions<'a> {
        agent_hints: Option<AgentHints<'a>>,
        routing_constraints: Option<Constraints<'a>>,
    }
}

client_object! {
    /// `nvext.routing_constraints`.
    struct Constraints<'a> {
        required_taints: Option<Vec<String>>,
        preferred_taints: Option<BTreeMap<String, f64>>,
    }
}

impl Steering {
    /// Reads a body that is known to be a request, and what its headers say but for pins. A priority
    /// beyond `priority_max` either way counts as that. Where an agent gives a strict priority, its
    /// other one is a head start in seconds, as in Dynamo's queue.
    ///
    /// # Errors
    ///
    /// 400, with the field at fault.
    pub fn read(
        body: &[u8],
        said: SteeringHeaders<'_>,
        priority_max: i32,
    ) -> Result<Self, ApiError> {
        let body = SteeringFields::read(body, &[PRIORITY_FIELD, CONSTRAINTS_FIELD, HINTS_FIELD])?;
        let extensions = body.nvext.unwrap_or_default();
        let hints = extensions.agent_hints.unwrap_or_default();
        let (least, most) = (-i64::from(priority_max), i64::from(priority_max));
        let range = 0..=i64::from(u32::MAX);
        let strict = match said_integer(STRICT_PRIORITY, said.strict_priority)? {
            Some(strict) => integer(STRICT_PRIORITY, Some(strict), range)?,
            None => integer(STRICT, hints.strict_priority, range)?,
        };
        let strict = strict.filter(|strict| *strict != 0);
        let hinted = said_integer(PRIORITY, said.priority)?.or(hints.priority);
        let (priority, jump) = match (strict, hinted, body.priority) {
            (Some(strict), hinted, _) => (i64::from(strict), hinted.unwrap_or(0)),
            (None, Some(hinted), _) => (hinted, 0),
            (None, None, Some(priority)) => (-priority.clamp(least, most), 0),
            (None, None, None) => (0, 0),
        };
        Ok(Self {
            // Both are between two numbers of 32 bits.
            priority: priority.clamp(least, most) as i32,
            jump_s: jump.clamp(0, most) as u32,
            speculates: hints.speculative_prefill == Some(true),
            expected_tokens: integer(EXPECTED, hints.osl, 1..=i64::from(u32::MAX))?,
            ..Self::of_labels(extensions.routing_constraints, said)?
        })
    }

    /// Reads the fields for an endpoint picker. Its operator gives objectives their priorities: a
    /// client does not say how urgent its request is.
    ///
    /// # Errors
    ///
    /// 400, with the field at fault.
    pub fn read_labels(body: &[u8], said: SteeringHeaders<'_>) -> Result<Self, ApiError> {
        let extensions = SteeringFields::read(body, &[CONSTRAINTS_FIELD])?.nvext;
        Self::of_labels(extensions.unwrap_or_default().routing_constraints, said)
    }

    fn of_labels(
        constraints: Option<Constraints<'_>>,
        said: SteeringHeaders<'_>,
    ) -> Result<Self, ApiError> {
        let mut wanted = Wanted::default();
        if let Some(labels) = said.labels {
            wanted.add_header(labels)?;
        }
        if let Some(constraints) = constraints {
            wanted.add_constraints(constraints)?;
        }
        let needs = wanted.needs()?;
        let (ttl, objective) = (said.ttl(), said.objective());
        Ok(Self { needs, labels: wanted.required, ttl, objective, ..Self::default() })
    }

    /// Why no worker was picked, in the words of the request, which is for `adapter`.
    pub fn unpicked(&self, adapter: Option<&str>, error: PickError) -> String {
        let label = |label| self.labels.iter().find(|text| Label::new(text) == label);
        let named = |constraint| match constraint {
            Constraint::Label(hash) => match label(hash) {
                Some(text) => format!("the label {text:?}"),
                None => constraint.to_string(),
            },
            Constraint::Adapter(_) => format!("the adapter {:?}", adapter.unwrap_or_default()),
            other => other.to_string(),
        };
        match error {
            PickError::Unsatisfied { constraint } => {
                format!("no worker has {} now", named(constraint))
            }
            PickError::Contradictory { one, other } => {
                format!("no worker has both {} and {} now", named(one), named(other))
            }
            PickError::Indivisible => {
                let what = "several choices or logprobs of the prompt cannot be shared by two";
                format!("no worker does all of a request now, and one with {what}")
            }
            other => other.to_string(),
        }
    }
}

impl<'a> SteeringFields<'a> {
    /// Reads a body that may have one of these fields. Within a string its quotes would be escaped.
    fn read(body: &'a [u8], fields: &[&str]) -> Result<Self, ApiError> {
        let has = |field: &&str| memmem::find(body, field.as_bytes()).is_some();
        match fields.iter().any(has) {
            true => parse_as(body),
            false => Ok(Self::default()),
        }
    }
}

/// The integer in a header.
fn said_integer(header: &str, text: Option<&str>) -> Result<Option<i64>, ApiError> {
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
    let text: String = text.chars().take(LABEL_MAX_BYTES).collect();
    let invalid =
        |_| ApiError::invalid(header, format!("{header} is {text:?}, it must be an integer"));
    text.parse().map_err(invalid).map(Some)
}

/// Labels as they were written.
#[derive(Default)]
struct Wanted {
    required: Vec<String>,
    preferred: Vec<(String, f64)>,
}

impl Wanted {
    fn add_header(&mut self, header: &str) -> Result<(), ApiError> {
        for part in header.split(',') {
            let Some((label, parameter)) = part.split_once(';') else {
                self.required.push(checked(LABELS, part)?);
                continue;
            };
            let weight = parameter.trim().strip_prefix("weight=");
            let Some(weight) = weight.and_then(|weight| weight.parse().ok()) else {
                let message =
                    format!("{LABELS} has {parameter:?} after a label, not weight=NUMBER");
                return Err(ApiError::invalid(LABELS, message));
            };
            self.preferred.push((checked(LABELS, label)?, weight));
        }
        Ok(())
    }

    fn add_constraints(&mut self, constraints: Constraints<'_>) -> Result<(), ApiError> {
        // Refused whatever a proxy does with unknown fields: without its condition, a request could
        // reach a worker that it must not reach.
        if let Some((name, _)) = constraints.strangers.iter().next() {
            let (place, known) = (format!("{CONSTRAINTS}.{name}"), Constraints::FIELDS);
            FieldNotes::new(UnknownFields::Refuse).unknown(&place, known.iter().copied())?;
        }
        for label in constraints.required_taints.unwrap_or_default() {
            self.required.push(checked(CONSTRAINTS, &label)?);
        }
        for (label, weight) in constraints.preferred_taints.unwrap_or_default() {
            self.preferred.push((checked(CONSTRAINTS, &label)?, weight));
        }
        Ok(())
    }

    fn needs(&self) -> Result<Option<Arc<Needs>>, ApiError> {
        let labels = self.required.len() + self.preferred.len();
        if labels == 0 {
            return Ok(None);
        }
        if labels > LABELS_MAX {
            let message = format!("the request has {labels} labels, the limit is {LABELS_MAX}");
            return Err(ApiError::invalid(CONSTRAINTS, message));
        }
        let required = self.required.iter().map(|text| Label::new(text)).collect();
        let preferred = self.preferred.iter().map(|(text, weight)| (Label::new(text), *weight));
        let needs = Needs::new(required, preferred.collect());
        let needs = needs.map_err(|InvalidWeights(invalid)| {
            let weight = invalid.first().map_or(f64::NAN, |weight| weight.value);
            let limit = Weights::MAX;
            let message = format!("a label has the weight {weight}, it must be in 0..={limit}");
            ApiError::invalid(CONSTRAINTS, message)
        })?;
        Ok(Some(Arc::new(needs)))
    }
}

fn checked(param: &str, text: &str) -> Result<String, ApiError> {
    let text = text.trim();
    match text.len() {
        0 => Err(ApiError::invalid(param, format!("{param} has an empty label"))),
        bytes if bytes > LABEL_MAX_BYTES => {
            let message =
                format!("{param} has a label of {bytes} bytes, the limit is {LABEL_MAX_BYTES}");
            Err(ApiError::invalid(param, message))
        }
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &str, header: Option<&str>) -> Result<Steering, String> {
        let said = SteeringHeaders { labels: header, ..SteeringHeaders::default() };
        Steering::read(body.as_bytes(), said, 100).map_err(|error| error.message)
    }

    #[track_caller]
    fn check_priority(body: &str, expected: i32) {
        assert_eq!(read(body, None).map(|steering| steering.priority), Ok(expected), "{body}");
    }

    /// Wanted labels, in Dynamo's words.
    fn needs(required: &[&str], preferred: &[(&str, f64)]) -> Option<Arc<Needs>> {
        let required = required.iter().map(|text| Label::new(text)).collect();
        let preferred = preferred.iter().map(|(text, weight)| (Label::new(text), *weight));
        Some(Arc::new(Needs::new(required, preferred.collect()).unwrap()))
    }

    #[test]
    fn priorities_are_larger_for_what_is_sooner_whichever_field_says_so() {
        check_priority(r#"{"model":"m"}"#, 0);
        check_priority(r#"{"priority":7}"#, -7);
        check_priority(r#"{"priority":-7}"#, 7);
        check_priority(r#"{"priority":null}"#, 0);
        check_priority(r#"{"nvext":{"agent_hints":{"priority":5,"osl":9}}}"#, 5);
        check_priority(r#"{"priority":3,"nvext":{"agent_hints":{"priority":5}}}"#, 5);
        check_priority(r#"{"priority":-9000000000}"#, 100);
        check_priority(r#"{"nvext":{"agent_hints":{"priority":-101}}}"#, -100);
        check_priority(r#"{"prompt":"my \"priority\":7 is"}"#, 0);
        let all_alike = Steering::read(br#"{"priority":7}"#, SteeringHeaders::default(), 0);
        assert_eq!(all_alike.map(|steering| steering.priority), Ok(0));
    }

    #[test]
    fn an_agents_hints_are_obeyed_or_refused_by_their_name() {
        let hints = |hints: &str| {
            let steering = read(&format!(r#"{{"nvext":{{"agent_hints":{hints}}}}}"#), None)?;
            Ok::<_, String>((steering.priority, steering.jump_s, steering.expected_tokens))
        };
        assert_eq!(hints(r#"{"osl":900}"#), Ok((0, 0, Some(900))));
        assert_eq!(hints(r#"{"strict_priority":3,"priority":7}"#), Ok((3, 7, None)));
        assert_eq!(hints(r#"{"strict_priority":300,"priority":-7}"#), Ok((100, 0, None)));
        assert_eq!(hints(r#"{"strict_priority":0,"priority":-7}"#), Ok((-7, 0, None)));
        for (ill, name) in [
            (r#"{"osl":0}"#, "nvext.agent_hints.osl is 0"),
            (r#"{"osl":"long"}"#, "nvext.agent_hints.osl must be"),
            (r#"{"strict_priority":-1}"#, "nvext.agent_hints.strict_priority is -1"),
        ] {
            let error = hints(ill).expect_err(ill);
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn a_priority_in_a_header_counts_before_the_bodys() {
        let body = br#"{"nvext":{"agent_hints":{"priority":5,"strict_priority":6}}}"#;
        let said = |body: &[u8], priority, strict_priority| {
            let said = SteeringHeaders { priority, strict_priority, ..SteeringHeaders::default() };
            let steering = Steering::read(body, said, 100).map_err(|error| error.message)?;
            Ok::<_, String>((steering.priority, steering.jump_s))
        };
        assert_eq!(said(b"{}", Some(" 7 "), None), Ok((7, 0)));
        assert_eq!(said(body, Some("7"), None), Ok((6, 7)));
        assert_eq!(said(body, Some("7"), Some("900")), Ok((100, 7)));
        assert_eq!(said(body, Some("7"), Some("0")), Ok((7, 0)), "none is strict");
        assert_eq!(
            said(b"{}", Some("soon"), None).unwrap_err(),
            "x-dynamo-request-priority is \"soon\", it must be an integer"
        );
        let error = said(b"{}", None, Some("-1")).unwrap_err();
        assert!(error.starts_with("x-dynamo-request-strict-priority is -1"), "{error}");
    }

    #[test]
    fn how_soon_is_said_in_headers() {
        let read = |ttl, objective| {
            let said = SteeringHeaders {
                ttl: Some(ttl),
                objective: Some(objective),
                ..SteeringHeaders::default()
            };
            let steering = Steering::read(b"{}", said, 100).expect("no header is refused");
            (steering.ttl, steering.objective)
        };
        let (ttl, objective) = (Duration::from_millis(1500), Duration::from_micros(200_500));
        assert_eq!(read(" 1.5s", "200.5 "), (Some(ttl), Some(objective)));
        for (ttl, objective) in [("soon", "-1"), ("0s", "inf"), ("", "0")] {
            assert_eq!(read(ttl, objective), (None, None), "{ttl:?}, {objective:?}");
        }
    }

    #[test]
    fn a_session_is_named_by_the_first_header_that_is_there() {
        let session = |headers: &'static [(&str, &str)]| {
            let find = |name| headers.iter().find(|(known, _)| *known == name);
            SteeringHeaders::of(|name| find(name).map(|(_, value)| *value)).session()
        };
        assert_eq!(session(&[("x-dynamo-session-id", "b"), ("x-session-id", " a ")]), Some("a"));
        assert_eq!(session(&[("x-claude-code-session-id", "c")]), Some("c"));
        assert_eq!(session(&[("thread-id", "d")]), Some("d"));
        assert_eq!(session(&[("thread-id", "d"), ("x-session-id", "a")]), Some("a"));
        assert_eq!(session(&[("x-session-id", " ")]), None);
    }

    #[test]
    fn labels_come_in_the_header_and_in_the_body() {
        let header = Some("pool=batch , zone=a;weight=0.5");
        let found = read("{}", header).unwrap();
        assert_eq!(found.needs, needs(&["pool=batch"], &[("zone=a", 0.5)]));
        assert_eq!(found.labels, ["pool=batch"]);
        let body = r#"{"nvext":{"routing_constraints":{"required_taints":["capacity/fast"],
            "preferred_taints":{"dynamo.topology/zone=a":1}}}}"#;
        let found = read(body, header).unwrap();
        let preferred = [("zone=a", 0.5), ("dynamo.topology/zone=a", 1.0)];
        assert_eq!(found.needs, needs(&["pool=batch", "capacity/fast"], &preferred));
        assert_eq!(read(r#"{"nvext":{"routing_constraints":{}}}"#, None), Ok(Steering::default()));
        let slip = r#"{"nvext":{"routing_constraints":{"required_taint":["a"]}}}"#;
        let error = read(slip, None).expect_err("a condition is dropped by nobody");
        assert!(error.contains("required_taints"), "{error}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_its_name() {
        let long = "x".repeat(LABEL_MAX_BYTES + 1);
        let many = vec!["a"; LABELS_MAX + 1].join(",");
        for (header, expected) in [
            ("", "x-stator-labels has an empty label"),
            ("a,,b", "x-stator-labels has an empty label"),
            ("a;q=1", "x-stator-labels has \"q=1\" after a label, not weight=NUMBER"),
            ("a;weight=NaN", "a label has the weight NaN, it must be in 0..=1000000"),
            (&long, "x-stator-labels has a label of 257 bytes, the limit is 256"),
            (&many, "the request has 17 labels, the limit is 16"),
        ] {
            assert_eq!(read("{}", Some(header)), Err(expected.into()));
        }
        for body in [
            r#"{"priority":"high"}"#,
            r#"{"nvext":{"agent_hints":{"priority":1.5}}}"#,
            r#"{"nvext":{"routing_constraints":{"required_taints":"a"}}}"#,
        ] {
            let error = read(body, None).expect_err(body);
            assert!(error.contains(" must be a"), "{error}");
        }
    }

    proptest! {
        /// Whatever comes, it is understood or refused, and the limits hold.
        #[test]
        fn nothing_panics_and_limits_hold(body in ".{0,60}", header in ".{0,60}", priority: i64) {
            let body = format!(r#"{{"x":{body:?},"priority":{priority}}}"#);
            if let Ok(found) = read(&body, Some(&header)) {
                prop_assert!(found.priority.abs() <= 100);
                prop_assert!(found.labels.len() <= LABELS_MAX);
            }
        }
    }
}
