//! Engines, a picker that knows them, and an Envoy that asks it.

use hyper::StatusCode;
use serde_json::{Value, json};
use stator_tests::engine::{Engine, HOLD, SERVED_BY};
use stator_tests::envoy::{Envoy, EnvoySettings};
use stator_tests::http::{Client, Events, Reply};
use stator_tests::picker::{EndpointsFile, Picker};
use stator_tests::soon;
use stator_tests::tooling::installed;
use std::net::SocketAddr;

/// Where chat requests go.
pub(super) const CHAT: &str = "/v1/chat/completions";
/// The header by which the picker tells its choice.
pub(super) const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Why a request was dropped.
pub(super) const DROPPED: &str = "x-llm-d-request-dropped-reason";

/// Engines behind Envoy, and the picker that chooses among them, however it learns of them.
pub(super) trait Bed {
    fn engines(&self) -> Vec<&Engine>;
    fn picker(&self) -> &Picker;
    fn envoy(&self) -> &Envoy;

    /// A client of the gateway.
    fn client(&self) -> Client {
        self.envoy().client()
    }

    /// Sends a chat request with this prompt.
    async fn chat(&self, prompt: &str) -> Reply {
        self.client().post(CHAT, &chat("model", prompt)).await
    }

    /// Sends a chat request whose answer is in the hands of the test: see [`Engine::held`].
    async fn open(&self) -> Events {
        self.client().with_header(HOLD, "1").stream(CHAT, &chat("model", "hello")).await
    }

    /// Which of the engines answered.
    ///
    /// # Panics
    ///
    /// When none of them did.
    fn served_by(&self, reply: &Reply) -> usize {
        let served = served_by(reply).unwrap_or_else(|| {
            panic!("no engine answered: {reply:?}\n{}", self.picker().process.log())
        });
        let at = self.engines().iter().position(|engine| engine.address() == served);
        at.expect("an engine of the pool answered")
    }

    /// Waits until a sum of the picker's metrics has a value.
    async fn metric_is(&self, name: &str, value: f64) {
        metric_is(self.picker(), name, value).await;
    }
}

/// A bed whose picker follows a file of endpoints.
pub(super) struct Testbed {
    pub(super) engines: Vec<Engine>,
    /// The picker's list of the engines.
    pub(super) file: EndpointsFile,
    pub(super) picker: Picker,
    pub(super) envoy: Envoy,
}

impl Testbed {
    /// Everything with its defaults, but for TLS. `None`, and said so, where Envoy is missing.
    pub(super) async fn start(engines: usize) -> Option<Self> {
        Self::with(engines, &[], |_, _| {}).await
    }

    /// With these flags of the picker.
    pub(super) async fn with_flags(engines: usize, flags: &[&str]) -> Option<Self> {
        Self::with(engines, flags, |_, _| {}).await
    }

    /// With these flags of the picker and these changes of Envoy's settings, which may depend on
    /// where the engines are.
    pub(super) async fn with(
        engines: usize,
        flags: &[&str],
        change: impl FnOnce(&mut EnvoySettings, &[SocketAddr]),
    ) -> Option<Self> {
        installed("STATOR_TEST_ENVOY", "Envoy")?;
        let mut started = Vec::new();
        for _ in 0..engines {
            started.push(Engine::start().await);
        }
        let addresses: Vec<_> = started.iter().map(Engine::address).collect();
        let mut settings = EnvoySettings::new(SocketAddr::from(([127, 0, 0, 1], 1)));
        change(&mut settings, &addresses);
        let file = EndpointsFile::of(&addresses);
        let mut all = vec![format!("--endpoints-file={}", file.path().display())];
        if !settings.tls {
            all.push("--secure-serving=false".to_owned());
        }
        let all: Vec<_> = all.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let mut picker = Picker::start(&all).await;
        if engines > 0 {
            picker.ready().await;
        }
        settings.pickers = vec![picker.address()];
        let envoy = Envoy::start(&settings).await?;
        Some(Self { engines: started, file, picker, envoy })
    }
}

impl Bed for Testbed {
    fn engines(&self) -> Vec<&Engine> {
        self.engines.iter().collect()
    }

    fn picker(&self) -> &Picker {
        &self.picker
    }

    fn envoy(&self) -> &Envoy {
        &self.envoy
    }
}

/// Waits until a sum of a picker's metrics has a value.
pub(super) async fn metric_is(picker: &Picker, name: &str, value: f64) {
    let is = async || (picker.metric(name).await == value).then_some(());
    until(&format!("{name} is {value}"), is).await;
}

/// A chat request.
pub(super) fn chat(model: &str, prompt: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": prompt }] })
}

/// The engine that answered, if one did.
pub(super) fn served_by(reply: &Reply) -> Option<SocketAddr> {
    let served = header(reply, SERVED_BY);
    (!served.is_empty()).then(|| served.parse().expect("engines name their address"))
}

/// A header of an answer; empty where it is missing.
pub(super) fn header<'a>(reply: &'a Reply, name: &str) -> &'a str {
    let value = reply.headers.get(name);
    value.map(|value| value.to_str().expect("the tests' headers are text")).unwrap_or_default()
}

/// Repeats what takes a round trip to another process, until it gives something.
///
/// # Panics
///
/// When it does not within the deadline.
pub(super) async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    soon(what, async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
        }
    })
    .await
}

/// Repeats a request until the answer has this status, and returns it.
///
/// # Panics
///
/// When it has not within the deadline.
pub(super) async fn until_status(
    status: StatusCode,
    mut request: impl AsyncFnMut() -> Reply,
) -> Reply {
    let has = async || Some(request().await).filter(|reply| reply.status == status);
    until(&format!("an answer with status {status}"), has).await
}
