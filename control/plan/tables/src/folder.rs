//! Files of the wheel: which version of which table an engine has on a GPU.

use crate::error::TableError;
use crate::version::EngineVersion;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Places of the tables in the folder that a user names: the wheel's `systems`, the unpacked
/// package, or a `site-packages`.
const PLACES: [&str; 3] = ["", "systems", "aiconfigurator_core/systems"];
/// File that says which version of each engine is complete.
const VERSIONS: &str = "query_versions.yaml";
/// Limits of that file, and of the versions of one table.
const VERSIONS_BYTES_MAX: u64 = 1 << 20;
const VERSIONS_MAX: usize = 256;

/// Tables of all GPUs and engines in a folder. No table is read yet.
#[derive(Clone, Debug)]
pub struct TablesFolder {
    systems: PathBuf,
    current: CurrentVersions,
}

/// Newest versions of engines whose tables are complete; single tables of later ones are drafts.
#[derive(Clone, Debug, Default, Deserialize)]
struct CurrentVersions {
    #[serde(default)]
    defaults: BTreeMap<String, VersionSlots>,
    /// Versions by system and engine, of systems that have other ones.
    #[serde(default)]
    overrides: BTreeMap<String, BTreeMap<String, VersionSlots>>,
}

#[derive(Clone, Debug, Deserialize)]
struct VersionSlots {
    current: String,
}

impl TablesFolder {
    /// Finds the tables in a folder.
    ///
    /// # Errors
    ///
    /// [`TableError`]: there are none in it, or the file of versions cannot be read.
    pub fn find(folder: &Path) -> Result<Self, TableError> {
        let mut systems = PLACES.iter().map(|place| folder.join(place));
        let systems = systems.find(|systems| systems.join("data").is_dir());
        let none = || {
            let reason = "no folder data in it, in its systems, or in its \
                          aiconfigurator_core/systems";
            TableError::file(folder, reason)
        };
        let systems = systems.ok_or_else(none)?;
        let current = CurrentVersions::read(&systems.join(VERSIONS))?;
        Ok(Self { systems, current })
    }

    /// The table of this name and its version: the newest that is complete.
    ///
    /// # Errors
    ///
    /// [`TableError`]: a folder cannot be read.
    pub(crate) fn newest(
        &self,
        gpu: &str,
        engine: &str,
        family: &str,
        name: &str,
    ) -> Result<Option<(PathBuf, String)>, TableError> {
        let system = gpu.replace('-', "_");
        let folder = self.systems.join("data").join(&system).join(family).join(engine);
        let current = self.current.of(&system, engine);
        let mut found: Option<(EngineVersion, PathBuf, String)> = None;
        for version in versions(&folder)? {
            let order = EngineVersion::of(&version);
            let file = folder.join(&version).join(name);
            let is_draft = current.as_ref().is_some_and(|current| order > *current);
            let is_newer = found.as_ref().is_none_or(|(best, ..)| order > *best);
            if !is_draft && is_newer && file.is_file() {
                found = Some((order, file, version));
            }
        }
        Ok(found.map(|(_, file, version)| (file, version)))
    }
}

impl CurrentVersions {
    fn read(path: &Path) -> Result<Self, TableError> {
        let fault = |reason: String| TableError::file(path, reason);
        let bytes = match std::fs::metadata(path) {
            Ok(about) => about.len(),
            // A folder of single tables has no such file.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(fault(error.to_string())),
        };
        if bytes > VERSIONS_BYTES_MAX {
            return Err(fault(format!(
                "{bytes} bytes are above the limit of {VERSIONS_BYTES_MAX}"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
        serde_yaml_ng::from_str(&text).map_err(|error| fault(error.to_string()))
    }

    fn of(&self, system: &str, engine: &str) -> Option<EngineVersion> {
        let own = self.overrides.get(system).and_then(|engines| engines.get(engine));
        let slots = own.or_else(|| self.defaults.get(engine))?;
        Some(EngineVersion::of(&slots.current))
    }
}

/// Names of the folders in a folder; none if it is not there.
fn versions(folder: &Path) -> Result<Vec<String>, TableError> {
    let fault = |error: std::io::Error| TableError::file(folder, error);
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(fault(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        if names.len() == VERSIONS_MAX {
            let reason = format!("has more than {VERSIONS_MAX} versions");
            return Err(TableError::file(folder, reason));
        }
        names.extend(entry.map_err(fault)?.file_name().into_string());
    }
    Ok(names)
}
