//! Screening of a body of any kind: JSON, a form, a gRPC message, or one that nobody here can read.
//!
//! Start reading at [`FieldRules::screen_body`].

use crate::allow::{FieldRules, ScreenError};
use crate::edit::Change;
use crate::form::{FormScreen, is_form};
use crate::form_error::FormError;
use crate::messages;
use crate::parse::{Input, ParsedBody};
use crate::scan::scan;
use crate::screening::Screening;
use crate::span::Span;
use bytes::Bytes;

/// The words of a request about its body.
#[derive(Clone, Copy, Debug)]
pub struct BodyDescription<'a> {
    /// The path, with or without its query.
    pub path: &'a str,
    /// The value of `content-type`, if any.
    pub content_type: Option<&'a str>,
}

/// The outcome of screening.
#[derive(Clone, Debug)]
pub enum ScreenOutcome {
    /// The fields that the body loses, or none.
    Read(Screening),
    /// Nobody here can say what the body holds.
    Unread,
}

/// The way to read a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Form,
    /// A message of a known gRPC method.
    Call(&'static messages::Schema),
    Unknown,
}

impl BodyDescription<'_> {
    /// Whether bodies of this kind can be screened.
    pub fn is_readable(&self) -> bool {
        self.format() != Format::Unknown
    }

    fn format(&self) -> Format {
        let path = self.path.split(['?', '#']).next().unwrap_or_default();
        if let Some(schema) = messages::schema(path) {
            return Format::Call(schema);
        }
        let Some(kind) = self.content_type else { return Format::Json };
        if is_form(kind) {
            return Format::Form;
        }
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.rsplit(['/', '+']).next() {
            // Engines take a body without a type for JSON.
            Some("json" | "") => Format::Json,
            _ => Format::Unknown,
        }
    }
}

impl FieldRules {
    /// Finds the fields of a body that must not reach an engine. `parsed` tells where JSON stands
    /// in the body, if a parser read it.
    ///
    /// # Errors
    ///
    /// [`ScreenError`] for a body that is not what it says, or that nobody sends in good faith.
    pub fn screen_body(
        &self,
        described: BodyDescription<'_>,
        body: &Bytes,
        parsed: Option<&ParsedBody>,
    ) -> Result<ScreenOutcome, ScreenError> {
        if body.is_empty() {
            return Ok(ScreenOutcome::Read(Screening::default()));
        }
        if let Some(Input::Json { at, fields }) = parsed.map(|parsed| &parsed.input) {
            let screening = self.screen(at.of(body), fields)?;
            let is_whole = at.len() == body.len();
            let screening = match is_whole {
                true => screening,
                false => screening.settle(at.of(body), fields.object()).blanked(*at),
            };
            return Ok(ScreenOutcome::Read(screening));
        }
        let format = described.format();
        if let Format::Call(schema) = format {
            return Ok(ScreenOutcome::Read(self.screen_call(body, schema)?));
        }
        if format == Format::Form {
            let kind = described.content_type.unwrap_or_default();
            return Ok(ScreenOutcome::Read(self.screen_form(body, kind)?));
        }
        // Whatever its type says: an engine may look at the bytes alone.
        match scan(body) {
            Ok(fields) => {
                let screening = self.screen(body, &fields)?;
                Ok(ScreenOutcome::Read(screening.settle(body, fields.object())))
            }
            Err(error) if format == Format::Json && may_be_json(body) => Err(error.into()),
            Err(_) => Ok(ScreenOutcome::Unread),
        }
    }
}

impl FieldRules {
    /// Screens a form that is there as a whole.
    ///
    /// # Errors
    ///
    /// [`FormError`] for a form that readers may take for different ones.
    pub fn screen_form(&self, body: &Bytes, content_type: &str) -> Result<Screening, FormError> {
        let mut screen = FormScreen::new(self, content_type)?;
        let mut left = Vec::new();
        screen.push(body.clone(), &mut left)?;
        let mut screening = screen.finish()?;
        if screening.steering() + screening.unknown() > 0 {
            let span = Span { start: 0, end: body.len() };
            screening.inner.push(Change { span, with: left.concat().into() });
        }
        Ok(screening)
    }
}

/// Whether a lenient reader may find a JSON object or a list in the bytes: one that takes a byte
/// order mark, or wide characters.
fn may_be_json(body: &[u8]) -> bool {
    match body.trim_ascii_start() {
        [b'{' | b'[' | 0 | 0xEF | 0xFE | 0xFF, ..] => true,
        [_, second, ..] => *second == 0,
        _ => false,
    }
}

impl Screening {
    /// Adapts the changes to JSON that stands at `at` in a longer body, whose length has to stay: space
    /// takes the place of what goes.
    fn blanked(mut self, at: Span) -> Self {
        for Change { span, with } in &mut self.inner {
            (span.start, span.end) = (span.start + at.start, span.end + at.start);
            *with = vec![b' '; span.len()].into();
        }
        self
    }
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
