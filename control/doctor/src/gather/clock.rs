//! Clocks of servers, from the `date` of their answers.

use crate::facts::ClockFacts;
use anyhow::{Context, bail};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest head of an answer that is read, bytes.
const HEAD_BYTES_MAX: u64 = 16 << 10;

pub(crate) async fn gather(servers: &[String]) -> Vec<ClockFacts> {
    let mut clocks = Vec::new();
    for server in servers {
        let before = SystemTime::now();
        let date = match tokio::time::timeout(TIMEOUT, date(server)).await {
            Ok(date) => date.map_err(|error| format!("{error:#}")),
            Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        };
        clocks.push(compare(server, date, before, SystemTime::now()));
    }
    clocks
}

/// Compares the date of an answer with the time between the request and the answer.
pub(crate) fn compare(
    server: &str,
    date: Result<String, String>,
    before: SystemTime,
    after: SystemTime,
) -> ClockFacts {
    let ahead = date.and_then(|date| {
        let theirs = httpdate::parse_http_date(&date).map_err(|_| format!("date {date:?}"))?;
        // A date is cut to whole seconds, so the server's time is half a second later on average.
        let theirs = theirs + Duration::from_millis(500);
        let ours = before + after.duration_since(before).unwrap_or_default() / 2;
        Ok(match theirs.duration_since(ours) {
            Ok(ahead) => ahead.as_secs_f64(),
            Err(behind) => -behind.duration().as_secs_f64(),
        })
    });
    ClockFacts { server: server.to_owned(), ahead_s: ahead }
}

/// The `date` of the answer to a `HEAD` request.
async fn date(server: &str) -> anyhow::Result<String> {
    let place = server.strip_prefix("http://").context("only http:// is asked for its clock")?;
    let authority = place.split('/').next().unwrap_or(place);
    let address = match authority.contains(':') {
        true => authority.to_owned(),
        false => format!("{authority}:80"),
    };
    let mut stream = TcpStream::connect(&address).await.with_context(|| address.clone())?;
    let request = format!("HEAD / HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    let ended = stream.take(HEAD_BYTES_MAX).read_to_end(&mut head).await;
    if let Some(date) = date_in(&String::from_utf8_lossy(&head)) {
        return Ok(date);
    }
    ended?;
    bail!("its answer has no date")
}

fn date_in(head: &str) -> Option<String> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    let (_, date) = fields.find(|(name, _)| name.eq_ignore_ascii_case("date"))?;
    Some(date.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn the_clock_is_that_of_the_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let answering = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // A server that closes with something unread resets the connection.
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await.unwrap();
            let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
            let answer = format!("HTTP/1.1 200 OK\r\nDate: {date}\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let clocks = gather(&[server, "https://a".into(), "http://127.0.0.1:1".into()]).await;
        answering.await.unwrap();
        let ahead = clocks[0].ahead_s.clone().unwrap();
        assert!((98.0..=102.0).contains(&ahead), "{ahead}");
        assert!(clocks[1].ahead_s.as_ref().is_err_and(|why| why.contains("only http://")));
        assert!(clocks[2].ahead_s.as_ref().is_err_and(|why| why.contains("127.0.0.1:1")));
    }

    #[test]
    fn a_date_is_compared_with_the_middle_of_the_wait() {
        let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        let date = |s| Ok(httpdate::fmt_http_date(at(s)));
        let ahead = |date, before, after| compare("s", date, at(before), at(after)).ahead_s;
        assert_eq!(ahead(date(100), 99, 101), Ok(0.5));
        assert_eq!(ahead(date(100), 109, 112), Ok(-10.0));
        assert_eq!(ahead(Ok("soon".into()), 0, 0), Err("date \"soon\"".into()));
    }
}
