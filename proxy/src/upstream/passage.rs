//! The limits of what goes through to an engine: the fields of a body, the headers of a request and
//! the key that the engine asks for. The sidecar and pass-through share them.

use super::serving::{is_plain, is_serving};
use bytes::Bytes;
use clap::Args;
use http::{HeaderName, HeaderValue, header};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use stator_api::openai::ApiError;
use stator_api::passed_fields::PassingEdge;
use stator_api::{FieldNotes, UnknownFields};
use stator_body::{Editor, FieldRules, RemovedField, Screening, scan};
use stator_protos::header::{OVERRIDE_PREFIX, OWN_PREFIX, ROUTING};
use std::path::{Path, PathBuf};

/// Headers of a request that an engine gets, sorted. The length and the coding of the body are set
/// for each message.
const ALLOWED: [&str; 17] = [
    "accept",
    "accept-language",
    "access-control-request-headers",
    "access-control-request-method",
    "anthropic-beta",
    "anthropic-version",
    "baggage",
    "content-length",
    "content-type",
    "host",
    "openai-beta",
    "origin",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "user-agent",
    "x-request-id",
];
/// Headers that show a client's key. The engine beside a sidecar checks it, so a sidecar lets them
/// pass; a proxy over a fleet does not.
pub(crate) const CREDENTIALS: [HeaderName; 2] =
    [header::AUTHORIZATION, HeaderName::from_static("x-api-key")];
/// Longest key of an engine, in bytes.
const KEY_MAX_BYTES: usize = 4096;

/// Flags about what goes through to engines.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Engines behind the proxy")]
pub struct PassageArgs {
    /// Further fields of request bodies that may reach an engine, comma-separated: `priority`,
    /// `lora_path`. Without this flag only the public fields of OpenAI and Anthropic and harmless
    /// extras of vLLM and SGLang do; all others are removed and counted. `*` lets pass what is on no
    /// list. Fields that hand KV over or name requests never pass.
    #[arg(long, env = "STATOR_PASS_FIELDS", value_name = "NAME", value_delimiter = ',')]
    pub pass_fields: Vec<String>,

    /// Further request headers that may reach an engine, comma-separated: `x-tenant`,
    /// `authorization`. Headers that steer pickers, proxies or engines never pass.
    #[arg(long, env = "STATOR_PASS_HEADERS", value_name = "NAME", value_delimiter = ',')]
    pub pass_headers: Vec<String>,

    /// Further paths on which requests may reach an engine, comma-separated: `/v1/videos`. Without
    /// this flag only those do that serve requests in the APIs of OpenAI, Anthropic, Cohere, Jina,
    /// vLLM and SGLang. Never name one that operates an engine, such as `/sleep`.
    #[arg(long, env = "STATOR_PASS_PATHS", value_name = "PATH", value_delimiter = ',')]
    pub pass_paths: Vec<String>,

    /// File with the key that engines ask for. The proxy sends it as `authorization: Bearer KEY`
    /// to every engine that it passes requests to, in place of a client's. Read at start.
    #[arg(long, env = "STATOR_ENGINE_API_KEY_FILE", value_name = "FILE")]
    pub engine_api_key_file: Option<PathBuf>,
}

/// Checked limits of what goes through to an engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passage {
    pub fields: FieldRules,
    /// Headers that pass as well as those of the list.
    headers: Vec<HeaderName>,
    /// Paths that serve requests, as well as those of the list.
    paths: Vec<String>,
    /// The value of `authorization` that the engine asks for.
    key: Option<HeaderValue>,
}

/// The kind of a removed field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FieldKind {
    /// `steering`: the field steers engines; `unknown`: it is on no list.
    pub kind: &'static str,
}

/// Counts of fields that were removed from bodies.
pub(crate) type RemovedFields = Family<FieldKind, Counter>;

/// Help text of [`RemovedFields`].
pub(crate) const REMOVED_HELP: &str =
    "Fields removed from request bodies before an engine got them";

/// An account of the fields that one request's bodies lose on their way.
pub(crate) struct Losses<'a> {
    edge: PassingEdge<'a>,
    /// Notes for the client.
    pub notes: FieldNotes,
    /// Counts for the operator.
    counts: &'a RemovedFields,
}

impl<'a> Losses<'a> {
    pub(crate) fn new(
        edge: PassingEdge<'a>,
        unknown: UnknownFields,
        counts: &'a RemovedFields,
    ) -> Self {
        Self { edge, notes: FieldNotes::new(unknown), counts }
    }

    /// Settles and counts what `body` loses; a form is an empty `body`.
    ///
    /// # Errors
    ///
    /// 400 for a field that is refused.
    fn take(&self, body: &[u8], screening: &Screening) -> Result<(), ApiError> {
        self.edge.settle(body, screening.fields(), &self.notes)?;
        self.count(screening);
        Ok(())
    }

    /// Settles fields that a form has lost so far.
    ///
    /// # Errors
    ///
    /// 400 for a field that is refused.
    pub(crate) fn settle_form(&self, removed: &[RemovedField]) -> Result<(), ApiError> {
        self.edge.settle(b"", removed, &self.notes)
    }

    /// Counts the fields that a body lost.
    pub(crate) fn count(&self, screening: &Screening) {
        let counts = [("steering", screening.steering()), ("unknown", screening.unknown())];
        for (kind, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            self.counts.get_or_create(&FieldKind { kind }).inc_by(count);
        }
        if !screening.fields().is_empty() {
            tracing::debug!(fields = ?screening.names(), "fields were removed from a body");
        }
    }
}

impl PassageArgs {
    /// Checks the flags. With `credentials` a client's key passes too, unless the engine has its own.
    pub(crate) fn passage(&self, credentials: bool, faults: &mut Vec<String>) -> Passage {
        let fields = FieldRules::new(&self.pass_fields).unwrap_or_else(|error| {
            faults.push(format!("pass-fields: {error}"));
            FieldRules::default()
        });
        let mut headers: Vec<_> =
            self.pass_headers.iter().filter_map(|name| passed_header(name, faults)).collect();
        let key = self.engine_api_key_file.as_deref().and_then(|file| match key(file) {
            Ok(key) => Some(key),
            Err(fault) => {
                faults.push(format!("engine-api-key-file: {fault}"));
                None
            }
        });
        if self.engine_api_key_file.is_some() && headers.contains(&header::AUTHORIZATION) {
            let fault = "pass-headers: authorization is set by engine-api-key-file already";
            faults.push(fault.to_owned());
        }
        if credentials && self.engine_api_key_file.is_none() {
            headers.extend(CREDENTIALS);
        }
        let odd = self.pass_paths.iter().filter(|path| *path == "/" || !is_plain(path));
        faults.extend(odd.map(|path| format!("pass-paths: {path:?} is no plain path")));
        Passage { fields, headers, paths: self.pass_paths.clone(), key }
    }
}

/// A header that an operator lets pass.
fn passed_header(name: &str, faults: &mut Vec<String>) -> Option<HeaderName> {
    let Ok(header) = HeaderName::try_from(name.trim()) else {
        faults.push(format!("pass-headers: {name:?} is no name of a header"));
        return None;
    };
    if steers(&header) {
        faults.push(format!("pass-headers: {header} steers pickers, proxies or engines"));
        return None;
    }
    Some(header)
}

/// The header's value for the key in a file.
fn key(file: &Path) -> Result<HeaderValue, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let key = text.trim();
    if key.is_empty() || key.len() > KEY_MAX_BYTES {
        return Err(format!("the key has {} bytes, 1 to {KEY_MAX_BYTES}", key.len()));
    }
    if key.contains(|char: char| !char.is_ascii_graphic()) {
        return Err("the key has white space or what is no ASCII".to_owned());
    }
    let mut value = HeaderValue::try_from(format!("Bearer {key}"))
        .map_err(|_| "the key is no value of a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether a header steers pickers, proxies or engines.
pub(crate) fn steers(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-")
        && (ROUTING.contains(&name)
            || name.starts_with(OWN_PREFIX)
            || name.starts_with(OVERRIDE_PREFIX))
}

impl Passage {
    /// Whether an engine gets a client's copy of this header.
    pub(crate) fn lets(&self, name: &HeaderName) -> bool {
        ALLOWED.binary_search(&name.as_str()).is_ok() || self.headers.contains(name)
    }

    /// Whether requests on this path, which is without its query, may reach an engine.
    pub(crate) fn serves(&self, path: &str) -> bool {
        is_serving(path) || self.paths.iter().any(|passed| passed == path)
    }

    /// The value of `authorization` that the engine asks for, where it is known here.
    pub(crate) fn key(&self) -> Option<&HeaderValue> {
        self.key.as_ref()
    }

    /// Removes from a body what may not reach an engine; the same bytes where nothing is removed.
    /// An empty body is no body.
    ///
    /// # Errors
    ///
    /// 400 for a body that is no JSON object, or cannot be screened, or has a field that is refused.
    pub(crate) fn screen(&self, body: Bytes, losses: &Losses<'_>) -> Result<Bytes, ApiError> {
        if body.is_empty() {
            return Ok(body);
        }
        let fields = scan(&body).map_err(|error| ApiError::invalid_json(error.to_string()))?;
        let screening = self.fields.screen(&body, &fields);
        let screening = screening.map_err(|error| ApiError::invalid_json(error.to_string()))?;
        if screening.is_empty() {
            return Ok(body);
        }
        losses.take(&body, &screening)?;
        let mut editor = Editor::new(&body, &fields);
        editor.screen(&screening);
        Ok(editor.finish().apply(&body).into())
    }

    /// Removes from a form what may not reach an engine; the same bytes where nothing is removed.
    ///
    /// # Errors
    ///
    /// 400 for a form that readers may take for different ones, or has a field that is refused.
    pub(crate) fn screen_form(
        &self,
        form: &Bytes,
        content_type: &str,
        losses: &Losses<'_>,
    ) -> Result<Bytes, ApiError> {
        let screening = self.fields.screen_form(form, content_type);
        let screening = screening.map_err(|error| ApiError::bad_request(error.to_string()))?;
        losses.take(b"", &screening)?;
        match screening.is_empty() {
            true => Ok(form.clone()),
            false => Ok(screening.edits().apply(form).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(
        fields: &[&str],
        headers: &[&str],
        key: Option<&str>,
    ) -> (PassageArgs, Option<tempfile::NamedTempFile>) {
        let file = key.map(|key| {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), key).expect("it can be written");
            file
        });
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let args = PassageArgs {
            pass_paths: Vec::new(),
            pass_fields: own(fields),
            pass_headers: own(headers),
            engine_api_key_file: file.as_ref().map(|file| file.path().to_owned()),
        };
        (args, file)
    }

    fn faults(args: &PassageArgs) -> String {
        let mut faults = Vec::new();
        args.passage(false, &mut faults);
        faults.join("\n")
    }

    #[test]
    fn the_list_is_sorted_and_nothing_on_it_steers() {
        assert!(ALLOWED.is_sorted());
        assert!(ALLOWED.iter().all(|name| !steers(&HeaderName::from_static(name))));
    }

    #[test]
    fn a_clients_key_passes_where_the_engine_checks_it() {
        let lets = |credentials, key| {
            let (args, _file) = args(&[], &[], key);
            let passage = args.passage(credentials, &mut Vec::new());
            (passage.lets(&header::AUTHORIZATION), passage.key().is_some())
        };
        assert_eq!(lets(false, None), (false, false));
        assert_eq!(lets(true, None), (true, false));
        assert_eq!(lets(true, Some("key\n")), (false, true));
        let (args, _) = args(&[], &["authorization", "X-Tenant"], None);
        let passage = args.passage(false, &mut Vec::new());
        assert!(passage.lets(&header::AUTHORIZATION) && !passage.lets(&header::COOKIE));
        assert!(passage.lets(&HeaderName::from_static("x-tenant")));
    }

    #[test]
    fn every_fault_is_named() {
        let (args, _file) =
            args(&["rid"], &["x-prefiller-host-port", "a b", "authorization"], Some("a b"));
        let faults = faults(&args);
        for part in [
            "pass-fields: \"rid\" steers engines",
            "pass-headers: x-prefiller-host-port steers",
            "pass-headers: \"a b\" is no name",
            "pass-headers: authorization is set by engine-api-key-file",
            "engine-api-key-file: the key has white space",
        ] {
            assert!(faults.contains(part), "{part} is not in {faults}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let (args, _file) = args(&[], &[], Some("very-secret"));
        let passage = args.passage(false, &mut Vec::new());
        assert_eq!(passage.key().expect("a key"), "Bearer very-secret");
        assert!(!format!("{passage:?}").contains("very-secret"));
    }

    #[test]
    fn what_cannot_be_read_or_steers_is_refused() {
        let removed = RemovedFields::default();
        let screen = |body: &[u8], unknown| {
            let losses = Losses::new(PassingEdge::default(), unknown, &removed);
            let left = Passage::default().screen(Bytes::copy_from_slice(body), &losses)?;
            Ok::<_, ApiError>((left, losses.notes.ignored()))
        };
        let check = |body: &[u8]| screen(body, UnknownFields::Refuse).map(|(left, _)| left);
        assert_eq!(check(b"").as_deref().ok(), Some(&b""[..]));
        let wide: Vec<u8> = "{\"rid\":{}}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        // Python's reader takes all of these.
        let lenient = [&b"{\"temperature\":NaN}"[..], b"\xef\xbb\xbf{}", b"[{\"rid\":1}]", &wide];
        for body in lenient {
            assert!(check(body).is_err(), "{body:?}");
        }
        for (body, field) in [
            (&br#"{"n":1,"kv_transfer_params":{"a":1}}"#[..], "kv_transfer_params"),
            (br#"{"n":1,"rid":2,"other":3}"#, "other"),
        ] {
            let refused = check(body).expect_err("it is refused");
            assert_eq!((refused.status.as_u16(), refused.param.as_deref()), (400, Some(field)));
        }
        let (left, ignored) =
            screen(br#"{"n":1,"rid":2,"other":3}"#, UnknownFields::Ignore).expect("it is screened");
        assert_eq!(left, &br#"{"n":1}"#[..]);
        assert_eq!(ignored.as_deref(), Some("rid, other"));
        for kind in ["steering", "unknown"] {
            assert_eq!(removed.get_or_create(&FieldKind { kind }).get(), 1);
        }
    }
}
