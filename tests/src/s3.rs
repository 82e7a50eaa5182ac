//! moto, an S3 server that others wrote.

use crate::tooling::{Tool, installed};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

/// A running server with one bucket. Dropping it ends both.
#[derive(Debug)]
pub struct S3Server {
    url: String,
    _tool: Tool,
}

impl S3Server {
    /// Starts a server and makes the bucket. `None`, and said so, where nothing is installed.
    ///
    /// # Panics
    ///
    /// When it is missing in continuous integration, or does not serve.
    pub async fn start(bucket: &str) -> Option<Self> {
        let python = installed("STATOR_TEST_PYTHON", "moto")?;
        let mut command = Command::new(python);
        let tool = Tool::start(command.args(["-um", "moto.server", "-H", "127.0.0.1", "-p", "0"]));
        let serves = "Running on http://";
        let line = tool.line("a server that serves", |line| line.contains(serves)).await;
        let address = line.split_once(serves).expect("the line has it").1.trim();
        let mut stream = TcpStream::connect(address).expect("it serves");
        let request = format!(
            "PUT /{bucket} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Some(Self { url: format!("http://{address}"), _tool: tool })
    }

    /// Environment of a process that is to find the server.
    pub fn environment(&self) -> [(&str, &str); 4] {
        [
            ("AWS_ENDPOINT_URL", &self.url),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
        ]
    }
}
