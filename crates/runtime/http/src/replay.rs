//! A response without a socket, for fuzz targets.

use crate::HttpError;
use crate::framing::{self, AnswerHead};
use std::io::ErrorKind;

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedResponse {
    /// The status.
    pub status: u16,
    /// The target of a redirection.
    pub location: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

/// Parses a response of at most `limit` bytes of body that comes in these pieces before the peer
/// closes.
///
/// # Errors
///
/// [`HttpError`] where the pieces are no HTTP/1 answer, an incomplete one, or one too large.
pub fn replay<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    limit: usize,
) -> Result<ReplayedResponse, HttpError> {
    let (mut bytes, mut answer, mut body) = (Vec::new(), None::<AnswerHead>, Vec::new());
    for piece in pieces {
        bytes.extend_from_slice(piece);
        while answer.is_none()
            && let Some((head, length)) = framing::head(&bytes)?
        {
            bytes.drain(..length);
            answer = Some(head).filter(|head| !head.status.is_informational());
        }
        if let Some(head) = &mut answer {
            let used = head.framing.take(&bytes, |part| body.extend_from_slice(part))?;
            bytes.drain(..used);
        }
        if body.len() > limit {
            return Err(HttpError::TooLarge { limit });
        }
    }
    let whole = answer.filter(|head| head.framing.may_end());
    let AnswerHead { status, location, .. } =
        whole.ok_or_else(|| HttpError::Broken(ErrorKind::UnexpectedEof.into()))?;
    Ok(ReplayedResponse { status: status.as_u16(), location, body })
}
