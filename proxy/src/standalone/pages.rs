//! Pages for people, and the files that they need.

use crate::exchange::Exchange;
use crate::exchange::packing::takes_gzip;
use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderValue, StatusCode, header};
use std::io::Read;

/// Sources of the pages: nothing of other origins, and nobody shows them in a frame. Swagger UI's style has
/// pictures as data.
const PAGE_POLICY: &str = "default-src 'self'; script-src 'self' 'unsafe-inline'; \
                           style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";
/// The files change with the binary only.
const FILE_AGE: &str = "max-age=3600";

/// A page, or a file that one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// A page as it is.
    Html(&'static str),
    /// A file, compressed with gzip.
    File { content_type: &'static str, packed: &'static [u8] },
}

impl Page {
    /// The page or file at a path.
    pub(crate) fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/" => Self::Html(include_str!("page.html")),
            "/docs" => Self::Html(include_str!("docs.html")),
            "/docs/swagger-ui-bundle.js" => Self::File {
                content_type: "text/javascript; charset=utf-8",
                packed: include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui-bundle.js.gz")),
            },
            "/docs/swagger-ui.css" => Self::File {
                content_type: "text/css; charset=utf-8",
                packed: include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui.css.gz")),
            },
            _ => return None,
        })
    }

    pub(crate) async fn answer(self, exchange: &mut Exchange) {
        match self {
            Self::Html(text) => {
                let policy = HeaderValue::from_static(PAGE_POLICY);
                let headers = [(header::CONTENT_SECURITY_POLICY, policy)];
                let body = Bytes::from_static(text.as_bytes());
                exchange.respond(StatusCode::OK, "text/html; charset=utf-8", body, &headers).await;
            }
            Self::File { content_type, packed } => {
                let mut headers = vec![
                    (header::CACHE_CONTROL, HeaderValue::from_static(FILE_AGE)),
                    (header::VARY, HeaderValue::from_static("accept-encoding")),
                ];
                let body = match takes_gzip(exchange.client_head().headers) {
                    true => {
                        let gzip = HeaderValue::from_static("gzip");
                        headers.push((header::CONTENT_ENCODING, gzip));
                        Bytes::from_static(packed)
                    }
                    false => unpacked(packed).into(),
                };
                exchange.respond(StatusCode::OK, content_type, body, &headers).await;
            }
        }
    }
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut bytes).expect("the build has packed it");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_swagger_ui_unpack_to_what_they_are_called() {
        for (path, word) in [
            ("/docs/swagger-ui-bundle.js", "SwaggerUIBundle"),
            ("/docs/swagger-ui.css", ".swagger-ui"),
        ] {
            let Some(Page::File { packed, .. }) = Page::at(path) else { panic!("{path}") };
            let text = String::from_utf8(unpacked(packed)).unwrap();
            assert!(text.contains(word), "{path}");
        }
        assert_eq!(Page::at("/docs/"), None);
    }
}
