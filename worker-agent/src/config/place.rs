//! Place of the workers.

use super::Faults;
use clap::Args;
use stator_protos::discovery::{ProfileRecord, Role};

/// Most labels of an agent's workers, and the longest label or name in bytes.
const LABELS_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 256;

/// Flags that say where the workers stand.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Place")]
pub struct PlaceArgs {
    /// Labels of the workers that requests may ask for, for example `pool=batch`; several with
    /// commas.
    #[arg(long, env = "STATOR_LABELS", value_delimiter = ',', value_name = "KEY=VALUE")]
    pub labels: Vec<String>,

    /// Name of the machine. Workers of one host, rack or zone move KV to each other more cheaply.
    #[arg(long, env = "STATOR_TOPOLOGY_HOST", value_name = "NAME")]
    pub topology_host: Option<String>,

    /// Name of the rack, or of whatever shares a fast network.
    #[arg(long, env = "STATOR_TOPOLOGY_RACK", value_name = "NAME")]
    pub topology_rack: Option<String>,

    /// Name of the zone or building.
    #[arg(long, env = "STATOR_TOPOLOGY_ZONE", value_name = "NAME")]
    pub topology_zone: Option<String>,
}

impl PlaceArgs {
    /// The workers' record for a role, as far as flags say.
    pub(super) fn profile(self, role: Role, faults: &mut Faults) -> ProfileRecord {
        let profile = ProfileRecord {
            role,
            labels: self.labels,
            host: self.topology_host,
            rack: self.topology_rack,
            zone: self.topology_zone,
            ..ProfileRecord::default()
        };
        faults.0.extend(profile_faults(&profile));
        profile
    }
}

fn profile_faults(profile: &ProfileRecord) -> Vec<String> {
    let mut faults = Vec::new();
    if profile.labels.len() > LABELS_MAX {
        faults.push(format!("labels: {} labels, limit {LABELS_MAX}", profile.labels.len()));
    }
    let places = [
        ("topology-host", &profile.host),
        ("topology-rack", &profile.rack),
        ("topology-zone", &profile.zone),
    ];
    let named = places.into_iter().filter_map(|(flag, name)| Some((flag, name.as_ref()?)));
    for (flag, text) in profile.labels.iter().map(|label| ("labels", label)).chain(named) {
        if text.is_empty() || text.len() > LABEL_BYTES_MAX {
            let bytes = text.len();
            faults.push(format!("{flag}: {text:?} has {bytes} bytes, 1 to {LABEL_BYTES_MAX}"));
        }
    }
    faults
}
