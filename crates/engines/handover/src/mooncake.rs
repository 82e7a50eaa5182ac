//! vLLM's MooncakeConnector: both engines are asked at once and know the transfer by one name. Decode
//! finds prefill at a bootstrap server.
//!
//! Source: `MooncakeConnector` of vLLM 0.32.0.

use serde::Serialize;

/// The parameters of either request.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Parameters<'a> {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    transfer_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_engine_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_bootstrap_addr: Option<&'a str>,
}

/// The parameters of a prefill request.
pub fn prefill(transfer_id: &str) -> Parameters<'_> {
    Parameters {
        do_remote_decode: true,
        do_remote_prefill: false,
        transfer_id,
        remote_engine_id: None,
        remote_bootstrap_addr: None,
    }
}

/// The parameters of the decode request beside it. `bootstrap_addr` is the URL of prefill's server,
/// which knows the engine of prefill's rank as `engine_id`.
pub fn decode<'a>(
    transfer_id: &'a str,
    engine_id: &'a str,
    bootstrap_addr: &'a str,
) -> Parameters<'a> {
    Parameters {
        do_remote_decode: false,
        do_remote_prefill: true,
        transfer_id,
        remote_engine_id: Some(engine_id),
        remote_bootstrap_addr: Some(bootstrap_addr),
    }
}
