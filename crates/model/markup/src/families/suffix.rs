//! Families whose markers end with a suffix of the tokenizer: Hunyuan's `<tool_call:6124c78e>`.

use super::tags::HUNYUAN_TAGS;
use super::{AnswerMarkup, CallMarkup, ReasoningFamily, TagMarkup, ToolFamily};
use std::sync::Mutex;

/// The name of the family, of calls and of thoughts.
const NAME: &str = "hy_v3";

/// Families by their suffix. They live as long as the process: a tokenizer has one suffix.
static SUFFIXED: Mutex<Vec<SuffixedFamilies>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct SuffixedFamilies {
    suffix: &'static str,
    tools: &'static ToolFamily,
    reasoning: &'static ReasoningFamily,
}

/// The suffix of a tokenizer's markers, such as `:6124c78e`, by its tokens; empty where there is none.
pub fn marker_suffix<'a>(tokens: impl IntoIterator<Item = &'a str>) -> &'a str {
    let suffix = |token: &'a str| {
        let suffix = token.strip_prefix("<tool_calls")?.strip_suffix('>')?;
        (suffix.starts_with(':') && !suffix.contains(char::is_whitespace)).then_some(suffix)
    };
    tokens.into_iter().find_map(suffix).unwrap_or_default()
}

impl ToolFamily {
    /// The family with a tokenizer's suffix in its markers, where they have one.
    pub fn with_suffix(&'static self, suffix: &str) -> &'static Self {
        let suffixed = SuffixedFamilies::of(self.name(), suffix);
        suffixed.map_or(self, |families| families.tools)
    }
}

impl ReasoningFamily {
    /// The family with a tokenizer's suffix in its markers, where they have one.
    pub fn with_suffix(&'static self, suffix: &str) -> &'static Self {
        let suffixed = SuffixedFamilies::of(self.name(), suffix);
        suffixed.map_or(self, |families| families.reasoning)
    }
}

impl SuffixedFamilies {
    /// The families of a suffix; none for another family's name, and without a suffix.
    fn of(name: &str, suffix: &str) -> Option<Self> {
        if name != NAME || suffix.is_empty() {
            return None;
        }
        let mut known = SUFFIXED.lock().expect("no holder panics");
        if let Some(families) = known.iter().find(|families| families.suffix == suffix) {
            return Some(*families);
        }
        let families = Self::new(suffix, ToolFamily::find(name)?, ReasoningFamily::find(name)?);
        known.push(families);
        Some(families)
    }

    fn new(suffix: &str, tools: &ToolFamily, reasoning: &ReasoningFamily) -> Self {
        let marker = |marker: &str| -> &'static str {
            let stem = marker.strip_suffix('>').unwrap_or(marker);
            String::leak(format!("{stem}{suffix}>"))
        };
        let markers = |list: &[&str]| -> &'static [&'static str] {
            Vec::leak(list.iter().map(|it| marker(it)).collect())
        };
        let tags = TagMarkup {
            call_openers: markers(HUNYUAN_TAGS.call_openers),
            name_end: marker(HUNYUAN_TAGS.name_end),
            call_closers: markers(HUNYUAN_TAGS.call_closers),
            closers: markers(HUNYUAN_TAGS.closers),
            parameter: marker(HUNYUAN_TAGS.parameter),
            key_end: marker(HUNYUAN_TAGS.key_end),
            value: marker(HUNYUAN_TAGS.value),
            value_closers: markers(HUNYUAN_TAGS.value_closers),
            ..HUNYUAN_TAGS
        };
        let tools = ToolFamily {
            openers: markers(tools.openers),
            calls: AnswerMarkup::Calls(CallMarkup::Tags(tags)),
            ..*tools
        };
        let reasoning = ReasoningFamily {
            openers: markers(reasoning.openers),
            closers: markers(reasoning.closers),
            ..*reasoning
        };
        Self {
            suffix: String::leak(suffix.to_owned()),
            tools: Box::leak(Box::new(tools)),
            reasoning: Box::leak(Box::new(reasoning)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_stands_in_a_token() {
        assert_eq!(marker_suffix(["<think:ab>", "<tool_calls:ab>"]), ":ab");
        assert_eq!(marker_suffix(["<tool_calls>", "<tool_calls:a b>"]), "");
    }

    #[test]
    fn markers_have_the_suffix_before_their_bracket() {
        let tools = ToolFamily::find("hy_v4").expect("it is known");
        let suffixed = tools.with_suffix(":ab");
        assert_eq!(suffixed.openers, ["<tool_calls:ab>"]);
        assert!(suffixed.markers().contains(&"</arg_value:ab>"));
        assert!(std::ptr::eq(suffixed, tools.with_suffix(":ab")));
        assert!(std::ptr::eq(tools, tools.with_suffix("")));
        let thoughts = ReasoningFamily::find("hy_v3").expect("it is known").with_suffix(":ab");
        assert_eq!(thoughts.closers, ["</think:ab>"]);
        let other = ToolFamily::find("hermes").expect("it is known");
        assert!(std::ptr::eq(other, other.with_suffix(":ab")));
    }
}
