//! The tier against moto, an S3 server that others wrote.

use super::bench::Bench;
use super::faults::on_server;
use crate::object::ObjectSettings;
use std::io::Write;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// The server with a bucket `blocks`, and its URL. None without its Python, which CI must have.
async fn moto() -> Option<(Child, String)> {
    let Ok(python) = std::env::var("STATOR_TEST_PYTHON") else {
        assert!(std::env::var_os("CI").is_none(), "`tests/run` sets STATOR_TEST_PYTHON");
        // Past the test harness, which hides what passing tests print.
        let why = "not run: objects on moto: no STATOR_TEST_PYTHON, which tests/run sets";
        let _ = writeln!(std::io::stderr().lock(), "{why}");
        return None;
    };
    let mut server = Command::new(&python)
        .args(["-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = loop {
        let line = lines.next_line().await.unwrap().expect("moto tells where it serves");
        if let Some((_, address)) = line.split_once("Running on http://") {
            break address.trim().to_owned();
        }
    };
    // Its log goes on, and must be read.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let request = format!(
        "PUT /blocks HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Some((server, format!("http://{address}")))
}

#[tokio::test]
async fn second_process_hits_all_on_moto() {
    let Some((_server, url)) = moto().await else { return };
    let patient = || {
        let mut settings = ObjectSettings { key: Some([5; 32]), ..on_server(&url) };
        settings.times.read = Duration::from_secs(30);
        settings
    };
    let mut first = Bench::open(patient());
    assert_eq!(first.write(0..40).await, [Ok(()); 40]);
    // Without having seen the index yet: the extents are there already.
    let mut late = Bench::open(patient());
    assert_eq!(late.write(0..40).await, [Ok(()); 40]);
    assert_eq!(late.read(0..40).await, [Ok(()); 40]);
    first.tier.close().await;
    let mut second = Bench::open(patient());
    second.find(0..40).await;
    assert_eq!(second.read(0..40).await, [Ok(()); 40]);
    assert_eq!(second.read(3..7).await, [Ok(()); 4]);
    assert_eq!(second.tier.counts().outages, 0);
}
