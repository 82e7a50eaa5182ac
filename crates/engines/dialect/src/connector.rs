//! KV connectors of engines, and the names of requests that two engines share.

use crate::Fault;
use std::hash::BuildHasher;

/// KV connector of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connector {
    /// The engine's name for the connector: `NixlConnector`, `MooncakeConnector`; for SGLang and
    /// TensorRT-LLM the transfer backend.
    pub name: String,
    /// Part of a request that the engine takes.
    pub role: Role,
    /// Address under which decoding engines find this one, as the connector wants it: a vLLM's
    /// Mooncake bootstrap server, `http://host:8998`. `None` is the engine's default address.
    pub bootstrap: Option<String>,
}

impl Connector {
    /// Checks that an engine with connector `own` can decode after a prefill through `theirs`, and
    /// returns `own`.
    ///
    /// # Errors
    ///
    /// [`Fault::Unsupported`] says why it cannot.
    pub(crate) fn decodes_after<'a>(
        own: Option<&'a Self>,
        theirs: &str,
    ) -> Result<&'a Self, Fault> {
        let why = match own {
            None => "this engine has no connector".into(),
            Some(own) if !own.role.decodes() => "this engine only computes prompts".into(),
            Some(own) if own.name != theirs => format!("{theirs} there, {} here", own.name),
            Some(own) => return Ok(own),
        };
        Err(Fault::Unsupported(why))
    }
}

/// Part of a request that an engine takes when two share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The engine computes prompts.
    Prefill,
    /// The engine produces tokens.
    Decode,
    /// The engine does either.
    Both,
}

impl Role {
    pub(crate) fn prefills(self) -> bool {
        self != Self::Decode
    }

    pub(crate) fn decodes(self) -> bool {
        self != Self::Prefill
    }
}

/// Names for requests that two engines share, unlike those of any other agent: a counter that
/// starts at a random number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names(u64);

impl Names {
    pub(crate) fn new() -> Self {
        // The hasher's keys are random.
        Self(std::hash::RandomState::new().hash_one(()))
    }

    pub(crate) fn of(self, request: u64) -> u64 {
        self.0.wrapping_add(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_decodes_has_the_connector_of_who_prefilled() {
        let own = |role| Connector { name: "one".into(), role, bootstrap: None };
        let check = |own: Option<&Connector>, theirs: &str| {
            Connector::decodes_after(own, theirs).map(drop).map_err(|fault| fault.to_string())
        };
        assert_eq!(check(Some(&own(Role::Decode)), "one"), Ok(()));
        assert_eq!(check(Some(&own(Role::Both)), "one"), Ok(()));
        assert_eq!(check(Some(&own(Role::Both)), "two"), Err("two there, one here".into()));
        let prefills = check(Some(&own(Role::Prefill)), "one");
        assert_eq!(prefills, Err("this engine only computes prompts".into()));
        assert_eq!(check(None, "one"), Err("this engine has no connector".into()));
    }

    #[test]
    fn agents_name_their_requests_differently() {
        let (one, other) = (Names::new(), Names::new());
        assert_ne!(one.of(1), other.of(1));
        assert_eq!(one.of(3).wrapping_sub(one.of(1)), 2);
    }
}
