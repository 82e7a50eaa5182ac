//! KV that the agent cannot keep, told by the words of its form.

/// The reason why the agent keeps no KV of this form, if there is one.
///
/// A form is words like `groups=1`. A word that is missing is no reason: other engines have other
/// words.
pub(super) fn objection(form: &str) -> Option<&'static str> {
    let word = |name: &str| {
        form.split(' ').find_map(|word| word.split_once('=').filter(|(of, _)| *of == name))
    };
    let is = |name: &str, unfit: &dyn Fn(&str) -> bool| word(name).is_some_and(|(_, of)| unfit(of));
    let objections: [(&str, bool); 5] = [
        (
            // Other hashes differ between engines and between starts of one.
            "--prefix-caching-hash-algo has to be sha256_cbor",
            is("hash", &|hash| !hash.starts_with("sha256")),
        ),
        (
            // vLLM on a CPU answers otherwise after a state that it kept by itself than without one:
            // nothing would show that a state of the agent's is wrong.
            "the model has layers with a state (Mamba and its like), which is not kept",
            is("groups", &|groups| groups.contains("Mamba")),
        ),
        (
            "the engine has the modules of an older agent, which know one group of KV",
            is("groups", &|groups| groups.parse().is_ok_and(|count: u32| count > 1)),
        ),
        (
            "canonical_layout is set, whose rows the agent does not know",
            is("canonical", &|of| of == "True"),
        ),
        (
            "blocks_per_chunk has to be 1 on a CPU",
            is("platform", &|of| of == "cpu") && is("blocks", &|blocks| blocks != "1"),
        ),
    ];
    objections.into_iter().find(|(_, is_so)| *is_so).map(|(why, _)| why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str =
        "vllm=0.32.0 platform=cpu hash=sha256_cbor groups=1 blocks=1 canonical=False";

    #[test]
    fn what_cannot_be_kept_is_named() {
        let because = |from, to| objection(&FORM.replace(from, to));
        assert_eq!((objection(FORM), objection("tiny")), (None, None));
        assert!(because("sha256_cbor", "xxhash").unwrap().contains("sha256_cbor"));
        assert!(because("groups=1", "groups=2").unwrap().contains("older agent"));
        let windows = "groups=FullAttentionSpec:32:None,SlidingWindowSpec:32:64";
        assert_eq!(because("groups=1", windows), None);
        let state = "groups=FullAttentionSpec:544:None,MambaSpec:544:1";
        assert!(because("groups=1", state).unwrap().contains("state"));
        assert!(because("False", "True").unwrap().contains("canonical_layout"));
        assert!(because("blocks=1", "blocks=4").unwrap().contains("blocks_per_chunk"));
        assert_eq!(objection("platform=cuda hash=sha256 groups=1 blocks=4"), None);
    }
}
