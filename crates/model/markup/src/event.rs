//! Events: text, thoughts and calls of a model's answer, in order.

/// A piece of an answer. Texts are never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputEvent<'a> {
    /// The model's thoughts.
    Reasoning(&'a str),
    /// The answer's text.
    Text(&'a str),
    /// A call of a tool begins; the call before it, if any, has ended.
    CallStart {
        /// The function, as the model wrote it.
        name: &'a str,
        /// The call's id, where the model wrote one.
        id: Option<&'a str>,
    },
    /// More of the arguments of the call that began last, as text of JSON.
    Arguments(&'a str),
    /// The call that began last is complete.
    CallEnd,
}

/// The place in an answer where its text has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputPlace {
    /// In thoughts.
    Reasoning,
    /// In the answer's text.
    Text,
    /// In a call, or in a marker.
    Markup,
}

/// Takes the events of an answer in order.
pub trait EventSink {
    /// Takes the next event.
    fn take(&mut self, event: OutputEvent<'_>);
}

impl<F: FnMut(OutputEvent<'_>)> EventSink for F {
    fn take(&mut self, event: OutputEvent<'_>) {
        self(event);
    }
}

/// Tells a piece of the answer's text, unless it is empty.
pub(crate) fn text(sink: &mut dyn EventSink, piece: &str) {
    if !piece.is_empty() {
        sink.take(OutputEvent::Text(piece));
    }
}

/// Tells a piece of arguments, unless it is empty.
pub(crate) fn arguments(sink: &mut dyn EventSink, piece: &str) {
    if !piece.is_empty() {
        sink.take(OutputEvent::Arguments(piece));
    }
}
