//! Paths of the open inference protocol.

use stator_api::kserve::MODEL_VERSION;

/// Operation of a path of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InferRoute<'a> {
    /// Name and version of this server.
    Server,
    /// Whether the process runs.
    Live,
    /// Whether requests are welcome.
    Ready,
    /// The description of a model.
    Model(&'a str),
    /// Whether a model has a worker that takes requests.
    ModelReady(&'a str),
    /// A call with tensors.
    Infer(&'a str),
    /// A call in Triton's flat form.
    Generate(&'a str),
    /// A call in that form, whose answer comes in pieces.
    GenerateStream(&'a str),
}

impl<'a> InferRoute<'a> {
    /// Finds the route; none for a path that is not the protocol's.
    pub(crate) fn find(path: &'a str) -> Option<Self> {
        match path {
            "/v2" => return Some(Self::Server),
            "/v2/health/live" => return Some(Self::Live),
            "/v2/health/ready" => return Some(Self::Ready),
            _ => {}
        }
        let model = path.strip_prefix("/v2/models/").filter(|model| !model.is_empty())?;
        let known = model.rsplit_once('/').filter(|(model, _)| !model.is_empty());
        Some(match known {
            Some((model, "ready")) => Self::ModelReady(unversioned(model)),
            Some((model, "infer")) => Self::Infer(unversioned(model)),
            Some((model, "generate")) => Self::Generate(unversioned(model)),
            Some((model, "generate_stream")) => Self::GenerateStream(unversioned(model)),
            _ => Self::Model(unversioned(model)),
        })
    }

    /// Whether the route has a model compute something.
    pub(crate) fn is_call(&self) -> bool {
        matches!(self, Self::Infer(_) | Self::Generate(_) | Self::GenerateStream(_))
    }
}

/// The model's name without the version that there is. With another it is no model's name.
fn unversioned(model: &str) -> &str {
    match model.rsplit_once("/versions/") {
        Some((name, MODEL_VERSION)) if !name.is_empty() => name,
        _ => model,
    }
}
