//! The server around the streams: draining, and health checks beside it.

use super::director::{Say, Script};
use super::plane::*;
use stator_epp::exchange::Interest;
use stator_epp::ext_proc::ExtProcSettings;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::test]
async fn draining_lets_open_streams_finish() {
    let (mut script, log) = Script::new();
    script.interest = Interest::Headers;
    let (mut served, mut stream) = plane((script, log)).await;
    stream.send([post()]);
    // Whether the stream is open is seen by its count alone, so it is asked by its answer.
    stream.send([request_body("{}", true)]);
    stream.expect(&[&super::show::routed(2), "request_body \"{}\"."]).await;
    served.logged().await;
    served.trigger.set();
    stream.send([ok()]);
    stream.expect(&["response_headers"]).await;
    stream.ends("OK").await;
    within(served.task).await.expect("it does not panic");
}

#[tokio::test]
async fn streams_of_one_connection_do_not_wait_for_each_other() {
    let (mut script, log) = Script::new();
    script.say = Say::Nothing;
    let mut served = Served::start((script, log), ExtProcSettings::default()).await;
    let (mut streams, channel) = (Vec::new(), served.channel().await);
    for _ in 0..20 {
        let mut stream = Stream::on(channel.clone()).await;
        stream.send([post(), request_body("{}", true)]);
        streams.push(stream);
    }
    for _ in &streams {
        assert_eq!(served.logged().await, "POST /v1/completions {}");
    }
}

#[tokio::test]
async fn health_is_told_on_the_same_port() {
    let served = Served::start(Script::new(), ExtProcSettings::default()).await;
    let mut client = HealthClient::new(served.channel().await);
    let service = stator_epp::ext_proc::SERVICE.to_owned();
    let check = || HealthCheckRequest { service: service.clone() };
    let answer = client.check(check()).await.expect("it is known").into_inner();
    assert_eq!(answer.status().as_str_name(), "SERVING");
    served.ready.send_replace(false);
    let answer = client.check(check()).await.expect("it is known").into_inner();
    assert_eq!(answer.status().as_str_name(), "NOT_SERVING");
}

#[tokio::test]
async fn another_method_is_not_there() {
    let served = Served::start(Script::new(), ExtProcSettings::default()).await;
    let mut grpc = tonic::client::Grpc::new(served.channel().await);
    grpc.ready().await.expect("the server listens");
    let path = format!("/{}/Other", stator_epp::ext_proc::SERVICE);
    let path = path.parse().expect("it is a path");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
    let request = tonic::Request::new(HealthCheckRequest::default());
    let status = grpc.unary(request, path, codec).await.expect_err("there is no such method");
    assert_eq!(status.code(), tonic::Code::Unimplemented);
}

#[tokio::test]
async fn a_stream_that_panics_ends_no_other_of_its_connection() {
    let (mut script, log) = Script::new();
    script.say = Say::Panic("bad");
    let mut served = Served::start((script, log), ExtProcSettings::default()).await;
    let channel = served.channel().await;
    let (mut good, mut bad) = (Stream::on(channel.clone()).await, Stream::on(channel).await);
    bad.send([post(), request_body("bad", true)]);
    served.logged().await;
    assert!(within(bad.next()).await.is_err());
    good.send([post(), request_body("good", true)]);
    good.expect(&[&super::show::routed(4), "request_body \"good\"."]).await;
}
