//! A client of the Kubernetes API: HTTPS and JSON, so that it shares no code with what is tested.
//!
//! Objects are [`Value`]s. Where a method only needs to know which object is meant, a
//! [`reference()`](crate::kube_objects::reference) will do as well as the object.

use crate::http::Reply;
use crate::kube_config::{Access, User};
use crate::kube_objects::{collection, path};
use crate::soon;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Tries of a server whose storage is not there yet, and the pause between them.
const STORAGE_TRIES: usize = 100;
const STORAGE_PAUSE: Duration = Duration::from_millis(100);

/// A client of one API server, as one user.
#[derive(Clone)]
pub struct Api {
    access: Access,
    tls: TlsConnector,
}

/// What the API server said when it did not do as it was asked.
#[derive(Debug)]
pub struct Refusal {
    /// Its status: 422 for an object that its schema forbids, 403 for what the user may not do.
    pub status: StatusCode,
    /// Its explanation.
    pub message: String,
}

impl Api {
    /// A client of the cluster, as the user, that `access` names.
    pub(crate) fn new(access: Access) -> Self {
        let tls = TlsConnector::from(Arc::new(access.tls()));
        Self { access, tls }
    }

    /// Sends any request and reads the whole response. Just after a definition has changed, the
    /// server may ask to come again until it has the objects' storage.
    ///
    /// # Panics
    ///
    /// When there is none within the deadline, or no storage after many tries.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        let body = body.into();
        for _ in 0..STORAGE_TRIES {
            let reply = self.send_once(method.clone(), path, content_type, body.clone()).await;
            let text = String::from_utf8_lossy(&reply.body);
            let has_storage = !text.contains("storage is (re)initializing");
            if reply.status != StatusCode::TOO_MANY_REQUESTS || has_storage {
                return reply;
            }
            tokio::time::sleep(STORAGE_PAUSE).await;
        }
        panic!("{path}: the server gets no storage");
    }

    async fn send_once(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Reply {
        let response = self.open(method, path, content_type, body).await;
        let (head, body) = response.into_parts();
        let body = soon("the body", body.collect()).await.expect("the body is whole");
        let trailers = body.trailers().cloned().unwrap_or_default();
        Reply { status: head.status, headers: head.headers, body: body.to_bytes(), trailers }
    }

    /// Creates the object or changes it to be like this one, by server-side apply.
    ///
    /// # Errors
    ///
    /// The server's refusal.
    pub async fn try_apply(&self, object: &Value) -> Result<Value, Refusal> {
        self.apply_text(&path(object), object.to_string()).await
    }

    /// As [`Api::try_apply`].
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn apply(&self, object: &Value) -> Value {
        accepted(self.try_apply(object).await, object)
    }

    /// As [`Api::try_apply`], for an object in YAML whose path is known.
    pub(crate) async fn apply_text(&self, path: &str, text: String) -> Result<Value, Refusal> {
        let path = format!("{path}?fieldManager=tests&force=true");
        answer(self.send(Method::PATCH, &path, "application/apply-patch+yaml", text).await)
    }

    /// Changes an object by a JSON merge patch.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn patch(&self, object: &Value, patch: &Value) -> Value {
        self.merge(object, &path(object), patch).await
    }

    /// Changes an object's status by a JSON merge patch, as the controller that owns it would.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn patch_status(&self, object: &Value, status: &Value) -> Value {
        accepted(self.try_patch_status(object, status).await, object)
    }

    /// As [`Api::patch_status`].
    ///
    /// # Errors
    ///
    /// The server's refusal.
    pub async fn try_patch_status(&self, object: &Value, status: &Value) -> Result<Value, Refusal> {
        let path = format!("{}/status", path(object));
        self.try_merge(&path, &json!({ "status": status })).await
    }

    /// The object as the server has it, or `None` when there is none.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn get(&self, object: &Value) -> Option<Value> {
        match answer(self.send(Method::GET, &path(object), "application/json", "").await) {
            Err(refusal) if refusal.status == StatusCode::NOT_FOUND => None,
            reply => Some(accepted(reply, object)),
        }
    }

    /// Deletes an object. A pod without a grace period is gone at once; one with a period is
    /// terminating until it is deleted without, which a kubelet would do.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn delete(&self, object: &Value, grace: Duration) {
        let path = format!("{}?gracePeriodSeconds={}", path(object), grace.as_secs());
        let reply = self.send(Method::DELETE, &path, "application/json", "").await;
        accepted(answer(reply), object);
    }

    /// Watches an object until `is_it` accepts it, and returns it.
    ///
    /// # Panics
    ///
    /// When that does not happen within the deadline.
    pub async fn until(&self, object: &Value, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let name = object["metadata"]["name"].as_str().expect("an object has a name");
        let query = format!("fieldSelector=metadata.name={name}");
        let all = self.until_all(object, &query, what, |all| all.iter().any(&is_it)).await;
        all.into_iter().find(is_it).expect("it was just there")
    }

    /// Watches the objects of the kind and the namespace of `object` that a query selects
    /// (`labelSelector=a=b`, or empty for all) until `are_they` accepts them, and returns them.
    ///
    /// # Panics
    ///
    /// When that does not happen within the deadline.
    pub async fn until_all(
        &self,
        object: &Value,
        query: &str,
        what: &str,
        are_they: impl Fn(&[Value]) -> bool,
    ) -> Vec<Value> {
        soon(what, async {
            let mut watched = self.watched(object, query).await;
            while !are_they(&watched.objects) {
                assert!(watched.changed().await, "the watch ended before {what}");
            }
            watched.objects
        })
        .await
    }

    /// The objects of the kind and the namespace of `object` that a query selects, followed.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn watched(&self, object: &Value, query: &str) -> Watched {
        let path = format!("{}?{query}", collection(object));
        let list = answer(self.send(Method::GET, &path, "application/json", "").await);
        let mut list = accepted(list, object);
        let mut objects: Vec<Value> =
            list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        // Items of a list do not say what they are.
        for item in &mut objects {
            (item["apiVersion"], item["kind"]) =
                (object["apiVersion"].clone(), object["kind"].clone());
        }
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let path = format!("{path}&watch=true&resourceVersion={version}");
        let response = self.open(Method::GET, &path, "application/json", Bytes::new()).await;
        assert_eq!(response.status(), StatusCode::OK, "watching {path}");
        Watched { objects, body: response.into_body(), buffer: Vec::new() }
    }

    async fn merge(&self, object: &Value, path: &str, patch: &Value) -> Value {
        accepted(self.try_merge(path, patch).await, object)
    }

    async fn try_merge(&self, path: &str, patch: &Value) -> Result<Value, Refusal> {
        let media = "application/merge-patch+json";
        answer(self.send(Method::PATCH, path, media, patch.to_string()).await)
    }

    async fn open(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Response<Incoming> {
        let Access { host, port, user, .. } = &self.access;
        let socket = TcpStream::connect((host.as_str(), *port)).await;
        let socket = socket.expect("the API server accepts");
        let name = ServerName::try_from(host.clone()).expect("a name or an address");
        let stream = soon("the TLS handshake", self.tls.connect(name, socket)).await;
        let stream = TokioIo::new(stream.expect("a server that is trusted"));
        let (mut sender, connection) =
            http1::handshake(stream).await.expect("a fresh connection works");
        // It ends with the response, and how shows there.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.access.url().trim_start_matches("https://"))
            .header("content-type", content_type);
        if let User::Token(token) = user {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).expect("a well-formed request");
        soon("a response", sender.send_request(request)).await.expect("a response")
    }
}

/// Objects as a watch shows them.
pub struct Watched {
    /// The newest state of each.
    pub objects: Vec<Value>,
    body: Incoming,
    buffer: Vec<u8>,
}

impl Watched {
    /// Waits for a change; `false` once the server has ended the watch.
    ///
    /// # Panics
    ///
    /// When the server sends something else than events.
    pub async fn changed(&mut self) -> bool {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).expect("events are JSON");
                let changed = &event["object"];
                self.objects.retain(|known| known["metadata"]["uid"] != changed["metadata"]["uid"]);
                if event["type"] != "DELETED" {
                    self.objects.push(changed.clone());
                }
                return true;
            }
            let Some(Ok(frame)) = self.body.frame().await else { return false };
            self.buffer.extend_from_slice(frame.data_ref().expect("data"));
        }
    }
}

fn answer(reply: Reply) -> Result<Value, Refusal> {
    if reply.status.is_success() {
        return Ok(reply.json());
    }
    let message = match serde_json::from_slice::<Value>(&reply.body) {
        Ok(status) => status["message"].as_str().unwrap_or_default().to_owned(),
        Err(_) => String::from_utf8_lossy(&reply.body).into_owned(),
    };
    Err(Refusal { status: reply.status, message })
}

fn accepted(reply: Result<Value, Refusal>, object: &Value) -> Value {
    reply.unwrap_or_else(|Refusal { status, message }| {
        panic!("{}: {status} {message}", path(object))
    })
}
