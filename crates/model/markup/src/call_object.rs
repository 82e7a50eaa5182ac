//! One call as a JSON object with a name and arguments.

use crate::event::{EventSink, OutputEvent, arguments};
use crate::json_value::{JsonValueEnd, JsonValueScan, unescaped};

/// How an object says what it calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallObjectForm {
    /// `{"name": "f", "arguments": {…}}`, also with `parameters` and `tool_name`.
    #[default]
    Members,
    /// `{"f": {…}}`: the only key is the name.
    Keyed,
}

/// Reads the object of one call behind its brace; the order of its members does not matter.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallObject {
    form: CallObjectForm,
    /// A call begins with its arguments, not yet with its name: other objects have names too.
    cautious: bool,
    stage: ObjectStage,
    scan: JsonValueScan,
    key: String,
    value: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    early: String,
    has_arguments: bool,
    begun: bool,
    /// All text so far, until the call begins.
    raw: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ObjectStage {
    #[default]
    BeforeKey,
    InKey {
        escaped: bool,
    },
    BeforeColon,
    BeforeValue,
    InValue(Member),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Name,
    Id,
    /// Arguments that are told as they come.
    Arguments,
    /// Arguments as JSON in a string.
    Quoted,
    Other,
}

/// Progress through an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectEnd {
    /// The object goes on behind the text.
    Open,
    /// The object ends before this byte, and the call is complete.
    At(usize),
    /// From this byte on it is no object of a call.
    Broken(usize),
}

impl CallObject {
    pub(crate) fn new(form: CallObjectForm, cautious: bool) -> Self {
        Self { form, cautious, ..Self::default() }
    }

    /// Whether the call has been told.
    pub(crate) fn begun(&self) -> bool {
        self.begun
    }

    /// The object's text so far, where no call has been told.
    pub(crate) fn take_raw(&mut self) -> String {
        std::mem::take(&mut self.raw)
    }

    /// Reads on behind the brace. `known` says whether a function has a name.
    pub(crate) fn read(
        &mut self,
        text: &str,
        known: &dyn Fn(&str) -> bool,
        sink: &mut dyn EventSink,
    ) -> ObjectEnd {
        let mut at = 0;
        let end = loop {
            let Some(byte) = text.as_bytes().get(at).copied() else { break ObjectEnd::Open };
            match self.stage {
                ObjectStage::InValue(member) => match self.value(member, &text[at..], sink) {
                    JsonValueEnd::Open => break ObjectEnd::Open,
                    JsonValueEnd::Broken(broken) => break ObjectEnd::Broken(at + broken),
                    JsonValueEnd::At(end) => at += end,
                },
                ObjectStage::InKey { escaped } => {
                    let end = self.key(&text[at..], escaped);
                    at += end;
                }
                _ if byte.is_ascii_whitespace() => at += 1,
                ObjectStage::BeforeKey => match byte {
                    b'"' => {
                        self.key.clear();
                        self.stage = ObjectStage::InKey { escaped: false };
                        at += 1;
                    }
                    b',' => at += 1,
                    b'}' => match self.close(known, sink) {
                        true => break ObjectEnd::At(at + 1),
                        false => break ObjectEnd::Broken(at),
                    },
                    _ => break ObjectEnd::Broken(at),
                },
                ObjectStage::BeforeColon if byte == b':' => {
                    self.stage = ObjectStage::BeforeValue;
                    at += 1;
                }
                ObjectStage::BeforeColon => break ObjectEnd::Broken(at),
                ObjectStage::BeforeValue => {
                    self.stage = ObjectStage::InValue(self.member(byte, sink));
                    self.scan = JsonValueScan::default();
                    self.value.clear();
                }
            }
        };
        if !self.begun {
            let done = match end {
                ObjectEnd::Open => text.len(),
                ObjectEnd::At(at) | ObjectEnd::Broken(at) => at,
            };
            self.raw.push_str(&text[..done]);
        }
        end
    }

    /// Tells what was held back of arguments whose end never came.
    pub(crate) fn finish(&mut self, sink: &mut dyn EventSink) {
        if self.begun && self.stage == ObjectStage::InValue(Member::Quoted) {
            let quoted = std::mem::take(&mut self.value);
            arguments(sink, &unescaped(quoted.trim_start_matches('"')));
        }
    }

    /// Reads a key up to its closing quote; returns the bytes read.
    fn key(&mut self, text: &str, mut escaped: bool) -> usize {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    self.key.push_str(&text[..at]);
                    self.stage = ObjectStage::BeforeColon;
                    return at + 1;
                }
                _ => {}
            }
        }
        self.key.push_str(text);
        self.stage = ObjectStage::InKey { escaped };
        text.len()
    }

    /// The meaning of the value behind the key, which begins with `first`.
    fn member(&mut self, first: u8, sink: &mut dyn EventSink) -> Member {
        let is_text = first == b'"';
        let member = match (self.form, self.key.as_str()) {
            (CallObjectForm::Keyed, _) if self.name.is_none() => {
                self.name = Some(unescaped(&self.key));
                Member::Arguments
            }
            (CallObjectForm::Keyed, _) => Member::Other,
            (_, "name" | "tool_name") if is_text && self.name.is_none() => Member::Name,
            (_, "id" | "tool_call_id") if is_text => Member::Id,
            (_, "arguments" | "parameters" | "args") if !self.has_arguments => Member::Arguments,
            _ => Member::Other,
        };
        if member != Member::Arguments {
            return member;
        }
        self.has_arguments = true;
        self.begin(sink);
        if is_text { Member::Quoted } else { Member::Arguments }
    }

    fn value(&mut self, member: Member, text: &str, sink: &mut dyn EventSink) -> JsonValueEnd {
        let end = self.scan.read(text);
        let done = match end {
            JsonValueEnd::Open => text.len(),
            JsonValueEnd::At(at) | JsonValueEnd::Broken(at) => at,
        };
        match member {
            Member::Other => {}
            Member::Arguments if self.begun => arguments(sink, &text[..done]),
            Member::Arguments => self.early.push_str(&text[..done]),
            Member::Name | Member::Id | Member::Quoted => self.value.push_str(&text[..done]),
        }
        if let JsonValueEnd::At(_) = end {
            self.stage = ObjectStage::BeforeKey;
            self.complete(member, sink);
        }
        end
    }

    /// Takes note of a value that has ended.
    fn complete(&mut self, member: Member, sink: &mut dyn EventSink) {
        let text = |value: &str| {
            let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            unescaped(inner.unwrap_or(value))
        };
        match member {
            Member::Name => {
                self.name = Some(text(&self.value)).filter(|name| !name.is_empty());
                if self.has_arguments || !self.cautious {
                    self.begin(sink);
                }
            }
            Member::Id => self.id = Some(text(&self.value)),
            Member::Quoted => {
                let inner = text(&self.value);
                // A string that holds no object is passed on as the string that it is.
                let told = match inner.trim_start().starts_with('{') {
                    true => inner,
                    false => std::mem::take(&mut self.value),
                };
                match self.begun {
                    true => arguments(sink, &told),
                    false => self.early = told,
                }
            }
            Member::Arguments | Member::Other => {}
        }
    }

    /// Tells that the call begins, once its name is known.
    fn begin(&mut self, sink: &mut dyn EventSink) {
        let Some(name) = self.name.as_deref().filter(|name| !name.is_empty() && !self.begun) else {
            return;
        };
        sink.take(OutputEvent::CallStart { name, id: self.id.as_deref() });
        self.begun = true;
        self.raw = String::new();
        arguments(sink, &std::mem::take(&mut self.early));
    }

    /// Ends the object; false if it calls nothing.
    fn close(&mut self, known: &dyn Fn(&str) -> bool, sink: &mut dyn EventSink) -> bool {
        if !self.begun && self.name.as_deref().is_some_and(known) {
            self.begin(sink);
        }
        if !self.begun {
            return false;
        }
        if !self.has_arguments {
            arguments(sink, "{}");
        }
        sink.take(OutputEvent::CallEnd);
        true
    }
}
