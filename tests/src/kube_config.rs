//! How a cluster is reached, as a kubeconfig file says it.

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, crypto};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A cluster and who speaks to it.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Its name or address.
    pub(crate) host: String,
    /// Its port.
    pub(crate) port: u16,
    /// Who signed its certificate, in PEM.
    pub(crate) authority: Vec<u8>,
    /// Who speaks to it.
    pub(crate) user: User,
}

/// Who speaks to a cluster.
#[derive(Clone, Debug)]
pub(crate) enum User {
    /// Whoever has this token.
    Token(String),
    /// Whoever has this certificate and its key, in PEM.
    Certificate {
        /// The certificate, and those that lead to its authority.
        chain: Vec<u8>,
        /// Its key.
        key: Vec<u8>,
    },
}

impl Access {
    /// The current context of the kubeconfig file at `path`.
    ///
    /// # Panics
    ///
    /// When it says nothing that can be used: the cluster must have an authority, the user a token
    /// or a certificate.
    pub(crate) fn read(path: &Path) -> Self {
        let shown = path.display();
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{shown}: {error}"));
        let config: Value =
            serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("{shown}: {error}"));
        let named = |list: &str, kind: &str, name: &Value| {
            let entries = config[list].as_array().map(Vec::as_slice).unwrap_or_default();
            let entry = entries.iter().find(|entry| entry["name"] == *name);
            entry.unwrap_or_else(|| panic!("{shown}: no {kind} is called {name}"))[kind].clone()
        };
        let context = named("contexts", "context", &config["current-context"]);
        let cluster = named("clusters", "cluster", &context["cluster"]);
        let user = named("users", "user", &context["user"]);
        let server = cluster["server"].as_str().unwrap_or_default();
        let (host, port) = host_port(server).unwrap_or_else(|| panic!("{shown}: no {server:?}"));
        let folder = path.parent().expect("a file has a folder");
        let authority = content(&cluster, "certificate-authority", folder);
        let token = user["token"].as_str().map(str::to_owned);
        let certificate = content(&user, "client-certificate", folder);
        let pair = certificate.zip(content(&user, "client-key", folder));
        let pair = pair.map(|(chain, key)| User::Certificate { chain, key });
        Self {
            host,
            port,
            authority: authority.unwrap_or_else(|| panic!("{shown}: no certificate-authority")),
            user: token
                .map(User::Token)
                .or(pair)
                .unwrap_or_else(|| panic!("{shown}: no token and no client-certificate")),
        }
    }

    /// The same cluster, for another user.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { user: User::Token(token.to_owned()), ..self.clone() }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        match self.host.contains(':') {
            true => format!("https://[{}]:{}", self.host, self.port),
            false => format!("https://{}:{}", self.host, self.port),
        }
    }

    /// What a client needs for TLS.
    ///
    /// # Panics
    ///
    /// When a certificate or a key cannot be used.
    pub(crate) fn tls(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authority) {
            roots.add(certificate).expect("a certificate that can be trusted");
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has the default versions")
            .with_root_certificates(roots);
        match &self.user {
            User::Token(_) => config.with_no_client_auth(),
            User::Certificate { chain, key } => {
                let key = PrivateKeyDer::from_pem_slice(key).expect("a PEM key");
                let identity = config.with_client_auth_cert(certificates(chain), key);
                identity.expect("a key that fits its certificate")
            }
        }
    }
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).map(|one| one.expect("a PEM certificate")).collect()
}

/// Host and port of a URL; `https` has port 443.
fn host_port(server: &str) -> Option<(String, u16)> {
    let uri: hyper::Uri = server.parse().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    (uri.scheme_str() == Some("https")).then(|| (host.to_owned(), uri.port_u16().unwrap_or(443)))
}

/// What stands in an entry under `<name>-data`, or in the file that `name` names.
fn content(entry: &Value, name: &str, folder: &Path) -> Option<Vec<u8>> {
    if let Some(data) = entry[format!("{name}-data")].as_str() {
        return Some(decode(data).unwrap_or_else(|| panic!("{name}-data: no base64")));
    }
    let path = folder.join(entry[name].as_str()?);
    Some(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Base64 with padding.
///
/// Source: RFC 4648, section 4.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').bytes();
    let digits = digits.map(|digit| match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    });
    let digits = digits.collect::<Option<Vec<_>>>()?;
    let group = |group: &[u8]| {
        let bits = group.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit));
        let bits = bits << (6 * (4 - group.len()));
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    Some(digits.chunks(4).flat_map(group).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_with_its_padding() {
        let check = |text: &str, bytes: Option<&[u8]>| {
            assert_eq!(decode(text).as_deref(), bytes, "{text}");
        };
        check("", Some(b""));
        check("Zg==", Some(b"f"));
        check("Zm8=", Some(b"fo"));
        check("Zm9vYmFy", Some(b"foobar"));
        check("+/+/", Some(b"\xfb\xff\xbf"));
        check("Zm9*", None);
    }

    #[test]
    fn the_current_context_says_where_and_who() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("config");
        std::fs::write(folder.path().join("ca.crt"), "authority").expect("a writable directory");
        let config = "
current-context: b
contexts:
- { name: a, context: { cluster: one, user: one } }
- { name: b, context: { cluster: two, user: two } }
clusters:
- { name: one, cluster: { server: 'https://one' } }
- { name: two, cluster: { server: 'https://[::1]:6443', certificate-authority: ca.crt } }
users:
- { name: one, user: { token: secret } }
- { name: two, user: { client-certificate-data: Zg==, client-key-data: Zm8= } }
";
        std::fs::write(&path, config).expect("a writable directory");
        let access = Access::read(&path);
        assert_eq!((&*access.host, access.port), ("::1", 6443));
        assert_eq!(
            (access.url(), &*access.authority),
            ("https://[::1]:6443".into(), &b"authority"[..])
        );
        let User::Certificate { chain, key } = &access.user else { panic!("{access:?}") };
        assert_eq!((&**chain, &**key), (&b"f"[..], &b"fo"[..]));
        assert!(matches!(access.with_token("t").user, User::Token(token) if token == "t"));
    }

    #[test]
    fn a_server_has_a_port_of_its_own_or_that_of_https() {
        assert_eq!(host_port("https://a.example"), Some(("a.example".to_owned(), 443)));
        assert_eq!(host_port("https://10.0.0.1:6443"), Some(("10.0.0.1".to_owned(), 6443)));
        assert_eq!(host_port("http://a.example"), None);
        assert_eq!(host_port(""), None);
    }
}
