//! The files of a model: a Hugging Face folder, or the same files inside the binary.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// Files of one model by name, all from one flat folder. Cloning shares their bytes.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    files: BTreeMap<String, Bytes>,
}

/// Why a model's folder was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder or a file in it cannot be read.
    #[error("cannot read {path:?}: {source}")]
    Read {
        /// The folder or file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// This is no model folder.
    #[error("{path:?} has more than {limit} files")]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// Most that are opened.
        limit: usize,
    },
}

impl ModelFiles {
    /// Most files in a folder; the largest models have a few hundred.
    pub const MAX_FILES: usize = 4096;

    /// Maps all files of a folder into memory; nothing is read yet. Folders inside it are left
    /// out, links are followed.
    ///
    /// The files must not be changed while the model is in use.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the folder or a file in it cannot be read.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let read = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Read { path, source }
        };
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(dir).map_err(read(dir))? {
            let path = entry.map_err(read(dir))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(name) = name.filter(|_| path.is_file()) else { continue };
            if files.len() == Self::MAX_FILES {
                return Err(OpenError::TooManyFiles { path: dir.into(), limit: Self::MAX_FILES });
            }
            let file = File::open(&path).map_err(read(&path))?;
            files.insert(name.to_owned(), map::map(&file).map_err(read(&path))?);
        }
        Ok(Self { files })
    }

    /// Files that are part of the binary, as pairs of name and content.
    pub fn embedded(files: &[(&str, &'static [u8])]) -> Self {
        let files = files.iter().map(|&(name, bytes)| (name.into(), Bytes::from_static(bytes)));
        Self { files: files.collect() }
    }

    /// The content of a file, not copied.
    pub fn get(&self, name: &str) -> Option<Bytes> {
        self.files.get(name).cloned()
    }

    /// All names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

/// The one place that maps files.
#[allow(unsafe_code)]
mod map {
    use bytes::Bytes;
    use memmap2::Mmap;
    use std::fs::File;
    use std::io;

    /// The content of a file, read as it is used.
    pub(super) fn map(file: &File) -> io::Result<Bytes> {
        if file.metadata()?.len() == 0 {
            return Ok(Bytes::new());
        }
        // SAFETY: the map is read-only, and `ModelFiles::open` passes on to its caller that the
        // file must not be changed meanwhile.
        let map = unsafe { Mmap::map(file)? };
        Ok(Bytes::from_owner(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_and_embedded_files_look_alike() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), b"{}").unwrap();
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        let opened = ModelFiles::open(dir.path()).unwrap();
        let embedded = ModelFiles::embedded(&[("empty", b""), ("config.json", b"{}")]);
        for files in [opened, embedded] {
            assert_eq!(files.names().collect::<Vec<_>>(), ["config.json", "empty"]);
            assert_eq!(files.get("config.json").unwrap(), "{}");
            assert_eq!(files.get("empty").unwrap(), "");
            assert_eq!(files.get("folder"), None);
        }
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = ModelFiles::open(Path::new("no/such/folder")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read \"no/such/folder\": "), "{error}");
    }
}
