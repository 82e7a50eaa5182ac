//! The list of a server's models, and the choice among them.

use serde::Deserialize;

/// Most model names in an error message.
const NAMED_MAX: usize = 8;

/// `GET /v1/models`.
#[derive(Debug, Deserialize)]
pub(super) struct Models {
    data: Vec<Model>,
}

/// One model, with the fields used here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Model {
    pub(super) id: String,
    pub(super) owned_by: Option<String>,
    /// Most tokens of prompt and answer together.
    pub(super) max_model_len: Option<u32>,
    /// The model that a LoRA adapter is for.
    parent: Option<String>,
}

impl Model {
    /// Whether the server is known to separate prefixes by `cache_salt`.
    pub(super) fn takes_cache_salt(&self) -> bool {
        matches!(self.owned_by.as_deref(), Some("vllm" | "sglang"))
    }
}

impl Models {
    /// The model named `wanted`, or the only one, and its adapters. Where the only model has
    /// another name, `wanted` counts as an alias.
    ///
    /// # Errors
    ///
    /// A message that lists the choices.
    pub(super) fn choose(&self, wanted: Option<&str>) -> Result<(&Model, Vec<String>), String> {
        let mut own = self.data.iter().filter(|model| model.parent.is_none());
        let named = wanted.and_then(|name| own.clone().find(|model| model.id == name));
        let model = match (named, own.next(), own.next()) {
            (Some(model), ..) | (None, Some(model), None) => model,
            (None, None, _) => return Err("the engine serves no model".into()),
            (None, Some(_), Some(_)) => return Err(self.ambiguous(wanted)),
        };
        let adapters = self.data.iter().filter(|other| other.parent.as_ref() == Some(&model.id));
        Ok((model, adapters.map(|adapter| adapter.id.clone()).collect()))
    }

    fn ambiguous(&self, wanted: Option<&str>) -> String {
        let own = self.data.iter().filter(|model| model.parent.is_none());
        let mut names: Vec<_> =
            own.clone().take(NAMED_MAX).map(|model| model.id.as_str()).collect();
        if own.count() > NAMED_MAX {
            names.push("others");
        }
        let names = names.join(", ");
        match wanted {
            Some(wanted) => format!("model-name: {wanted:?} is none of {names}"),
            None => format!("model-name: the engine serves {names}; one is to be named"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ids: &[&str], wanted: Option<&str>) -> Result<(String, Vec<String>), String> {
        let model = |id: &&str| {
            let (id, parent) = id.split_once('<').unwrap_or((id, ""));
            let parent = Some(parent.to_owned()).filter(|parent| !parent.is_empty());
            Model { id: id.to_owned(), parent, ..Model::default() }
        };
        let models = Models { data: ids.iter().map(model).collect() };
        models.choose(wanted).map(|(model, adapters)| (model.id.clone(), adapters))
    }

    fn chosen(id: &str, adapters: &[&str]) -> Result<(String, Vec<String>), String> {
        Ok((id.to_owned(), adapters.iter().map(|id| (*id).to_owned()).collect()))
    }

    #[test]
    fn the_only_model_is_meant_whatever_it_is_called() {
        assert_eq!(check(&["a"], None), chosen("a", &[]));
        assert_eq!(check(&["a"], Some("b")), chosen("a", &[]));
    }

    #[test]
    fn one_of_several_is_named() {
        assert_eq!(check(&["a", "b"], Some("b")), chosen("b", &[]));
        let unnamed = "model-name: the engine serves a, b; one is to be named";
        assert_eq!(check(&["a", "b"], None), Err(unnamed.into()));
        let other = "model-name: \"c\" is none of a, b";
        assert_eq!(check(&["a", "b"], Some("c")), Err(other.into()));
        assert_eq!(check(&[], Some("a")), Err("the engine serves no model".into()));
    }

    #[test]
    fn servers_that_take_a_cache_salt_are_known_by_who_owns_their_models() {
        let takes = |owner: Option<&str>| {
            let owned_by = owner.map(str::to_owned);
            Model { owned_by, ..Model::default() }.takes_cache_salt()
        };
        let owners = [Some("vllm"), Some("sglang"), Some("tensorrt_llm"), Some("llamacpp"), None];
        assert_eq!(owners.map(takes), [true, true, false, false, false]);
    }

    #[test]
    fn adapters_go_with_their_model() {
        let listed = ["a", "x<a", "b", "y<b"];
        assert_eq!(check(&listed[..2], None), chosen("a", &["x"]));
        assert_eq!(check(&listed, Some("b")), chosen("b", &["y"]));
        assert!(check(&listed, Some("x")).is_err(), "an adapter is not a model");
    }

    #[test]
    fn of_many_models_a_few_are_named() {
        let ids: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let said = check(&ids, None).unwrap_err();
        assert!(said.contains("6, 7, others;"), "{said}");
    }
}
