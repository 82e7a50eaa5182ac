//! A client within limits is let in once it has waited as it was told.
//!
//! An input is the limits of requests and tokens in a minute, two bytes each, then steps of four bytes:
//! seconds of a pause, and the tokens of a request in units of 256.

/// Bytes of one step.
const STEP_BYTES: usize = 4;
/// Tokens of a unit.
const UNIT: u32 = 256;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Some((limits, steps)) = input.split_first_chunk::<4>() else { return };
    let [requests, tokens] = halves(*limits);
    let steps = steps.as_chunks::<STEP_BYTES>().0.iter().map(|step| {
        let [pause, used] = halves(*step);
        (pause, u32::from(used) * UNIT)
    });
    stator_proxy::fuzz::rates(requests.into(), tokens.into(), steps);
}

fn halves([a, b, c, d]: [u8; 4]) -> [u16; 2] {
    [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
}
