//! Asks the bucket for a range of an extent.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore};
use tokio::time::{Instant, timeout};

use super::counts::Counters;
use super::failure::BucketFailure;
use super::shared::Shared;

/// Bytes that are read from a file at a time.
const FILE_PIECE: u64 = 512 << 10;

/// The bytes of a range, as they arrive.
pub(crate) enum ExtentBody {
    /// From the network.
    Stream(BoxStream<'static, object_store::Result<Bytes>>),
    /// From a file.
    File {
        /// The file.
        file: Arc<std::fs::File>,
        /// The range that is left to read.
        rest: Range<u64>,
    },
}

impl ExtentBody {
    /// The next bytes; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, BucketFailure>> {
        match self {
            Self::Stream(stream) => {
                Some(stream.next().await?.map_err(|error| BucketFailure::from(&error)))
            }
            Self::File { file, rest } => {
                let piece = (rest.end - rest.start).min(FILE_PIECE);
                if piece == 0 {
                    return None;
                }
                let (file, at) = (Arc::clone(file), rest.start);
                rest.start += piece;
                // The thread reads into memory of its own, never into the arena: it cannot be
                // stopped when the time for this read is over.
                let read = tokio::task::spawn_blocking(move || {
                    let mut bytes = vec![0; piece as usize];
                    std::os::unix::fs::FileExt::read_exact_at(&*file, &mut bytes, at)?;
                    Ok::<_, std::io::Error>(Bytes::from(bytes))
                });
                Some(read.await.map_err(|_| BucketFailure::Outage).and_then(|read| {
                    read.map_err(|error| match error.kind() {
                        std::io::ErrorKind::UnexpectedEof => BucketFailure::Wrong,
                        _ => BucketFailure::Outage,
                    })
                }))
            }
        }
    }
}

/// The bytes of `range` of an object that should have `size` bytes. If the first byte is late, the
/// bucket is asked again, and the first answer counts.
///
/// # Cancel safety
///
/// Dropping the future drops the requests.
pub(crate) async fn fetch(
    shared: &Shared,
    path: &Path,
    range: Range<u64>,
    size: u64,
) -> Result<ExtentBody, BucketFailure> {
    Counters::add(&shared.counters.reads, 1);
    let wait = shared.hedge.lock().begin();
    let begun = Instant::now();
    let mut first = ask(shared, path, range.clone());
    let answer = match timeout(wait, &mut first).await {
        Ok(answer) => answer,
        Err(_) if shared.hedge.lock().spend() => {
            Counters::add(&shared.counters.reads_hedged, 1);
            either(first, ask(shared, path, range.clone())).await
        }
        Err(_) => first.await,
    };
    match answer {
        Ok(answer) if answer.range == range && answer.meta.size == size => {
            shared.hedge.lock().answered(begun.elapsed());
            Ok(match answer.payload {
                GetResultPayload::File(file, _) => {
                    ExtentBody::File { file: Arc::new(file), rest: range }
                }
                GetResultPayload::Stream(stream) => ExtentBody::Stream(stream),
            })
        }
        Ok(_) => Err(BucketFailure::Wrong),
        Err(error) => match shared.judge(&error) {
            BucketFailure::Outage => Err(look_closer(shared, path, size).await),
            failure => Err(failure),
        },
    }
}

type Asked<'a> = BoxFuture<'a, object_store::Result<GetResult>>;

fn ask<'a>(shared: &'a Shared, path: &'a Path, range: Range<u64>) -> Asked<'a> {
    let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
    shared.edges.store.get_opts(path, options)
}

/// The first answer of two requests. An error is an answer if it says that there is no such object.
async fn either(first: Asked<'_>, second: Asked<'_>) -> object_store::Result<GetResult> {
    let (Either::Left((answer, other)) | Either::Right((answer, other))) =
        select(first, second).await;
    match answer {
        Err(error) if BucketFailure::from(&error) == BucketFailure::Outage => other.await,
        answer => answer,
    }
}

/// What it was that looked like an outage. For an object shorter than the range the client has no
/// error of its own, and a foreign object under an extent's name must not open the breaker.
async fn look_closer(shared: &Shared, path: &Path, size: u64) -> BucketFailure {
    let options = GetOptions { head: true, ..GetOptions::default() };
    match shared.edges.store.get_opts(path, options).await {
        Ok(answer) if answer.meta.size != size => BucketFailure::Wrong,
        Ok(_) => BucketFailure::Outage,
        Err(error) => BucketFailure::from(&error),
    }
}
