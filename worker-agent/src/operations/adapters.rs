//! LoRA adapters over HTTP, in the words of Dynamo's workers: `GET` and `POST /v1/loras`, and `DELETE
//! /v1/loras/{name}`. Operators of clusters load adapters through it.

use super::access::Access;
use super::{NAME_BYTES_MAX, OperatedEngines, PATH_BYTES_MAX};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use serde::Deserialize;
use serde_json::{Value, json};
use stator_dialect::{Fault, Operation};
use stator_protos::discovery::AgentRecord;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// Largest request, in bytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Adapters of the engines. The side server, which starts before the engines, asks it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdapterDesk(Arc<OnceLock<AdapterService>>);

/// Engines with adapters.
#[derive(Debug)]
struct AdapterService {
    engines: OperatedEngines,
    access: Access,
    record: watch::Receiver<AgentRecord>,
}

/// Request for an adapter.
#[derive(Deserialize)]
struct AdapterRequest {
    lora_name: String,
    source: AdapterSource,
}

#[derive(Deserialize)]
struct AdapterSource {
    uri: String,
}

type Refusal = (StatusCode, String);

impl AdapterDesk {
    /// Takes requests for these engines from now on.
    pub(crate) fn open(
        &self,
        engines: OperatedEngines,
        access: Access,
        record: watch::Receiver<AgentRecord>,
    ) {
        // An agent launches once.
        let _ = self.0.set(AdapterService { engines, access, record });
    }

    /// The routes.
    pub(crate) fn routes(&self) -> Router {
        Router::new()
            .route("/v1/loras", get(list).post(load))
            .route("/v1/loras/{*name}", delete(unload))
            .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
            .with_state(self.clone())
    }

    async fn service(&self, headers: &HeaderMap) -> Result<&AdapterService, Refusal> {
        let early = || (StatusCode::SERVICE_UNAVAILABLE, "the engines start".to_owned());
        let service = self.0.get().ok_or_else(early)?;
        let shown = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let refuse = |why| (StatusCode::UNAUTHORIZED, why);
        service.access.check_token(shown).await.map_err(refuse)?;
        Ok(service)
    }
}

async fn list(State(desk): State<AdapterDesk>, headers: HeaderMap) -> Response {
    let listed = desk.service(&headers).await.map(AdapterService::names);
    answered(listed.map(|names| json!({ "status": "success", "loras": names })))
}

async fn load(State(desk): State<AdapterDesk>, headers: HeaderMap, body: Bytes) -> Response {
    let loaded = async {
        let service = desk.service(&headers).await?;
        let refuse = |why: String| (StatusCode::BAD_REQUEST, why);
        let request: AdapterRequest =
            serde_json::from_slice(&body).map_err(|error| refuse(error.to_string()))?;
        let name = checked("lora_name", request.lora_name, NAME_BYTES_MAX).map_err(refuse)?;
        let path = checked("source.uri", request.source.uri, PATH_BYTES_MAX).map_err(refuse)?;
        let path = place(&path).map_err(|why| (StatusCode::NOT_IMPLEMENTED, why))?.to_owned();
        if !service.names().contains(&name) {
            service.run(Operation::LoadAdapter { name: name.clone(), path }).await?;
        }
        Ok(json!({ "status": "success", "lora_name": name }))
    };
    answered(loaded.await)
}

async fn unload(
    State(desk): State<AdapterDesk>,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Response {
    let unloaded = async {
        let service = desk.service(&headers).await?;
        if service.names().contains(&name) {
            service.run(Operation::UnloadAdapter { name: name.clone() }).await?;
        }
        Ok(json!({ "status": "success", "lora_name": name }))
    };
    answered(unloaded.await)
}

impl AdapterService {
    /// The names of the adapters that are loaded.
    fn names(&self) -> Vec<String> {
        self.record.borrow().profile.adapters.clone()
    }

    async fn run(&self, operation: Operation) -> Result<(), Refusal> {
        tracing::info!(?operation, "an operation was asked for");
        self.engines.run(operation).await.map_err(|fault| {
            let status = match fault {
                Fault::Invalid(_) => StatusCode::BAD_REQUEST,
                Fault::Unsupported(_) | Fault::Half(_) => StatusCode::NOT_IMPLEMENTED,
                Fault::Overloaded(_) | Fault::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
                Fault::Aborted(_) | Fault::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, fault.to_string())
        })
    }
}

fn answered(answer: Result<Value, Refusal>) -> Response {
    let (status, body) = match answer {
        Ok(body) => (StatusCode::OK, body),
        Err((status, why)) => (status, json!({ "status": "error", "message": why })),
    };
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn checked(field: &str, text: String, limit: usize) -> Result<String, String> {
    let bytes = text.len();
    match bytes {
        0 => Err(format!("{field}: is empty")),
        _ if bytes > limit => Err(format!("{field}: {bytes} bytes, 1 to {limit}")),
        _ => Ok(text),
    }
}

/// The place of an adapter as engines take it: a path, or a name on the hub that they fetch from.
fn place(uri: &str) -> Result<&str, String> {
    match uri.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(path),
        Some(("hf", name)) if !name.is_empty() => Ok(name),
        Some(("s3", _)) => {
            Err(format!("source.uri: {uri:?}: mount the bucket, and name a file:///"))
        }
        _ => Err(format!("source.uri: {uri:?} begins neither with file:/// nor with hf://")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Operators, TokenSource};
    use crate::prefill::registered::tests::record;
    use crate::worker::OperationOrder;
    use stator_runtime::secret::Secret;
    use stator_runtime::tls::Listener;
    use stator_runtime::{Shutdown, admin};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    const TOKEN: &str = "correct-horse-battery";

    #[test]
    fn adapters_come_from_folders_and_hubs() {
        assert_eq!(place("file:///a/b"), Ok("/a/b"));
        assert_eq!(place("hf://org/name"), Ok("org/name"));
        for bad in ["file://a", "hf://", "http://a", "/a", ""] {
            assert!(place(bad).is_err(), "{bad}");
        }
        assert!(place("s3://b/k").is_err_and(|why| why.contains("mount")));
    }

    /// An engine that does what it is told, and says so in its record.
    fn engine(record: watch::Sender<AgentRecord>) -> OperatedEngines {
        let (orders, mut ordered) = mpsc::channel::<OperationOrder>(1);
        tokio::spawn(async move {
            while let Some(OperationOrder { operation, answer }) = ordered.recv().await {
                record.send_modify(|record| match operation {
                    Operation::LoadAdapter { name, .. } => record.profile.adapters.push(name),
                    Operation::UnloadAdapter { name } => {
                        record.profile.adapters.retain(|known| *known != name);
                    }
                    other => panic!("{other:?} was not asked for"),
                });
                let _ = answer.send(Ok(()));
            }
        });
        OperatedEngines::Stock(orders)
    }

    /// Status and body of the answer to a request.
    async fn ask(
        address: std::net::SocketAddr,
        head: &str,
        token: &str,
        body: &str,
    ) -> (u16, Value) {
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        let status = answer.split(' ').nth(1).expect("a status").parse().expect("a number");
        let body = answer.split("\r\n\r\n").nth(1).expect("a body");
        (status, serde_json::from_str(body).expect("JSON"))
    }

    #[tokio::test]
    async fn adapters_are_loaded_listed_and_unloaded() {
        let desk = AdapterDesk::default();
        let listener = Listener::plain(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
        let address = listener.address().expect("it has one");
        let (_end, ended) = Shutdown::new();
        admin::serve_app(listener, desk.routes(), ended);
        let (status, _) = ask(address, "GET /v1/loras", TOKEN, "").await;
        assert_eq!(status, 503, "there is no engine yet");
        let (record, records) = watch::channel(record("a", "http://a", ""));
        let token = TokenSource::Given(Secret::new(TOKEN).expect("a secret"));
        let operators = Operators::Known { token: Some(token), clients: Vec::new() };
        desk.open(engine(record), Access::new(operators), records);

        let load = r#"{"lora_name":"org/a","source":{"uri":"file:///a"}}"#;
        let (status, refused) = ask(address, "POST /v1/loras", "another", load).await;
        assert_eq!(status, 401, "{refused}");
        let (status, refused) = ask(address, "POST /v1/loras", TOKEN, r#"{"lora_name":""}"#).await;
        assert_eq!(status, 400, "{refused}");
        // Twice is once.
        for _ in 0..2 {
            let (status, loaded) = ask(address, "POST /v1/loras", TOKEN, load).await;
            assert_eq!((status, &loaded["lora_name"]), (200, &json!("org/a")));
        }
        let (_, listed) = ask(address, "GET /v1/loras", TOKEN, "").await;
        assert_eq!(listed["loras"], json!(["org/a"]));
        for _ in 0..2 {
            let (status, _) = ask(address, "DELETE /v1/loras/org/a", TOKEN, "").await;
            assert_eq!(status, 200);
        }
        let (_, listed) = ask(address, "GET /v1/loras", TOKEN, "").await;
        assert_eq!(listed["loras"], json!([]));
    }
}
