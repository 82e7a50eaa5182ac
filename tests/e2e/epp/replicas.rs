//! Replicas of the picker share what they sent and what they know.

use super::testbed::{Bed, CHAT, Testbed, chat, metric_is, served_by};
use stator_tests::envoy::{Envoy, EnvoySettings};
use stator_tests::picker::Picker;

/// Flags of a replica that others may join; nobody is at the port that it names.
const FIRST: [&str; 3] = ["--peers=127.0.0.1:1", "--peers-port=0", "--response-path=body"];

/// Another picker for the testbed's engines, joined to the first, and an Envoy that asks it.
async fn join(testbed: &mut Testbed, further: &[&str]) -> Option<(Picker, Envoy)> {
    let event = testbed.picker.process.event("listening for other replicas").await;
    let first = event["address"].as_str().expect("the event has an address");
    let file = format!("--endpoints-file={}", testbed.file.path().display());
    let peers = format!("--peers={first}");
    let flags = [&file, &peers, "--peers-port=0", "--secure-serving=false", FIRST[2]];
    let mut picker = Picker::start(&[&flags[..], further].concat()).await;
    picker.ready().await;
    let envoy = Envoy::start(&EnvoySettings::new(picker.address())).await?;
    Some((picker, envoy))
}

/// One replica sends a long document somewhere; another that joins it sends questions about it
/// there too. Both have these further flags.
async fn check_a_new_replica(further: &[&str]) {
    let flags = [&FIRST[..], further].concat();
    let Some(mut testbed) = Testbed::with_flags(3, &flags).await else { return };
    let long = "A long document that is asked about again and again. ".repeat(400);
    let reply = testbed.chat(&long).await;
    let home = testbed.served_by(&reply);
    testbed.metric_is("llm_d_epp_inflight_requests", 0.0).await;

    let Some((picker, envoy)) = join(&mut testbed, further).await else { return };
    for n in 0..5 {
        let asked = chat("model", &format!("{long} Question {n}?"));
        let reply = envoy.client().post(CHAT, &asked).await;
        assert_eq!(served_by(&reply), Some(testbed.engines[home].address()), "request {n}");
        metric_is(&picker, "llm_d_epp_inflight_requests", 0.0).await;
    }
}

#[tokio::test]
async fn a_new_replica_knows_what_another_sent() {
    check_a_new_replica(&[]).await;
}

#[tokio::test]
async fn a_new_replica_knows_it_with_the_choice_of_llm_d_too() {
    let config =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/epp/configs/llm-d-default.yaml");
    check_a_new_replica(&[&format!("--config-file={config}")]).await;
}

#[tokio::test]
async fn what_one_replica_has_in_flight_counts_for_the_other() {
    let Some(mut testbed) = Testbed::with_flags(2, &FIRST).await else { return };
    let Some((picker, _envoy)) = join(&mut testbed, &[]).await else { return };
    let stream = testbed.open().await;
    metric_is(&picker, "llm_d_epp_inflight_requests", 1.0).await;
    drop(stream);
    metric_is(&picker, "llm_d_epp_inflight_requests", 0.0).await;
}
