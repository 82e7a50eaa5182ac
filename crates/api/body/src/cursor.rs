//! A position in JSON text that moves from token to token.

use crate::scan_error::{DEPTH_MAX, ScanError, ScanErrorKind};
use crate::span::{Member, Span};
use crate::strings;

/// Keys that a part of a message has which is an image, a sound or a video.
const MEDIA_KEYS: [&[u8]; 5] =
    [b"\"image_url\"", b"\"video_url\"", b"\"audio_url\"", b"\"input_audio\"", b"\"source\""];

/// Reads JSON from a position on. Each method starts at its token and ends after it.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    media: bool,
}

/// Open containers: a bit each, set for objects.
struct Nest {
    objects: u128,
    depth: u32,
    base: u32,
}

impl Nest {
    fn new(base: u32) -> Self {
        Self { objects: 0, depth: base, base }
    }

    /// Opens a container; `false` where that is one too many.
    fn open(&mut self, object: bool) -> bool {
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(object);
        self.depth <= DEPTH_MAX
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn is_done(&self) -> bool {
        self.depth == self.base
    }
}

impl<'a> Cursor<'a> {
    pub(crate) fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at, media: false }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Whether a key was read, at any depth, that parts with media have.
    pub(crate) fn saw_media(&self) -> bool {
        self.media
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Passes a byte that was peeked at.
    pub(crate) fn pass(&mut self) {
        self.at += 1;
    }

    /// Goes back to a position where this cursor has been.
    pub(crate) fn rewind(&mut self, at: usize) {
        self.at = at;
    }

    pub(crate) fn error(&self, kind: ScanErrorKind) -> ScanError {
        match kind {
            ScanErrorKind::TrailingBytes => ScanError { kind, at: self.at },
            _ if self.at >= self.bytes.len() => {
                ScanError { kind: ScanErrorKind::UnexpectedEnd, at: self.bytes.len() }
            }
            _ => ScanError { kind, at: self.at },
        }
    }

    fn unexpected(&self) -> ScanError {
        self.error(ScanErrorKind::UnexpectedByte(self.peek().unwrap_or_default()))
    }

    #[inline]
    pub(crate) fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Passes `byte` and the space before it.
    #[inline]
    fn expect(&mut self, byte: u8) -> Result<(), ScanError> {
        self.space();
        if self.peek() != Some(byte) {
            return Err(self.unexpected());
        }
        self.at += 1;
        Ok(())
    }

    /// Reads an object that stands `depth` containers deep, itself included, and reports its
    /// members.
    pub(crate) fn object(
        &mut self,
        depth: u32,
        mut member: impl FnMut(Member),
    ) -> Result<Span, ScanError> {
        let start = self.at;
        self.expect(b'{')?;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Span { start, end: self.at });
        }
        loop {
            let key = self.key()?;
            self.space();
            let value = self.value(depth)?;
            // A member is reported at once: a caller who wants one field pays for no list of all.
            member(Member { key_start: key.start, key_end: key.end, value });
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.unexpected()),
            }
        }
        self.at += 1;
        Ok(Span { start, end: self.at })
    }

    /// Reads a key and its colon; the span is the key's, quotes included.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<Span, ScanError> {
        self.space();
        if self.peek() != Some(b'"') {
            return Err(self.error(ScanErrorKind::ExpectedKey));
        }
        let key = self.string()?;
        self.media |= MEDIA_KEYS.contains(&key.of(self.bytes));
        self.expect(b':')?;
        Ok(key)
    }

    /// Reads any value that stands inside `depth` containers.
    ///
    /// A loop and not a recursion, so that no body can exhaust the stack.
    pub(crate) fn value(&mut self, depth: u32) -> Result<Span, ScanError> {
        let start = self.at;
        let mut nest = Nest::new(depth);
        loop {
            self.space();
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(open @ (b'{' | b'[')) => {
                    if !nest.open(open == b'{') {
                        return Err(self.error(ScanErrorKind::TooDeep));
                    }
                    self.at += 1;
                    if self.enter(open)? {
                        continue;
                    }
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => self.literal()?,
            }
            // Past commas and brackets, until a value follows or the outermost container has ended.
            if !self.leave(&mut nest)? {
                return Ok(Span { start, end: self.at });
            }
        }
    }

    /// Just inside a container: whether a value comes next. An empty one stays unclosed.
    #[inline]
    fn enter(&mut self, open: u8) -> Result<bool, ScanError> {
        self.space();
        // A closing bracket is two after the opening one, in either kind.
        if self.peek() == Some(open + 2) {
            return Ok(false);
        }
        if open == b'{' {
            self.key()?;
        }
        Ok(true)
    }

    /// After a value: closes what ends here; whether another value follows.
    #[inline]
    fn leave(&mut self, nest: &mut Nest) -> Result<bool, ScanError> {
        while !nest.is_done() {
            self.space();
            match (self.peek(), nest.in_object()) {
                (Some(b','), object) => {
                    self.at += 1;
                    if object {
                        self.key()?;
                    }
                    return Ok(true);
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    nest.close();
                }
                _ => return Err(self.unexpected()),
            }
        }
        Ok(false)
    }

    /// Reads a string; the span includes its quotes.
    #[inline]
    pub(crate) fn string(&mut self) -> Result<Span, ScanError> {
        let start = self.at;
        match strings::check(self.bytes, start + 1) {
            Ok(end) => {
                self.at = end;
                Ok(Span { start, end })
            }
            Err((kind, at)) => {
                self.at = at;
                Err(self.error(kind))
            }
        }
    }

    /// Reads a string of a body that was scanned before.
    pub(crate) fn known_string(&mut self) -> Option<Span> {
        let start = self.at;
        let (end, _) = strings::find_end(self.bytes, start + 1).ok()?;
        self.at = end;
        Some(Span { start, end })
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        self.at - start
    }

    fn some_digits(&mut self) -> Result<usize, ScanError> {
        match self.digits() {
            0 => Err(self.error(ScanErrorKind::Number)),
            count => Ok(count),
        }
    }

    /// Reads a number.
    pub(crate) fn number(&mut self) -> Result<(), ScanError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole = match self.peek() {
            Some(b'0') => {
                self.at += 1;
                1
            }
            _ => self.some_digits()?,
        };
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        let mut exponent = 0;
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            exponent = self.some_digits()?;
        }
        // Below 10^200 times 10^99 nothing overflows.
        if (whole > 200 || exponent > 2) && is_infinite(&self.bytes[start..self.at]) {
            return Err(ScanError { kind: ScanErrorKind::NumberTooLarge, at: start });
        }
        Ok(())
    }

    pub(crate) fn literal(&mut self) -> Result<(), ScanError> {
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        for word in [&b"true"[..], b"false", b"null"] {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(());
            }
            if !rest.is_empty() && word.starts_with(rest) {
                self.at = self.bytes.len();
            }
        }
        Err(self.unexpected())
    }
}

#[cold]
fn is_infinite(number: &[u8]) -> bool {
    let value = str::from_utf8(number).ok().and_then(|text| text.parse::<f64>().ok());
    value.is_none_or(f64::is_infinite)
}

/// The last member called `name` of the object at `span`; nothing where that is no object.
pub(crate) fn find_member(bytes: &[u8], span: Span, name: &str) -> Option<Member> {
    let mut found = None;
    let mut cursor = Cursor::at(bytes.get(..span.end)?, span.start);
    cursor
        .object(1, |member| {
            let key = Span { start: member.key_start, end: member.key_end };
            if strings::unquote(key.of(bytes)).is_some_and(|key| key == name) {
                found = Some(member);
            }
        })
        .ok()?;
    found
}
