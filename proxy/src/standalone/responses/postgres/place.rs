//! Address of a PostgreSQL database, and the authorities by which its server is trusted.

use anyhow::{Context, bail};
use rustls_pki_types::ServerName;
use stator_http::TlsOptions;
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as RustlsStream;
use tokio_rustls::rustls::ClientConfig;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Variable with the password of a URL that has none, as other clients of PostgreSQL read it.
const PASSWORD_VARIABLE: &str = "PGPASSWORD";
/// Name by which PostgreSQL takes a connection that negotiates its protocol.
const PROTOCOL: &[u8] = b"postgresql";

/// A PostgreSQL database by its URL. Printing it leaves the password out.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresPlace {
    config: tokio_postgres::Config,
    trust: ServerTrust,
}

/// The trust in a database's server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ServerTrust {
    /// No TLS.
    Plain,
    /// TLS with whoever answers.
    Anybody,
    /// TLS with a server whose certificate is of these authorities, or of the system's.
    Certified(Option<PathBuf>),
}

impl fmt::Debug for PostgresPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresPlace({self})")
    }
}

impl fmt::Display for PostgresPlace {
    /// Hosts and database, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, host) in self.config.get_hosts().iter().enumerate() {
            f.write_str(if at > 0 { "," } else { "" })?;
            match host {
                Host::Tcp(name) => f.write_str(name)?,
                Host::Unix(folder) => write!(f, "{}", folder.display())?,
            }
        }
        write!(f, "/{}", self.config.get_dbname().unwrap_or_default())
    }
}

impl FromStr for PostgresPlace {
    type Err = String;

    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with the parameters of libpq, of which
    /// `sslmode` is `disable`, `require` or `verify-full`, and `sslrootcert` is a file.
    fn from_str(url: &str) -> Result<Self, String> {
        // No message repeats the URL, which has a password.
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut authorities, mut rest) = (None, None, Vec::new());
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value),
                Some(("sslrootcert", value)) => authorities = Some(PathBuf::from(value)),
                _ => rest.push(parameter),
            }
        }
        let url = match rest.as_slice() {
            [] => base.to_owned(),
            rest => format!("{base}?{}", rest.join("&")),
        };
        let parsed = url.parse::<tokio_postgres::Config>();
        let mut config = parsed.map_err(|error| format!("the PostgreSQL URL: {error}"))?;
        if config.get_hosts().is_empty() || config.get_dbname().is_none() {
            return Err("the PostgreSQL URL must name a host and a database".to_owned());
        }
        let is_here = config.get_hosts().iter().all(|host| match host {
            Host::Tcp(name) => name == "localhost" || name.starts_with("127.") || name == "::1",
            Host::Unix(_) => true,
        });
        let trust = match (mode, authorities) {
            (Some("disable"), None) => ServerTrust::Plain,
            (None, None) if is_here => ServerTrust::Plain,
            (Some("require"), None) => ServerTrust::Anybody,
            (Some("verify-full") | None, authorities) => ServerTrust::Certified(authorities),
            (Some("disable" | "require"), Some(_)) => {
                return Err("sslrootcert: only sslmode=verify-full checks certificates".to_owned());
            }
            (Some(other), _) => {
                let modes = "disable, require or verify-full";
                return Err(format!("sslmode is {other:?}, it must be {modes}"));
            }
        };
        config.ssl_mode(match trust {
            ServerTrust::Plain => SslMode::Disable,
            _ => SslMode::Require,
        });
        config.connect_timeout(CONNECT_TIMEOUT);
        config.application_name("stator");
        Ok(Self { config, trust })
    }
}

impl PostgresPlace {
    /// Settings of a connection. Reads the files of authorities, and the password's variable.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, and no password at all for a server elsewhere.
    pub(super) fn route(&self) -> anyhow::Result<PostgresRoute> {
        let mut config = self.config.clone();
        if config.get_password().is_none()
            && let Ok(password) = std::env::var(PASSWORD_VARIABLE)
        {
            config.password(password);
        }
        if config.get_user().is_none() {
            bail!("the PostgreSQL URL must name a user");
        }
        let options = match &self.trust {
            // Never used: the connection has no TLS.
            ServerTrust::Plain | ServerTrust::Anybody => {
                TlsOptions { insecure_skip_verify: true, ..TlsOptions::default() }
            }
            ServerTrust::Certified(authorities) => {
                TlsOptions { ca_path: authorities.clone(), ..TlsOptions::default() }
            }
        };
        let mut tls = ClientConfig::clone(&*options.config().context("sslrootcert")?);
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(PostgresRoute { config, tls: PostgresTls(Arc::new(tls)) })
    }
}

/// The way to a database.
#[derive(Clone)]
pub(super) struct PostgresRoute {
    config: tokio_postgres::Config,
    tls: PostgresTls,
}

impl PostgresRoute {
    /// A new connection, whose messages a task of its own carries until it is dropped.
    pub(super) async fn connect(&self) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        let (client, connection) = self.config.connect(self.tls.clone()).await?;
        // Whoever uses the client hears how the connection ended.
        tokio::spawn(async move { drop(connection.await) });
        Ok(client)
    }
}

/// TLS as PostgreSQL's client wants it.
#[derive(Clone)]
struct PostgresTls(Arc<ClientConfig>);

/// TLS with one server.
struct NamedTls {
    connector: TlsConnector,
    /// None for a socket, which is asked for one and has no TLS.
    server: Option<ServerName<'static>>,
}

impl<S> MakeTlsConnect<S> for PostgresTls
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = SecureStream<S>;
    type TlsConnect = NamedTls;
    type Error = Infallible;

    fn make_tls_connect(&mut self, domain: &str) -> Result<NamedTls, Self::Error> {
        let server = ServerName::try_from(domain).ok().map(|server| server.to_owned());
        Ok(NamedTls { connector: self.0.clone().into(), server })
    }
}

impl<S> TlsConnect<S> for NamedTls
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = SecureStream<S>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<SecureStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let nameless = || std::io::Error::other("the host has no name for a certificate");
        Box::pin(async move {
            let server = self.server.ok_or_else(nameless)?;
            Ok(SecureStream(self.connector.connect(server, stream).await?))
        })
    }
}

/// A connection with TLS.
struct SecureStream<S>(RustlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for SecureStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for SecureStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> task::Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SecureStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        bytes: &[u8],
    ) -> task::Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> task::Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> task::Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(url: &str) -> Result<ServerTrust, String> {
        url.parse::<PostgresPlace>().map(|place| place.trust)
    }

    #[test]
    fn a_server_elsewhere_is_trusted_by_its_certificate_unless_the_url_says_otherwise() {
        let certified = |path: Option<&str>| Ok(ServerTrust::Certified(path.map(Into::into)));
        assert_eq!(trust("postgres://u:p@db/x"), certified(None));
        assert_eq!(trust("postgresql://u@db:1/x?sslmode=verify-full"), certified(None));
        let file = trust("postgres://u@db/x?sslrootcert=/ca.pem&connect_timeout=3");
        assert_eq!(file, certified(Some("/ca.pem")));
        assert_eq!(trust("postgres://u@db/x?sslmode=require"), Ok(ServerTrust::Anybody));
        assert_eq!(trust("postgres://u@db/x?sslmode=disable"), Ok(ServerTrust::Plain));
        assert_eq!(trust("postgres://u@127.0.0.1/x"), Ok(ServerTrust::Plain));
        assert_eq!(trust("postgres://u@%2Frun%2Fpostgresql/x"), Ok(ServerTrust::Plain));
    }

    #[test]
    fn faults_are_named_and_no_password_is_printed() {
        for (url, part) in [
            ("postgres://u:secret@db", "must name a host and a database"),
            ("postgres://u:secret@db:port/x", "the PostgreSQL URL"),
            ("postgres://u:secret@db/x?sslmode=prefer", "sslmode is \"prefer\""),
            ("postgres://u:secret@db/x?sslmode=require&sslrootcert=/ca.pem", "sslrootcert"),
            ("postgres://u:secret@db/x?color=red", "the PostgreSQL URL"),
        ] {
            let fault = trust(url).expect_err(url);
            assert!(fault.contains(part) && !fault.contains("secret"), "{fault}");
        }
        let place: PostgresPlace = "postgres://u:secret@a,b/x".parse().expect("a place");
        assert_eq!(format!("{place} {place:?}"), "a,b/x PostgresPlace(a,b/x)");
    }
}
