//! A file of wanted workers: `{"graphs": {"MODEL": {"prefill": 1, "decode": 3, "aggregated": 0}}}`.

use super::order::{GraphReplicas, OutputError};
use crate::replicas::Replicas;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file, and what was last written there.
pub(crate) struct ReplicasFile {
    path: PathBuf,
    written: Option<GraphReplicas>,
}

#[derive(Serialize, Deserialize)]
struct Content {
    graphs: GraphReplicas,
}

impl ReplicasFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, written: None }
    }

    pub(super) async fn read(&self, model: &str) -> Result<Option<Replicas>, OutputError> {
        let fault = |error: &dyn std::fmt::Display| {
            OutputError::File(format!("{}: {error}", self.path.display()))
        };
        let text = match tokio::fs::read(&self.path).await {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fault(&error)),
        };
        let content: Content = serde_json::from_slice(&text).map_err(|error| fault(&error))?;
        Ok(content.graphs.get(model).copied())
    }

    pub(super) async fn write(&mut self, wanted: &GraphReplicas) -> Result<(), OutputError> {
        // A file that did not change would wake its readers for nothing. One that was taken away is
        // written anew.
        if self.written.as_ref() == Some(wanted) && self.path.exists() {
            return Ok(());
        }
        let text = serde_json::to_string_pretty(&Content { graphs: wanted.clone() })
            .map_err(|error| OutputError::File(error.to_string()))?;
        replace(&self.path, text + "\n")
            .await
            .map_err(|error| OutputError::File(format!("{}: {error}", self.path.display())))?;
        self.written = Some(wanted.clone());
        Ok(())
    }
}

/// Replaces a file as a whole: readers see the old text or the new one.
pub(crate) async fn replace(path: &Path, text: String) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    tokio::fs::write(&new, text).await?;
    tokio::fs::rename(&new, path).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readers_see_what_was_written_last_by_whomever() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replicas.json");
        let mut file = ReplicasFile::new(path.clone());
        assert_eq!(file.read("m").await.expect("no file is no fault"), None);
        let three = Replicas { decode: 3, ..Replicas::default() };
        let wanted = GraphReplicas::from([("m".to_owned(), three)]);
        file.write(&wanted).await.expect("the folder is ours");
        assert_eq!(file.read("m").await.expect("it is there"), Some(three));
        assert_eq!(file.read("other").await.expect("it is there"), None);
        std::fs::write(&path, r#"{"graphs": {"m": {"decode": 7}}}"#).expect("the folder is ours");
        let seven = Replicas { decode: 7, ..Replicas::default() };
        assert_eq!(file.read("m").await.expect("it is there"), Some(seven));
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 1);
    }

    #[tokio::test]
    async fn a_file_that_says_something_else_is_a_fault_with_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replicas.json");
        std::fs::write(&path, r#"{"graphs": {"m": {"decoders": 7}}}"#).expect("the folder is ours");
        let fault = ReplicasFile::new(path).read("m").await.expect_err("it has another field");
        let text = fault.to_string();
        assert!(text.contains("replicas.json") && text.contains("decoders"), "{text}");
    }
}
