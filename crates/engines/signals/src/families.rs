//! An engine's own metric families, republished on another page.
//!
//! One malformed line makes a whole page unreadable, so nothing of an engine's page is taken on
//! trust. The output is OpenMetrics text of whole families, each once, without duplicate series and
//! of bounded size, whatever the page was.
//!
//! Source: the Prometheus text format 0.0.4, in which engines answer, and OpenMetrics 1.0.

mod sample;
#[cfg(test)]
mod tests;

use crate::report::Engine;
use rustc_hash::FxHashMap;
use sample::Sample;
use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};

/// Most families of a page.
const FAMILIES_MAX: usize = 2048;

/// The republished part of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// OpenMetrics text without its end mark; ends with a line break unless it is empty.
    pub text: String,
    /// Families beyond the limits.
    pub left_out: usize,
}

/// Republishes the families whose names have the engine's prefix, in order and under their names;
/// each series gets one more label, `name` with `value`, of plain letters and digits. An engine's
/// own label of that name is renamed to `exported_` and that name.
///
/// Creation times (`_created`) are left out: OpenMetrics has no family for them. The text has at
/// most `bytes_max` bytes; families beyond are left out whole.
pub fn republish(
    engine: Engine,
    page: &[u8],
    (name, value): (&str, &str),
    bytes_max: usize,
) -> Families {
    let mut shown = Page {
        prefix: match engine {
            Engine::Vllm => "vllm:",
            Engine::Sglang => "sglang:",
            Engine::TrtLlm => "trtllm_",
        },
        label: (name, value),
        bytes_max,
        families: Vec::new(),
        places: FxHashMap::default(),
        seen: HashSet::new(),
        hasher: RandomState::new(),
        refused: None,
        too_many: 0,
    };
    for line in page.split(|byte| *byte == b'\n') {
        // What is no text is no line.
        if let Ok(line) = std::str::from_utf8(line) {
            shown.line(line);
        }
    }
    shown.text()
}

/// Type of a family, as far as it decides the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
    Unknown,
}

impl Kind {
    fn read(word: &str) -> Self {
        match word {
            "counter" => Self::Counter,
            "gauge" => Self::Gauge,
            "histogram" => Self::Histogram,
            "summary" => Self::Summary,
            _ => Self::Unknown,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
            Self::Unknown => "unknown",
        }
    }

    /// Whether a series named after the family plus `suffix` belongs to the family.
    fn has(self, suffix: &str) -> bool {
        match self {
            Self::Counter => matches!(suffix, "" | "_total"),
            Self::Gauge | Self::Unknown => suffix.is_empty(),
            Self::Histogram => matches!(suffix, "_bucket" | "_sum" | "_count"),
            Self::Summary => matches!(suffix, "" | "_sum" | "_count"),
        }
    }
}

/// A family under construction.
struct Family<'a> {
    /// Name in the family's first line.
    name: &'a str,
    kind: Option<Kind>,
    help: Option<&'a str>,
    /// Series, ready for output.
    lines: String,
    /// Whether the family has series that a counter cannot have.
    odd: bool,
    /// Whether the family alone exceeds the limit of a page.
    too_long: bool,
}

/// A page under construction.
struct Page<'a> {
    prefix: &'static str,
    label: (&'a str, &'a str),
    bytes_max: usize,
    families: Vec<Family<'a>>,
    places: FxHashMap<&'a str, usize>,
    /// Hashes of the series so far, under a random key so that nobody can force a collision.
    seen: HashSet<u64>,
    hasher: RandomState,
    /// The last family that was refused because there were too many.
    refused: Option<&'a str>,
    too_many: usize,
}

impl<'a> Page<'a> {
    fn line(&mut self, line: &'a str) {
        match line.strip_prefix('#') {
            Some(comment) => self.describe(comment),
            None => self.series(line),
        }
    }

    /// Takes ` HELP name text` and ` TYPE name kind`; the first of each counts.
    fn describe(&mut self, comment: &'a str) {
        let mut words = comment.trim_start_matches([' ', '\t']).splitn(3, [' ', '\t']);
        let (Some(what), Some(name)) = (words.next(), words.next()) else { return };
        let rest = words.next().unwrap_or_default();
        if !matches!(what, "HELP" | "TYPE") || !sample::is_name(name) {
            return;
        }
        let Some(family) = self.family(name) else { return };
        match what {
            "HELP" => family.help = family.help.or(Some(rest)),
            _ => family.kind = family.kind.or(Some(Kind::read(rest.trim_ascii()))),
        }
    }

    fn series(&mut self, line: &'a str) {
        let Some(sample) = Sample::read(line) else { return };
        let Some(key) = sample.key(self.label) else { return };
        let Some(place) = self.place(sample.name) else { return };
        // Long before there is no room for it.
        if self.families[place].too_long || !self.seen.insert(self.hasher.hash_one(&key)) {
            return;
        }
        let family = &mut self.families[place];
        family.odd |= sample.name.strip_suffix("_total") != Some(family.base());
        // Writing to a string cannot fail.
        let _ = writeln!(family.lines, "{key} {}", sample.value());
        if family.lines.len() > self.bytes_max {
            (family.too_long, family.lines) = (true, String::new());
        }
    }

    /// Index of the family that a series of this name belongs to.
    fn place(&mut self, name: &'a str) -> Option<usize> {
        let declared = ["", "_bucket", "_sum", "_count", "_total"].iter().find_map(|suffix| {
            let place = *self.places.get(name.strip_suffix(suffix)?)?;
            let kind = self.families[place].kind.unwrap_or(Kind::Unknown);
            kind.has(suffix).then_some(place)
        });
        if declared.is_some() {
            return declared;
        }
        if self.places.contains_key(name) {
            // A histogram has no series of its own name.
            return None;
        }
        self.family(name)?;
        Some(self.families.len() - 1)
    }

    /// The family of this name, created on first use; `None` for one that is left out.
    fn family(&mut self, name: &'a str) -> Option<&mut Family<'a>> {
        if !name.starts_with(self.prefix) || name.ends_with("_created") {
            return None;
        }
        let place = match self.places.entry(name) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(_) if self.families.len() >= FAMILIES_MAX => {
                // Its lines stand together.
                self.too_many += usize::from(self.refused.replace(name) != Some(name));
                return None;
            }
            Entry::Vacant(place) => {
                place.insert(self.families.len());
                self.families.push(Family {
                    name,
                    kind: None,
                    help: None,
                    lines: String::new(),
                    odd: false,
                    too_long: false,
                });
                self.families.len() - 1
            }
        };
        Some(&mut self.families[place])
    }

    fn text(self) -> Families {
        let mut shown = Families { text: String::new(), left_out: self.too_many };
        for family in &self.families {
            // A counter's name is shorter than its series', and may be another's.
            let alone = family.base() == family.name || !self.places.contains_key(family.base());
            let text = family.text(alone);
            if family.too_long || shown.text.len() + text.len() > self.bytes_max {
                shown.left_out += 1;
            } else {
                shown.text.push_str(&text);
            }
        }
        shown
    }
}

impl Family<'_> {
    /// The family's name, without a counter's suffix.
    fn base(&self) -> &str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }

    /// Text of the family; empty without series. A counter stays one if `alone` says that no other
    /// family has its base name.
    fn text(&self, alone: bool) -> String {
        if self.lines.is_empty() {
            return String::new();
        }
        let kind = match self.kind.unwrap_or(Kind::Unknown) {
            // Older pages have counters whose series are named as they are.
            Kind::Counter if self.odd || !alone => Kind::Unknown,
            kind => kind,
        };
        let name = match kind {
            Kind::Counter => self.base(),
            _ => self.name,
        };
        let mut text = String::with_capacity(self.lines.len() + 256);
        if let Some(help) = self.help {
            text.push_str(&format!("# HELP {name} {}\n", escaped(help)));
        }
        text.push_str(&format!("# TYPE {name} {}\n", kind.name()));
        text.push_str(&self.lines);
        text
    }
}

/// Escapes quotes in a help text: OpenMetrics requires it, and 0.0.4 forbids it.
fn escaped(help: &str) -> String {
    let mut out = String::with_capacity(help.len());
    let mut chars = help.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.push_str(match chars.next() {
                Some('n') => "\\n",
                Some('"') => "\\\"",
                _ => "\\\\",
            }),
            '"' => out.push_str("\\\""),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}
