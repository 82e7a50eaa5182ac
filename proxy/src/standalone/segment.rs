//! Output of a choice that has not been written: thoughts, text and calls in their order.

use stator_api::delta::{ToolCallDelta, ToolCallStart};

/// Output that one delta can hold: thoughts, then text, then calls.
#[derive(Debug, Default)]
pub(super) struct Segment {
    pub(super) reasoning: String,
    pub(super) text: String,
    calls: Vec<CallSegment>,
}

/// Output of one call.
#[derive(Debug)]
struct CallSegment {
    index: u32,
    /// Id and name, where the call begins here.
    start: Option<(String, String)>,
    arguments: String,
    /// Whether a custom tool is called.
    custom: bool,
}

/// The beginning of a call.
#[derive(Debug)]
pub(super) struct CallBegin {
    pub(super) index: u32,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) custom: bool,
}

/// All output of a choice that has not been written.
#[derive(Debug)]
pub(super) struct Segments {
    /// Nearly always the only one.
    first: Segment,
    later: Vec<Segment>,
    /// Whether what comes in another order than that of a segment begins a new one.
    ordered: bool,
}

impl Segment {
    pub(super) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }

    /// The calls as an answer's writer takes them.
    pub(super) fn calls(&self) -> Vec<ToolCallDelta<'_>> {
        self.calls.iter().map(CallSegment::delta).collect()
    }
}

impl CallSegment {
    fn delta(&self) -> ToolCallDelta<'_> {
        let start = self.start.as_ref().map(|(id, name)| ToolCallStart { id, name });
        let Self { index, arguments, custom, .. } = self;
        ToolCallDelta { index: *index, start, arguments, custom: *custom }
    }
}

impl Segments {
    /// Output that begins with `text`. A stream's is `ordered`; in a whole answer all text is one.
    pub(super) fn new(text: String, ordered: bool) -> Self {
        let first = Segment { text, ..Segment::default() };
        Self { first, later: Vec::new(), ordered }
    }

    /// The output in order; one segment at least.
    pub(super) fn all(&self) -> impl Iterator<Item = &Segment> {
        std::iter::once(&self.first).chain(&self.later)
    }

    /// The only segment of output that is not ordered.
    pub(super) fn whole(&self) -> &Segment {
        &self.first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().all(Segment::is_empty)
    }

    /// Forgets what has been written; memory is kept for what comes.
    pub(super) fn clear(&mut self) {
        self.first.reasoning.clear();
        self.first.text.clear();
        self.first.calls.clear();
        self.later.clear();
    }

    /// The place for more text.
    pub(super) fn text(&mut self) -> &mut String {
        let behind = self.ordered && !self.last().calls.is_empty();
        &mut self.place(behind).text
    }

    pub(super) fn push_reasoning(&mut self, piece: &str) {
        let last = self.last();
        let behind = self.ordered && !(last.text.is_empty() && last.calls.is_empty());
        self.place(behind).reasoning.push_str(piece);
    }

    /// Begins a call.
    pub(super) fn push_call(&mut self, CallBegin { index, id, name, custom }: CallBegin) {
        let arguments = String::new();
        let call = CallSegment { index, start: Some((id, name)), arguments, custom };
        self.place(false).calls.push(call);
    }

    /// More arguments of the call that began last.
    pub(super) fn push_arguments(&mut self, index: u32, piece: &str, custom: bool) {
        let calls = &mut self.place(false).calls;
        match calls.last_mut().filter(|call| call.index == index) {
            Some(call) => call.arguments.push_str(piece),
            None => {
                calls.push(CallSegment { index, start: None, arguments: piece.to_owned(), custom });
            }
        }
    }

    /// More input of the call of a custom tool that began last, if `read` appends any.
    pub(super) fn push_input(&mut self, index: u32, read: impl FnOnce(&mut String)) {
        let mut piece = String::new();
        read(&mut piece);
        if !piece.is_empty() {
            self.push_arguments(index, &piece, true);
        }
    }

    fn last(&self) -> &Segment {
        self.later.last().unwrap_or(&self.first)
    }

    /// The last segment, or a new one behind it.
    fn place(&mut self, new: bool) -> &mut Segment {
        if new {
            self.later.push(Segment::default());
        }
        self.later.last_mut().unwrap_or(&mut self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(ordered: bool) -> Segments {
        let mut segments = Segments::new(String::new(), ordered);
        segments.push_reasoning("r");
        segments.text().push('t');
        let (id, name) = ("i".into(), "f".into());
        segments.push_call(CallBegin { index: 0, id, name, custom: false });
        segments.push_arguments(0, "{", false);
        segments.push_arguments(0, "}", false);
        segments.text().push('u');
        segments
    }

    #[test]
    fn text_behind_a_call_begins_a_segment_where_order_counts() {
        let segments = fill(true);
        let texts: Vec<_> = segments.all().map(|segment| segment.text.as_str()).collect();
        assert_eq!(texts, ["t", "u"]);
        let calls = segments.whole().calls();
        assert_eq!((calls.len(), calls[0].arguments), (1, "{}"));
        let whole = fill(false);
        assert_eq!((whole.all().count(), whole.whole().text.as_str()), (1, "tu"));
    }

    #[test]
    fn arguments_of_a_call_that_was_written_go_on_without_its_start() {
        let mut segments = fill(true);
        segments.clear();
        assert!(segments.is_empty());
        segments.push_arguments(0, "x", true);
        let call = ToolCallDelta { index: 0, start: None, arguments: "x", custom: true };
        assert_eq!(segments.whole().calls(), [call]);
    }
}
