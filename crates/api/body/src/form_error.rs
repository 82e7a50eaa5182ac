//! Faults of uploads.

/// The longest head of a part; a name of a file has a few hundred bytes.
pub(crate) const HEAD_MAX_BYTES: usize = 8 << 10;

/// Why a form is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The type of the body names no boundary, or more than one, or an odd one.
    #[error("a body of type multipart/form-data must have one boundary of 1 to 70 characters")]
    Boundary,
    /// The body does not begin with the boundary.
    #[error("a body of type multipart must begin with a boundary")]
    Begin,
    /// A boundary stands where some readers see one and others do not.
    #[error("a boundary of the form stands in an odd place")]
    OddBoundary,
    /// The head of a part is too long.
    #[error("the head of a part of the form has more than {HEAD_MAX_BYTES} bytes")]
    HeadTooLong,
    /// The head of a part is not sound.
    #[error("the head of a part of the form is malformed: {0}")]
    Head(&'static str),
    /// The last boundary is missing.
    #[error("the form has no end")]
    NoEnd,
}
