//! Faults of JSON text.

use std::fmt;

/// Containers inside one another, the body's own object included, that are accepted.
///
/// Source: serde_json refuses the 128th; so does every reader behind us that is built on it.
pub(crate) const DEPTH_MAX: u32 = 127;

/// The fault of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanErrorKind {
    /// The body ends inside a value.
    UnexpectedEnd,
    /// The body is not an object.
    NotAnObject,
    /// A byte that cannot stand here.
    UnexpectedByte(u8),
    /// A key was expected.
    ExpectedKey,
    /// Something other than space follows the object.
    TrailingBytes,
    /// A control character stands unescaped in a string.
    ControlCharacter,
    /// An escape that JSON does not have, or half of a surrogate pair.
    Escape,
    /// A string is not UTF-8.
    Utf8,
    /// A number is malformed.
    Number,
    /// A number is too large for a double.
    NumberTooLarge,
    /// Containers are nested too deep.
    TooDeep,
}

impl fmt::Display for ScanErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnexpectedEnd => f.write_str("the body ends inside a value"),
            Self::NotAnObject => f.write_str("expected an object"),
            Self::UnexpectedByte(byte) => {
                write!(f, "unexpected character '{}'", byte.escape_ascii())
            }
            Self::ExpectedKey => f.write_str("expected a key"),
            Self::TrailingBytes => f.write_str("unexpected bytes after the object"),
            Self::ControlCharacter => f.write_str("control character in a string"),
            Self::Escape => f.write_str("invalid escape in a string"),
            Self::Utf8 => f.write_str("string is not valid UTF-8"),
            Self::Number => f.write_str("invalid number"),
            Self::NumberTooLarge => f.write_str("number out of range"),
            Self::TooDeep => write!(f, "nested deeper than {DEPTH_MAX}"),
        }
    }
}

/// Why a body is not taken, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON at byte {at}: {kind}")]
pub struct ScanError {
    /// The fault.
    pub kind: ScanErrorKind,
    /// Offset in the body, in bytes.
    pub at: usize,
}
