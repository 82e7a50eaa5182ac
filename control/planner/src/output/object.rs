//! Objects whose replicas are workers of one role.

use crate::replicas::{ROLES, role_name};
use stator_protos::discovery::Role;

/// Short names of resources.
const KNOWN: [(&str, &str); 4] = [
    ("deployment", "apps/v1/deployments"),
    ("statefulset", "apps/v1/statefulsets"),
    ("leaderworkerset", "leaderworkerset.x-k8s.io/v1/leaderworkersets"),
    ("dgdsa", "nvidia.com/v1alpha1/dynamographdeploymentscalingadapters"),
];

/// An object whose replicas are the workers of one role of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScaleObject {
    pub(super) model: String,
    pub(super) role: Role,
    /// `GROUP/VERSION/PLURAL`.
    resource: String,
    name: String,
}

impl ScaleObject {
    /// Reads `ROLE=RESOURCE/NAME`, with `@MODEL` behind it if there are several models.
    pub(crate) fn parse(text: &str, models: &[String]) -> Result<Self, String> {
        let (object, model) = match text.split_once('@') {
            Some((object, model)) => (object, model),
            None => match models {
                [only] => (text, only.as_str()),
                _ => return Err("models has several: @MODEL says which".into()),
            },
        };
        if !models.iter().any(|known| known == model) {
            return Err(format!("{model:?} is none of models"));
        }
        let parts = object.split_once('=').and_then(|(role, place)| {
            place.rsplit_once('/').map(|(resource, name)| (role, resource, name))
        });
        let Some((role, resource, name)) = parts else {
            return Err("is not ROLE=RESOURCE/NAME".into());
        };
        let role = ROLES.into_iter().find(|known| role_name(*known) == role);
        let role = role.ok_or("the role is none of prefill, decode, aggregated")?;
        let known = KNOWN.iter().find(|(short, _)| *short == resource);
        let resource = known.map_or(resource, |(_, long)| long);
        let plain = |c: char| c.is_ascii_alphanumeric() || "-./".contains(c);
        if resource.split('/').count() != 3 || name.is_empty() || !object_is(resource, name, plain)
        {
            let short: Vec<_> = KNOWN.iter().map(|(short, _)| *short).collect();
            return Err(format!(
                "the resource is none of {}, GROUP/VERSION/PLURAL",
                short.join(", ")
            ));
        }
        Ok(Self { model: model.into(), role, resource: resource.into(), name: name.into() })
    }

    /// Whether its replicas are these workers.
    pub(crate) fn scales(&self, model: &str, role: Role) -> bool {
        self.model == model && self.role == role
    }

    /// Path of its scale.
    pub(super) fn path(&self, namespace: &str) -> String {
        let Self { resource, name, .. } = self;
        let (version, plural) = resource.rsplit_once('/').unwrap_or_default();
        format!("/apis/{version}/namespaces/{namespace}/{plural}/{name}/scale")
    }

    /// Its name for people.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.resource, self.name)
    }
}

fn object_is(resource: &str, name: &str, plain: impl Fn(char) -> bool) -> bool {
    resource.chars().all(&plain) && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_nobody_can_have_are_refused_with_a_reason() {
        let models = ["m".to_owned(), "org/n".to_owned()];
        let check = |text: &str, expected: &str| {
            let fault = ScaleObject::parse(text, &models).expect_err(text);
            assert!(fault.contains(expected), "{text}: {fault}");
        };
        check("decode=deployment/a", "@MODEL");
        check("decode=deployment/a@x", "none of models");
        check("decoder=deployment/a@m", "none of prefill");
        check("decode=pod/a@m", "none of deployment");
        check("decode=deployment/a?b@m", "none of deployment");
        check("deployment@m", "is not ROLE=RESOURCE/NAME");
        let fine = ScaleObject::parse("decode=a.b/v1/cs/d@org/n", &models).expect("it is fine");
        assert_eq!(fine.path("n"), "/apis/a.b/v1/namespaces/n/cs/d/scale");
    }
}
