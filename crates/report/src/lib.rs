//! Reports of measurements: numbers as people read them, text tables, plots, one self-contained
//! page, and JSON files.
//!
//! The load generator and the simulator share it. It measures nothing and knows no request. Start
//! reading at [`Page`].

mod json;
pub mod number;
mod page;
mod plot;
mod scale;
mod table;

pub use json::{read_json, write_json, write_text};
pub use page::Page;
pub use plot::{Axis, BarMark, Layer, Plot, Shape};
pub use scale::Scale;
pub use table::TextTable;

/// Text that is safe inside HTML and its attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            _ => safe.push(c),
        }
    }
    safe
}
