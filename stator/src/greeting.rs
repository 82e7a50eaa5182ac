//! The first screen of `stator up`.

use stator_proxy::FirstModel;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Facts about a running `stator up` that its greeting depends on.
pub(crate) struct Greeting {
    /// Workers of all agents together.
    pub workers: u32,
    /// Whether clients need a key.
    pub has_keys: bool,
    /// Whether clients are served over TLS.
    pub is_tls: bool,
}

impl Greeting {
    /// Model, address, a first request, metrics, and how to stop.
    pub(crate) fn text(&self, first: &FirstModel) -> String {
        let FirstModel { name, address } = first;
        let mut address = *address;
        // Not every system can connect to the address that means all of them.
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let (scheme, insecure) = if self.is_tls { ("https", "-k ") } else { ("http", "") };
        let key = if self.has_keys { "-H \"authorization: Bearer $KEY\" " } else { "" };
        let s = if self.workers == 1 { "" } else { "s" };
        format!(
            "stator serves {name} with {} worker{s}.\n\n\
             API      {scheme}://{address}/v1\n\
             metrics  {scheme}://{address}/metrics\n\
             stop     Ctrl-C\n\n\
             curl {insecure}{scheme}://{address}/v1/chat/completions {key}-H 'content-type: application/json' \
             -d '{{\"model\": \"{name}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'\n",
            self.workers,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(address: &str, greeting: &Greeting) -> String {
        let address = address.parse().unwrap();
        greeting.text(&FirstModel { name: "tiny".to_owned(), address })
    }

    #[test]
    fn a_person_learns_model_address_request_metrics_and_end() {
        let plain = Greeting { workers: 2, has_keys: false, is_tls: false };
        let text = text("0.0.0.0:8000", &plain);
        for part in [
            "stator serves tiny with 2 workers.",
            "http://127.0.0.1:8000/v1\n",
            "http://127.0.0.1:8000/metrics",
            "Ctrl-C",
            "curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type",
            r#"{"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}"#,
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn the_request_has_what_the_server_asks_for() {
        let guarded = Greeting { workers: 1, has_keys: true, is_tls: true };
        let text = text("[::]:8000", &guarded);
        assert!(text.contains("with 1 worker.\n"), "{text}");
        assert!(
            text.contains(
                "curl -k https://[::1]:8000/v1/chat/completions -H \"authorization: Bearer $KEY\""
            ),
            "{text}"
        );
    }
}
