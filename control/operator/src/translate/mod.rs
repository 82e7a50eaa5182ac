//! Containers that run Dynamo's modules as containers that run stator's roles.
//!
//! The table `modules.yaml` says flag by flag what takes a flag's place. A flag that nothing takes
//! becomes a [`Note`], which the graph's conditions show. Containers that run anything else stay as
//! they are.

mod container;
mod launch;
mod line;
mod place;
mod shell;
mod table;

pub(crate) use container::translate_pod;
pub(crate) use place::PodPlace;

use clap::Args;
use std::collections::BTreeMap;

/// Flags that say what stands in for names of a manifest.
#[derive(Args, Clone, Debug, Default)]
pub struct SubstituteArgs {
    /// Images that stand in for a manifest's, `MANIFEST=OURS`; several with commas. Without one a
    /// container that runs a role of stator keeps its image, which then must have the program `stator`.
    #[arg(long, global = true, env = "STATOR_IMAGES", value_name = "IMAGE=IMAGE",
          value_delimiter = ',', value_parser = pair)]
    pub images: Vec<(String, String)>,

    /// Folders of models that manifests call by their name on a hub, `NAME=FOLDER`; several with
    /// commas. Agents read a model's tokenizer from its folder.
    #[arg(long, global = true, env = "STATOR_MODELS", value_name = "NAME=FOLDER",
          value_delimiter = ',', value_parser = pair)]
    pub models: Vec<(String, String)>,
}

/// Names of a manifest, and what stands in for each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Substitutes {
    pub(crate) images: BTreeMap<String, String>,
    pub(crate) models: BTreeMap<String, String>,
}

impl From<SubstituteArgs> for Substitutes {
    fn from(args: SubstituteArgs) -> Self {
        Self {
            images: args.images.into_iter().collect(),
            models: args.models.into_iter().collect(),
        }
    }
}

/// Something of a container that has no counterpart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Note {
    pub(crate) component: String,
    pub(crate) container: String,
    /// Subject of the note: a flag with dashes, a variable, or a module.
    pub(crate) subject: String,
    pub(crate) message: String,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((from, to)) if !from.is_empty() && !to.is_empty() => Ok((from.into(), to.into())),
        _ => Err(format!("{text:?} is not FROM=TO")),
    }
}

#[cfg(test)]
mod tests;
