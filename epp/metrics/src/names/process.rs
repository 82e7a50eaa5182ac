//! Streams of data planes, and the process.

use super::{TwinLabels, alpha, own, twin};
use crate::exposition::Metric;

const BUILD: TwinLabels = &[("commit", "commit"), ("build_ref", "build_ref")];
const SOURCE: TwinLabels = &[("source_type", "source_type")];
const EXTRACTOR: TwinLabels = &[SOURCE[0], ("extractor_type", "extractor_type")];

pub(crate) const STREAMS: Metric =
    alpha("llm_d_epp_extproc_streams", "Streams of data planes that ended, by gRPC status");
pub(crate) const STREAMS_INFLIGHT: Metric =
    alpha("llm_d_epp_extproc_streams_inflight", "Streams of data planes that are open");
pub(crate) const STREAM_DURATION: Metric =
    alpha("llm_d_epp_extproc_stream_duration_seconds", "Seconds that a stream was open");
pub(crate) const REQUEST_PROCESSING: Metric = alpha(
    "llm_d_epp_request_processing_duration_seconds",
    "Seconds that the picker takes from a request's head until its body is sent on",
);
pub(crate) const RESPONSE_PROCESSING: Metric = alpha(
    "llm_d_epp_response_processing_duration_seconds",
    "Seconds of the picker's work on an answer",
);
pub(crate) const POLL_ERRORS: Metric = twin(
    alpha("llm_d_epp_datalayer_poll_errors", "Reads of a data source that failed"),
    "llm_d_inference_scheduler_datalayer_poll_errors",
    SOURCE,
);
pub(crate) const EXTRACT_ERRORS: Metric = twin(
    alpha("llm_d_epp_datalayer_extract_errors", "Answers of a data source that lacked something"),
    "llm_d_inference_scheduler_datalayer_extract_errors",
    EXTRACTOR,
);
pub(crate) const INFO: Metric = twin(
    alpha("llm_d_epp_info", "The build that runs; always 1"),
    "inference_extension_info",
    BUILD,
);
pub(crate) const PICKS_HONOURED: Metric =
    own("stator_epp_picks_honoured", "Answers that came from the endpoint that was picked");
pub(crate) const PICKS_NOT_HONOURED: Metric =
    own("stator_epp_picks_not_honoured", "Answers that came from another endpoint than the picked");
pub(crate) const FIELDS_REMOVED: Metric = own(
    "stator_epp_fields_removed",
    "Fields removed from request bodies before an engine got them",
);
pub(crate) const TOKENIZATION: Metric =
    own("stator_epp_tokenization", "Requests by how their prompt was turned into tokens");
pub(crate) const WITHOUT_BODY: Metric = own(
    "stator_epp_requests_placed_without_body",
    "Requests placed by their heads because the data plane sends their bodies later or never",
);
pub(crate) const BODIES_UNSCREENED: Metric = own(
    "stator_epp_bodies_unscreened",
    "Request bodies that reached an endpoint with fields that nobody checked: the data plane keeps \
     them to itself, or nobody can read them",
);
pub(crate) const REWRITES_LOST: Metric = own(
    "stator_epp_model_rewrites_lost",
    "Requests whose body went on unread although a model rewrite may have concerned it",
);
