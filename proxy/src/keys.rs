//! The API keys of clients: from flags and from a file that is read again when it changes.

use arc_swap::ArcSwap;
use clap::Args;
use stator_api::space::{Account, Derivation};
use stator_runtime::Shutdown;
use stator_runtime::secret::Secret;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Most keys of a file.
const KEYS_MAX: usize = 10_000;
/// Longest key of a file, in bytes.
const KEY_MAX_BYTES: usize = 512;
/// Longest file of keys, comments included, in bytes.
const FILE_MAX_BYTES: u64 = 8 << 20;
/// Pause between two looks at the file of keys.
const RELOAD_INTERVAL: Duration = Duration::from_secs(3);

/// Flags of who may use the API, and who shares cached prefixes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "HTTP")]
pub struct KeyArgs {
    /// Keys that clients may use (`authorization: Bearer KEY`), comma-separated. Without any here
    /// and in `--api-keys-file`, everyone may. On the command line other users of the machine can
    /// see a key.
    #[arg(
        long,
        env = "STATOR_API_KEY",
        value_name = "KEY",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub api_key: Vec<String>,

    /// File with keys that clients may use, one a line. Empty lines and lines that begin with # do
    /// not count. The proxy reads the file again within 3 seconds of a change; a file that became
    /// unreadable or empty changes nothing.
    #[arg(long, env = "STATOR_API_KEYS_FILE", value_name = "FILE")]
    pub api_keys_file: Option<PathBuf>,

    /// Let all API keys share cached prefixes, for a fleet with one owner. Otherwise each key has
    /// a prefix space of its own: nobody learns from `cached_tokens` or from the time to the first
    /// token what others have asked. `x-tenant-id` and `cache_salt` keep requests apart either
    /// way.
    #[arg(long, env = "STATOR_SHARED_PREFIXES")]
    pub shared_prefixes: bool,

    /// File with the secret from which prefix spaces are derived, 16 to 4096 bytes. Default: they
    /// are derived from the set of API keys, and each change of the set makes all cached prefixes
    /// useless. Proxies of one fleet need the same secret, or the same keys.
    #[arg(long, env = "STATOR_PREFIX_SECRET_FILE", value_name = "FILE")]
    pub prefix_secret_file: Option<PathBuf>,
}

impl KeyArgs {
    /// Faults of flags that a proxy beside an engine cannot obey.
    pub(crate) fn faults_beside_an_engine(&self) -> impl Iterator<Item = String> {
        let flags = [
            (!self.api_key.is_empty(), "api-key"),
            (self.api_keys_file.is_some(), "api-keys-file"),
            (self.shared_prefixes, "shared-prefixes"),
            (self.prefix_secret_file.is_some(), "prefix-secret-file"),
        ];
        let given = flags.into_iter().filter(|(is_given, _)| *is_given);
        given.map(|(_, flag)| format!("{flag}: the engine beside a sidecar checks keys"))
    }
}

/// The keys that clients may use, as they are now.
pub(crate) struct ApiKeys {
    /// Keys from flags.
    given: Vec<String>,
    file: Option<PathBuf>,
    shared: bool,
    secret: Option<Secret>,
    current: ArcSwap<KeySet>,
}

/// Keys of one moment. The texts of keys are not kept.
struct KeySet {
    derivation: Derivation,
    /// The account of each key, by [`Derivation::of_key`].
    known: HashSet<Account>,
}

impl ApiKeys {
    /// Reads the files that `args` names; adds to `faults` what cannot be used.
    pub(crate) fn load(args: KeyArgs, faults: &mut Vec<String>) -> Option<Self> {
        let before = faults.len();
        if args.api_key.iter().any(|key| key.trim().is_empty()) {
            faults.push("api-key: must not be empty".to_owned());
        }
        let mut take = |read: Result<Option<_>, String>| {
            read.unwrap_or_else(|fault| {
                faults.push(fault);
                None
            })
        };
        let secret = take(args.prefix_secret_file.as_deref().map(read_secret).transpose());
        let file = args.api_keys_file;
        let listed = match file.as_deref().map(read_keys).transpose() {
            Ok(keys) => keys.unwrap_or_default(),
            Err(fault) => {
                faults.push(format!("api-keys-file: {fault}"));
                Vec::new()
            }
        };
        // Without its keys a proxy would let everybody in, so it does not start.
        if faults.len() > before {
            return None;
        }
        let (given, shared) = (args.api_key, args.shared_prefixes);
        let current = KeySet::new(&given, listed, secret.as_ref());
        Some(Self { given, file, shared, secret, current: ArcSwap::from_pointee(current) })
    }

    /// The account of a client that sent this key, or none; `None` where the client may not use
    /// the API.
    ///
    /// Keys are compared by digests under a key that clients do not know, so that the time it
    /// takes tells nothing.
    pub(crate) fn account(&self, sent: Option<&str>) -> Option<Account> {
        let KeySet { derivation, known } = &**self.current.load();
        if known.is_empty() {
            return Some(derivation.of_all());
        }
        let account = derivation.of_key(sent?);
        let account = known.contains(&account).then_some(account)?;
        Some(if self.shared { derivation.of_all() } else { account })
    }

    /// The account of the key itself that a client sent, whether or not keys share prefixes; `None`
    /// where no key is required or the key is not known. Shares of requests are counted by it.
    pub(crate) fn holder(&self, sent: Option<&str>) -> Option<Account> {
        let KeySet { derivation, known } = &**self.current.load();
        if known.is_empty() {
            return None;
        }
        let account = derivation.of_key(sent?);
        known.contains(&account).then_some(account)
    }

    /// Follows the file of keys until `shutdown`.
    pub(crate) async fn follow(self: Arc<Self>, shutdown: Shutdown) {
        let Some(file) = self.file.clone() else { return };
        warn_of_readers(&file);
        let mut seen = read(&file);
        loop {
            tokio::select! {
                () = tokio::time::sleep(RELOAD_INTERVAL) => {}
                () = shutdown.wait() => return,
            }
            let keys = self.clone();
            match tokio::task::spawn_blocking(move || keys.look(seen)).await {
                Ok(now) => seen = now,
                Err(error) => {
                    tracing::error!(%error, "API keys are no longer reloaded");
                    return;
                }
            }
        }
    }

    /// One look at the file; returns what it holds. A fault is logged when it appears, not on
    /// every look.
    fn look(&self, seen: Result<String, String>) -> Result<String, String> {
        let Some(file) = self.file.as_deref() else { return seen };
        let now = read(file);
        if now == seen {
            return now;
        }
        match now.clone().and_then(|text| parse(&text)) {
            Ok(listed) => {
                let current = KeySet::new(&self.given, listed, self.secret.as_ref());
                let keys = current.known.len();
                self.current.store(Arc::new(current));
                tracing::info!(file = %file.display(), keys, "API keys reloaded");
                warn_of_readers(file);
            }
            Err(error) => {
                tracing::warn!(file = %file.display(), error, "API keys not reloaded, the old ones stay");
            }
        }
        now
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKeys(..)")
    }
}

impl KeySet {
    fn new(given: &[String], listed: Vec<String>, secret: Option<&Secret>) -> Self {
        let keys: BTreeSet<String> = given.iter().cloned().chain(listed).collect();
        let derivation = Derivation::new(secret.map(Secret::reveal), &keys);
        let known = keys.iter().map(|key| derivation.of_key(key)).collect();
        Self { derivation, known }
    }
}

fn read_secret(file: &Path) -> Result<Secret, String> {
    Secret::read(file).map_err(|fault| format!("prefix-secret-file: {fault}"))
}

fn read_keys(file: &Path) -> Result<Vec<String>, String> {
    let keys = read(file).and_then(|text| parse(&text));
    keys.map_err(|why| format!("{}: {why}", file.display()))
}

fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let opened = std::fs::File::open(file);
    let read = opened.and_then(|file| file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text));
    read.map_err(|error| error.to_string())?;
    match text.len() as u64 <= FILE_MAX_BYTES {
        true => Ok(text),
        false => Err(format!("more than {FILE_MAX_BYTES} bytes, which is the limit")),
    }
}

/// The keys of a file. Faults name lines and never a key.
fn parse(text: &str) -> Result<Vec<String>, String> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys = lines.map(|(number, line)| match line.len() {
        bytes if bytes > KEY_MAX_BYTES => {
            Err(format!("line {number}: a key of {bytes} bytes, limit {KEY_MAX_BYTES}"))
        }
        _ if !line.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(format!("line {number}: a key has characters other than visible ASCII"))
        }
        _ => Ok(line.to_owned()),
    });
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    match keys.len() {
        0 => Err("it has no keys".into()),
        count if count > KEYS_MAX => Err(format!("{count} keys, limit {KEYS_MAX}")),
        _ => Ok(keys),
    }
}

/// Warns of a file that everyone on the machine can read.
fn warn_of_readers(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode() & 0o777);
    if mode & 0o007 != 0 {
        let (file, mode) = (file.display(), format!("{mode:03o}"));
        tracing::warn!(%file, mode, "every user of this machine can use the file of API keys");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn load(args: KeyArgs) -> Result<ApiKeys, Vec<String>> {
        let mut faults = Vec::new();
        ApiKeys::load(args, &mut faults).ok_or(faults)
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("it can be written");
        file
    }

    fn listed(file: &tempfile::NamedTempFile) -> KeyArgs {
        KeyArgs { api_keys_file: Some(file.path().to_owned()), ..KeyArgs::default() }
    }

    #[test]
    fn without_keys_everyone_is_one_account() {
        let keys = load(KeyArgs::default()).unwrap();
        assert!(keys.account(None).is_some());
        assert_eq!(keys.account(None), keys.account(Some("whatever")));
        assert!(keys.account(None).is_some());
    }

    #[test]
    fn keys_of_flags_and_file_are_accounts_and_nothing_else_is() {
        let file = file("# clients\n\nbeta\n  gamma  \r\n#delta\n");
        let given = vec!["alpha".to_owned()];
        let keys = load(KeyArgs { api_key: given, ..listed(&file) }).unwrap();
        assert!(keys.account(None).is_none());
        let accounts = ["alpha", "beta", "gamma"].map(|key| keys.account(Some(key)));
        let distinct: HashSet<_> = accounts.iter().flatten().collect();
        assert_eq!(distinct.len(), 3);
        for sent in ["", "alph", "alphaa", "Alpha", "delta", "#delta", "# clients", " gamma"] {
            assert_eq!(keys.account(Some(sent)), None, "{sent:?}");
        }
        assert_eq!(keys.account(None), None);
        assert_eq!(format!("{keys:?}"), "ApiKeys(..)");
    }

    #[test]
    fn keys_that_share_are_one_account() {
        let api_key = vec!["alpha".to_owned(), "beta".to_owned()];
        let keys = load(KeyArgs { api_key, shared_prefixes: true, ..KeyArgs::default() }).unwrap();
        assert_eq!(keys.account(Some("alpha")), keys.account(Some("beta")));
        assert!(keys.account(Some("alpha")).is_some());
        assert_eq!(keys.account(Some("gamma")), None);
        let holders =
            [Some("alpha"), Some("beta"), Some("gamma"), None].map(|key| keys.holder(key));
        assert!(holders[0].is_some() && holders[1].is_some() && holders[0] != holders[1]);
        assert_eq!(holders[2..], [None, None]);
    }

    #[test]
    fn faults_name_the_flag_the_file_and_the_line_but_no_key() {
        let long = "x".repeat(KEY_MAX_BYTES + 1);
        for (text, expected) in [
            ("# none\n\n", "it has no keys".to_owned()),
            (&format!("a\n{long}"), "line 2: a key of 513 bytes, limit 512".to_owned()),
            ("a\nb c\n", "line 2: a key has characters other than visible ASCII".to_owned()),
            (&"k\n".repeat(KEYS_MAX + 1), "10001 keys, limit 10000".to_owned()),
        ] {
            let file = file(text);
            let expected = format!("api-keys-file: {}: {expected}", file.path().display());
            assert_eq!(load(listed(&file)).unwrap_err(), [expected]);
        }
        let missing = PathBuf::from("/nowhere/keys");
        let args = KeyArgs {
            api_key: vec![" ".into()],
            api_keys_file: Some(missing.clone()),
            prefix_secret_file: Some(missing),
            ..KeyArgs::default()
        };
        let faults = load(args).unwrap_err();
        let starts = [
            "api-key: must not",
            "prefix-secret-file: cannot read /nowhere",
            "api-keys-file: /nowhere",
        ];
        assert_eq!(faults.len(), starts.len(), "{faults:?}");
        assert!(faults.iter().zip(starts).all(|(fault, start)| fault.starts_with(start)));
        let short = file("short");
        let args =
            KeyArgs { prefix_secret_file: Some(short.path().to_owned()), ..KeyArgs::default() };
        let fault = load(args).unwrap_err().remove(0);
        assert!(fault.ends_with(": 5 bytes, 16 to 4096"), "{fault}");
    }

    #[test]
    fn a_changed_file_counts_and_a_broken_one_does_not() {
        let file = file("alpha\n");
        let keys = load(listed(&file)).unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).expect("it can be written");
        let seen = keys.look(read(file.path()));
        write("beta\n");
        let seen = keys.look(seen);
        assert!(keys.account(Some("beta")).is_some() && keys.account(Some("alpha")).is_none());
        for broken in ["", "# empty\n", "b c\n"] {
            write(broken);
            keys.look(seen.clone()).ok();
            assert!(
                keys.account(Some("beta")).is_some() && keys.account(None).is_none(),
                "{broken:?}"
            );
        }
        std::fs::remove_file(file.path()).expect("it is there");
        keys.look(seen).expect_err("it is gone");
        assert!(keys.account(Some("beta")).is_some() && keys.account(None).is_none());
    }
}
