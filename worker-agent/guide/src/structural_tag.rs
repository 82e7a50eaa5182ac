//! Structural tags as grammars in Lark.
//!
//! Source: xgrammar's "Structural Tag" format, which vLLM, SGLang and TensorRT-LLM take, too; the
//! older form with `structures` and `triggers` as well. Markers that are special tokens are written
//! as tokens.

use crate::ebnf::{self, Translation};
use crate::error::GuideError;
use crate::json_form::kept;
use serde_json::{Value, json};
use std::fmt::Write;

/// Deepest nesting of formats.
const DEPTH_MAX: usize = 32;
/// Any text.
const ANY_TEXT: &str = r"/(.|\n)*/";

/// The grammar of a structural tag. `special` are the special tokens and their texts.
pub(crate) fn lark_of_tag(text: &str, special: &[(u32, String)]) -> Result<String, GuideError> {
    let tag: Value = serde_json::from_str(text)
        .map_err(|error| GuideError(format!("the structural tag is not valid JSON: {error}")))?;
    let format = match tag.get("format") {
        Some(format) => format.clone(),
        None => older_form(&tag)?,
    };
    let mut writer = LarkWriter { rules: String::new(), count: 0, special };
    let start = writer.format(&format, "format", 0)?;
    Ok(format!("%llguidance {{}}\nstart: {start}\n{}", writer.rules))
}

/// `{"structures":[{begin,schema,end}],"triggers":[…]}` in the newer form.
fn older_form(tag: &Value) -> Result<Value, GuideError> {
    let structures = list(tag, "structures", "structural_tag")?;
    let tags: Vec<_> = structures
        .iter()
        .map(|structure| {
            json!({"type": "tag", "begin": structure["begin"], "end": structure["end"],
                "content": {"type": "json_schema", "json_schema": structure["schema"]}})
        })
        .collect();
    let triggers = list(tag, "triggers", "structural_tag")?;
    Ok(json!({"type": "triggered_tags", "triggers": triggers, "tags": tags}))
}

/// Writes a grammar rule by rule.
struct LarkWriter<'a> {
    rules: String,
    count: usize,
    special: &'a [(u32, String)],
}

impl LarkWriter<'_> {
    /// Adds a rule; returns its name.
    fn rule(&mut self, attributes: &str, body: &str) -> String {
        let name = format!("part_{}", self.count);
        self.count += 1;
        writeln!(self.rules, "{name}{attributes}: {body}").expect("a string takes all");
        name
    }

    /// The expression of a format that stands at `path`.
    fn format(&mut self, format: &Value, path: &str, depth: usize) -> Result<String, GuideError> {
        if depth > DEPTH_MAX {
            return Err(GuideError(format!("{path} nests deeper than {DEPTH_MAX} levels")));
        }
        let of = |key: &str| format!("{path}.{key}");
        let kind = format["type"].as_str().unwrap_or("null");
        match kind {
            "const_string" => Ok(self.literal(text(format, "value", path)?)),
            "any_text" => Ok(self.rule("", ANY_TEXT)),
            "regex" => {
                let regex = text(format, "pattern", path)?.replace('/', r"\/");
                Ok(self.rule("", &format!("/{regex}/")))
            }
            "json_schema" => self.schema(format, path),
            "grammar" => self.grammar(text(format, "grammar", path)?),
            "tag" => self.tag(format, path, depth),
            "sequence" | "or" => {
                let mut parts = Vec::new();
                for (at, element) in list(format, "elements", path)?.iter().enumerate() {
                    let path = format!("{}[{at}]", of("elements"));
                    parts.push(self.format(element, &path, depth + 1)?);
                }
                let between = if kind == "or" { " | " } else { " " };
                Ok(format!("({})", parts.join(between)))
            }
            "optional" | "star" | "plus" => {
                let inner = self.format(&format["content"], &of("content"), depth + 1)?;
                let sign = match kind {
                    "optional" => "?",
                    "star" => "*",
                    _ => "+",
                };
                Ok(format!("({inner}){sign}"))
            }
            "tags_with_separator" => self.separated(format, path, depth),
            "triggered_tags" => self.triggered(format, path, depth),
            other => Err(GuideError(format!("{path}.type: {other:?} is not supported"))),
        }
    }

    fn schema(&mut self, format: &Value, path: &str) -> Result<String, GuideError> {
        let style = format["style"].as_str().unwrap_or("json");
        if style != "json" {
            return Err(GuideError(format!("{path}.style: {style:?} is not supported, only json")));
        }
        let schema = match &format["json_schema"] {
            // A schema may also be `true`: anything.
            Value::Bool(true) => json!({}),
            schema @ Value::Object(_) => schema.clone(),
            _ => return Err(GuideError(format!("{path}.json_schema must be an object"))),
        };
        Ok(self.rule("", &format!("%json {}", kept(schema))))
    }

    /// A grammar of its own within this one, in EBNF or in Lark.
    fn grammar(&mut self, grammar: &str) -> Result<String, GuideError> {
        let lark = match grammar.contains("::=") {
            true => match ebnf::translate(grammar)? {
                Translation::Regex(regex) => {
                    let regex = regex.replace('/', r"\/");
                    return Ok(self.rule("", &format!("/{regex}/")));
                }
                Translation::Lark(rules) => rules,
            },
            false => grammar.to_owned(),
        };
        Ok(self.rule("", &format!("%lark {{\n{lark}\n}}")))
    }

    /// Begin, content, end. Any text in between ends where the end stands for the first time.
    fn tag(&mut self, tag: &Value, path: &str, depth: usize) -> Result<String, GuideError> {
        let begin = self.literal(text(tag, "begin", path)?);
        let rest = self.behind_begin(tag, path, depth)?;
        Ok(format!("{begin} {rest}"))
    }

    fn behind_begin(
        &mut self,
        tag: &Value,
        path: &str,
        depth: usize,
    ) -> Result<String, GuideError> {
        let ends = match &tag["end"] {
            Value::String(end) => vec![end.as_str()],
            Value::Array(ends) => ends.iter().filter_map(Value::as_str).collect(),
            _ => return Err(GuideError(format!("{path}.end must be a string"))),
        };
        let content = &tag["content"];
        if content["type"] == "any_text" && ends.iter().all(|end| !end.is_empty()) {
            let ends: Vec<_> = ends.iter().map(|end| self.until(end)).collect();
            return Ok(format!("({})", ends.join(" | ")));
        }
        let content = self.format(content, &format!("{path}.content"), depth + 1)?;
        let ends: Vec<_> = ends.iter().map(|end| self.literal(end)).collect();
        Ok(format!("{content} ({})", ends.join(" | ")))
    }

    fn separated(
        &mut self,
        format: &Value,
        path: &str,
        depth: usize,
    ) -> Result<String, GuideError> {
        let mut tags = Vec::new();
        for (at, tag) in list(format, "tags", path)?.iter().enumerate() {
            tags.push(self.tag(tag, &format!("{path}.tags[{at}]"), depth + 1)?);
        }
        let any = self.rule("", &tags.join(" | "));
        let separator = self.literal(format["separator"].as_str().unwrap_or_default());
        let several = match format["stop_after_first"].as_bool().unwrap_or(false) {
            true => any,
            false => format!("{any} ({separator} {any})*"),
        };
        match format["at_least_one"].as_bool().unwrap_or(false) {
            true => Ok(several),
            false => Ok(format!("({several})?")),
        }
    }

    /// Free text in which a trigger begins a tag.
    fn triggered(
        &mut self,
        format: &Value,
        path: &str,
        depth: usize,
    ) -> Result<String, GuideError> {
        let triggers: Vec<String> = list(format, "triggers", path)?
            .iter()
            .filter_map(|trigger| trigger.as_str().map(str::to_owned))
            .collect();
        let mut tags = Vec::new();
        for (at, tag) in list(format, "tags", path)?.iter().enumerate() {
            let path = format!("{path}.tags[{at}]");
            let begin = text(tag, "begin", &path)?;
            let trigger = triggers.iter().find(|trigger| begin.starts_with(trigger.as_str()));
            let Some(trigger) = trigger.filter(|trigger| !trigger.is_empty()) else {
                return Err(GuideError(format!("{path}.begin begins with no trigger")));
            };
            let until = self.until(trigger);
            let begin = self.literal(&begin[trigger.len()..]);
            let rest = self.behind_begin(tag, &path, depth + 1)?;
            tags.push(format!("{until} {begin} {rest}"));
        }
        let any = self.rule("", &tags.join(" | "));
        let at_least_one = format["at_least_one"].as_bool().unwrap_or(false);
        if format["stop_after_first"].as_bool().unwrap_or(false) {
            let tail = self.rule("", ANY_TEXT);
            return Ok(if at_least_one { any } else { format!("({any} | {tail})") });
        }
        let tail = self.rule("", ANY_TEXT);
        Ok(format!("({any}){} {tail}", if at_least_one { "+" } else { "*" }))
    }

    /// A rule for any text up to and with the first `end`.
    fn until(&mut self, end: &str) -> String {
        let begins = |(_, text): &&(u32, String)| !text.is_empty() && end.starts_with(&**text);
        if let Some((id, first)) = self.special.iter().find(begins) {
            // Text has no special token, so this is the first.
            let text = self.rule("", ANY_TEXT);
            return match self.literal(&end[first.len()..]) {
                rest if rest == "\"\"" => format!("{text} <[{id}]>"),
                rest => format!("{text} <[{id}]> {rest}"),
            };
        }
        self.rule("[lazy]", &format!(r"/(.|\n)*{}/", escaped(end)))
    }

    /// A text as an expression, in which special tokens are tokens.
    fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let first = self
                .special
                .iter()
                .filter(|(_, token)| !token.is_empty())
                .filter_map(|(id, token)| Some((rest.find(token.as_str())?, *id, token.len())))
                .min_by_key(|(at, _, length)| (*at, usize::MAX - length));
            let Some((at, id, length)) = first else {
                parts.push(Value::from(rest).to_string());
                break;
            };
            if at > 0 {
                parts.push(Value::from(&rest[..at]).to_string());
            }
            parts.push(format!("<[{id}]>"));
            rest = &rest[at + length..];
        }
        match parts.is_empty() {
            true => "\"\"".into(),
            false => parts.join(" "),
        }
    }
}

/// A text as a regular expression between slashes.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str(r"\n"),
            c if r"\.+*?()|[]{}^$/".contains(c) => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

fn text<'v>(format: &'v Value, key: &str, path: &str) -> Result<&'v str, GuideError> {
    format[key].as_str().ok_or_else(|| GuideError(format!("{path}.{key} must be a string")))
}

fn list<'v>(format: &'v Value, key: &str, path: &str) -> Result<&'v [Value], GuideError> {
    match &format[key] {
        Value::Array(items) if !items.is_empty() => Ok(items),
        _ => Err(GuideError(format!("{path}.{key} must be a list that is not empty"))),
    }
}
