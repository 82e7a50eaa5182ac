//! Order of engines' versions.

/// A version that can be compared: numbers, and before a release the words of what leads to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EngineVersion(Vec<(i8, u64)>);

impl EngineVersion {
    /// The order of a version: `0.1.dev7` < `1.3.0rc9` < `1.3.0rc20` < `1.3.0` < `1.3.0.post1`.
    pub(crate) fn of(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let is_digit = first.is_ascii_digit();
            let alike = |c: char| c.is_ascii_digit() == is_digit && (is_digit || c.is_alphabetic());
            let end = rest.find(|c| !alike(c)).unwrap_or(rest.len()).max(first.len_utf8());
            let (part, after) = rest.split_at(end);
            rest = after;
            match part {
                _ if is_digit => parts.push((2, part.parse().unwrap_or(u64::MAX))),
                "dev" => parts.push((-2, 0)),
                "a" | "alpha" | "b" | "beta" | "rc" => parts.push((-1, part.len() as u64)),
                "post" => parts.push((1, 0)),
                _ => {}
            }
        }
        parts.push((0, 0));
        Self(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_in_the_order_of_their_releases() {
        let order = [
            "0.1.dev19262",
            "0.5.6",
            "0.5.6.post2",
            "0.5.10",
            "0.24.0",
            "1.3.0rc9",
            "1.3.0rc20",
            "1.3.0",
            "1.3.1",
        ];
        let versions = order.map(EngineVersion::of);
        assert!(versions.is_sorted(), "{versions:?}");
        assert!(versions.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
