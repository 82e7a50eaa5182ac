//! The endpoints that a data plane allows, as it writes them in metadata.

use envoy_types::pb::google::protobuf::Value;
use envoy_types::pb::google::protobuf::value::Kind;
use stator_epp_scheduler::{Subset, SubsetEntry};
use std::net::{IpAddr, SocketAddr};

/// The endpoints in a list of strings, or in one string with commas. What is no address is left
/// out: a choice that we cannot read allows nothing, rather than everything.
pub(crate) fn parse(value: &Value) -> Subset {
    match &value.kind {
        Some(Kind::StringValue(text)) => Subset(entries(text).collect()),
        Some(Kind::ListValue(list)) => {
            let texts = list.values.iter().filter_map(|item| match item.kind.as_ref()? {
                Kind::StringValue(text) => Some(text.as_str()),
                _ => None,
            });
            Subset(texts.flat_map(entries).collect())
        }
        _ => Subset::default(),
    }
}

fn entries(text: &str) -> impl Iterator<Item = SubsetEntry> {
    text.split(',').filter_map(|item| entry(item.trim()))
}

/// `ip:port` or `ip`; an IPv6 address stands in brackets, and may stand without where it has no
/// port.
fn entry(text: &str) -> Option<SubsetEntry> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(SubsetEntry { ip: address.ip(), port: Some(address.port()) });
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    Some(SubsetEntry { ip: bare.parse::<IpAddr>().ok()?, port: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use envoy_types::pb::google::protobuf::ListValue;

    fn value(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }

    fn list(items: Vec<Kind>) -> Value {
        value(Kind::ListValue(ListValue { values: items.into_iter().map(value).collect() }))
    }

    fn text(text: &str) -> Kind {
        Kind::StringValue(text.to_owned())
    }

    fn check(value: &Value, expected: &[(&str, Option<u16>)]) {
        let entry = |&(ip, port): &(&str, Option<u16>)| SubsetEntry {
            ip: ip.parse().expect("the test names an address"),
            port,
        };
        let expected: Vec<_> = expected.iter().map(entry).collect();
        assert_eq!(parse(value).0, expected, "{value:?}");
    }

    #[test]
    fn lists_and_comma_strings_read_alike() {
        let expected = [("10.0.0.1", Some(8000)), ("10.0.0.2", Some(8001))];
        check(&list(vec![text("10.0.0.1:8000"), text("10.0.0.2:8001")]), &expected);
        check(&value(text("10.0.0.1:8000, 10.0.0.2:8001")), &expected);
        check(&list(vec![text("10.0.0.1:8000,10.0.0.2:8001")]), &expected);
    }

    #[test]
    fn an_address_without_a_port_allows_all_its_ports() {
        check(&value(text("10.0.0.1")), &[("10.0.0.1", None)]);
        check(&value(text("fd00::1")), &[("fd00::1", None)]);
        check(&value(text("[fd00::1]")), &[("fd00::1", None)]);
        check(&value(text("[fd00::1]:8000")), &[("fd00::1", Some(8000))]);
    }

    #[test]
    fn what_cannot_be_read_allows_nothing() {
        check(&list(vec![]), &[]);
        check(&value(text("")), &[]);
        check(&value(text("vllm-0:8000,10.0.0.1:99999")), &[]);
        let mixed = list(vec![Kind::NumberValue(1.0), text("nonsense"), text("10.0.0.1:1")]);
        check(&mixed, &[("10.0.0.1", Some(1))]);
        check(&Value { kind: None }, &[]);
        check(&value(Kind::NumberValue(1.0)), &[]);
    }
}
