//! The hashes of a prompt's blocks, as a data plane writes them in metadata.

use envoy_types::pb::google::protobuf::Value;
use envoy_types::pb::google::protobuf::value::Kind;

/// Namespace of what a stage before the picker tells of a request.
///
/// Source: the routing metadata of the llm-d router.
pub(crate) const NAMESPACE: &str = "llm-d.routing";
/// The hashes in it.
pub(crate) const KEY: &str = "prefix_hashes";

/// Most hashes that are read of one request.
const HASHES_MAX: usize = 65_536;

/// The hashes in a list of decimal numbers, each a string: a number of metadata holds no 64 bits.
/// What follows a string that is no number is left out, as it hangs together with that.
pub(crate) fn parse(value: &Value) -> Vec<u64> {
    let Some(Kind::ListValue(list)) = &value.kind else { return Vec::new() };
    let hash = |item: &Value| match item.kind.as_ref()? {
        Kind::StringValue(text) => text.parse().ok(),
        _ => None,
    };
    list.values.iter().take(HASHES_MAX).map_while(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use envoy_types::pb::google::protobuf::ListValue;

    fn check(items: &[&str], hashes: &[u64]) {
        let value = |kind| Value { kind: Some(kind) };
        let text = |item: &&str| value(Kind::StringValue((*item).to_owned()));
        let list = ListValue { values: items.iter().map(text).collect() };
        assert_eq!(parse(&value(Kind::ListValue(list))), hashes);
    }

    #[test]
    fn a_chain_is_read_up_to_what_is_no_hash() {
        check(&["1", "18446744073709551615"], &[1, u64::MAX]);
        check(&["1", "x", "3"], &[1]);
        check(&["-1", "3"], &[]);
        check(&[], &[]);
        assert!(parse(&Value { kind: Some(Kind::StringValue("1".into())) }).is_empty());
        assert!(parse(&Value { kind: None }).is_empty());
        let many = vec!["7"; HASHES_MAX + 1];
        check(&many, &vec![7; HASHES_MAX]);
    }
}
