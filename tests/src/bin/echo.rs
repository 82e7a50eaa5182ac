//! A server for the pods of tests: it says who it is. Arguments are the ports that it listens on.
//!
//! `/env/NAME` answers with a variable, `/file/PATH` with a file, `/exit/CODE` ends it, `/unready`
//! and `/ready` say what `/health` answers from then on; all else answers with the pod's name.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

static IS_READY: AtomicBool = AtomicBool::new(true);

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let mut servers = JoinSet::new();
    for port in std::env::args().skip(1).filter_map(|word| word.parse::<u16>().ok()) {
        servers.spawn(serve(TcpListener::bind(("0.0.0.0", port)).await?));
    }
    println!("listening");
    signal(SignalKind::terminate())?.recv().await;
    println!("ending");
    Ok(())
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        let service = service_fn(async |request: Request<Incoming>| {
            let (status, body) = answer(request.uri().path());
            let mut answer = Response::new(Full::new(Bytes::from(body)));
            *answer.status_mut() = status;
            Ok::<_, Infallible>(answer)
        });
        // How the connection ends shows at the client.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
    }
}

fn answer(path: &str) -> (StatusCode, Vec<u8>) {
    let (verb, rest) = path.trim_start_matches('/').split_once('/').unwrap_or((&path[1..], ""));
    let variable = |name: &str| std::env::var(name).map(String::into_bytes);
    match verb {
        "env" => {
            variable(rest).map_or((StatusCode::NOT_FOUND, Vec::new()), |it| (StatusCode::OK, it))
        }
        "file" => match std::fs::read(format!("/{rest}")) {
            Ok(content) => (StatusCode::OK, content),
            Err(error) => (StatusCode::NOT_FOUND, error.to_string().into()),
        },
        "exit" => std::process::exit(rest.parse().unwrap_or(1)),
        "ready" | "unready" => {
            IS_READY.store(verb == "ready", Ordering::Relaxed);
            (StatusCode::OK, Vec::new())
        }
        "health" if !IS_READY.load(Ordering::Relaxed) => {
            (StatusCode::SERVICE_UNAVAILABLE, Vec::new())
        }
        _ => (StatusCode::OK, variable("HOSTNAME").unwrap_or_default()),
    }
}
