//! The worker that a request names, if the operator lets requests do so (`--router-pins`), for an
//! endpoint picker in front of the proxy, or a test.
//!
//! A worker is named as answers name theirs, by 16 hexadecimal digits, or by NVIDIA Dynamo's
//! headers, in decimal. No other worker gets the request then. A worker
//! named for prefill is ignored if one worker must do the request alone.

use crate::openai::ApiError;
use stator_protos::header::{PREFILL_PINS, PREFILL_RANK_PINS, RANK_PINS, WORKER_ID, WORKER_PINS};
use stator_protos::{WorkerId, WorkerRank};

/// The workers that a request names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Worker that answers.
    pub worker: Option<WorkerRank>,
    /// Worker that computes the prompt.
    pub prefill: Option<WorkerRank>,
}

/// Names of the headers by which a request names a worker.
pub fn pin_headers() -> impl Iterator<Item = &'static str> {
    let workers = [WORKER_ID].into_iter().chain(WORKER_PINS).chain(PREFILL_PINS);
    workers.chain(RANK_PINS).chain(PREFILL_RANK_PINS)
}

impl Pins {
    /// Reads the headers of a request, if they are `obeyed`; `header` finds the value of one.
    ///
    /// # Errors
    ///
    /// 400, with the header at fault.
    pub fn of<'h>(
        header: impl Fn(&'static str) -> Option<&'h [u8]>,
        obeyed: bool,
    ) -> Result<Self, ApiError> {
        // One that is no text is read as what no worker is called.
        let text = |name| Some(std::str::from_utf8(header(name)?).unwrap_or("?"));
        if obeyed { Self::read(text) } else { Ok(Self::default()) }
    }

    /// The same of a request whose engine computes the prompts of all that it answers.
    ///
    /// # Errors
    ///
    /// 400, with the header at fault.
    pub fn of_whole<'h>(
        header: impl Fn(&'static str) -> Option<&'h [u8]>,
        obeyed: bool,
    ) -> Result<Self, ApiError> {
        let pins = Self::of(header, obeyed)?;
        match pins.prefill {
            None => Ok(pins),
            Some(_) => {
                let message = "the engines of this model compute prompts themselves";
                Err(ApiError::invalid(PREFILL_PINS[0], message))
            }
        }
    }

    fn read<'h>(header: impl Fn(&'static str) -> Option<&'h str>) -> Result<Self, ApiError> {
        let first = |names: &[&'static str]| {
            names.iter().find_map(|name| Some(PinHeader { name, text: header(name)?.trim() }))
        };
        let worker = match header(WORKER_ID) {
            Some(text) => Some((WORKER_ID, ours(text.trim())?)),
            None => first(&WORKER_PINS).map(decimal).transpose()?,
        };
        let prefill = first(&PREFILL_PINS).map(decimal).transpose()?;
        Ok(Self {
            worker: at(worker, first(&RANK_PINS))?,
            prefill: at(prefill, first(&PREFILL_RANK_PINS))?,
        })
    }
}

/// A header that names a worker or a rank.
#[derive(Clone, Copy)]
struct PinHeader<'h> {
    name: &'static str,
    text: &'h str,
}

/// Rank 0 of a worker, or the rank that is named with it.
fn at(
    worker: Option<(&'static str, u64)>,
    rank: Option<PinHeader<'_>>,
) -> Result<Option<WorkerRank>, ApiError> {
    match (worker, rank) {
        (None, None) => Ok(None),
        (None, Some(PinHeader { name, .. })) => {
            Err(ApiError::invalid(name, format!("{name} names a rank of no worker")))
        }
        (Some((_, id)), None) => Ok(Some(WorkerRank { worker: WorkerId(id), rank: 0 })),
        (Some((_, id)), Some(PinHeader { name, text })) => match text.parse() {
            Ok(rank) => Ok(Some(WorkerRank { worker: WorkerId(id), rank })),
            Err(_) => Err(ApiError::invalid(
                name,
                format!("{name} is {text:?}, not a rank from 0 to 65535"),
            )),
        },
    }
}

fn decimal(header: PinHeader<'_>) -> Result<(&'static str, u64), ApiError> {
    let PinHeader { name, text } = header;
    let id = text.parse().map_err(|_| {
        ApiError::invalid(name, format!("{name} is {text:?}, not a worker's decimal number"))
    })?;
    Ok((name, id))
}

fn ours(text: &str) -> Result<u64, ApiError> {
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    id.ok_or_else(|| {
        let message = format!("{WORKER_ID} is {text:?}, not 16 hexadecimal digits");
        ApiError::invalid(WORKER_ID, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> Result<Pins, String> {
        let find = |name| headers.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        Pins::read(find).map_err(|error| error.message)
    }

    fn rank(worker: u64, rank: u16) -> Option<WorkerRank> {
        Some(WorkerRank { worker: WorkerId(worker), rank })
    }

    #[test]
    fn workers_are_named_as_answers_do_or_as_dynamo_does() {
        assert_eq!(read(&[]), Ok(Pins::default()));
        let both = [
            ("x-dynamo-worker-instance-id", "7587"),
            ("x-dp-rank", "2"),
            ("x-prefill-instance-id", " 12 "),
        ];
        assert_eq!(read(&both), Ok(Pins { worker: rank(7587, 2), prefill: rank(12, 0) }));
        let ours = [(WORKER_ID, "00000000000000ff"), ("x-worker-instance-id", "7")];
        assert_eq!(read(&ours), Ok(Pins { worker: rank(255, 0), prefill: None }));
    }

    #[test]
    fn what_names_no_worker_is_refused_by_its_header() {
        for (headers, expected) in [
            (
                &[("x-worker-instance-id", "a")][..],
                "x-worker-instance-id is \"a\", not a worker's decimal number",
            ),
            (&[(WORKER_ID, "ff")], "x-stator-worker-id is \"ff\", not 16 hexadecimal digits"),
            (&[("x-dp-rank", "1")], "x-dp-rank names a rank of no worker"),
            (
                &[("x-prefill-instance-id", "1"), ("x-prefill-dp-rank", "65536")],
                "x-prefill-dp-rank is \"65536\", not a rank from 0 to 65535",
            ),
        ] {
            assert_eq!(read(headers), Err(expected.to_owned()));
        }
    }
}
