//! A report as one page that needs nothing else: plots are inline SVG, there is no script.

use crate::plot::{Plot, class};
use crate::{TextTable, escape};
use std::fmt::Write;

/// Colours of layers stay apart for the colour-blind, on white and on black.
///
/// Source: the palette of Okabe and Ito, for the light page.
const STYLE: &str = "
:root { color-scheme: light dark; --text: #1b1f24; --soft: #656d76; --back: #ffffff; --card: #f6f8fa;
  --rule: #d8dee4; --c0: #0072b2; --c1: #e69f00; --c2: #009e73; --c3: #d55e00; --c4: #cc79a7;
  --c5: #56b4e9; --c6: #8a7a00; --c7: #000000; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #8d96a0; --back: #0d1117;
  --card: #161b22; --rule: #30363d; --c0: #4493f8; --c6: #d2c24a; --c7: #ffffff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.25rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; }
h2 { font-size: 1rem; margin: 0 0 .5rem; font-weight: 600; }
section { margin: 0 0 2rem; }
pre { margin: 0; padding: 1rem; background: var(--card); white-space: pre-wrap; }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); }
figure { margin: 0; padding: 1rem; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--rule); fill: none; }
.axis { stroke: var(--soft); fill: none; }
.line { stroke-width: 2; fill: none; stroke: var(--c); stroke-linejoin: round; }
.dots { stroke-width: 4; stroke-linecap: round; fill: none; stroke: var(--c); opacity: .55; }
.bar { fill: var(--c); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.key span { margin-right: 1.2em; white-space: nowrap; }
.key i { display: inline-block; width: 1em; height: .7em; margin-right: .4em; background: var(--c); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; font-weight: 400; }
th:first-child { width: 11rem; }
th { color: var(--soft); white-space: nowrap; }
.figures td, .figures thead th + th { text-align: right; }
td { overflow-wrap: anywhere; }
";

/// A page under way. Sections stand in the order in which they were added.
#[derive(Clone, Debug)]
pub struct Page(String);

impl Page {
    /// A page with nothing but its title.
    pub fn new(title: &str) -> Self {
        let title = escape(title);
        Self(format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        ))
    }

    /// Adds names and values, a row each.
    pub fn facts<'a>(&mut self, title: &str, facts: impl IntoIterator<Item = (&'a str, String)>) {
        let _ = write!(self.0, "<section class=\"wide\"><h2>{}</h2>\n<table>\n", escape(title));
        for (name, value) in facts {
            let (name, value) = (escape(name), escape(&value));
            let _ = writeln!(self.0, "<tr><th>{name}</th><td>{value}</td></tr>");
        }
        self.0.push_str("</table></section>\n");
    }

    /// Adds a table of figures.
    pub fn table(&mut self, title: &str, table: &TextTable) {
        let _ = write!(
            self.0,
            "<section class=\"wide\"><h2>{}</h2>\n<table class=\"figures\">\n<thead><tr>",
            escape(title)
        );
        for name in &table.head {
            let _ = write!(self.0, "<th>{}</th>", escape(name));
        }
        self.0.push_str("</tr></thead>\n");
        for row in &table.rows {
            self.0.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let tag = if column == 0 { "th" } else { "td" };
                let _ = write!(self.0, "<{tag}>{}</{tag}>", escape(cell));
            }
            self.0.push_str("</tr>\n");
        }
        self.0.push_str("</table></section>\n");
    }

    /// Adds text as it stands, for example a command.
    pub fn text(&mut self, text: &str) {
        let _ = writeln!(self.0, "<section><pre>{}</pre></section>", escape(text));
    }

    /// Adds a paragraph.
    pub fn note(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p>{}</p>", escape(text));
    }

    /// Adds the names of the colours that plots have in common, by their numbers from 0 on.
    pub fn key(&mut self, names: impl IntoIterator<Item = String>) {
        self.0.push_str("<p class=\"key\">");
        for (colour, name) in names.into_iter().enumerate() {
            let (class, name) = (class(colour), escape(&name));
            let _ = write!(self.0, "<span><i class=\"{class}\"></i>{name}</span>");
        }
        self.0.push_str("</p>\n");
    }

    /// Adds plots, side by side where there is room.
    pub fn plots<'a>(&mut self, plots: impl IntoIterator<Item = Plot<'a>>) {
        self.0.push_str("<section class=\"plots\">\n");
        for plot in plots {
            let (title, svg) = (escape(&plot.title), plot.render());
            let _ = write!(self.0, "<figure><h2>{title}</h2>\n{svg}</figure>\n");
        }
        self.0.push_str("</section>\n");
    }

    /// The whole page.
    pub fn finish(mut self) -> String {
        self.0.push_str("</body>\n</html>\n");
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Layer, Scale, Shape};

    #[test]
    fn a_page_is_whole_safe_and_needs_nothing_else() {
        let mut table = TextTable::new(["", "<a>"]);
        table.row("b&c", ["1".to_owned()]);
        let axis = || Axis { label: "<x>", scale: Scale::between(0.0, 1.0) };
        let shape = Shape::Line(vec![(0.0, 1.0)]);
        let layers = vec![Layer { name: "<n>", colour: 9, shape }];
        let plot = Plot { title: "<t>".to_owned(), x: axis(), y: axis(), layers };
        let mut page = Page::new("<title>");
        page.facts("<facts>", [("<name>", "<value>".to_owned())]);
        page.table("<table>", &table);
        page.text("<text>");
        page.note("<note>");
        page.key(["<key>".to_owned()]);
        page.plots([plot]);
        let page = page.finish();
        let safe = ["title", "facts", "name", "value", "table", "text", "note", "key", "t", "n"];
        for word in safe {
            assert!(page.contains(&format!("&lt;{word}&gt;")), "{word}: {page}");
        }
        assert!(page.contains("<th>b&amp;c</th><td>1</td>") && page.contains("\"line c1\""));
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(page.ends_with("</body>\n</html>\n"));
        for foreign in ["<script", "src=", "href=", "@import", "NaN"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }
}
