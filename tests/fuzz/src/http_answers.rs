//! An HTTP response to the client of metrics pages and model hubs is read alike however it is cut,
//! and within its limit; so is where it redirects to.

use crate::{cut, split};
use stator_http::{Url, replay};

const LIMIT_BYTES: usize = 1000;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (response, sizes) = split(input);
    let whole = replay([response], LIMIT_BYTES);
    let pieces = cut(response, sizes);
    let cut_up = replay(pieces.iter().map(|piece| &piece[..]), LIMIT_BYTES);
    assert_eq!(whole.is_ok(), cut_up.is_ok(), "{whole:?} {cut_up:?}");
    let (Ok(whole), Ok(cut_up)) = (whole, cut_up) else { return };
    assert_eq!(
        (whole.status, &whole.location, &whole.body),
        (cut_up.status, &cut_up.location, &cut_up.body)
    );
    assert!(whole.body.len() <= LIMIT_BYTES);
    if let Some(location) = &whole.location {
        let base = Url::parse("http://hub.test/a/b").expect("it is an address");
        let _ = base.join(location);
    }
}
