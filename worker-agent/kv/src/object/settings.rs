//! The bucket's address, and bounds on the tier's work.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::cipher::KvKey;

/// Address of the KV: `s3://bucket/prefix` or `file:///shared/directory`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectUrl {
    /// A bucket that speaks S3.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Common beginning of all keys, without slashes at the ends; may be empty.
        prefix: String,
    },
    /// A directory, for example one that all nodes mount. Its parent must be there.
    Directory(PathBuf),
}

impl FromStr for ObjectUrl {
    type Err = ObjectOpenError;

    fn from_str(text: &str) -> Result<Self, ObjectOpenError> {
        let refuse = || ObjectOpenError::Url { url: text.to_owned() };
        let (scheme, rest) = text.split_once("://").ok_or_else(refuse)?;
        match scheme {
            "s3" => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let prefix = prefix.trim_matches('/').to_owned();
                let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                let is_bucket = !bucket.is_empty() && bucket.chars().all(is_name);
                let is_prefix = prefix.chars().all(|c| is_name(c) || c == '/')
                    && !prefix.split('/').any(|part| matches!(part, "." | ".."))
                    && !prefix.contains("//");
                (is_bucket && is_prefix)
                    .then(|| Self::S3 { bucket: bucket.to_owned(), prefix })
                    .ok_or_else(refuse)
            }
            "file" if rest.starts_with('/') && rest.len() > 1 => Ok(Self::Directory(rest.into())),
            _ => Err(refuse()),
        }
    }
}

/// Keys for an S3 bucket in place of the environment's.
#[derive(Clone)]
pub struct ObjectCredentials {
    /// Identity of the key.
    pub access_key_id: String,
    /// The secret.
    pub secret_access_key: String,
}

impl std::fmt::Debug for ObjectCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectCredentials({}, ..)", self.access_key_id)
    }
}

/// Settings of the object tier. [`ObjectSettings::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct ObjectSettings {
    /// Address of the KV.
    pub url: ObjectUrl,
    /// URL of the S3 server. Default: `AWS_ENDPOINT_URL` of the environment, or else AWS. Plain
    /// `http` is for tests: it is spoken only where this URL says so.
    pub endpoint: Option<String>,
    /// Keys for the bucket. Default: those of the environment's usual `AWS_` variables, and then
    /// those of the machine.
    pub credentials: Option<ObjectCredentials>,
    /// Secret of the fleet. With it, a block that others have put into the bucket is a miss.
    pub key: Option<[u8; 32]>,
    /// Key by which blocks, headers and indexes are encrypted. Agents share what is encrypted with
    /// one key. Default: nothing is encrypted.
    pub cipher_key: Option<KvKey>,
    /// Bytes of an extent, at most. Default: 16 MiB.
    pub extent_bytes: usize,
    /// Bytes of all extents in a directory, of all forms. The oldest are deleted. No effect on S3,
    /// where a lifecycle rule does that. Default: no limit.
    pub capacity_bytes: Option<u64>,
    /// Bounds on work and memory.
    pub limits: ObjectLimits,
    /// Bounds on time.
    pub times: ObjectTimes,
    /// Runtime on which the tier works.
    pub handle: Handle,
}

impl ObjectSettings {
    /// The defaults.
    pub fn new(url: ObjectUrl, handle: Handle) -> Self {
        Self {
            url,
            endpoint: None,
            credentials: None,
            key: None,
            cipher_key: None,
            extent_bytes: 16 << 20,
            capacity_bytes: None,
            limits: ObjectLimits::default(),
            times: ObjectTimes::default(),
            handle,
        }
    }
}

/// Bounds on work and memory.
#[derive(Clone, Copy, Debug)]
pub struct ObjectLimits {
    /// Reads under way at a time, of one or several blocks each. Default: 16.
    pub reads: usize,
    /// Extents written at a time, each with a copy of its KV in memory. Default: 2.
    pub writes: usize,
    /// Blocks that wait in each of the three queues: demand, prefetch, offload. Default: 4,096.
    pub queue_blocks: usize,
    /// Blocks that the index has, at about 64 bytes of memory each. Default: 1,048,576.
    pub index_blocks: usize,
}

impl Default for ObjectLimits {
    fn default() -> Self {
        Self { reads: 16, writes: 2, queue_blocks: 4096, index_blocks: 1 << 20 }
    }
}

/// Bounds on time.
#[derive(Clone, Copy, Debug)]
pub struct ObjectTimes {
    /// Most time for a read with all its retries, once it has begun. Default: 5 s.
    pub read: Duration,
    /// Most time for writing or listing something with all retries. Default: 30 s.
    pub write: Duration,
    /// Time for which a block waits for others of its extent. Default: 1 s.
    pub linger: Duration,
    /// Time without requests after several failures in a row. Default: 30 s.
    pub breaker: Duration,
    /// Least time between two writes of the index object. Default: 5 s.
    pub index_write: Duration,
    /// Time between two looks at what others have written. Default: 60 s.
    pub index_read: Duration,
}

impl Default for ObjectTimes {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            read: seconds(5),
            write: seconds(30),
            linger: seconds(1),
            breaker: seconds(30),
            index_write: seconds(5),
            index_read: seconds(60),
        }
    }
}

/// Why the object tier did not open.
#[derive(Debug, thiserror::Error)]
pub enum ObjectOpenError {
    /// The URL is none of those that there are.
    #[error("{url:?} is neither s3://bucket/prefix nor file:///directory")]
    Url {
        /// The URL.
        url: String,
    },
    /// Extents are too small for a block, or too large.
    #[error(
        "extents of {extent_bytes} bytes for blocks of {block_bytes}: at least a block, at most 1 GiB"
    )]
    Extent {
        /// Bytes of an extent.
        extent_bytes: usize,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// The directory could not be made, or its parent is not there.
    #[error("directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The client refuses the settings.
    #[error("object store: {0}")]
    Store(#[from] object_store::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<ObjectUrl>) {
        assert_eq!(text.parse::<ObjectUrl>().ok(), expected, "{text}");
    }

    #[test]
    fn urls_are_buckets_or_directories() {
        let s3 = |bucket: &str, prefix: &str| {
            Some(ObjectUrl::S3 { bucket: bucket.into(), prefix: prefix.into() })
        };
        check("s3://kv", s3("kv", ""));
        check("s3://kv/", s3("kv", ""));
        check("s3://kv-1.b/fleet/a/", s3("kv-1.b", "fleet/a"));
        check("file:///shared/kv", Some(ObjectUrl::Directory("/shared/kv".into())));
        for wrong in [
            "",
            "kv",
            "s3:/kv",
            "s3://",
            "s3:///p",
            "s3://a b",
            "s3://b/../c",
            "s3://b/a//c",
            "s3://b/c?d",
            "file://shared",
            "file:///",
            "gs://b",
            "http://b",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn no_debug_output_shows_the_secret() {
        let credentials =
            ObjectCredentials { access_key_id: "id".into(), secret_access_key: "hush".into() };
        assert!(!format!("{credentials:?}").contains("hush"));
    }
}
