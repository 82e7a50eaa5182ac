//! Prompts that one engine computes and another one goes on from. Parameters and their meaning are
//! those of vLLM's NixlConnector; what moves is the state of the prompt, once, over a connection of
//! its own.

use crate::prompt::{Computed, Prompt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Variables by which vLLM learns where others reach it.
const PLACE: [&str; 2] = ["VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"];
/// Most prompts that wait for who reads them; the oldest gives way.
const KEPT_MAX: usize = 1024;
/// Longest wait for a state.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

type Kept = Arc<Mutex<BTreeMap<u64, (u64, usize)>>>;

/// Prompts that others may go on from.
pub(crate) struct Handover {
    host: String,
    port: u16,
    kept: Kept,
}

impl Handover {
    /// Listens where the environment says; nothing without a place there.
    pub(crate) async fn listen() -> Result<Option<Self>> {
        let [Ok(host), Ok(port)] = PLACE.map(std::env::var) else { return Ok(None) };
        let port = port.parse().map_err(|_| Error::other(format!("{port:?} is no port")))?;
        let listener = TcpListener::bind((host.as_str(), port)).await?;
        let kept = Kept::default();
        tokio::spawn(lend(listener, kept.clone()));
        Ok(Some(Self { host, port, kept }))
    }

    /// Keeps a prompt; returns the parameters by which it is fetched.
    pub(crate) fn keep(&self, prompt: &Prompt) -> Value {
        let mut kept = self.kept.lock().expect("nobody panics with it");
        let number = kept.last_key_value().map_or(0, |(last, _)| last + 1);
        kept.insert(number, (prompt.state(), prompt.length()));
        if kept.len() > KEPT_MAX {
            kept.pop_first();
        }
        json!({
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_block_ids": [[number]],
            "remote_engine_id": "pretend",
            "remote_request_id": format!("generate-tokens-{number}"),
            "remote_host": self.host,
            "remote_port": self.port,
            "remote_num_tokens": prompt.length(),
            "tp_size": 1,
        })
    }
}

/// Gives each prompt that is asked for, once.
async fn lend(listener: TcpListener, kept: Kept) {
    while let Ok((stream, _)) = listener.accept().await {
        let kept = kept.clone();
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream.take(32));
            let mut line = String::new();
            let asked = timeout(FETCH_TIMEOUT, stream.read_line(&mut line)).await;
            let Ok(number) = line.trim().parse::<u64>() else { return };
            let found = kept.lock().expect("nobody panics with it").remove(&number);
            if let (Ok(Ok(_)), Some((state, tokens))) = (asked, found) {
                let said = format!("{state} {tokens}\n");
                // Where this fails, the reader is gone.
                let _ = stream.into_inner().into_inner().write_all(said.as_bytes()).await;
            }
        });
    }
}

/// Fetches what the engine that these parameters name has computed.
///
/// # Errors
///
/// When it is gone, or has no such prompt.
pub(crate) async fn fetch(told: &Value) -> Result<Computed> {
    let none = || Error::new(ErrorKind::NotFound, format!("nothing is kept for {told}"));
    let host = told["remote_host"].as_str().ok_or_else(none)?;
    let port = told["remote_port"].as_u64().and_then(|port| u16::try_from(port).ok());
    let (port, number) = (port.ok_or_else(none)?, &told["remote_block_ids"][0][0]);
    let fetching = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(format!("{number}\n").as_bytes()).await?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await?;
        let mut words = said.split_whitespace();
        let state = words.next().and_then(|word| word.parse().ok());
        let tokens = words.next().and_then(|word| word.parse().ok());
        state.zip(tokens).map(|(state, tokens)| Computed { state, tokens }).ok_or_else(none)
    };
    timeout(FETCH_TIMEOUT, fetching).await.unwrap_or_else(|_| Err(none()))
}
