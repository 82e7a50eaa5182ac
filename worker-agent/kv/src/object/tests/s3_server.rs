//! An S3 server that may answer anything: as much of the protocol as the tier speaks, over plain TCP.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Fault of the answer to a request for a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// "503 Slow Down".
    Unavailable,
    /// "404 Not Found".
    Missing,
    /// Never an answer.
    Hang,
    /// Half of the body, then silence.
    Stall,
    /// Half of the body, then the end of the connection.
    CutBody,
    /// A content length of half the range, and so many bytes.
    ShortLength,
    /// A content length of twice the range, and the end of the connection behind the range.
    LongLength,
    /// One bit of the body is another.
    FlipBit,
    /// The range begins one byte further on.
    ShiftRange,
    /// The whole object, with "200 OK".
    WholeObject,
    /// The bytes of another object, as far as there are any.
    OtherObject,
    /// No HTTP.
    Garbage,
}

impl Fault {
    /// All faults.
    pub(crate) const ALL: [Self; 12] = [
        Self::Unavailable,
        Self::Missing,
        Self::Hang,
        Self::Stall,
        Self::CutBody,
        Self::ShortLength,
        Self::LongLength,
        Self::FlipBit,
        Self::ShiftRange,
        Self::WholeObject,
        Self::OtherObject,
        Self::Garbage,
    ];
}

type Faults = Box<dyn FnMut() -> Option<Fault> + Send>;

/// The server's objects, and what is wrong with its next answers.
pub(crate) struct FaultyS3 {
    pub(crate) url: String,
    pub(crate) objects: Mutex<BTreeMap<String, Vec<u8>>>,
    faults: Mutex<Faults>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    range: Option<Range<usize>>,
    is_create: bool,
    body: Vec<u8>,
}

impl FaultyS3 {
    /// Starts a server without objects and faults. It ends with its runtime.
    pub(crate) async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Arc::new(Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            objects: Mutex::default(),
            faults: Mutex::new(Box::new(|| None)),
        });
        let serving = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = Arc::clone(&serving);
                tokio::spawn(async move { server.serve(stream).await });
            }
        });
        server
    }

    /// Asks `faults` for the fault of each answer to a request for a range.
    pub(crate) fn set_faults(&self, faults: impl FnMut() -> Option<Fault> + Send + 'static) {
        *self.faults.lock() = Box::new(faults);
    }

    async fn serve(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some(request) = read_request(&mut stream).await {
            let is_read = request.method == "GET" && request.range.is_some();
            let fault = if is_read { (self.faults.lock())() } else { None };
            let (answer, goes_on) = match fault {
                Some(Fault::Hang) => (Vec::new(), true),
                Some(fault) => (self.answer_wrong(&request, fault), fault == Fault::Stall),
                None => (self.answer(&request), false),
            };
            if stream.write_all(&answer).await.is_err() {
                return;
            }
            if goes_on {
                // The client gives up in the end, and this read with it.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
            if fault.is_some() {
                return;
            }
        }
    }

    fn answer(&self, request: &Request) -> Vec<u8> {
        let mut objects = self.objects.lock();
        match request.method.as_str() {
            "PUT" if request.is_create && objects.contains_key(&request.path) => {
                answer("412 Precondition Failed", "", b"")
            }
            "PUT" => {
                objects.insert(request.path.clone(), request.body.clone());
                answer("200 OK", "ETag: \"1\"\r\n", b"")
            }
            "GET" if request.query.contains("list-type=2") => {
                answer("200 OK", "", list(&objects, &request.query).as_bytes())
            }
            "GET" | "HEAD" => match objects.get(&request.path) {
                None => answer("404 Not Found", "", b""),
                Some(object) => {
                    let range = request.range.clone().unwrap_or(0..object.len());
                    if request.range.is_some() && range.start >= object.len() {
                        return answer("416 Range Not Satisfiable", "", b"");
                    }
                    let range = range.start..range.end.min(object.len());
                    let mut bytes = partial(&object[range.clone()], &range, object.len());
                    if request.method == "HEAD" || request.range.is_none() {
                        bytes = answer("200 OK", META, object);
                    }
                    if request.method == "HEAD" {
                        bytes.truncate(bytes.len() - object.len());
                    }
                    bytes
                }
            },
            _ => answer("405 Method Not Allowed", "", b""),
        }
    }

    fn answer_wrong(&self, request: &Request, fault: Fault) -> Vec<u8> {
        let objects = self.objects.lock();
        let object = objects.get(&request.path).cloned().unwrap_or_default();
        let other =
            objects.iter().find(|(path, _)| **path != request.path && !path.contains("/index/"));
        let range = request.range.clone().unwrap_or_default();
        let range = range.start.min(object.len())..range.end.min(object.len());
        let (body, total) = (&object[range.clone()], object.len());
        let mut right = partial(body, &range, total);
        let half = right.len() - body.len() / 2;
        match fault {
            Fault::Unavailable => answer("503 Slow Down", "", b""),
            Fault::Missing => answer("404 Not Found", "", b""),
            Fault::Hang => Vec::new(),
            Fault::Garbage => b"220 ready for mail\r\n\r\n".to_vec(),
            Fault::Stall | Fault::CutBody => right[..half].to_vec(),
            Fault::FlipBit => {
                // An answer may have no body.
                if let Some(byte) = right.get_mut(half) {
                    *byte ^= 1;
                }
                right
            }
            Fault::ShortLength => {
                let shorter = &body[..body.len() / 2];
                let headers = format!("Content-Range: {}\r\n{META}", content_range(&range, total));
                answer("206 Partial Content", &headers, shorter)
            }
            Fault::LongLength => {
                let text = |length| format!("Content-Length: {length}\r\n").into_bytes();
                let head = right.len() - body.len();
                let head = String::from_utf8(right[..head].to_vec()).unwrap();
                let [told, lie] = [text(body.len()), text(2 * body.len())]
                    .map(|text| String::from_utf8(text).unwrap());
                [head.replace(&told, &lie).as_bytes(), body].concat()
            }
            Fault::ShiftRange => {
                let shifted = (range.start + 1).min(total)..(range.end + 1).min(total);
                partial(&object[shifted.clone()], &shifted, total)
            }
            Fault::WholeObject => answer("200 OK", META, &object),
            Fault::OtherObject => {
                let other = other.map(|(_, object)| object.clone()).unwrap_or_default();
                let mut bytes = vec![0; total];
                let shared = total.min(other.len());
                bytes[..shared].copy_from_slice(&other[..shared]);
                partial(&bytes[range.clone()], &range, total)
            }
        }
    }
}

const META: &str = "ETag: \"1\"\r\nLast-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\n";

fn content_range(range: &Range<usize>, total: usize) -> String {
    format!("bytes {}-{}/{total}", range.start, range.end.saturating_sub(1))
}

fn partial(body: &[u8], range: &Range<usize>, total: usize) -> Vec<u8> {
    let headers = format!("Content-Range: {}\r\n{META}", content_range(range, total));
    answer("206 Partial Content", &headers, body)
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn list(objects: &BTreeMap<String, Vec<u8>>, query: &str) -> String {
    let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix="));
    let prefix = prefix.unwrap_or_default().replace("%2F", "/");
    let mut xml = String::from("<ListBucketResult><IsTruncated>false</IsTruncated>");
    for (path, object) in objects {
        let key = path.strip_prefix("/blocks/").unwrap_or_default();
        if key.starts_with(&prefix) {
            // Two versions of an object differ in their sizes, as far as the tests need.
            xml.push_str(&format!(
                "<Contents><Key>{key}</Key><Size>{0}</Size><ETag>\"{0}\"</ETag>\
                 <LastModified>2026-10-21T07:28:00.000Z</LastModified></Contents>",
                object.len()
            ));
        }
    }
    xml + "</ListBucketResult>"
}

/// The next request of a connection; none at its end.
async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let mut request =
        Request { method, path, query, range: None, is_create: false, body: Vec::new() };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => request.body = vec![0; value.parse().ok()?],
            "if-none-match" => request.is_create = value == "*",
            "range" => {
                let (start, end) = value.strip_prefix("bytes=")?.split_once('-')?;
                let last: usize = end.parse().ok()?;
                request.range = Some(start.parse().ok()?..last + 1);
            }
            _ => {}
        }
    }
    stream.read_exact(&mut request.body).await.ok()?;
    Some(request)
}
