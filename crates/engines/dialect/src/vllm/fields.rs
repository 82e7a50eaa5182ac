//! Checks of the fields of a hand-over.

use crate::Fault;

/// Whether the text is there and not empty.
pub(super) fn text(field: &str, value: Option<&String>) -> Result<(), Fault> {
    present(field, value.map(String::len))
}

/// Whether the field is there and not empty, or not zero.
pub(super) fn present(field: &str, size: Option<usize>) -> Result<(), Fault> {
    match size {
        Some(1..) => Ok(()),
        Some(0) => Err(Fault::Invalid(format!("handover: {field} is empty"))),
        None => Err(Fault::Invalid(format!("handover: {field} is missing"))),
    }
}
