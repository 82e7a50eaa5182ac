//! `stator chat`, in a pipe and in a pseudo-terminal.

use crate::support::{MODEL, chat, text, up};
use serde_json::json;
use stator_tests::process::binary;
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Runs `stator chat` with this on standard input.
async fn piped(flags: &[&str], environment: &[(&str, &str)], input: &str) -> Output {
    let mut command = Command::new(binary());
    command.arg("chat").args(flags).env_remove("OPENAI_API_KEY").envs(environment.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // One that fails before it reads has closed it.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    stator_tests::soon("an end", child.wait_with_output()).await.unwrap()
}

fn said(output: &Output) -> (Option<i32>, &str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn a_pipe_gets_the_answer_alone() {
    let up = up(&[]).await;
    let url = format!("http://{}", up.client.address());
    let mut body = chat("Hello", 8);
    body["ignore_eos"] = json!(false);
    let reply = up.client.post("/v1/chat/completions", &body).await;
    let flags = [&*url, "--temperature=0", "--max-tokens=8"];
    let output = piped(&flags, &[], "Hello\n").await;
    let (code, out, err) = said(&output);
    assert_eq!((code, out), (Some(0), &*format!("{}\n", text(&reply.json()))), "{err}");
    let output = piped(&[&url, "--model", MODEL, "--max-tokens=1"], &[], "Hello").await;
    assert!(said(&output).2.contains("the answer was cut: length"), "{output:?}");
}

#[tokio::test]
async fn what_fails_is_said_and_is_the_exit_code() {
    let up = up(&["--api-key=secret"]).await;
    let url = format!("http://{}", up.client.address());
    let key = ("OPENAI_API_KEY", "secret");
    for (flags, environment, input, code, words) in [
        (&[&*url][..], &[key][..], "Hello", 0, ""),
        (&[&url, "--api-key=secret"], &[], "Hello", 0, ""),
        (&[&url], &[], "Hello", 1, "http 401"),
        (&[&url, "--model=none-such"], &[key], "Hello", 1, "none-such"),
        (&[&url], &[key], "\n", 1, "no message"),
        (&["http://127.0.0.1:1"], &[], "Hello", 1, "cannot connect"),
        (&["ftp://127.0.0.1"], &[], "Hello", 1, "url"),
        (&[&url, "--insecure"], &[key], "Hello", 1, "insecure: "),
        (&[&url, "--max-tokens=0"], &[key], "Hello", 2, "max-tokens"),
        (&[&url, "--tools-file=/nowhere"], &[key], "Hello", 1, "tools-file: /nowhere"),
    ] {
        let output = piped(flags, environment, input).await;
        let (ended, out, err) = said(&output);
        assert_eq!(ended, Some(code), "{flags:?}: {err}");
        assert!(err.contains(words), "{flags:?}: {err}");
        assert_eq!(out.is_empty(), code != 0, "{flags:?}: {out}");
    }
}

#[tokio::test]
async fn a_server_over_tls_is_trusted_if_somebody_says_so() {
    let up = up(&["--secure-serving"]).await;
    let url = format!("https://{}", up.client.address());
    let output = piped(&[&url, "--insecure", "--max-tokens=4"], &[], "Hello").await;
    assert_eq!(said(&output).0, Some(0), "{output:?}");
    let output = piped(&[&url], &[], "Hello").await;
    assert_eq!(said(&output).0, Some(1), "{output:?}");
    assert!(said(&output).2.contains("certificate"), "{output:?}");
}

#[tokio::test]
async fn a_terminal_shows_a_conversation() {
    let up = up(&["--engine=sim", "--sim-step-ms=20"]).await;
    let tools = tempfile::NamedTempFile::new().unwrap();
    let function = json!({"name": "weather", "parameters": {"type": "object"}});
    let list = json!([{"type": "function", "function": function}]);
    std::fs::write(tools.path(), list.to_string()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/chat_terminal.py");
    let python = std::env::var("STATOR_TEST_PYTHON").expect("tests/run names a Python");
    let url = format!("http://{}", up.client.address());
    let mut command = Command::new(python);
    command.arg(script).arg(binary()).args([&url, MODEL]).arg(tools.path());
    let ran = stator_tests::within(
        std::time::Duration::from_secs(120),
        "the terminal",
        command.kill_on_drop(true).output(),
    );
    let ran = ran.await.unwrap();
    assert!(ran.status.success(), "{}\n{}", String::from_utf8_lossy(&ran.stderr), up.process.log());
}
