//! Opens the bucket, and says where in it everything lies.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use super::extent::ExtentId;
use super::settings::{ObjectOpenError, ObjectSettings, ObjectUrl};

/// Time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Times that a request is tried again. It is a cache: recomputing beats waiting.
const RETRIES: usize = 2;

/// A client for the bucket.
///
/// # Errors
///
/// The directory cannot be made, or the client refuses the settings. The bucket is not asked.
pub(crate) fn open(settings: &ObjectSettings) -> Result<Arc<dyn ObjectStore>, ObjectOpenError> {
    match &settings.url {
        ObjectUrl::Directory(path) => {
            let refuse = |source| ObjectOpenError::Directory { path: path.clone(), source };
            make_private(path).map_err(refuse)?;
            Ok(Arc::new(LocalFileSystem::new_with_prefix(path)?))
        }
        ObjectUrl::S3 { bucket, .. } => s3(settings, bucket),
    }
}

/// Makes a directory for this user alone, unless it is there. A directory for several users has to be
/// made beforehand.
fn make_private(path: &std::path::Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    // The directory only, not its parents: a share that is not mounted is an error.
    match builder.create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn s3(settings: &ObjectSettings, bucket: &str) -> Result<Arc<dyn ObjectStore>, ObjectOpenError> {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let endpoint = settings.endpoint.clone().or_else(|| {
        let named = |name| std::env::var(name).ok().filter(|url| !url.is_empty());
        named("AWS_ENDPOINT_URL_S3").or_else(|| named("AWS_ENDPOINT_URL"))
    });
    let is_plain = endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
    let times = &settings.times;
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(
            ClientOptions::new()
                .with_allow_http(is_plain)
                .with_connect_timeout(CONNECT_TIMEOUT)
                .with_timeout(times.write.max(times.read)),
        )
        .with_retry(RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(50),
                max_backoff: Duration::from_millis(500),
                base: 2.0,
            },
            max_retries: RETRIES,
            retry_timeout: times.read,
        })
        // TLS protects what is on the way, and checksums what arrives: hashing the body once more
        // would cost a second per few GB.
        .with_unsigned_payload(!is_plain);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(credentials) = &settings.credentials {
        builder = builder
            .with_access_key_id(&credentials.access_key_id)
            .with_secret_access_key(&credentials.secret_access_key);
    }
    Ok(Arc::new(builder.build()?))
}

/// Paths in the bucket.
///
/// | path | object |
/// | --- | --- |
/// | `prefix/FINGERPRINT/2 digits/EXTENT` | an extent |
/// | `prefix/FINGERPRINT/index/WRITER-NUMBER` | an index object |
#[derive(Clone, Debug)]
pub(crate) struct BucketPaths {
    root: Path,
    form: Path,
}

impl BucketPaths {
    /// The paths for KV of one form.
    pub(crate) fn new(url: &ObjectUrl, fingerprint: &[u8; 32]) -> Self {
        let root = match url {
            ObjectUrl::S3 { prefix, .. } => Path::from(prefix.as_str()),
            ObjectUrl::Directory(_) => Path::default(),
        };
        let form = root.clone().join(hex(fingerprint).as_str());
        Self { root, form }
    }

    /// Path of an extent.
    pub(crate) fn extent(&self, id: ExtentId) -> Path {
        let id = hex(&id.0);
        self.form.clone().join(&id[..2]).join(id.as_str())
    }

    /// Path of all index objects.
    pub(crate) fn indexes(&self) -> Path {
        self.form.clone().join("index")
    }

    /// Path of a writer's index object.
    pub(crate) fn index(&self, writer: u128, number: u32) -> Path {
        self.indexes().join(format!("{writer:032x}-{number:08}"))
    }

    /// Path of everything, of all forms.
    pub(crate) fn root(&self) -> Option<&Path> {
        (!self.root.is_root()).then_some(&self.root)
    }

    /// Kind of an object, if the tier wrote it.
    pub(crate) fn kind(&self, path: &Path) -> Option<ObjectKind> {
        let parts: Vec<_> = path.prefix_match(&self.root)?.collect();
        let [fingerprint, folder, name] = &parts[..] else { return None };
        let fingerprint = unhex(fingerprint.as_ref())?;
        let (folder, name) = (folder.as_ref(), name.as_ref());
        if folder == "index" {
            return Some(ObjectKind::Index { fingerprint });
        }
        let id = unhex(name)?;
        let is_in_place = folder.len() == 2 && name.starts_with(folder);
        is_in_place.then_some(ObjectKind::Extent { fingerprint, id: ExtentId(id) })
    }
}

/// An object that the tier wrote, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    /// An extent.
    Extent {
        /// Of this form.
        fingerprint: [u8; 32],
        /// Its identity.
        id: ExtentId,
    },
    /// An index object.
    Index {
        /// Of this form.
        fingerprint: [u8; 32],
    },
}

fn hex(bytes: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*bytes).to_hex().to_string()
}

/// Lower-case digits only, as [`hex`] writes them.
fn unhex(text: &str) -> Option<[u8; 32]> {
    let hash = blake3::Hash::from_hex(text).ok()?;
    (hash.to_hex().as_str() == text).then(|| hash.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_directory_is_made_for_this_user_alone_and_its_parents_are_not() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("kv");
        make_private(&path).unwrap();
        make_private(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(make_private(&home.path().join("share/kv")).is_err());
    }

    #[test]
    fn paths_are_known_again_and_others_are_left_alone() {
        for url in ["s3://kv/a/b", "s3://kv", "file:///kv"] {
            let paths = BucketPaths::new(&url.parse().unwrap(), &[10; 32]);
            let id = ExtentId([0xab; 32]);
            let extent = paths.extent(id);
            assert!(extent.as_ref().ends_with(&format!("0a0a/ab/{}", "ab".repeat(32))), "{extent}");
            let kind = ObjectKind::Extent { fingerprint: [10; 32], id };
            assert_eq!(paths.kind(&extent), Some(kind));
            let index = paths.index(5, 6);
            assert_eq!(paths.kind(&index), Some(ObjectKind::Index { fingerprint: [10; 32] }));
            let upper = extent.as_ref().to_uppercase();
            for other in ["a/b/notes", "x", &format!("{extent}/x"), &upper, &format!("z/{extent}")]
            {
                assert_eq!(paths.kind(&Path::from(other)), None, "{other}");
            }
        }
    }
}
