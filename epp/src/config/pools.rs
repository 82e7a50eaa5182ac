//! Pools to pick for, and their ports.

use super::EppArgs;
use stator_epp_plugins::settings::FileDiscovery;
use stator_epp_pool::{InvalidSpec, PORTS_MAX, PoolSpec};
use std::net::SocketAddr;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// A pool and the port of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolTarget {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Source of its endpoints.
    pub source: PoolSource,
    /// Address of its streams.
    pub listen: SocketAddr,
    /// Source of its model's tokenizer.
    pub tokenizer: TokenizerSettings,
}

impl PoolTarget {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Source of a tokenizer; the first that is there is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerSettings {
    /// A folder with the model's files.
    pub path: Option<PathBuf>,
    /// The model's name on a hub: `organisation/name`.
    pub model: Option<String>,
}

/// Source of a pool's endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolSource {
    /// An `InferencePool` of this API group.
    Kubernetes {
        /// The group.
        group: String,
    },
    /// Pods with these labels, at these ports.
    Selector {
        /// A label selector.
        selector: String,
        /// One to eight ports.
        ports: Vec<u16>,
    },
    /// A file.
    File {
        /// The file.
        path: PathBuf,
        /// Whether it is read again when it changes.
        followed: bool,
    },
}

/// The pools that the flags name; faults are appended.
pub(super) fn targets(
    args: &EppArgs,
    discovery: Option<&FileDiscovery>,
    faults: &mut Vec<String>,
) -> Vec<PoolTarget> {
    let mut targets: Vec<_> = first(args, discovery, faults).into_iter().collect();
    for text in &args.pools.pool {
        match further(text, args) {
            Some(target) => targets.push(target),
            None => faults.push(format!("--pool: {text:?} is not namespace/name=port")),
        }
    }
    if targets.is_empty() && faults.is_empty() {
        faults.push(
            "one of --pool-name, --pool, --endpoint-selector and --endpoints-file is needed".into(),
        );
    }
    for (at, target) in targets.iter().enumerate() {
        let port = target.listen.port();
        // Port 0 lets the system choose, so that it is never taken twice.
        let same_port = |other: &&PoolTarget| port != 0 && other.listen.port() == port;
        if let Some(other) = targets[..at].iter().find(same_port) {
            let (one, two) = (&other.name, &target.name);
            faults.push(format!("--pool: {one:?} and {two:?} have the same port, {port}"));
        }
    }
    tokenizers(args, &mut targets, faults);
    targets
}

/// Gives each pool the tokenizer of its own, else the one of all; faults are appended.
fn tokenizers(args: &EppArgs, targets: &mut [PoolTarget], faults: &mut Vec<String>) {
    let names: Vec<_> = targets.iter().map(PoolTarget::full_name).collect();
    let flags = &args.scheduling;
    let (all_path, paths) = by_pool("--tokenizer-path", &flags.tokenizer_path, &names, faults);
    let (all_model, models) = by_pool("--tokenizer-model", &flags.tokenizer_model, &names, faults);
    let all = TokenizerSettings { path: all_path.map(PathBuf::from), model: all_model };
    for (target, (path, model)) in targets.iter_mut().zip(paths.into_iter().zip(models)) {
        let own = TokenizerSettings { path: path.map(PathBuf::from), model };
        target.tokenizer = if own == TokenizerSettings::default() { all.clone() } else { own };
    }
}

/// The value of a flag that is for all pools, and of each of these pools its own.
fn by_pool(
    flag: &str,
    values: &[String],
    pools: &[String],
    faults: &mut Vec<String>,
) -> (Option<String>, Vec<Option<String>>) {
    // A folder may have such a sign too, and begins with a slash then.
    let is_pool = |name: &str| {
        let parts = name.split_once('/');
        parts.is_some_and(|(one, two)| ![one, two].contains(&"") && !two.contains('/'))
    };
    let (mut all, mut own) = (None, vec![None; pools.len()]);
    for text in values {
        let (place, value) = match text.split_once('=').filter(|(pool, _)| is_pool(pool)) {
            None => (&mut all, text.as_str()),
            Some((pool, value)) => match pools.iter().position(|name| name == pool) {
                Some(at) => (&mut own[at], value),
                None => {
                    faults.push(format!("{flag}: {pool:?} is none of the pools {pools:?}"));
                    continue;
                }
            },
        };
        if value.is_empty() {
            faults.push(format!("{flag}: {text:?} has no value"));
        } else if place.replace(value.to_owned()).is_some() {
            faults.push(format!("{flag}: {text:?} is the second for the same pool"));
        }
    }
    (all, own)
}

/// The pool of the flags that are not repeated, else of the file that the configuration names.
fn first(
    args: &EppArgs,
    discovery: Option<&FileDiscovery>,
    faults: &mut Vec<String>,
) -> Option<PoolTarget> {
    let (name, source) = if let Some(file) = &args.pools.endpoints_file {
        ("file".to_owned(), PoolSource::File { path: file.clone(), followed: true })
    } else if let Some(selector) = &args.pools.endpoint_selector {
        let ports = args.pools.endpoint_target_ports.clone();
        match PoolSpec::standalone(selector, &ports) {
            Ok(_) => {}
            Err(InvalidSpec::Selector(part)) => {
                faults
                    .push(format!("--endpoint-selector: {part:?} is no part of a label selector"));
            }
            Err(InvalidSpec::Ports(count)) => faults
                .push(format!("--endpoint-target-ports: {count} ports are not 1 to {PORTS_MAX}")),
            Err(InvalidSpec::Port(port)) => {
                faults.push(format!("--endpoint-target-ports: {port} is 0 or given twice"));
            }
        }
        (name_of(selector), PoolSource::Selector { selector: selector.clone(), ports })
    } else if let Some(name) = &args.pools.pool_name {
        let group = args.pools.pool_group.clone();
        (name.clone(), PoolSource::Kubernetes { group })
    } else {
        let FileDiscovery { path, watch } = discovery?;
        ("file".to_owned(), PoolSource::File { path: path.into(), followed: *watch })
    };
    let listen = SocketAddr::new(args.serving.host, args.serving.grpc_port);
    let namespace = args.pools.pool_namespace.clone();
    // A pod is told its own by this name, also where the llm-d router was told it before.
    let namespace = namespace.or_else(|| std::env::var("NAMESPACE").ok());
    let namespace = namespace.unwrap_or_else(|| "default".into());
    Some(PoolTarget { namespace, name, source, listen, tokenizer: TokenizerSettings::default() })
}

/// Name for the pool of a selector, in at most 63 characters, alike in all replicas: a lease may be
/// named after it, and its end tells two selectors apart.
///
/// Source: names of objects, DNS subdomains of RFC 1123.
fn name_of(selector: &str) -> String {
    let words = selector.split(|letter: char| !letter.is_ascii_alphanumeric());
    let mut name = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-");
    name.truncate(54);
    let hash = xxh3_64(selector.as_bytes()) as u32;
    format!("{}-{hash:08x}", name.trim_end_matches('-').to_ascii_lowercase())
}

fn further(text: &str, args: &EppArgs) -> Option<PoolTarget> {
    let (pool, port) = text.rsplit_once('=')?;
    let (namespace, name) = pool.split_once('/')?;
    if namespace.is_empty() || name.is_empty() {
        return None;
    }
    let listen = SocketAddr::new(args.serving.host, port.parse().ok()?);
    let source = PoolSource::Kubernetes { group: args.pools.pool_group.clone() };
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Some(PoolTarget { namespace, name, source, listen, tokenizer: TokenizerSettings::default() })
}
