//! The trace of a request across processes: W3C trace context in, and out again.
//!
//! Source: W3C Trace Context, level 2 (`traceparent`, `tracestate`).

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Bytes of a `traceparent` of version 00, and of what later versions begin with.
const TRACEPARENT_BYTES: usize = 55;

/// Longest `tracestate` that is passed on, in bytes; a longer one is dropped.
const TRACESTATE_BYTES_MAX: usize = 512;

/// The span of another process that a request comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Parent(SpanContext);

/// The span that the values of the headers `traceparent` and `tracestate` name; None where the
/// first is not valid. A `tracestate` that is not valid is dropped alone.
pub fn parent_from(traceparent: &str, tracestate: Option<&str>) -> Option<Parent> {
    let (trace, span, flags) = parse(traceparent.trim())?;
    let state = tracestate
        .filter(|state| state.len() <= TRACESTATE_BYTES_MAX)
        .and_then(|state| state.parse().ok())
        .unwrap_or_default();
    let context = SpanContext::new(trace, span, flags, true, state);
    context.is_valid().then_some(Parent(context))
}

/// The `traceparent` for requests that are sent on behalf of `span`; None where traces are off or
/// the span is not for them. Requests then carry on the value that came in.
pub fn traceparent_of(span: &Span) -> Option<String> {
    context_of(span).map(|context| format(&context))
}

/// The `tracestate` that goes with [`traceparent_of`]; None where there is none.
pub fn tracestate_of(span: &Span) -> Option<String> {
    let state = context_of(span)?.trace_state().header();
    (!state.is_empty()).then_some(state)
}

impl Parent {
    /// Makes `child` a child of this span. To be done before `child` has children of its own or
    /// its context is asked for; where traces are off, it does nothing.
    pub fn adopt(self, child: &Span) {
        let context = opentelemetry::Context::new().with_remote_span_context(self.0);
        if let Err(tracing_opentelemetry::SetParentError::AlreadyStarted) =
            child.set_parent(context)
        {
            tracing::debug!("a span that has begun already got no parent");
        }
    }
}

fn context_of(span: &Span) -> Option<SpanContext> {
    let context = span.context().span().span_context().clone();
    context.is_valid().then_some(context)
}

fn format(context: &SpanContext) -> String {
    let sampled = u8::from(context.is_sampled());
    format!("00-{}-{}-{sampled:02x}", context.trace_id(), context.span_id())
}

/// Trace, span and flags. Of the flags only `sampled` is known.
fn parse(traceparent: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (head, rest) = traceparent.split_at_checked(TRACEPARENT_BYTES)?;
    let mut fields = head.split('-');
    let mut field = |digits: usize| {
        let is_hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        fields.next().filter(|field| field.len() == digits && field.bytes().all(is_hex))
    };
    let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    // Later versions may add fields; ff is none.
    let whole = match version {
        "00" => rest.is_empty(),
        "ff" => false,
        _ => rest.is_empty() || rest.starts_with('-'),
    };
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    whole.then_some((TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, flags))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPAN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn check(traceparent: &str) -> Option<String> {
        parent_from(traceparent, None).map(|parent| format(&parent.0))
    }

    #[test]
    fn a_parent_is_read_as_it_was_written() {
        assert_eq!(check(SPAN).as_deref(), Some(SPAN));
        assert_eq!(check(&format!(" {SPAN} ")).as_deref(), Some(SPAN));
        let unsampled = SPAN.replace("31-01", "31-00");
        assert_eq!(check(&unsampled), Some(unsampled));
    }

    #[test]
    fn what_later_versions_add_is_left_out() {
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-more";
        assert_eq!(check(later).as_deref(), Some(SPAN));
        assert_eq!(check(later.trim_end_matches("-more")).as_deref(), Some(SPAN));
        assert_eq!(check(&later.replace("-more", "more")), None);
    }

    #[test]
    fn what_names_no_span_is_refused() {
        let faults = [
            String::new(),
            SPAN[..54].to_owned(),
            format!("{SPAN}-"),
            SPAN.to_uppercase(),
            SPAN.replacen("00", "ff", 1),
            SPAN.replace("b7ad6b7169203331", "0000000000000000"),
            SPAN.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            SPAN.replace("0af7", "+af7"),
            SPAN.replace("31-01", "-3101"),
            format!("{}é", &SPAN[..54]),
        ];
        for fault in faults {
            assert_eq!(check(&fault), None, "{fault}");
        }
    }

    #[test]
    fn a_broken_or_endless_state_is_dropped_alone() {
        let state = |text: &str| parent_from(SPAN, Some(text)).unwrap().0.trace_state().header();
        assert_eq!(state("vendor=a,other=b"), "vendor=a,other=b");
        assert_eq!(state("no pair"), "");
        assert_eq!(state(&format!("vendor={}", "a".repeat(TRACESTATE_BYTES_MAX))), "");
    }

    proptest! {
        /// Reading back what was written loses nothing but the unknown flags.
        #[test]
        fn reading_is_the_inverse_of_writing(trace in 1u128.., span in 1u64.., flags in any::<u8>()) {
            let text = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
            let expected = format!("00-{trace:032x}-{span:016x}-{:02x}", flags & 1);
            prop_assert_eq!(check(&text), Some(expected));
        }

        /// Any bytes give a value or none, and a value is what was there.
        #[test]
        fn any_text_is_taken(text in "[0-9a-f-]{50,60}|\\PC{0,80}", state in "\\PC{0,80}") {
            if let Some(parent) = parent_from(&text, Some(&state)) {
                let read = format(&parent.0);
                prop_assert_eq!(&read[3..52], &text.trim()[3..52]);
            }
        }
    }
}
