//! Links between the linked proxy and the agents: TCP relays that can break, and a mirror of the
//! discovery directory that names the relays in place of the agents.

use crate::relay::{Relay, Weather, relay};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Pause between two looks of the mirror at the directory: far less than leases last.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Pause between two views of a slow disk: a bit longer than between renewals of leases.
const LATE: Duration = Duration::from_millis(1500);
/// Delay of a skewed clock.
const SKEW_MS: u64 = 3_600_000;
/// The endpoint in an agent's record: everything of an agent is there.
const ENDPOINT: &str = "endpoint";

/// The behaviour of the mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mirror {
    /// Shows the directory as it is.
    #[default]
    Faithful,
    /// Shows the directory as it was.
    Frozen,
    /// Shows late what agents wrote.
    Late,
    /// Shows no directory.
    Hidden,
    /// Sets the leases of all records back, as an agent does whose clock is behind.
    Skewed,
}

/// The relays of all agents and the mirrored directory.
pub(crate) struct Links {
    agents: Vec<watch::Sender<Weather>>,
    mirror: watch::Sender<Mirror>,
    _task: JoinHandle<()>,
}

impl Links {
    /// Mirrors `from` into `to`. The agent `agent-N` is behind the link number N.
    pub(crate) fn begin(from: PathBuf, to: PathBuf, agents: usize) -> Self {
        let agents: Vec<_> = (0..agents).map(|_| watch::Sender::new(Weather::Clear)).collect();
        let mirror = watch::Sender::new(Mirror::Faithful);
        let weather = agents.iter().map(watch::Sender::subscribe).collect();
        let copies = Copies { from, to, weather, relays: HashMap::new() };
        let task = tokio::spawn(copies.run(mirror.subscribe()));
        Self { agents, mirror, _task: task }
    }

    /// The link to an agent has this weather during the hold.
    pub(crate) async fn suffer(&self, agent: usize, weather: Weather, hold: Duration) {
        self.agents[agent].send_replace(weather);
        tokio::time::sleep(hold).await;
        self.agents[agent].send_replace(Weather::Clear);
    }

    /// Changes what the mirror does.
    pub(crate) fn mirror(&self, mirror: Mirror) {
        self.mirror.send_replace(mirror);
    }
}

/// The mirror's state: a relay for each address that a record names, or named last.
struct Copies {
    from: PathBuf,
    to: PathBuf,
    weather: Vec<watch::Receiver<Weather>>,
    relays: HashMap<String, (String, Relay)>,
}

impl Copies {
    async fn run(mut self, mirror: watch::Receiver<Mirror>) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        let (mut shown, mut looked) = (HashMap::new(), Instant::now());
        loop {
            looks.tick().await;
            let mirror = *mirror.borrow();
            match mirror {
                Mirror::Frozen => continue,
                Mirror::Late if looked.elapsed() < LATE => continue,
                Mirror::Hidden => {
                    // It may be away already.
                    let _ = std::fs::remove_dir_all(&self.to);
                    shown.clear();
                }
                Mirror::Faithful | Mirror::Late | Mirror::Skewed => {
                    shown = self.copy(mirror, &shown).await;
                }
            }
            looked = Instant::now();
        }
    }

    /// Shows the directory as it is now; returns what is shown.
    async fn copy(
        &mut self,
        mirror: Mirror,
        shown: &HashMap<String, Value>,
    ) -> HashMap<String, Value> {
        let mut records = HashMap::new();
        for (name, record) in read(&self.from) {
            let record = self.relayed(&name, record, mirror).await;
            if shown.get(&name) != Some(&record) {
                write(&self.to, &name, &record);
            }
            records.insert(name, record);
        }
        for gone in shown.keys().filter(|name| !records.contains_key(*name)) {
            // It may be gone already, with its directory.
            let _ = std::fs::remove_file(self.to.join(gone));
        }
        records
    }

    async fn relayed(&mut self, name: &str, mut record: Value, mirror: Mirror) -> Value {
        let number = name.trim_start_matches("agent-").trim_end_matches(".json").parse::<usize>();
        let weather = self.weather[number.expect("agents are numbered")].clone();
        let endpoint = record[ENDPOINT].as_str().expect("an endpoint").to_owned();
        let (scheme, address) = endpoint.split_once("://").expect("an endpoint is a URL");
        let known = self.relays.get(name).filter(|(target, _)| target == address);
        let relay = match known {
            Some((_, relay)) => relay.address,
            None => {
                let target = address.parse().expect("an address and a port");
                let target = watch::Sender::new(Some(target));
                let relay = relay(target.subscribe(), weather).await;
                let at = relay.address;
                // The agent's life before had the relay that this one replaces.
                self.relays.insert(name.to_owned(), (address.to_owned(), relay));
                at
            }
        };
        record[ENDPOINT] = json!(format!("{scheme}://{relay}"));
        if mirror == Mirror::Skewed {
            let ends = record["lease_expires_unix_ms"].as_u64().expect("a lease has an end");
            record["lease_expires_unix_ms"] = json!(ends.saturating_sub(SKEW_MS));
        }
        record
    }
}

/// The records of a directory by file name; none of a directory that is away.
fn read(directory: &Path) -> Vec<(String, Value)> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let record = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let named = name.starts_with("agent-") && name.ends_with(".json");
        let bytes = std::fs::read(directory.join(&name)).ok()?;
        named.then(|| Some((name, serde_json::from_slice(&bytes).ok()?)))?
    };
    entries.filter_map(record).collect()
}

/// Replaces a record whole, as agents do.
fn write(directory: &Path, name: &str, record: &Value) {
    let new = directory.join(format!(".{name}.new"));
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(&new, record.to_string()))
        .and_then(|()| std::fs::rename(&new, directory.join(name)));
    written.expect("the mirror is writable");
}
