//! What passes through the gateway of a pool of the cluster: large requests, answers while they are
//! made, trailers, and clients that hang up. The scenarios are those of a picker with a file.

use super::bed::{Fleet, KubeBed};
use crate::epp::bodies::check_bodies;
use crate::epp::streaming::{check_hanging_up, check_large_answer, check_pieces, check_trailers};
use crate::epp::waiting::{ONE_EACH, check_waiting};

#[tokio::test]
async fn bodies_and_streams_pass_whole() {
    let Some(bed) = KubeBed::start(1, 1, &[]).await else { return };
    check_bodies(&bed).await;
    check_pieces(&bed).await;
    check_large_answer(&bed).await;
}

#[tokio::test]
async fn watched_answers_and_trailers_pass_and_clients_may_hang_up() {
    let Some(fleet) = Fleet::start(1, 1).await else { return };
    fleet.apply_pool("pool", "engine").await;
    let flags = ["--response-path=body", &format!("--config-text={ONE_EACH}")];
    let bed = KubeBed::of(fleet, &flags, |settings, _| settings.upstream_http2 = true).await;
    let Some(bed) = bed else { return };
    check_bodies(&bed).await;
    check_pieces(&bed).await;
    check_large_answer(&bed).await;
    check_trailers(&bed).await;
    check_hanging_up(&bed).await;
    check_waiting(&bed).await;
}
