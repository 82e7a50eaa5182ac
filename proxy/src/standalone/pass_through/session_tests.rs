//! Requests of one session, and the server that has their prompts.

use super::tests::{COMPLETIONS, bed, post};
use crate::upstream::testkit::{DONE, Engine, check_done};

#[tokio::test]
async fn requests_with_the_same_cache_key_stay_with_one_server() {
    let servers = [Engine::start().await, Engine::start().await, Engine::start().await];
    let flags = ["--router-session-affinity-ttl-s=600"];
    let (bed, _agents) = bed(&servers.each_ref(), &flags).await;
    let [one, two, three] = &servers;
    let asked = async || {
        tokio::select! {
            asked = one.asked() => asked,
            asked = two.asked() => asked,
            asked = three.asked() => asked,
        }
    };
    let members = [r#""prompt_cache_key":"a""#, r#""previous_response_id":"resp_b""#];
    let body = |session: usize, turn| {
        format!(r#"{{"model":"m","prompt":"Turn {turn}.",{}}}"#, members[session])
    };
    // Both at once, so that each has a server of its own.
    let mut begun = Vec::new();
    for session in 0..2 {
        let client = post(&bed, COMPLETIONS, "", &body(session, 0)).await;
        begun.push((client, asked().await));
    }
    let mut workers = Vec::new();
    for (client, server) in &mut begun {
        server.answer(200, DONE).await;
        check_done(client).await;
        workers.push(client.header("x-stator-worker-id").expect("a worker").to_owned());
    }
    assert_ne!(workers[0], workers[1]);
    drop(begun);
    for (session, turn) in [(1, 1), (0, 1), (0, 2), (1, 2), (1, 3), (0, 3)] {
        let mut client = post(&bed, COMPLETIONS, "", &body(session, turn)).await;
        asked().await.answer(200, DONE).await;
        check_done(&mut client).await;
        let worker = client.header("x-stator-worker-id");
        assert_eq!(worker, Some(&*workers[session]), "session {session}, turn {turn}");
    }
}
