//! The steering of a request, its place and its urgency, is read within bounds, or refused.
//!
//! An input is the body, then the headers with labels, time to live and objective, with zero bytes
//! between them.

use crate::split;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (body, headers) = split(input);
    let mut headers = headers.split(|byte| *byte == 0).map(|value| std::str::from_utf8(value).ok());
    let mut header = || headers.next().flatten();
    stator_proxy::fuzz::steering(body, header(), header(), header());
}
