//! Uploads: forms of type `multipart/form-data`, which lose the fields that must not reach an engine
//! while they go by.
//!
//! Readers of forms differ in what they forgive. This one forgives nothing, so that no engine finds a
//! field where this reader found none: a form that two readers may take for different ones is refused.

use crate::allow::{FieldRules, kind_of};
use crate::form_error::{FormError, HEAD_MAX_BYTES};
use crate::screening::{RemovedField, Screening};
use crate::span::Span;
use bytes::{Buf, Bytes};
use memchr::memmem::{self, Finder};

/// The longest boundary.
///
/// Source: RFC 2046, section 5.1.1, for its characters as well.
const BOUNDARY_MAX_BYTES: usize = 70;

/// Removes fields from one form while it goes by. At most one head of a part is held back.
#[derive(Debug)]
pub struct FormScreen {
    rules: FieldRules,
    /// Finds the boundary with its two dashes.
    finder: Finder<'static>,
    held: Bytes,
    state: State,
    /// Whether some of the form was passed on.
    begun: bool,
    screening: Screening,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first boundary.
    Start,
    /// After a boundary.
    Head,
    /// In a part that is kept, or not; `fresh` before any of its bytes was passed on or dropped.
    Data { kept: bool, fresh: bool },
    /// After the last boundary.
    End,
}

impl FormScreen {
    /// A screen for a body of this `content-type`.
    ///
    /// # Errors
    ///
    /// [`FormError::Boundary`] where nobody can say where its parts are.
    pub fn new(rules: &FieldRules, content_type: &str) -> Result<Self, FormError> {
        let boundary = boundary(content_type).ok_or(FormError::Boundary)?;
        let dashed = format!("--{boundary}");
        Ok(Self {
            rules: rules.clone(),
            finder: Finder::new(dashed.as_bytes()).into_owned(),
            held: Bytes::new(),
            state: State::Start,
            begun: false,
            screening: Screening::default(),
        })
    }

    /// Takes the next chunk and appends what passes to `out`.
    ///
    /// # Errors
    ///
    /// [`FormError`] for a form that readers may take for different ones.
    pub fn push(&mut self, chunk: Bytes, out: &mut Vec<Bytes>) -> Result<(), FormError> {
        let held = std::mem::take(&mut self.held);
        let mut rest = match held.is_empty() {
            true => chunk,
            false => [held, chunk].concat().into(),
        };
        let mut goes_on = true;
        while goes_on && !rest.is_empty() {
            goes_on = match self.state {
                State::Start => self.start(&mut rest)?,
                State::Head => self.head(&mut rest, out)?,
                State::Data { kept, fresh } => self.data((kept, fresh), &mut rest, out)?,
                // Engines pass over what follows.
                State::End => return Ok(()),
            };
        }
        self.held = rest;
        Ok(())
    }

    /// Fields that the form has lost so far.
    pub fn removed(&self) -> &[RemovedField] {
        self.screening.fields()
    }

    /// Ends the form, and tells which fields it lost.
    ///
    /// # Errors
    ///
    /// [`FormError::NoEnd`] where its last boundary has not come.
    pub fn finish(self) -> Result<Screening, FormError> {
        match self.state {
            State::End => Ok(self.screening),
            _ => Err(FormError::NoEnd),
        }
    }

    /// Reads the first boundary; false where more is needed.
    fn start(&mut self, rest: &mut Bytes) -> Result<bool, FormError> {
        let dashed = self.finder.needle();
        let length = dashed.len().min(rest.len());
        if rest[..length] != dashed[..length] {
            return Err(FormError::Begin);
        }
        if length < dashed.len() {
            return Ok(false);
        }
        rest.advance(length);
        self.state = State::Head;
        Ok(true)
    }

    /// Reads what follows a boundary: the end of the form, or the head of a part.
    fn head(&mut self, rest: &mut Bytes, out: &mut Vec<Bytes>) -> Result<bool, FormError> {
        match &rest[..] {
            [_] => return Ok(false),
            [b'-', b'-', ..] => {
                out.push(self.after_boundary(b"--\r\n"));
                self.state = State::End;
                return Ok(true);
            }
            [b'\r', b'\n', ..] => {}
            _ => return Err(FormError::OddBoundary),
        }
        let window = &rest[..rest.len().min(HEAD_MAX_BYTES)];
        let Some(end) = memmem::find(window, b"\r\n\r\n") else {
            if window.len() == HEAD_MAX_BYTES {
                return Err(FormError::HeadTooLong);
            }
            return Ok(false);
        };
        let name = name_of(rest.get(2..end).unwrap_or_default())?;
        // An odd name may be read as another one by the engine.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte);
        let kept = name.bytes().all(plain) && self.rules.allows_in_form(base_of(&name));
        let head = rest.split_to(end + 4);
        if kept {
            out.push(self.after_boundary(&head));
        } else {
            let name = base_of(&name);
            self.screening.note(name, kind_of(name), None);
        }
        self.state = State::Data { kept, fresh: true };
        Ok(true)
    }

    /// Reads a part up to the next boundary.
    fn data(
        &mut self,
        (kept, fresh): (bool, bool),
        rest: &mut Bytes,
        out: &mut Vec<Bytes>,
    ) -> Result<bool, FormError> {
        let length = self.finder.needle().len();
        let mut from = 0;
        while let Some(found) = self.finder.find(&rest[from..]) {
            let at = from + found;
            match &rest[..at] {
                [before @ .., b'\r', b'\n'] => {
                    let data = rest.slice(..before.len());
                    out.extend(Some(data).filter(|data| kept && !data.is_empty()));
                    rest.advance(at + length);
                    self.state = State::Head;
                    return Ok(true);
                }
                // The head of the part ended with a line, which some readers take for the one before
                // a boundary.
                [] if fresh => return Err(FormError::OddBoundary),
                [.., b'\r' | b'\n'] => return Err(FormError::OddBoundary),
                _ => from = at + 1,
            }
        }
        // A boundary may have begun, and the two bytes before it tell whether it is one. Those of
        // one that was found to be data are no line's end.
        let data = rest.split_to(rest.len().saturating_sub(length + 1).max(from));
        self.state = State::Data { kept, fresh: fresh && data.is_empty() };
        out.extend(Some(data).filter(|data| kept && !data.is_empty()));
        Ok(false)
    }

    /// A boundary and what follows it, as they are passed on.
    fn after_boundary(&mut self, rest: &[u8]) -> Bytes {
        let end_of_line = match std::mem::replace(&mut self.begun, true) {
            true => &b"\r\n"[..],
            false => b"",
        };
        [end_of_line, self.finder.needle(), rest].concat().into()
    }
}

/// The field that a name stands for: lists are written as `name[]`.
fn base_of(name: &str) -> &str {
    name.split('[').next().unwrap_or_default()
}

/// Whether a body of this `content-type` is a form.
pub fn is_form(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("multipart/form-data")
}

/// Position of the value of a field in a form that [`FormScreen`] has passed; none where the field is
/// missing or stands twice.
pub fn form_field(form: &[u8], content_type: &str, field: &str) -> Option<Span> {
    let dashed = format!("--{}", boundary(content_type)?);
    let end = format!("\r\n{dashed}");
    let finder = Finder::new(&end);
    let (mut at, mut found) = (dashed.len(), None);
    while !form.get(at..)?.starts_with(b"--") {
        let head = form.get(at + 2..)?;
        let head = &head[..memmem::find(head, b"\r\n\r\n")?];
        let start = at + 2 + head.len() + 4;
        let value = Span { start, end: start + finder.find(form.get(start..)?)? };
        if name_of(head).ok()? == field && found.replace(value).is_some() {
            return None;
        }
        at = value.end + end.len();
    }
    found
}

/// The boundary that a `content-type` names, if it is a sound one.
fn boundary(content_type: &str) -> Option<&str> {
    let (_, rest) = content_type.split_once(';').filter(|_| is_form(content_type))?;
    let found = parameter(rest.as_bytes(), "boundary").ok()??;
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&byte);
    let sound = (1..=BOUNDARY_MAX_BYTES).contains(&found.len()) && found.bytes().all(is_known);
    sound.then_some(found)
}

/// The name of the field that a part with this head is.
fn name_of(head: &[u8]) -> Result<String, FormError> {
    let mut disposition = None;
    let mut rest = head;
    loop {
        let end = memmem::find(rest, b"\r\n").unwrap_or(rest.len());
        let line = &rest[..end];
        let colon = line.iter().position(|byte| *byte == b':');
        let colon = colon.ok_or(FormError::Head("a line has no colon"))?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        if name.is_empty() || !name.iter().all(token) {
            return Err(FormError::Head("a name is odd"));
        }
        if value.iter().any(|byte| *byte < b' ' && *byte != b'\t' || *byte == 0x7F) {
            return Err(FormError::Head("a value has control characters"));
        }
        // Readers differ in which of two they take.
        if name.eq_ignore_ascii_case(b"content-disposition") && disposition.replace(value).is_some()
        {
            return Err(FormError::Head("content-disposition stands twice"));
        }
        match rest.get(end + 2..) {
            Some(more) => rest = more,
            None => break,
        }
    }
    let missing = FormError::Head("content-disposition is missing or is no form-data");
    let value = disposition.ok_or(missing)?.trim_ascii();
    let kind = value.get(..9).filter(|kind| kind.eq_ignore_ascii_case(b"form-data"));
    kind.ok_or(missing)?;
    let rest = value[9..].trim_ascii_start().strip_prefix(b";").ok_or(missing)?;
    let name = parameter(rest, "name")?.filter(|name| !name.is_empty());
    Ok(name.ok_or(FormError::Head("the field has no name"))?.to_owned())
}

/// The value of a parameter in `key=value; key="value"`. One that stands twice, or in a further form
/// like `name*` or `name*0`, is an error.
fn parameter<'a>(mut rest: &'a [u8], wanted: &str) -> Result<Option<&'a str>, FormError> {
    let odd = FormError::Head("a parameter is odd");
    let mut found = None;
    loop {
        rest = rest.trim_ascii_start();
        let equals = rest.iter().position(|byte| *byte == b'=').ok_or(odd)?;
        let key = str::from_utf8(&rest[..equals]).map_err(|_| odd)?.to_ascii_lowercase();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';') {
            return Err(odd);
        }
        rest = &rest[equals + 1..];
        let value = match rest.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = quoted.iter().position(|byte| *byte == b'"').ok_or(odd)?;
                // Some readers take this for the end, others for a quote within the value.
                if quoted[..end].ends_with(b"\\") {
                    return Err(odd);
                }
                rest = quoted[end + 1..].trim_ascii_start();
                &quoted[..end]
            }
            None => {
                let end = rest.iter().position(|byte| *byte == b';').unwrap_or(rest.len());
                let value = rest[..end].trim_ascii_end();
                rest = &rest[end..];
                if value.contains(&b'"') {
                    return Err(odd);
                }
                value
            }
        };
        if key == wanted {
            let value = str::from_utf8(value).map_err(|_| odd)?;
            if found.replace(value).is_some() {
                return Err(odd);
            }
        } else if key.split('*').next() == Some(wanted) {
            return Err(odd);
        }
        rest = match rest.split_first() {
            None => return Ok(found),
            Some((b';', more)) if more.trim_ascii().is_empty() => return Ok(found),
            Some((b';', more)) => more,
            Some(_) => return Err(odd),
        };
    }
}

#[cfg(test)]
#[path = "form_tests.rs"]
mod tests;
