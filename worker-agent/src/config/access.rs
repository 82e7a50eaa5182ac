//! Access to the request plane, and to operations on the engines behind it.

use super::Listen;
use super::trust::{FleetArgs, KvTrust};
use clap::Args;
use stator_runtime::dial::{Dial, DialArgs};
use stator_runtime::secret::Secret;
use stator_runtime::tls;
use std::path::PathBuf;

/// Most clients by name.
const CLIENTS_MAX: usize = 64;

/// Flags of who may do what on the request plane.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Request plane")]
pub struct AccessArgs {
    /// TLS of the request plane.
    #[command(flatten)]
    pub dial: DialArgs,

    /// Let only clients in whose certificate is from an authority of `--request-tls-ca-file`
    /// (mTLS).
    #[arg(long, env = "STATOR_REQUEST_TLS_CLIENT_AUTH")]
    pub request_tls_client_auth: bool,

    /// The secret that shows whom KV may come from.
    #[command(flatten)]
    pub fleet: FleetArgs,

    /// Secret of those who operate engines.
    #[command(flatten)]
    pub token: TokenArgs,

    /// Names of clients that may operate engines without a token, as their certificates say;
    /// several with commas. Needs `--request-tls-client-auth`.
    #[arg(long, env = "STATOR_OPERATIONS_CLIENTS", value_delimiter = ',', value_name = "NAME")]
    pub operations_clients: Vec<String>,

    /// Let everyone who reaches the request plane operate engines, also where it does not listen
    /// on this machine alone.
    #[arg(long, env = "STATOR_OPERATIONS_OPEN")]
    pub operations_open: bool,
}

/// Flags of the secret that operations need.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Operations")]
pub struct TokenArgs {
    /// File with the secret that operations need (`stator operate`), 16 to 4096 bytes. It is read
    /// for each of them.
    #[arg(long, env = "STATOR_OPERATIONS_TOKEN_FILE", value_name = "FILE")]
    pub operations_token_file: Option<PathBuf>,

    /// The secret itself. On the command line other users of the machine can see it.
    #[arg(long, env = "STATOR_OPERATIONS_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub operations_token: Option<String>,
}

/// Source of the secret for operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// A file, read for each operation.
    File(PathBuf),
    /// The secret itself.
    Given(Secret),
}

/// TLS of the request plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Folder with certificate and key.
    pub certificate: PathBuf,
    /// PEM file with the authorities of clients, if clients must show a certificate.
    pub client_ca: Option<PathBuf>,
}

/// Clients that may operate the engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operators {
    /// Everyone who reaches the request plane.
    Everyone,
    /// Nobody, with the reason.
    Nobody(String),
    /// Clients with the secret, or with a certificate for one of these names.
    Known {
        /// Source of the secret, if there is one.
        token: Option<TokenSource>,
        /// Names in clients' certificates.
        clients: Vec<String>,
    },
}

/// Access settings of the request plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Settings for connections to other agents.
    pub dial: Dial,
    /// TLS of the request plane; `None` serves plainly.
    pub tls: Option<ServerTls>,
    /// Clients that may operate the engines.
    pub operators: Operators,
    /// Agents to exchange KV with.
    pub kv: KvTrust,
}

impl AccessArgs {
    /// Checks the flags for a request plane at `listen`; adds the unusable ones to `faults`.
    pub(super) fn access(self, listen: Option<&Listen>, faults: &mut Vec<String>) -> Access {
        let dial = self.dial.dial().unwrap_or_else(|fault| {
            faults.push(fault);
            Dial::default()
        });
        let ca = &self.dial.request_tls_ca_file;
        if self.request_tls_client_auth
            && (ca.is_none() || self.dial.request_tls_cert_dir.is_none())
        {
            let needs = "request-tls-ca-file and request-tls-cert-dir";
            faults.push(format!("request-tls-client-auth: needs {needs}"));
        }
        let tls = self.dial.request_tls_cert_dir.clone().map(|certificate| ServerTls {
            certificate,
            client_ca: ca.clone().filter(|_| self.request_tls_client_auth),
        });
        let kv = self.fleet.trust(tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()));
        let kv = kv.unwrap_or_else(|fault| {
            faults.push(fault);
            KvTrust::default()
        });
        let operators = self.operators(listen, faults);
        Access { dial, tls, operators, kv }
    }

    fn operators(self, listen: Option<&Listen>, faults: &mut Vec<String>) -> Operators {
        let token = self.token.source().unwrap_or_else(|fault| {
            faults.push(fault);
            None
        });
        let clients = self.operations_clients;
        if !clients.is_empty() && !self.request_tls_client_auth {
            faults.push("operations-clients: needs request-tls-client-auth".into());
        }
        if clients.len() > CLIENTS_MAX {
            let count = clients.len();
            faults.push(format!("operations-clients: {count} names, limit {CLIENTS_MAX}"));
        }
        let nameless = clients.iter().filter(|name| !tls::is_name(name));
        faults.extend(nameless.map(|name| format!("operations-clients: {name:?} is no DNS name")));
        let known = token.is_some() || !clients.is_empty();
        if known && self.operations_open {
            let others = "operations-token, operations-token-file and operations-clients";
            faults.push(format!("operations-open: excludes {others}"));
        }
        // A plane that this machine alone reaches, or that is opened on purpose, is for everyone.
        match listen {
            _ if known => Operators::Known { token, clients },
            Some(Listen::Tcp(address)) if !address.ip().is_loopback() && !self.operations_open => {
                Operators::Nobody(format!(
                    "operations are off: the request plane listens on {address}, and none of \
                     operations-token-file, operations-clients and operations-open says who may"
                ))
            }
            _ => Operators::Everyone,
        }
    }
}

impl TokenArgs {
    /// The source of the secret, if there is one. Reads the secret, to find its faults early.
    ///
    /// # Errors
    ///
    /// A message that names the flag at fault.
    pub(crate) fn source(&self) -> Result<Option<TokenSource>, String> {
        match (&self.operations_token_file, &self.operations_token) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err("operations-token: excludes operations-token-file".into()),
            (Some(file), None) => {
                Secret::read(file).map_err(|fault| format!("operations-token-file: {fault}"))?;
                Ok(Some(TokenSource::File(file.clone())))
            }
            (None, Some(text)) => {
                let secret = Secret::new(text).map_err(|why| format!("operations-token: {why}"))?;
                Ok(Some(TokenSource::Given(secret)))
            }
        }
    }
}

impl TokenSource {
    /// Reads the current secret. Blocks for as long as reading a file takes.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub(crate) fn secret(&self) -> Result<Secret, String> {
        match self {
            Self::File(file) => Secret::read(file),
            Self::Given(secret) => Ok(secret.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    const TOKEN: &str = "--operations-token=correct-horse-battery";

    fn check(listen: &str, flags: &[&str]) -> Result<Access, Vec<String>> {
        let command = AccessArgs::augment_args(Command::new("agent").no_binary_name(true));
        let matches = command.try_get_matches_from(flags).unwrap();
        let (args, mut faults) = (AccessArgs::from_arg_matches(&matches).unwrap(), Vec::new());
        let listen = super::super::planes::listen(listen).unwrap();
        let access = args.access(Some(&listen), &mut faults);
        if faults.is_empty() { Ok(access) } else { Err(faults) }
    }

    fn operators(listen: &str, flags: &[&str]) -> Operators {
        check(listen, flags).unwrap().operators
    }

    #[test]
    fn on_one_machine_everyone_may_and_elsewhere_nobody_unless_somebody_is_named() {
        for listen in ["127.0.0.1:7000", "[::1]:0", "unix:///run/a.sock"] {
            assert_eq!(operators(listen, &[]), Operators::Everyone, "{listen}");
        }
        for listen in ["0.0.0.0:7000", "[::]:7000", "10.0.0.1:7000"] {
            let Operators::Nobody(why) = operators(listen, &[]) else { panic!("{listen}") };
            assert!(why.contains(listen), "{why}");
            assert_eq!(operators(listen, &["--operations-open"]), Operators::Everyone);
        }
        let secret = Secret::new("correct-horse-battery").unwrap();
        let token = Some(TokenSource::Given(secret));
        for listen in ["127.0.0.1:7000", "0.0.0.0:7000"] {
            let expected = Operators::Known { token: token.clone(), clients: vec![] };
            assert_eq!(operators(listen, &[TOKEN]), expected);
        }
    }

    #[test]
    fn faults_name_their_flag() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let flag = format!("--operations-token-file={}", file.display());
        let fault = |flags: &[&str]| check("0.0.0.0:7000", flags).unwrap_err().remove(0);
        assert!(fault(&[&flag]).starts_with("operations-token-file: cannot read"));
        std::fs::write(&file, "short\n").unwrap();
        assert!(fault(&[&flag]).ends_with("5 bytes, 16 to 4096"));
        std::fs::write(&file, "correct-horse-battery\n").unwrap();
        let expected = Operators::Known { token: Some(TokenSource::File(file)), clients: vec![] };
        assert_eq!(operators("0.0.0.0:7000", &[&flag]), expected);
        let cases = [
            (vec![TOKEN, &flag], "operations-token: excludes operations-token-file"),
            (vec!["--operations-token=x"], "operations-token: 1 bytes, 16 to 4096"),
            (
                vec!["--request-tls-client-auth"],
                "request-tls-client-auth: needs request-tls-ca-file and request-tls-cert-dir",
            ),
            (vec!["--operations-clients=ops"], "operations-clients: needs request-tls-client-auth"),
            (
                vec!["--operations-open", TOKEN],
                "operations-open: excludes operations-token, operations-token-file and \
                 operations-clients",
            ),
        ];
        for (flags, expected) in cases {
            assert_eq!(fault(&flags), expected);
        }
        let faults = check("0.0.0.0:7000", &["--operations-clients=a b"]).unwrap_err();
        assert!(faults.contains(&"operations-clients: \"a b\" is no DNS name".to_owned()));
    }

    #[test]
    fn no_debug_output_shows_the_secret() {
        assert!(!format!("{:?}", check("127.0.0.1:1", &[TOKEN]).unwrap()).contains("horse"));
    }
}
