//! Any chunks of an upload lose the same fields, and a screened upload has nothing left to remove.
//!
//! An input is a form whose boundary is `b`, then the sizes of its chunks.

use crate::{cut, split};
use bytes::Bytes;
use stator_body::{FieldRules, FormError, FormScreen};

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (form, sizes) = split(input);
    let whole = screened(&[Bytes::copy_from_slice(form)]);
    let chunked = screened(&cut(form, sizes));
    assert_eq!(whole.clone().ok(), chunked.ok());
    let Ok((left, _)) = whole else { return };
    assert_eq!(screened(&[left.clone().into()]), Ok((left, 0)));
}

/// The form as it goes on, and how many fields it lost.
fn screened(chunks: &[Bytes]) -> Result<(Vec<u8>, u64), FormError> {
    let rules = FieldRules::default();
    let mut screen = FormScreen::new(&rules, "multipart/form-data; boundary=b")?;
    let mut out = Vec::new();
    for chunk in chunks {
        screen.push(chunk.clone(), &mut out)?;
    }
    let screening = screen.finish()?;
    Ok((out.concat(), screening.steering() + screening.unknown()))
}
