//! Probes of containers.

use super::environment::{items, text};
use super::process::run;
use http_body_util::BodyExt;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

/// Longest answer to a gRPC probe: a few bytes say the state.
const ANSWER_BYTES_MAX: usize = 1024;
/// State of a service that works, in an answer to a gRPC probe.
///
/// Source: `grpc.health.v1.HealthCheckResponse`, whose field 1 is then 1.
const SERVING: [u8; 2] = [8, 1];

/// A probe of a container.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    handler: Value,
    /// Time before the next probe.
    wait: Duration,
    pause: Duration,
    limit: Duration,
    successes: u64,
    /// Successes since the last failure.
    good: u64,
    /// Time for which failures are borne.
    patience: Duration,
    /// The first failure since the last success.
    bad_since: Option<Instant>,
}

/// Target of a probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) container: &'a Value,
    pub(super) address: Ipv4Addr,
    /// The process of the container, for probes that run a command in it.
    pub(super) process: u32,
}

impl Probe {
    /// The probe that the field `name` of a container asks for. `second` is the length of a second
    /// of its delay and its period, so that success shows soon. Failures count by the real time that
    /// they last: a busy machine is no reason to end a container.
    pub(super) fn read(container: &Value, name: &str, second: Duration) -> Option<Self> {
        let said = container[name].as_object()?;
        let number = |name: &str, default: u32| {
            let said = said.get(name).and_then(Value::as_u64).filter(|number| *number > 0);
            said.and_then(|number| number.try_into().ok()).unwrap_or(default)
        };
        let period = number("periodSeconds", 10);
        let failures = number("failureThreshold", 3);
        Some(Self {
            handler: container[name].clone(),
            wait: second * number("initialDelaySeconds", 0),
            pause: second * period,
            limit: Duration::from_secs(number("timeoutSeconds", 1).into()),
            successes: number("successThreshold", 1).into(),
            good: 0,
            patience: Duration::from_secs(u64::from(period) * u64::from(failures - 1)),
            bad_since: None,
        })
    }

    /// Probes until enough probes have agreed; returns the last one's result. A failure is one of
    /// as many as are too many.
    pub(super) async fn next(&mut self, target: Target<'_>) -> Result<(), String> {
        loop {
            sleep(self.wait).await;
            self.wait = self.pause;
            let result = self.once(target).await;
            let enough = match result {
                Ok(()) => {
                    (self.good, self.bad_since) = (self.good + 1, None);
                    self.good >= self.successes
                }
                Err(_) => {
                    self.good = 0;
                    self.bad_since.get_or_insert_with(Instant::now).elapsed() >= self.patience
                }
            };
            if enough {
                return result;
            }
        }
    }

    /// Probes until that has failed too often; returns the last failure.
    pub(super) async fn until_bad(&mut self, target: Target<'_>) -> String {
        loop {
            if let Err(why) = self.next(target).await {
                return why;
            }
        }
    }

    async fn once(&self, target: Target<'_>) -> Result<(), String> {
        let probe = async {
            let handler = &self.handler;
            match handler {
                _ if handler["httpGet"].is_object() => get(&handler["httpGet"], target).await,
                _ if handler["grpc"].is_object() => health(&handler["grpc"], target).await,
                _ if handler["tcpSocket"].is_object() => {
                    connect(&handler["tcpSocket"], target).await.map(drop)
                }
                _ => execute(&handler["exec"], target.process).await,
            }
        };
        timeout(self.limit, probe).await.unwrap_or_else(|_| Err("timed out".to_owned()))
    }
}

/// The number of a port that may be named.
fn port(said: &Value, container: &Value) -> Result<u16, String> {
    let named = || {
        let port = items(container, "ports").find(|port| port["name"] == *said)?;
        port["containerPort"].as_u64()
    };
    let number = said.as_u64().or_else(named).and_then(|number| u16::try_from(number).ok());
    number.ok_or_else(|| format!("no port {said}"))
}

async fn connect(said: &Value, target: Target<'_>) -> Result<TcpStream, String> {
    let port = port(&said["port"], target.container)?;
    let stream = TcpStream::connect((target.address, port)).await;
    stream.map_err(|error| format!("port {port}: {error}"))
}

async fn get(said: &Value, target: Target<'_>) -> Result<(), String> {
    let stream = connect(said, target).await?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let path = said["path"].as_str().unwrap_or("/");
    let mut request = Request::get(path).header("host", target.address.to_string());
    for header in items(said, "httpHeaders") {
        request = request.header(text(&header["name"]), text(&header["value"]));
    }
    let request = request.body(Full::<Bytes>::default()).map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    match answer.status().as_u16() {
        200..400 => Ok(()),
        status => Err(format!("{path}: status {status}")),
    }
}

/// Asks the health service of gRPC.
async fn health(said: &Value, target: Target<'_>) -> Result<(), String> {
    let stream = TokioIo::new(connect(said, target).await?);
    let client = http2::handshake(TokioExecutor::new(), stream).await;
    let (mut sender, connection) = client.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let service = said["service"].as_str().unwrap_or_default().as_bytes();
    let mut message = vec![0, 0, 0, 0, service.len() as u8 + 2, 10, service.len() as u8];
    message.extend(service);
    let request = Request::post(format!("http://{}/grpc.health.v1.Health/Check", target.address))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(message)))
        .map_err(|error| error.to_string())?;
    let answer: Response<Incoming> =
        sender.send_request(request).await.map_err(|error| error.to_string())?;
    let body = http_body_util::Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
    let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
    let is_serving = body.get(5..).is_some_and(|state| state == SERVING);
    if is_serving { Ok(()) } else { Err(format!("not serving: {body:?}")) }
}

/// Runs a command in the namespaces of the container whose process this is.
pub(super) async fn execute(said: &Value, process: u32) -> Result<(), String> {
    let mut command = Command::new("nsenter");
    command.args(["--mount", "--net", "--root", "--wd", "--target"]);
    command.arg(process.to_string()).args(items(said, "command").map(text));
    run(&mut command).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_port_has_a_number_or_a_name() {
        let container = json!({ "ports": [{ "name": "http", "containerPort": 8000 }] });
        assert_eq!(port(&json!("http"), &container), Ok(8000));
        assert_eq!(port(&json!(9090), &container), Ok(9090));
        assert_eq!(port(&json!("grpc"), &container), Err("no port \"grpc\"".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_has_failed_after_as_many_failures_as_are_too_many() {
        let container = json!({ "probe": {
            "tcpSocket": { "port": "none" }, "initialDelaySeconds": 5, "failureThreshold": 4,
        } });
        let mut probe = Probe::read(&container, "probe", Duration::from_secs(1)).expect("a probe");
        let target = Target { container: &container, address: Ipv4Addr::LOCALHOST, process: 1 };
        let start = tokio::time::Instant::now();
        assert_eq!(probe.until_bad(target).await, "no port \"none\"");
        assert_eq!(start.elapsed(), Duration::from_secs(5 + 3 * 10));
    }
}
