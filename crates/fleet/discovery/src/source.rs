//! Names of back-ends: `file:///dir`, `static:///file`, `kubernetes://namespace?selector=…`,
//! `etcd://host:port,host:port/prefix`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Prefix of keys in etcd where none is given.
const ETCD_PREFIX: &str = "/stator/v1";
/// Members of an etcd cluster that can be named.
const ENDPOINTS_MAX: usize = 16;
/// Longest name of a back-end, in bytes.
const LENGTH_MAX: usize = 4096;

/// A back-end, as it is configured. A value of this type is well-formed; whether it is there shows
/// when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoverySource {
    /// `file:///dir`: a directory with one file per agent, that all processes can see.
    Directory(PathBuf),
    /// `static:///file`: a file that lists the request planes of agents.
    Static(PathBuf),
    /// `kubernetes://namespace`: custom resources and pods of a cluster.
    Kubernetes(KubernetesSource),
    /// `etcd://host:port`: keys with leases.
    Etcd(EtcdSource),
}

impl From<&Path> for DiscoverySource {
    fn from(dir: &Path) -> Self {
        Self::Directory(dir.to_owned())
    }
}

/// Place of agents in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubernetesSource {
    /// The namespace; without one that of the service account or of the kubeconfig.
    pub namespace: Option<String>,
    /// Labels of the pods or EndpointSlices, as `kubectl` takes them: `app=engine`. Without it all
    /// of the namespace are watched.
    pub selector: Option<String>,
    /// Objects that tell which pods are ready.
    pub readiness: Readiness,
    /// The kubeconfig file, where it is not the usual one.
    pub kubeconfig: Option<PathBuf>,
    /// Name and identity of the pod that an agent is in, where POD_NAME and POD_UID of the
    /// environment do not say so.
    pub pod: Option<(String, String)>,
}

/// Objects that tell which pods are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// The pods themselves.
    #[default]
    Pods,
    /// The EndpointSlices of a service.
    EndpointSlices,
}

/// Place of agents in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSource {
    /// `host:port` of one member or more; at least one.
    pub endpoints: Vec<String>,
    /// Prefix of keys; agents are under `PREFIX/agents/`.
    pub prefix: String,
    /// User of etcd; `None` asks without one.
    pub user: Option<String>,
    /// The file with the user's password, where STATOR_ETCD_PASSWORD of the environment is not it.
    pub password_file: Option<PathBuf>,
    /// TLS, where it is spoken.
    pub tls: Option<EtcdTls>,
}

/// Files for TLS with etcd, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTls {
    /// Authorities that vouch for the members.
    pub ca: PathBuf,
    /// Our certificate and its key, where the members ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Fault in the name of a back-end: the part, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part}: {fault}")]
pub struct SourceError {
    /// The part of the name.
    pub part: &'static str,
    /// The fault.
    pub fault: String,
}

type Parsed<T> = Result<T, SourceError>;

impl FromStr for DiscoverySource {
    type Err = SourceError;

    fn from_str(text: &str) -> Parsed<Self> {
        if text.len() > LENGTH_MAX {
            return fail("url", format!("{} bytes, limit {LENGTH_MAX}", text.len()));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return fail("url", format!("{text:?} has no scheme; file:///dir is one that has"));
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut query = Query::parse(query)?;
        let source = match scheme {
            "file" => Self::Directory(absolute("path", place)?),
            "static" => Self::Static(absolute("path", place)?),
            "kubernetes" => Self::Kubernetes(kubernetes(place, &mut query)?),
            "etcd" => Self::Etcd(etcd(place, &mut query)?),
            _ => {
                let known = "file, static, kubernetes or etcd";
                return fail("scheme", format!("{scheme:?} is not one of {known}"));
            }
        };
        query.end()?;
        Ok(source)
    }
}

fn kubernetes(place: &str, query: &mut Query) -> Parsed<KubernetesSource> {
    let namespace = place.trim_end_matches('/');
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if namespace.len() > 63 || !namespace.chars().all(plain) {
        return fail("namespace", format!("{namespace:?} is not up to 63 of a-z 0-9 -"));
    }
    let readiness = match query.take("readiness").as_deref() {
        None | Some("pods") => Readiness::Pods,
        Some("endpointslices") => Readiness::EndpointSlices,
        Some(other) => {
            return fail("readiness", format!("{other:?} is neither pods nor endpointslices"));
        }
    };
    let pod = pair(("pod", query.take("pod")), ("uid", query.take("uid")))?;
    Ok(KubernetesSource {
        pod,
        namespace: Some(namespace).filter(|name| !name.is_empty()).map(str::to_owned),
        selector: query.take("selector"),
        readiness,
        kubeconfig: query.path("kubeconfig")?,
    })
}

fn etcd(place: &str, query: &mut Query) -> Parsed<EtcdSource> {
    let (authority, prefix) = match place.find('/') {
        Some(at) => place.split_at(at),
        None => (place, ""),
    };
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (Some(user), hosts),
        None => (None, authority),
    };
    if user.is_some_and(|user| user.contains(':')) {
        let fault = "a password does not belong here, but in STATOR_ETCD_PASSWORD or password-file";
        return fail("user", fault.into());
    }
    // Decoded after the cuts, because an encoded `@` or `:` is part of a name.
    let user = user.map(|user| decoded("user", user)).transpose()?;
    if user.as_deref() == Some("") {
        return fail("user", "must not be empty before @".into());
    }
    let endpoints: Vec<_> = hosts.split(',').map(endpoint).collect::<Parsed<_>>()?;
    if endpoints.len() > ENDPOINTS_MAX {
        return fail("host", format!("{} members, limit {ENDPOINTS_MAX}", endpoints.len()));
    }
    let prefix = decoded("prefix", prefix)?;
    let prefix = Some(prefix.trim_end_matches('/')).filter(|prefix| !prefix.is_empty());
    Ok(EtcdSource {
        endpoints,
        prefix: prefix.unwrap_or(ETCD_PREFIX).to_owned(),
        user,
        password_file: query.path("password-file")?,
        tls: etcd_tls(query)?,
    })
}

fn etcd_tls(query: &mut Query) -> Parsed<Option<EtcdTls>> {
    let ca = query.path("ca")?;
    let identity = pair(("cert", query.path("cert")?), ("key", query.path("key")?))?;
    match (ca, identity) {
        (Some(ca), identity) => Ok(Some(EtcdTls { ca, identity })),
        (None, Some(_)) => fail("ca", "missing beside cert and key".into()),
        (None, None) => Ok(None),
    }
}

/// Both of two parts, or neither.
fn pair<T>(a: (&'static str, Option<T>), b: (&'static str, Option<T>)) -> Parsed<Option<(T, T)>> {
    match (a.1, b.1) {
        (Some(first), Some(second)) => Ok(Some((first, second))),
        (None, None) => Ok(None),
        (Some(_), None) => fail(b.0, format!("missing beside {}", a.0)),
        (None, Some(_)) => fail(a.0, format!("missing beside {}", b.0)),
    }
}

fn endpoint(text: &str) -> Parsed<String> {
    let fault = || format!("{text:?} is not host:port");
    let Some((host, port)) = text.rsplit_once(':') else { return fail("host", fault()) };
    // As a part of a URL, in which these would end or begin another.
    let plain = !host.is_empty() && !host.contains(|c: char| "@?#%".contains(c) || c <= ' ');
    let bracketed = host.starts_with('[') && host.ends_with(']');
    match port.parse::<u16>() {
        Ok(1..) if plain && (bracketed || !host.contains(':')) => Ok(text.to_owned()),
        _ => fail("host", fault()),
    }
}

/// Keys and values behind the question mark, until somebody asks for them.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Parsed<Self> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (decoded("query", key)?, decoded("query", value)?);
            if value.is_empty() {
                return fail("query", format!("{key} has no value"));
            }
            if pairs.iter().any(|(known, _)| *known == key) {
                return fail("query", format!("{key} is given twice"));
            }
            pairs.push((key, value));
        }
        Ok(Self(pairs))
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == key)?;
        Some(self.0.swap_remove(at).1)
    }

    fn path(&mut self, key: &'static str) -> Parsed<Option<PathBuf>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let path = PathBuf::from(&value);
        if path.is_absolute() {
            return Ok(Some(path));
        }
        fail(key, format!("{value:?} is not an absolute path"))
    }

    /// Refuses parameters that were not read.
    fn end(self) -> Parsed<()> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => fail("query", format!("{key} means nothing here")),
        }
    }
}

fn absolute(part: &'static str, text: &str) -> Parsed<PathBuf> {
    let path = PathBuf::from(decoded(part, text)?);
    if path.is_absolute() {
        return Ok(path);
    }
    fail(part, format!("{text:?} is not absolute; it begins with a third slash"))
}

/// Undoes percent encoding.
fn decoded(part: &'static str, text: &str) -> Parsed<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let code = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let Some(code) = code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
            return fail(part, format!("{text:?} has a % without two hexadecimal digits"));
        };
        bytes.push(code);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).or_else(|_| fail(part, format!("{text:?} is not UTF-8")))
}

fn fail<T>(part: &'static str, fault: String) -> Parsed<T> {
    Err(SourceError { part, fault })
}

#[cfg(test)]
mod tests;
